"""A reward model's feedback beside the annotation of the same response, as ``2_infer.py`` writes both.

Each row is a record with the task's feedback fields (the truth), ``prediction`` (what the model wrote), ``predicted``
(the same fields as read from it; null where it could not be read) and ``parse_error`` (why not).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from text2grad.errors import InputError
from text2grad.feedback import Feedback, FeedbackError
from text2grad.records import Records, load_records
from text2grad.tasks import Interval, Record, Task
from text2grad.token_text import token_spans

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class PairedFeedback:
    """One response with the feedback of its annotation and of the reward model.

    Attributes:
        ids, text, tokens: the response as a tokenizer has it; ``tokens`` are each id's characters in ``text``.
        predicted: the model's; None where its text could not be read, and ``error`` then says why.
    """

    record_id: str
    ids: list[int]
    text: str
    tokens: list[Interval]
    truth: Feedback
    predicted: Feedback | None
    error: str = ""


def load_feedback_rows(path: str | Path, task: Task, data_path: str | Path | None = None) -> Records:
    """The rows of a results file.

    Args:
        data_path: annotated records to take the truth from, by id or else by text, in place of what the rows carry.

    Raises:
        InputError: a row without the model's feedback, or without an annotation of its response that can be read.
    """
    source = data_path or path
    rows, annotated = load_records(path, task), load_records(source, task)

    def text(record: Record) -> tuple[str, str]:
        return task.prompt(record), task.response(record)

    by_text = {text(record): record for record in annotated.values()}
    said = ("prediction", "predicted", "parse_error")
    paired = {}
    for record_id, row in rows.items():
        truth = annotated.get(record_id)
        if truth is None or text(truth) != text(row):
            truth = by_text.get(text(row))
        if "predicted" not in row:
            raise InputError(
                f"{path}: record {record_id!r} has no feedback of a model ('predicted'); run 2_infer.py first"
            )
        if truth is None:
            raise InputError(
                f"{data_path}: has no record {record_id!r} with the prompt and the response that it has in {path}; "
                "give the file that 2_infer.py read"
            )
        try:
            annotation = task.feedback(truth)
        except FeedbackError as error:
            raise InputError(f"{source}: record {record_id!r}: {error}; annotate it again or remove it") from None
        if annotation is None:
            raise InputError(
                f"{source}: record {record_id!r} has no annotation ({task.fields.critique!r}) to compare with; give "
                "2_infer.py annotated records"
            )
        paired[record_id] = {**truth, **{name: row[name] for name in said if name in row}}
    return rows.like(paired)


def pair_feedback(rows: Mapping[str, Record], task: Task, tokenizer: PreTrainedTokenizerBase) -> list[PairedFeedback]:
    """Rows (of :func:`load_feedback_rows`) with their feedback read and their responses tokenised."""
    result = []
    for record_id, row in rows.items():
        truth = task.feedback(row)
        assert truth is not None  # else load_feedback_rows refuses it
        predicted, problem = None, row.get("parse_error") or "no feedback"
        if row.get("predicted") is not None:
            try:
                predicted, problem = task.fields.from_dict(row["predicted"], "the feedback"), ""
            except FeedbackError as error:
                problem = str(error)
        ids = tokenizer(task.response(row), add_special_tokens=False)["input_ids"]
        result.append(PairedFeedback(record_id, ids, *token_spans(ids, tokenizer), truth, predicted, problem))
    return result
