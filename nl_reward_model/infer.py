"""Judge a file of responses with a reward model, in process or served. Can be killed and run again.

    python nl_reward_model/infer.py --task my_task.py --model_path runs/reward_model --dataset_path responses.json \\
        --output_file judged.json

Each output row is the input record plus ``prediction`` (what the model wrote), ``predicted`` (the task's feedback
fields as read from it; null where it cannot be read) and ``parse_error`` (why not; null where it can).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from text2grad.configs import TaskConfig, parse
from text2grad.critics.reward_model.critic import CONSTRAINTS, RewardModelCritic, RewardModelDescription
from text2grad.critics.reward_model.prompt import DoesNotFit, RewardPrompt
from text2grad.errors import InputError, command
from text2grad.feedback import FeedbackError
from text2grad.journal import map_records
from text2grad.models import best_device, load_model, load_tokenizer
from text2grad.prompts import Prompt, find_prompt, load_prompt
from text2grad.records import Records, check_writable, load_records, save_records
from text2grad.tasks import Record, Task, get_task

Judge = Callable[[list[Record]], list[str | FeedbackError]]


@dataclass
class InferConfig:
    """Lengths are in tokens; where not given they are those that the model was trained with."""

    model_path: str = field(default="", metadata={"help": "Reward model: adapter, merged, or checkpoint folder."})
    dataset_path: str = field(default="", metadata={"help": "Records with responses; annotated ones can be compared."})
    output_file: str = field(default="", metadata={"help": "Judged records (JSON or JSONL)."})
    batch_size: int = 8
    prompt_max_length: int | None = None
    max_length: int | None = field(default=None, metadata={"help": "Of prompt and judgement together."})
    max_new_tokens: int | None = None
    gpu_ids: str = field(default="", metadata={"help": "As in 0,1: the GPUs that hold the model; one, if not given."})
    gpu_memory: str = field(default="", metadata={"help": "As in 30GiB: how much of each GPU the weights may take."})
    dtype: str = "auto"
    split: str = field(
        default="all", metadata={"help": "all, or validation: the records held out when the model was trained."}
    )
    constrained: str = field(default="none", metadata={"help": f"Decoding: {', '.join(CONSTRAINTS)}."})
    lookahead: int = field(default=4, metadata={"help": "Tokens guessed and checked per forward pass; 0 for none."})
    prompt: str = field(
        default="", metadata={"help": "cot, no_cot or a file: for a model that is not a trained reward model."}
    )
    base_url: str | None = field(default=None, metadata={"help": "A server (http://HOST:PORT/v1) that runs the model."})
    served_model: str = field(default="", metadata={"help": "The model's name there; model_path if not given."})
    concurrency: int = field(default=8, metadata={"help": "Requests in flight to the server."})

    def __post_init__(self) -> None:
        for name in ("model_path", "dataset_path", "output_file"):
            if not getattr(self, name):
                raise InputError(f"--{name}: is not given; see --help")
        if self.split not in ("all", "validation"):
            raise InputError(f"--split: {self.split!r} is not one of all, validation")
        if self.constrained not in CONSTRAINTS:
            raise InputError(f"--constrained: {self.constrained!r} is not one of {', '.join(CONSTRAINTS)}")
        if self.base_url and self.constrained == "quotes":
            raise InputError("--constrained quotes: works in process only; leave --base_url away, or use json")


def infer(task: str | Task, config: InferConfig) -> None:
    """Judge all records of ``config.dataset_path``.

    Raises:
        InputError: a file, record or setting that the user has to mend.
    """
    task = get_task(task)
    check_writable(config.output_file)
    description, file = _describe(task, config)
    records = _chosen(load_records(config.dataset_path, task), description, config)
    prompt = RewardPrompt(
        file, task, load_tokenizer(config.model_path), description.prompt_max_length, description.shorten
    )
    judge, name = (_served if config.base_url else _in_process)(prompt, description, config)

    def work(ids: list[str], batch: list[Record]) -> list[str | FeedbackError]:
        return judge(batch)

    by_length = sorted(
        records, key=lambda record_id: -len(task.prompt(records[record_id]) + task.response(records[record_id]))
    )
    outcome = map_records(
        {record_id: records[record_id] for record_id in by_length},
        work,
        journal=f"{config.output_file}.journal.jsonl",
        settings={
            "model": name,
            "prompt": file.fingerprint,
            "prompt_max_length": description.prompt_max_length,
            "max_length": description.max_length,
            "max_new_tokens": description.max_new_tokens,
            "constrained": config.constrained,
        },
        batch_size=config.concurrency if config.base_url else config.batch_size,
        description="judging",
    )
    rows = {
        record_id: {
            **record,
            **judgement_fields(task, outcome.results.get(record_id), outcome.failures.get(record_id, "")),
        }
        for record_id, record in records.items()
    }
    save_records(config.output_file, records.like(rows))
    parsed = sum(row["predicted"] is not None for row in rows.values())
    print(f"{config.output_file}: {len(rows)} judgements, {parsed} of them readable, {len(outcome.failures)} not made")


def judgement_fields(task: Task, text: str | None, failure: str = "") -> dict:
    """What a judged record has more than the record: ``prediction``, ``predicted``, ``parse_error``."""
    if text is None:
        return {"prediction": "", "predicted": None, "parse_error": failure}
    try:
        return {"prediction": text, "predicted": task.fields.to_dict(task.parse_feedback(text)), "parse_error": None}
    except FeedbackError as error:
        return {"prediction": text, "predicted": None, "parse_error": str(error)}


def _describe(task: Task, config: InferConfig) -> tuple[RewardModelDescription, Prompt]:
    """How the model was trained; for any other model, what the flags say."""
    if config.prompt:
        file = load_prompt(find_prompt(task, "reward_model", config.prompt))
        description = RewardModelDescription(
            task=task.name,
            task_source=task.source,
            base_model=config.model_path,
            prompt_max_length=900,
            max_length=1400,
            shorten="middle",
            max_new_tokens=400,
        )
    else:
        description, file = RewardModelDescription.load(config.model_path, task)
    for name in ("prompt_max_length", "max_length", "max_new_tokens"):
        if getattr(config, name) is not None:
            setattr(description, name, getattr(config, name))
    return description, file


def _chosen(records: Records, description: RewardModelDescription, config: InferConfig) -> Records:
    if config.split == "all":
        return records
    held_out = set(description.data.get("validation_ids", []))
    chosen = records.like({record_id: record for record_id, record in records.items() if record_id in held_out})
    if not chosen:
        raise InputError(
            f"{config.dataset_path}: holds none of the records held out for {config.model_path}; "
            "give the file that it was trained on, or --split all"
        )
    return chosen


def _in_process(prompt: RewardPrompt, description: RewardModelDescription, config: InferConfig) -> tuple[Judge, str]:
    critic = RewardModelCritic(
        _placed(config),
        prompt,
        name=config.model_path,
        max_length=description.max_length,
        max_new_tokens=description.max_new_tokens,
        batch_size=config.batch_size,
        constrained=config.constrained,
        lookahead=config.lookahead,
        examples=description.examples,
    )
    task = prompt.task

    def judge(batch: list[Record]) -> list[str | FeedbackError]:
        return critic.write([task.prompt(item) for item in batch], [task.response(item) for item in batch], batch)

    return judge, config.model_path


def _placed(config: InferConfig):
    """The model, merged, on the device or devices that the flags name."""
    ids = [int(text) for text in config.gpu_ids.split(",") if text.strip()]
    single = f"cuda:{ids[0]}" if ids else best_device()
    spread = len(ids) > 1 or bool(config.gpu_memory and ids)
    model = load_model(config.model_path, config.dtype, None if spread else single)
    if hasattr(model, "merge_and_unload"):
        model = model.merge_and_unload()
    model.requires_grad_(False)
    if not spread:
        return model
    from accelerate import dispatch_model, infer_auto_device_map

    memory = dict.fromkeys(ids, config.gpu_memory) if config.gpu_memory else None
    plan = infer_auto_device_map(model, max_memory=memory, no_split_module_classes=model._no_split_modules)
    if "disk" in plan.values() or "cpu" in plan.values():
        raise InputError(f"--gpu_ids {config.gpu_ids} --gpu_memory {config.gpu_memory}: the weights do not fit there")
    return dispatch_model(model, plan)


def _served(prompt: RewardPrompt, description: RewardModelDescription, config: InferConfig) -> tuple[Judge, str]:
    from text2grad.endpoints.client import ChatClient, ChatError
    from text2grad.feedback import reply_schema

    name = config.served_model or config.model_path
    client = ChatClient(config.base_url, name, concurrency=config.concurrency, max_tokens=description.max_new_tokens)
    task = prompt.task
    schema = reply_schema(task.fields, "no_cot") if config.constrained == "json" else None

    def ask(record: Record) -> str | FeedbackError:
        try:
            fields = prompt.fit(task.prompt_fields(record), description.max_length - 1)
            return client.complete([prompt.message(fields)], schema).text
        except (ChatError, DoesNotFit) as error:
            return FeedbackError(str(error))

    def judge(batch: list[Record]) -> list[str | FeedbackError]:
        with ThreadPoolExecutor(config.concurrency) as pool:
            return list(pool.map(ask, batch))

    return judge, f"{config.base_url}#{name}"


@command
def main() -> None:
    chosen, config = parse(TaskConfig, InferConfig)
    infer(chosen.task, config)


if __name__ == "__main__":
    main()
