"""A reward model writes feedback on a file of responses, in process or served. Can be killed and run again.

    python nl_reward_model/infer.py --task my_task.py --model runs/reward_model --data_path responses.json \\
        --output_path feedback.json

Each output row is the input record plus ``prediction`` (what the model wrote), ``predicted`` (the task's feedback
fields as read from it; null where it cannot be read) and ``parse_error`` (why not; null where it can).
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from text2grad.configs import check_given, check_used, parse_for, setting
from text2grad.critics.reward_model.critic import RewardModelCritic, RewardModelDescription
from text2grad.critics.reward_model.prompt import DoesNotFit, RewardPrompt
from text2grad.endpoints.settings import Endpoint
from text2grad.errors import InputError, command, when_interrupted
from text2grad.feedback import FeedbackError
from text2grad.journal import map_records
from text2grad.models import DtypeName, best_device, folded, load_model, load_tokenizer, model_identity
from text2grad.prompts import Prompt, find_prompt, load_prompt
from text2grad.records import Records, check_output, fingerprint, load_records, save_records
from text2grad.safety.redaction import redacted
from text2grad.tasks import Record, Task, get_task
from text2grad.tasks.commands import quoted, say_next, stage_command

WriteFeedback = Callable[[list[Record]], list[str | FeedbackError]]


@dataclass
class InferConfig(Endpoint):
    """Lengths are in tokens; where not given they are those that the model was trained with."""

    model: str = setting("", "the reward model: adapter, merged, or checkpoint folder", "--model_path")
    data_path: str = setting(
        "", "records with responses; annotations in them are kept", "--dataset_path", "--responses"
    )
    output_path: str = setting("", "the records with the model's feedback (JSON or JSONL)", "--output_file")
    limit: int | None = setting(None, "only the first so many records")
    split: Literal["all", "validation"] = setting("all", "all records, or those held out when the model was trained")
    prompt: str = setting(
        "",
        "for a model that is no trained reward model: cot, no_cot, or a prompt file",
        *("--prompt_file", "--prompt_variant"),
    )
    critique: bool = setting(
        True, "for such a model: false asks only for spans; a trained reward model's folder says what it writes"
    )
    constrained: Literal["none", "quotes"] = setting(
        "none", "quotes: the text is JSON with all fields, and every span is a part of the response"
    )
    max_prompt_tokens: int | None = setting(None, "tokens that the prompt may have", "--prompt_max_length")
    max_length: int | None = setting(None, "tokens that prompt and feedback may have together", above=0)
    max_new_tokens: int | None = setting(None, "tokens that the feedback may have", "--max_tokens")
    batch_size: int = setting(8, "responses decoded together")
    lookahead: int = setting(8, "tokens guessed and checked per forward pass; 0 for none", at_least=0)
    dtype: DtypeName = setting("auto", "number type of the weights; auto is what the device is fast in", "--precision")
    gpu_ids: str = setting("", "as in 0,1: the GPUs that hold the model; one, if not given")
    gpu_memory: str = setting("", "as in 30GiB: how much of each GPU the weights may take")
    base_url: str | None = setting(None, "http://HOST:PORT/v1#NAME of a server that runs the model; NAME: --model")
    retry_failed: bool = setting(False, "ask again what failed in an earlier run")
    max_cost_usd: float | None = setting(None, "for --base_url: spend no more than this in one run")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_given(self, "model", "data_path", "output_path")
        if not self.critique and not self.prompt:
            raise InputError("--critique: is for a model that is not a trained reward model; it needs --prompt")
        if self.base_url and "#" not in self.base_url:
            self.base_url += f"#{self.model}"
        if self.base_url and (self.constrained != "none" or self.gpu_ids or self.gpu_memory):
            raise InputError("--constrained, --gpu_ids and --gpu_memory work in process only; leave --base_url out")
        check_used(self, ("max_cost_usd", "--base_url", self.base_url))


def infer(task: str | Task, config: InferConfig) -> None:
    """Write feedback on all records of ``config.data_path``.

    Raises:
        InputError: a file, record or setting that the user has to correct.
    """
    task = get_task(task)
    check_output(config.output_path)
    description, prompt = _described(task, config)
    task = description.task_learnt(task)
    prompt = prompt.bound("whole", task.fields.whole)
    records = _chosen(load_records(config.data_path, task), description, config)
    write = (_served if config.base_url else _in_process)(task, description, prompt, config)

    def length(record_id: str) -> int:
        return len(task.prompt(records[record_id]) + task.response(records[record_id]))

    outcome = map_records(
        {record_id: records[record_id] for record_id in sorted(records, key=length, reverse=True)},
        lambda ids, batch: write(batch),
        journal=f"{config.output_path}.journal.jsonl",
        settings={
            "model": " ".join(filter(None, [redacted(config.base_url), model_identity(config.model)])),
            "prompt": prompt.fingerprint,
            "prompt_max_length": description.prompt_max_length,
            "max_length": description.max_length,
            "max_new_tokens": description.max_new_tokens,
            "constrained": config.constrained,
        },
        batch_size=1 if config.base_url else config.batch_size,  # what is paid for is kept as it comes
        workers=config.concurrency if config.base_url else 0,
        retry_failed=config.retry_failed,
        result_type=str,
        description="feedback",
    ).whole()
    rows = {
        record_id: record | feedback_fields(task, outcome.results.get(record_id), outcome.failures.get(record_id, ""))
        for record_id, record in records.items()
    }
    save_records(config.output_path, records.like(rows))
    _report(task, config, description, rows, len(outcome.failures))


def feedback_fields(task: Task, text: str | None, failure: str = "") -> dict:
    """The fields that a record gains: ``prediction``, ``predicted``, ``parse_error``."""
    if text is None:
        return {"prediction": "", "predicted": None, "parse_error": failure}
    try:
        return {"prediction": text, "predicted": task.fields.to_dict(task.parse_feedback(text)), "parse_error": None}
    except FeedbackError as error:
        return {"prediction": text, "predicted": None, "parse_error": str(error)}


def _described(task: Task, config: InferConfig) -> tuple[RewardModelDescription, Prompt]:
    """How the model was trained, or for any other model what the flags say; and its prompt."""
    if config.prompt:
        prompt = load_prompt(find_prompt(task, "reward_model", config.prompt, config.critique))
        description = RewardModelDescription(
            task=task.name,
            task_source=task.source,
            base_model=config.model,
            prompt_max_length=900,
            max_length=1400,
            shorten="middle",
            max_new_tokens=400,
            critique=config.critique,
        )
    else:
        description, prompt = RewardModelDescription.load(config.model, task)
        if (config.max_new_tokens or description.max_new_tokens) < description.max_new_tokens:
            print(
                f"warning: --max_new_tokens {config.max_new_tokens} is little. This model's feedback takes up to "
                f"{description.max_new_tokens} tokens, and what is cut off cannot be read.",
                file=sys.stderr,
            )
    description.prompt_max_length = config.max_prompt_tokens or description.prompt_max_length
    description.max_length = config.max_length or description.max_length
    description.max_new_tokens = config.max_new_tokens or description.max_new_tokens
    return description, prompt


def _chosen(records: Records, description: RewardModelDescription, config: InferConfig) -> Records:
    known, elsewhere = set(description.data.get("validation_ids", [])), description.data.get("validation_path")
    # Of a file that was all trained on, ids of held-out records are other records' in --validation_path.
    trained_on = elsewhere and description.data.get("hash") == fingerprint(list(records.items()))
    held_out = set() if trained_on else known
    ids = [record_id for record_id in records if config.split == "all" or record_id in held_out]
    chosen = records.like({record_id: records[record_id] for record_id in ids[: config.limit]})
    if not chosen:
        source = elsewhere or description.data.get("path")
        remedy = f"they are in {source}, or give --split all" if known else "give --split all"
        raise InputError(f"{config.data_path}: holds none of the records held out for {config.model}; {remedy}")
    return chosen


def _in_process(task: Task, description: RewardModelDescription, prompt: Prompt, config: InferConfig) -> WriteFeedback:
    critic = RewardModelCritic.load(
        config.model,
        task,
        described=(description, prompt),
        model=_placed(config),
        batch_size=config.batch_size,
        constrained=config.constrained,
        lookahead=config.lookahead,
    )
    return lambda batch: critic.write([*map(task.prompt, batch)], [*map(task.response, batch)], batch)


def _placed(config: InferConfig):
    """The model, merged, on the device or devices that the flags name."""
    import torch

    names, there = config.gpu_ids.replace(" ", "").strip(",").split(","), torch.cuda.device_count()
    if config.gpu_ids and not all(name.isdecimal() and int(name) < there for name in names):
        raise InputError(f"--gpu_ids {config.gpu_ids}: this machine has {there} GPUs; name some, from 0, or none")
    ids = [int(name) for name in names if name]
    if config.gpu_memory and not ids:
        raise InputError("--gpu_memory is for the GPUs that --gpu_ids names")
    if len(ids) < 2 and not config.gpu_memory:
        return load_model(config.model, config.dtype, f"cuda:{ids[0]}" if ids else best_device())
    model = folded(load_model(config.model, config.dtype))
    from accelerate import dispatch_model, infer_auto_device_map

    memory = {number: config.gpu_memory or torch.cuda.mem_get_info(number)[0] for number in ids}
    plan = infer_auto_device_map(model, max_memory=memory, no_split_module_classes=model._no_split_modules)
    if "disk" in plan.values() or "cpu" in plan.values():
        raise InputError(f"--gpu_ids {config.gpu_ids} --gpu_memory {config.gpu_memory}: the weights do not fit there")
    return dispatch_model(model, plan)


def _served(task: Task, description: RewardModelDescription, prompt: Prompt, config: InferConfig) -> WriteFeedback:
    from text2grad.endpoints.client import ChatClient, ChatError

    options, length = config.client_options(), description.prompt_max_length
    client = ChatClient.from_spec(str(config.base_url), max_tokens=description.max_new_tokens, **options)
    asked = RewardPrompt(prompt, task, load_tokenizer(config.model), length, description.shorten)

    def ask(record: Record) -> str | FeedbackError:
        try:
            fields = asked.fit(task.prompt_fields(record), description.max_length - 1)
            with when_interrupted(client.stop):
                return client.complete([asked.message(fields)]).text
        except ChatError as error:
            return FeedbackError(str(error), error.passing)
        except DoesNotFit as error:
            return FeedbackError(str(error))

    return lambda batch: [*map(ask, batch)]


def _report(
    task: Task, config: InferConfig, description: RewardModelDescription, rows: dict[str, Record], failed: int
) -> None:
    readable = sum(row["predicted"] is not None for row in rows.values())
    unreadable = len(rows) - readable - failed
    again = "; --retry_failed asks for them again" if failed and config.base_url else ""
    print(f"feedback on {len(rows)} responses: {readable} readable, {unreadable} not, {failed} failed{again}")
    if unreadable:
        constrain = "" if config.constrained == "quotes" or config.base_url else ", --constrained quotes"
        print(
            f"for more that can be read: --max_new_tokens above {description.max_new_tokens}{constrain}; "
            "with another --output_path"
        )
    print(f"written to {config.output_path}")
    if any(map(task.is_annotated, rows.values())):
        say_next(
            f"compare it with the annotations, {stage_command('metrics', task)} --data_path "
            + quoted(config.output_path, "--output_path", Path(config.output_path).with_suffix(".metrics.json"))
        )


@command
def main(task: str = "") -> None:
    """For the scripts of a task, or with ``--task`` for any."""
    infer(*parse_for(task, InferConfig))


if __name__ == "__main__":
    main()
