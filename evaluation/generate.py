"""A policy's responses to a task's prompts, as the task's records.

    python evaluation/generate.py --task slf5k --data_path posts.json --output_path answers.json --model smollm2

The same command continues an interrupted run: every response is at once in ``<output_path>.journal.jsonl``.
"""

import sys
from dataclasses import MISSING, asdict, dataclass, replace
from pathlib import Path
from typing import Any

from text2grad.configs import TaskConfig, parse, setting
from text2grad.errors import InputError, command
from text2grad.journal import Outcome, map_records
from text2grad.models.answering import (
    AnsweringConfig,
    Chat,
    LocalPolicy,
    Policy,
    PolicyAnswer,
    SamplingConfig,
    load_policy,
)
from text2grad.prompts import asking, carried_words
from text2grad.records import Records, check_output, generation_of, load_records, prompt_of, save_records
from text2grad.tasks import Record, Task, get_task
from text2grad.tasks.base import content_id
from text2grad.tasks.commands import quoted, say_next


@dataclass
class GenerateConfig(TaskConfig):
    """What is asked, and where the answers go."""

    data_path: str = setting(
        MISSING,
        "the task's records; responses in them are ignored, one record per prompt is kept",
        "--dataset_path",
        "--input_file",
    )
    output_path: str = setting(MISSING, "the same records with this policy's responses", "--output_file", "--output")
    policy_prompt: str = setting(
        "", "a file with the words that ask the policy; by default those that it was trained with, or the task's"
    )
    num_samples: int = setting(1, "responses per prompt; above 1 their ids end in @0, @1, …")
    limit: int | None = setting(None, "only the first so many prompts")
    max_prompt_tokens: int | None = setting(
        None, "longer prompts lose the end of x; by default what the model's context allows", "--prompt_max_length"
    )
    skip_empty: bool = setting(False, "leave empty responses out of the file, because annotation refuses them")
    retry_failed: bool = setting(False, "ask again what failed in an earlier run")
    allow_changed: bool = setting(
        False, "go on with another model or other sampling; each record says what wrote its response"
    )


@dataclass(kw_only=True)
class BenchmarkConfig:
    """How much of a benchmark is asked, and where the answers go."""

    output_path: str = setting(
        MISSING, "the answers in the benchmark's own format; EvalPlus' is .jsonl", "--output_file", "--output"
    )
    limit: int | None = setting(None, "only the first so many prompts")
    retry_failed: bool = setting(False, "ask again what failed in an earlier run")


def answer_chats(
    policy: Policy,
    chats: dict[str, Chat],
    sampling: SamplingConfig,
    *,
    journal: str,
    description: str,
    retry_failed: bool = False,
    allow_changed: bool | None = None,
) -> Outcome:
    """Ask the policy every chat once, longest prompts first; a warning tells of answers that its context may not hold.

    Each result holds the fields of ``PolicyAnswer``, the ``model`` that gave it, and how it was sampled.

    Args:
        chats: messages by id; the id also seeds the sampling.
        journal: remembers the answers between runs.
        allow_changed: continue a journal that was begun with another policy or other sampling.
    """
    lengths = {key: policy.length(chat) for key, chat in chats.items()}
    ordered = {key: chats[key] for key in sorted(chats, key=lambda key: -lengths[key])}
    context, wanted = getattr(policy, "context", None), sampling.max_new_tokens or 0
    if over := sum(context is not None and length + wanted > context for length in lengths.values()):
        print(
            f"warning: {over} of {len(chats)} prompts leave less than {wanted} of the {context} tokens that "
            f"{policy.name} holds, and what it writes beyond them is noise; a smaller --max_new_tokens avoids it",
            file=sys.stderr,
        )
    made = {"model": policy.identity, **asdict(sampling)}

    def work(ids: list[str], batch: list[Chat]) -> list[Any]:
        replies = policy(batch, ids, sampling)
        return [made | asdict(reply) if isinstance(reply, PolicyAnswer) else reply for reply in replies]

    return map_records(
        ordered,
        work,
        journal=journal,
        settings={"policy": policy.identity, **asdict(sampling)},
        batch_size=policy.batch_size,
        workers=policy.workers,
        retry_failed=retry_failed,
        allow_changed=allow_changed,
        result_type=dict,
        description=description,
    ).whole()


def answer_benchmark(
    prompts: dict[str, str],
    task: Task,
    config: BenchmarkConfig,
    answering: AnsweringConfig,
    sampling: SamplingConfig,
    max_new_tokens: int,
) -> dict[str, dict[str, Any]]:
    """Results of :func:`answer_chats` by id, in the prompts' order; how many failed is printed.

    The prompts (x by id) are put in the words that the policy was trained with, else in the task's. An answer has
    ``max_new_tokens`` where ``sampling`` names no number.
    """
    from evaluation.results import print_failures  # with numpy, for which no --help should wait

    task = asking(task, carried_words(answering.model))
    outcome = answer_chats(
        load_policy(answering),
        {key: task.messages(x) for key, x in prompts.items()},
        replace(sampling, max_new_tokens=sampling.max_new_tokens or max_new_tokens),
        journal=f"{config.output_path}.journal.jsonl",
        retry_failed=config.retry_failed,
        description=f"{answering.model} answers",
    )
    print_failures(outcome.failures, "answers")
    return {key: outcome.results[key] for key in prompts if key in outcome.results}


def check_samples(number: int, sampling: SamplingConfig) -> None:
    """Raise ``InputError`` where all of so many samples would be equal."""
    if number > 1 and not sampling.temperature:
        raise InputError(f"--num_samples {number}: without a --temperature all would be the same")


def fit(policy: Policy, task: Task, x: str, limit: int | None) -> tuple[Chat, bool]:
    """The chat for prompt x, with x cut at its end where the chat would be longer than ``limit`` tokens."""
    chat, cut = task.messages(x), False
    while limit is not None and isinstance(policy, LocalPolicy) and (excess := policy.length(chat) - limit) > 0:
        x, cut = policy.shorten(x, excess), True
        if not x:
            raise InputError(
                f"--max_prompt_tokens leaves {limit} tokens for a prompt, less than the instruction alone needs"
            )
        chat = task.messages(x)
    return chat, cut


def generate(policy: Policy, source: Records, config: GenerateConfig, sampling: SamplingConfig) -> Records:
    """Answer the prompts of ``source``, write ``config.output_path``, and return what was written."""
    task = asking(get_task(config.task), config.policy_prompt or carried_words(policy.name))
    check_output(config.output_path)
    check_samples(config.num_samples, sampling)
    sampling = replace(sampling, max_new_tokens=sampling.max_new_tokens or task.max_response_tokens)
    chosen = list(source.items())[: config.limit]
    # Of an earlier policy's numbered answers the prompts alone: a number after a number would pair with nothing.
    records: dict[str, Record] = {}
    for key, record in chosen:
        name = str(generation_of(record).get("prompt_id") or key)
        if name in records and task.prompt(records[name]) != task.prompt(record):  # of files that were put together
            name = content_id(name, task.prompt(record))
        records[name] = record
    if task.response_if_any(task.with_response(dict(next(iter(records.values()))), "A")) != "A":
        raise InputError(f"the task {task.name}: its response() does not read what its with_response() writes")
    asked: dict[str, str] = {}
    for key in records:  # evaluation, which pairs answers by their prompts' ids, would refuse them
        if (first := asked.setdefault(prompt_of(_answer_ids(key, config.num_samples)[0]), key)) != key:
            told = f"{source.path}: the ids {first!r} and {key!r} would count as two answers to one prompt"
            raise InputError(f"{told}; rename ids that end in @ and a number")

    limit = config.max_prompt_tokens
    if limit is not None and not isinstance(policy, LocalPolicy):
        raise InputError("--max_prompt_tokens is for models in this process; leave it out with --base_url")
    context = getattr(policy, "context", None)
    if limit is None and context is not None:
        limit = context - sampling.max_new_tokens
        if limit < 1:
            raise InputError(
                f"--max_new_tokens {sampling.max_new_tokens}: {policy.name} holds only {context} tokens in all"
            )
    fitted = {key: fit(policy, task, task.prompt(record), limit) for key, record in records.items()}
    chats = {answer_id: fitted[key][0] for key in records for answer_id in _answer_ids(key, config.num_samples)}

    outcome = answer_chats(
        policy,
        chats,
        sampling,
        journal=f"{config.output_path}.journal.jsonl",
        retry_failed=config.retry_failed,
        allow_changed=config.allow_changed,
        description=f"{policy.name} answers",
    )
    written: dict[str, Record] = {}
    for key, record in records.items():
        for answer_id in _answer_ids(key, config.num_samples):
            reply = outcome.results.get(answer_id)
            if reply is None or (config.skip_empty and not reply["text"].strip()):
                continue
            about = {"id": answer_id, "prompt_id": key, "prompt_cut": fitted[key][1]}
            about |= {name: value for name, value in reply.items() if name != "text"}
            answered = task.with_response(task.training_prompts(record), reply["text"])
            written[answer_id] = {**answered, "generation": about}
    output = Records(written, source.path, source.keyed or config.num_samples > 1)
    save_records(config.output_path, output)
    _print_counts(outcome, chats, fitted, config)
    return output


def _answer_ids(key: str, samples: int) -> list[str]:
    return [key] if samples == 1 else [f"{key}@{sample}" for sample in range(samples)]


def _print_counts(outcome: Outcome, chats: dict, fitted: dict, config: GenerateConfig) -> None:
    replies = outcome.results
    empty = [key for key, reply in replies.items() if not reply["text"].strip()]
    finished = sum(reply["finished"] for reply in replies.values())
    cut = sum(was_cut for _, was_cut in fitted.values())
    print(
        f"{len(replies)} of {len(chats)} responses ({outcome.resumed} from an earlier run), "
        f"{finished} ended by themselves, {cut} prompts cut -> {config.output_path}"
    )
    if empty:
        fate = "left out" if config.skip_empty else "kept; annotation refuses them, --skip_empty leaves them out"
        print(f"{len(empty)} empty responses ({fate}): {', '.join(empty[:5])}{' …' if len(empty) > 5 else ''}")
    for change in outcome.changes:
        told = ", ".join(f"{name} {value}" for name, value in change["settings"].items())
        print(f"from response {change['from_record']} on with other settings: {told}")
    if outcome.failures:
        for key, reason in list(outcome.failures.items())[:5]:
            print(f"failed: {key}: {reason}", file=sys.stderr)
        print(f"{len(outcome.failures)} responses failed; --retry_failed asks for them again", file=sys.stderr)
    own = (Path(__file__).parent / config.task / "evaluate.py").is_file()
    script = f"evaluation/{config.task}/evaluate.py" if own else f"evaluation/evaluate.py --task {quoted(config.task)}"
    say_next(f"python {script} --data_path {quoted(config.output_path)} --system NAME --output_path NAME.result.json")


@command
def main() -> None:
    config, answering, sampling = parse(GenerateConfig, AnsweringConfig, SamplingConfig)
    check_output(config.output_path)
    source = load_records(config.data_path, get_task(config.task), responses=False)
    if not generate(load_policy(answering), source, config, sampling):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
