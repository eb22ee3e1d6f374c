"""Supervised fine-tuning on a task's references (or good responses): the start of the other methods, and a baseline.

    python nl_gradient_policy_optimization/baselines/sft.py --task slf5k --data_path posts.json --output_dir runs/sft

The result is an adapter (or model) folder that ``--model`` of every other command takes.
"""

from dataclasses import dataclass
from typing import Literal

from trl import SFTConfig, SFTTrainer

from nl_gradient_policy_optimization.baselines.finetuning import PolicyTuning, Row, fine_tune
from nl_gradient_policy_optimization.baselines.pairs import cut_off
from text2grad.configs import parse, setting
from text2grad.errors import InputError, command
from text2grad.records import Records, load_records
from text2grad.tasks import Task, get_task
from text2grad.tasks.commands import quoted


@dataclass
class SFTSettings(PolicyTuning, SFTConfig):
    """Settings of SFT."""

    target: Literal["auto", "reference", "response"] = setting(
        "auto", "what to learn; auto: the reference where there is one, else the response"
    )


def demonstrations(records: Records, task: Task, target: str) -> dict[str, tuple[str, list[str]]]:
    """``(x, [answer])`` by id: each answer once; of responses whose value is known, the best to each prompt.

    Responses that the length limit cut off are left out: they would be learnt with an end token.
    """
    chosen: dict[str, tuple[str, list[str]]] = {}
    seen = set()
    values = {key: task.known_value(record) for key, record in records.items() if not cut_off(record)}
    best: dict[str, float] = {}
    for key, value in values.items():
        if value is not None:
            prompt = task.prompt(records[key])
            best[prompt] = max(value, best.get(prompt, value))
    for key, record in records.items():
        reference = task.reference(record)
        answer = reference if target != "response" else None
        if answer is None and target != "reference" and key in values:
            value = values[key]
            if value is None or (value != 0.0 and value == best[task.prompt(record)]):
                answer = task.response_if_any(record)
        pair = (task.prompt(record), answer)
        if answer and pair not in seen:
            seen.add(pair)
            chosen[key] = (pair[0], [answer])
    if not chosen:
        if target == "reference":
            raise InputError(f"{records.path}: no record has a reference to learn")
        told = {"cut off (generate with a larger --max_new_tokens)": len(records) - len(values)}
        told[f"failed ({task.known_value_from})"] = [*values.values()].count(0.0)
        told["without one"] = len(records) - sum(told.values())
        counts = ", ".join(f"{count} {what}" for what, count in told.items() if count)
        raise InputError(f"{records.path}: no record has an answer to learn: {counts}")
    return chosen


def example(prompt: list[int], answer: list[int]) -> Row:
    """[prompt; answer], the loss on the answer alone."""
    return {"input_ids": prompt + answer, "labels": [-100] * len(prompt) + answer}


def train(config: SFTSettings) -> None:
    """Train, and leave the adapter (or model) in ``config.output_dir``."""
    task = get_task(config.task)
    records = load_records(config.data_path, task, responses=None)
    items = demonstrations(records, task, config.target)
    if len(items) < len(records) and config.process_index == 0:
        print(f"{len(items)} of {len(records)} records have an answer of their own that is whole and none the worse")
    following = f"python nl_gradient_policy_optimization/optimize.py --task {quoted(config.task)}"
    following += f" --model {quoted(config.output_dir)} --data_path RECORDS.json --critic CRITIC --output_dir RUN"
    fine_tune(config, "sft", items, example, lambda **options: SFTTrainer(**config.policy(), **options), following)


@command
def main() -> None:
    train(parse(SFTSettings))


if __name__ == "__main__":
    main()
