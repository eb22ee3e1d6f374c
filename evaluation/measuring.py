"""What every task's measurement shares: a system's responses and name, a critic, another system to compare with."""

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass
from functools import lru_cache
from typing import Any

from evaluation.critic_metrics import figures_by_critic
from evaluation.results import (
    Figure,
    compare,
    figures_of,
    load_responses,
    load_result,
    print_differences,
    print_metrics,
    print_next_step,
    prompt_of,
    save_result,
)
from text2grad.configs import setting
from text2grad.critics import CRITIC_FORMS
from text2grad.models import load_tokenizer
from text2grad.records import check_output
from text2grad.tasks import Record, Task


@dataclass
class MeasureConfig:
    """What is measured, and against what."""

    data_path: str = setting(
        MISSING, "the system's responses, a file in the task's format", "--responses", "--dataset_path", "--input_file"
    )
    system: str = setting(MISSING, "the system's name in tables")
    output_path: str = setting(MISSING, "the result file", "--output_file", "--output")
    critic: str | None = setting(None, f"who gives feedback, which adds δ per token: {CRITIC_FORMS}", "--annotator")
    tokenizer: str = setting("smollm2", "whose tokens δ is counted in; the same for all systems")
    retry_failed: bool = setting(False, "ask the critic again where it failed in an earlier run")
    compare_with: str | None = setting(None, "another system's result file: differences by paired bootstrap")


def load_measured_responses(config: MeasureConfig, task: Task) -> dict[str, Record]:
    """The responses by id, once it is sure that their figures can be written and compared."""
    check_output(config.output_path)
    if config.compare_with:
        load_result(config.compare_with)
    return load_responses(config.data_path, task)


def share_finished(records: Mapping[str, Record]) -> Figure:
    """The share of answers that the policy ended itself, of those where generation recorded it."""
    ended = {key: (record.get("generation") or {}).get("finished") for key, record in records.items()}
    return Figure.mean({key: value for key, value in ended.items() if value is not None})


_tokenizer = lru_cache(maxsize=1)(load_tokenizer)  # each trivial row would load it again, half a second each time


def critic_figures(
    config: MeasureConfig, records: Mapping[str, Record], task: Task
) -> tuple[dict[str, Figure], dict[str, Any]]:
    """δ per token by ``config.critic``, where one is named: figures, and what goes beside them into the result file."""
    if not config.critic:
        return {}, {}
    journal = f"{config.output_path}.critic.journal.jsonl"
    tokenizer = _tokenizer(config.tokenizer)
    return figures_by_critic(records, task, config.critic, tokenizer, journal, config.retry_failed)


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
    asked = {prompt_of(key): task.prompt(record) for key, record in records.items()}
    models = {str((record.get("generation") or {}).get("model") or "") for record in records.values()} - {""}
    compared: dict[str, Any] = {}
    if config.compare_with:
        other = load_result(config.compare_with)
        compared = {"system": other["system"], "differences": compare(figures, figures_of(other))}
    result = save_result(
        config.output_path,
        task=task.name,
        benchmark=task.name,
        system=config.system,
        figures=figures,
        responses=responses,
        settings=asdict(config),
        extra={
            "prompts": asked,
            "models": sorted(models),
            **extra,
            **({"compared_with": compared} if compared else {}),
        },
    )
    alone = len(asked) == len(responses)
    count = f"{len(asked)} prompts" if alone else f"{len(responses)} answers to {len(asked)} prompts"
    print_metrics(result["metrics"], f"{config.system} on {count} -> {config.output_path}")
    if compared:
        print_differences(compared["differences"], f"{config.system} minus {compared['system']}:")
    print_next_step(*filter(None, (config.compare_with, config.output_path)), task=task)
    return result
