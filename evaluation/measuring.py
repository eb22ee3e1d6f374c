"""What every task's measurement shares: a system's responses and name, a critic, another system to compare with."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from evaluation.results import (
    Figure,
    ResultConfig,
    check_same_prompts,
    compare,
    figures_of,
    instruments,
    load_responses,
    load_result,
    print_differences,
    print_failures,
    print_next_step,
    save_result,
    writers,
)
from text2grad.configs import setting
from text2grad.critics import CRITIC_FORMS
from text2grad.critics.asking import feedback_on
from text2grad.critics.settings import PromptedCritic
from text2grad.errors import InputError
from text2grad.feedback import Feedback, verdict
from text2grad.models import load_tokenizer
from text2grad.records import check_output, generation_of, prompt_of
from text2grad.sandbox import Sandbox
from text2grad.tasks import Record, Task
from text2grad.token_rewards import scheme_of, token_rewards


@dataclass(kw_only=True)
class MeasureConfig(PromptedCritic, ResultConfig):
    """What is measured, and against what."""

    data_path: str = setting(
        MISSING, "the system's responses, a file in the task's format", "--responses", "--dataset_path", "--input_file"
    )
    critic: str | None = setting(None, f"who gives feedback, which adds δ per token: {CRITIC_FORMS}", "--annotator")
    tokenizer: str = setting("smollm2", "whose tokens δ is counted in; the same for all systems")
    retry_failed: bool = setting(False, "ask the critic again where it failed in an earlier run")
    compare_with: str | None = setting(None, "another system's result file: differences by paired bootstrap")

    @cached_property
    def other(self) -> dict[str, Any]:
        """What ``compare_with`` holds, read once; empty where it names nothing."""
        return load_result(self.compare_with) if self.compare_with else {}


_SILENCE = Feedback("The response is empty.", missing=["an answer"], score=-1.0)


def load_measured_responses(config: MeasureConfig, task: Task) -> dict[str, Record]:
    """The responses by id, once it is sure that their figures can be written and compared."""
    check_output(config.output_path)
    other = config.other  # read before the responses: a mistake in it costs no wait
    records = load_responses(config.data_path, task)
    prompts = _prompts(records, task)
    if other and (other["task"], other["benchmark"]) != (task.name, task.name):
        raise InputError(f"{config.compare_with}: is of {other['benchmark']}; give what this script wrote of the other")
    check_same_prompts(prompts, other, config.compare_with or "")
    if other and not _paired(prompts, other):
        raise InputError(f"{config.compare_with}: has no record in common with {config.data_path}; give both equal ids")
    return records


def _paired(prompts: Mapping[str, str], other: Mapping[str, Any]) -> set[str]:
    """The ids of the prompts that another result has answers to, too."""
    return prompts.keys() & set(map(prompt_of, other["records"]))


def _prompts(records: Mapping[str, Record], task: Task) -> dict[str, str]:
    return {prompt_of(key): task.prompt(record) for key, record in records.items()}


def share_finished(records: Mapping[str, Record]) -> Figure:
    """The share of answers that the policy ended itself, of those where generation recorded it."""
    ended = {key: generation_of(record).get("finished") for key, record in records.items()}
    return Figure.mean({key: value for key, value in ended.items() if value is not None})


_tokenizer = lru_cache(maxsize=1)(load_tokenizer)  # each trivial row would load it again, half a second each time


def critic_figures(
    config: MeasureConfig, records: Mapping[str, Record], task: Task, sandbox: Sandbox | None = None
) -> tuple[dict[str, Figure], dict[str, Any]]:
    """What ``config.critic`` says of the responses, where one is named, in the terms of training.

    Mean δ per token, shares of poor and good tokens, share of quotes found, missing things, verdict on the whole.
    Responses are encoded by ``config.tokenizer``, so that systems with different tokenizers compare. The first four are
    over the tokens (or quotes) of all responses together: a long response weighs more than a short one. No critic is
    asked about a response without text. A journal remembers the feedback, so that none is requested twice.

    Args:
        sandbox: where a critic that needs unit tests runs them; by default one with the usual limits.

    Returns:
        the figures by name; and for the result file the feedback by record id, and why the critic failed where it did.
    """
    if not config.critic:
        return {}, {}
    rules = config.critic == "programmatic"
    options = {"sandbox": sandbox} if rules and sandbox else {}
    tokenizer, critic = _tokenizer(config.tokenizer), config.load_critic(task, **options)
    journal = Path(f"{config.output_path}.{'rules' if rules else 'critic'}.journal.jsonl")  # one may be paid for
    if rules:
        journal.unlink(missing_ok=True)  # it costs nothing, and its rules change with the code
    outcome = feedback_on(
        critic,
        records,
        task,
        journal,
        empty=_SILENCE,
        sandbox=sandbox,
        retry_failed=config.retry_failed,
        description=f"feedback of {critic.name}",
    )
    if not rules:
        print_failures(outcome.failures, "critiques")
    names = ("mean_delta", "poor_tokens", "good_tokens", "spans_found")
    shares: dict[str, dict[str, tuple[float, int]]] = {name: {} for name in names}
    missing: dict[str, float] = {}
    verdicts: dict[str, float] = {}
    for key, stored in outcome.results.items():
        response = task.response(records[key])
        ids = tokenizer.encode(response, add_special_tokens=False) if response.strip() else []  # silence has no δ
        given = task.fields.from_dict(stored)
        rewards = token_rewards(ids, tokenizer, given, task, scheme_of(given))
        shares["mean_delta"][key] = (sum(rewards.values), len(ids))
        shares["poor_tokens"][key] = (sum(value < 0 for value in rewards.values), len(ids))
        shares["good_tokens"][key] = (sum(value > 0 for value in rewards.values), len(ids))
        shares["spans_found"][key] = (rewards.matched, rewards.matched + rewards.unmatched)
        missing[key] = len(given.missing)
        if given.score is not None:
            verdicts[key] = verdict(given).value
    figures = {name: Figure(rows) for name, rows in shares.items()}
    figures["critic_failures"] = Figure.mean({key: float(key in outcome.failures) for key in records})
    written = [key for key in missing if task.response(records[key]).strip()] or [*missing]
    judged = any(key in verdicts for key in written)
    if judged or any(missing[key] for key in written):  # else the critic knows of neither
        figures |= {"missing": Figure.mean(missing), "verdict": Figure.mean(verdicts if judged else {})}
    return figures, {"feedback": outcome.results, "critic_failures": outcome.failures}


def compare_and_save(
    config: MeasureConfig,
    task: Task,
    figures: Mapping[str, Figure],
    records: Mapping[str, Record],
    extra: Mapping[str, Any],
) -> dict[str, Any]:
    """Compare, write the result file, print the figures, and return the result.

    The file holds each prompt once for the report to show, and which models, by their weights, wrote the responses.
    """
    responses = {key: task.response(record) for key, record in records.items()}
    asked = _prompts(records, task)
    compared: dict[str, Any] = {}
    if other := config.other:
        compared = {"system": other["system"], "differences": compare(figures, figures_of(other))}
    alone = len(asked) == len(responses)
    result = save_result(
        config,
        f"on {len(asked)} prompts" if alone else f"on {len(responses)} responses to {len(asked)} prompts",
        task=task.name,
        benchmark=task.name,
        figures=figures,
        responses=responses,
        extra={"prompts": asked, "models": sorted(writers(records)), **extra}
        | ({"compared_with": compared} if compared else {}),
    )
    if compared:
        paired = len(_paired(asked, other))
        where = f" on {paired} of {len(asked)} prompts" if paired < len(asked) else ""
        print_differences(compared["differences"], f"{config.system} minus {compared['system']}{where}:")
        for differing in instruments([result, other]):
            print(f"  what these measure does not compare: {differing}")
    print_next_step(*filter(None, (config.compare_with, config.output_path)), task=task)
    return result
