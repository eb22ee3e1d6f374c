"""What a reward model learns from: [prompt; z] as token ids, with loss on z only (paper, section 3.4).

z is never cut. A record that is too long has its x shortened where the task's config allows it; a record that does not
fit even so is dropped, and counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from text2grad.critics.reward_model.prompt import DoesNotFit, RewardPrompt, completion_ids
from text2grad.errors import InputError
from text2grad.feedback import FeedbackError
from text2grad.records import Records, load_records
from text2grad.tasks import Record, Task

NO_LOSS = -100
"""The label of a token that is read and not learnt."""


@dataclass
class EncodedRecords:
    """Records ready to train on, and why the others are not.

    ``examples`` holds ``input_ids`` and ``labels``: z and the end of the turn, ``NO_LOSS`` on the prompt. TRL takes the
    labels as they are; from a mask it would make them only where its own settings ask for that.
    """

    ids: list[str] = field(default_factory=list)
    prompts: list[str] = field(default_factory=list)  # x of each example, as it was asked
    examples: list[dict[str, list[int]]] = field(default_factory=list)
    shortened: int = 0
    dropped: dict[str, str] = field(default_factory=dict)

    @property
    def longest_completion(self) -> int:
        return max((len(learnt(example)) for example in self.examples), default=0)


def load_annotated(path: str | Path, task: Task) -> Records:
    """The records of a file that carry feedback.

    Raises:
        InputError: none does, a record's feedback is broken, or it lacks the critique that the task's z has.
    """
    records = load_records(path, task)
    annotated = {}
    for record_id, record in records.items():
        try:
            feedback = task.feedback(record)
        except FeedbackError as error:
            raise InputError(f"{path}: record {record_id!r}: {error}; annotate it again or remove it") from None
        if feedback is None:
            continue
        if task.fields.with_critique and not feedback.critique:
            raise InputError(
                f"{path}: record {record_id!r} has spans and no {task.fields.critique!r}; annotate it again, or give "
                "--critique false to learn spans only"
            )
        annotated[record_id] = record
    if not annotated:
        raise InputError(
            f"{path}: no record carries {task.fields.critique!r}; annotate the file first (stage 1, rm_data_anno)"
        )
    if left_out := len(records) - len(annotated):
        print(f"{path}: {left_out} of {len(records)} records carry no {task.fields.critique!r} and are left out")
    return records.like(annotated)


def encode(records: Mapping[str, Record], task: Task, prompt: RewardPrompt, max_length: int) -> EncodedRecords:
    """Tokenise annotated records for training.

    Args:
        max_length: tokens of prompt and z together.
    """
    result = EncodedRecords()
    for record_id, record in records.items():
        fields = task.prompt_fields(record)
        z = completion_ids(prompt.tokenizer, target(record, task))
        try:
            fitted = prompt.fit(fields, room=max_length - len(z))
        except DoesNotFit as error:
            result.dropped[record_id] = str(error)
            continue
        ids = prompt.full_ids(fitted)
        result.shortened += fitted != fields
        result.ids.append(record_id)
        result.prompts.append(fitted["prompt"])
        result.examples.append({"input_ids": ids + z, "labels": [NO_LOSS] * len(ids) + z})
    return result


def learnt(example: Mapping[str, list[int]]) -> list[int]:
    """The tokens of an example that have a loss."""
    return [label for label in example["labels"] if label != NO_LOSS]


def target(record: Record, task: Task) -> str:
    """z of an annotated record."""
    feedback = task.feedback(record)
    assert feedback is not None
    return task.render_feedback(feedback)
