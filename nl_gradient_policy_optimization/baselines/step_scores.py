"""How well a critic finds wrong steps, against annotations of the same responses (appendix N).

    python nl_gradient_policy_optimization/baselines/step_scores.py --task slf5k --data_path feedback.json \\
        --output_path step_scores.json

``feedback.json`` is what stage 2 writes with ``2_infer.py``: annotated records, each with the reward model's feedback
as ``predicted``. A step is wrong where a poor span touches it, by the annotation and by the model. Feedback that could
not be read finds no step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from typing import Any

from nl_gradient_policy_optimization.algorithms.steps import label_steps, split_steps
from text2grad.configs import TaskConfig, parse, setting
from text2grad.errors import InputError, command
from text2grad.feedback import FeedbackError
from text2grad.records import check_output, load_records, save_json
from text2grad.statistics import bootstrap
from text2grad.tasks import Record, Task, get_task

LABELS = {"wrong": -1.0, "right": 1.0}


@dataclass
class StepScoresConfig(TaskConfig):
    """Annotated records with a model's feedback in, figures out."""

    data_path: str = setting(
        MISSING, "annotated records with the reward model's feedback, as 2_infer.py writes them", "--input_file"
    )
    output_path: str = setting(MISSING, "the figures as JSON", "--output_file", "--output")


def step_labels(record: Record, task: Task) -> tuple[list[float], list[float] | None]:
    """The labels of a response's steps by its annotation, and by the model (None where nothing could be read)."""
    truth = task.feedback(record)
    if truth is None:
        raise InputError("it has no annotation to compare with; give 2_infer.py annotated records")
    if "predicted" not in record:
        raise InputError("it has no feedback of a model ('predicted'); run 2_infer.py first")
    text = task.response(record)
    steps = split_steps(text, task)
    predicted = record["predicted"]
    found = None if predicted is None else task.fields.from_dict(predicted, "the feedback")
    labelled = label_steps(steps, text, truth, task)
    return labelled, None if found is None else label_steps(steps, text, found, task)


def step_scores(records: Mapping[str, Record], task: Task) -> dict[str, Any]:
    """Accuracy, and precision, recall and F1 of each label, with 95 % intervals over prompts."""
    pairs = []
    for key, record in records.items():
        try:
            pairs.append(step_labels(record, task))
        except (InputError, FeedbackError) as error:
            raise InputError(f"record {key!r}: {error}") from None
    prompts = [task.prompt(record) for record in records.values()]

    def figure(rows: list[tuple[int, int]]) -> dict[str, float | int | None]:
        return bootstrap(rows, groups=prompts).to_dict()

    right = [(sum(a == b for a, b in zip(true, found or (), strict=False)), len(true)) for true, found in pairs]
    scores: dict[str, Any] = {"steps": sum(len(true) for true, _ in pairs), "accuracy": figure(right)}
    for name, sign in LABELS.items():
        hits = [sum(a == b == sign for a, b in zip(true, found or (), strict=False)) for true, found in pairs]
        claimed = [(found or []).count(sign) for _, found in pairs]
        there = [true.count(sign) for true, _ in pairs]
        scores[name] = {
            "precision": figure(list(zip(hits, claimed, strict=True))),
            "recall": figure(list(zip(hits, there, strict=True))),
            "f1": figure([(2 * hit, c + t) for hit, c, t in zip(hits, claimed, there, strict=True)]),
        }
    return scores


@command
def main() -> None:
    config = parse(StepScoresConfig)
    task = get_task(config.task)
    split_steps("", task)  # refuses a task without steps
    check_output(config.output_path)
    records = load_records(config.data_path, task)
    scores = step_scores(records, task)
    save_json(config.output_path, {"task": task.name, "records": len(records), **scores})
    print(f"{scores['steps']} steps of {len(records)} responses -> {config.output_path}")
    for name in LABELS:
        print("  " + name + " steps: " + ", ".join(f"{k} {_shown(v)}" for k, v in scores[name].items()))


def _shown(figure: Mapping[str, float | None]) -> str:
    value, low, high = (figure[name] for name in ("value", "low", "high"))
    return "–" if value is None or low is None or high is None else f"{value:.2f} [{low:.2f}, {high:.2f}]"


if __name__ == "__main__":
    main()
