"""Annotated records -> token ids to train on: [prompt; z] with loss on z alone (paper, section 3.4).

z is never cut. A record that is too long has its x shortened where the task's config allows it; a record that does
not fit even so is dropped, and counted.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
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
                "--critique false to learn spans alone"
            )
        annotated[record_id] = record
    if not annotated:
        raise InputError(
            f"{path}: no record carries {task.fields.critique!r}; annotate the file first (stage 1, rm_data_anno)"
        )
    return records.like(annotated)


def split_by_prompt(records: Records, task: Task, share: float, seed: int) -> tuple[Records, Records]:
    """Training and validation records that have no post or question in common.

    Whole prompts go to one side, in an order that depends on the prompt's text and the seed alone, until validation
    holds ``share`` of the records.

    Raises:
        InputError: too few different prompts to have both sides.
    """
    if not 0 <= share < 1:
        raise InputError(f"validation_share: {share} is not in [0, 1); 0.1 is usual")
    if share == 0:
        return records, records.like({})
    sizes = Counter(task.prompt(record).strip() for record in records.values())
    if len(sizes) < 2:
        raise InputError(
            f"{records.path}: all records have one prompt, so none can be held out; give --validation_path, "
            "or --validation_share 0"
        )
    wanted = max(1, round(share * len(records)))
    held: set[str] = set()
    for prompt in sorted(sizes, key=lambda text: hashlib.sha256(f"{seed}\0{text}".encode()).hexdigest())[:-1]:
        if sum(sizes[text] for text in held) >= wanted:
            break
        held.add(prompt)

    def side(validation: bool) -> Records:
        chosen = {key: item for key, item in records.items() if (task.prompt(item).strip() in held) == validation}
        return records.like(chosen)

    return side(False), side(True)


def check_disjoint(training: Records, validation: Records, task: Task) -> None:
    """``InputError`` where a prompt is on both sides."""
    seen = {task.prompt(record).strip(): record_id for record_id, record in training.items()}
    for record_id, record in validation.items():
        twin = seen.get(task.prompt(record).strip())
        if twin is not None:
            raise InputError(
                f"{validation.path}: record {record_id!r} has the prompt of record {twin!r} of {training.path}; "
                "remove one of them, a model is to be measured on prompts it was not trained on"
            )


def encode(records: Records, task: Task, prompt: RewardPrompt, max_length: int) -> EncodedRecords:
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


def spread(items: Sequence, count: int) -> list:
    """``count`` of the items, evenly spread; all where there are fewer."""
    return list(items[:: max(1, len(items) // max(1, count))][:count])
