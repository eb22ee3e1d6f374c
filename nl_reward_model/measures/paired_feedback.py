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
from text2grad.records import Records, load_records, predicted_of
from text2grad.tasks import Interval, Record, Task
from text2grad.token_rewards import tokens_in
from text2grad.token_text import token_spans

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class PairedFeedback:
    """One response with the feedback of its annotation and of the reward model.

    Attributes:
        text, tokens: the response as a tokenizer has it; ``tokens`` are each id's characters in ``text``.
        counted: the tokens that can get a reward.
        predicted: the model's; None where its text could not be read, and ``error`` then says why.
    """

    text: str
    tokens: list[Interval]
    counted: list[int]
    truth: Feedback
    predicted: Feedback | None
    error: str = ""


def load_feedback_rows(path: str | Path, task: Task) -> Records:
    """The rows of a results file.

    Raises:
        InputError: a row without the model's feedback, or without an annotation of its response that can be read.
    """
    rows = load_records(path, task)
    for record_id, row in rows.items():
        predicted_of(row, f"{path}: record {record_id!r}")
        try:
            annotation = task.feedback(row)
        except FeedbackError as error:
            raise InputError(f"{path}: record {record_id!r}: {error}; annotate it again or remove it") from None
        if annotation is None:
            raise InputError(
                f"{path}: record {record_id!r} has no annotation ({task.fields.critique!r}) to compare with; give "
                "2_infer.py annotated records"
            )
    return rows


def pair_feedback(rows: Mapping[str, Record], task: Task, tokenizer: PreTrainedTokenizerBase) -> list[PairedFeedback]:
    """Rows (of :func:`load_feedback_rows`) with their feedback read and their responses tokenised."""
    result = []
    for row in rows.values():
        truth = task.feedback(row)
        assert truth is not None  # else load_feedback_rows refuses it
        predicted, problem = None, row.get("parse_error") or "no feedback"
        if row.get("predicted") is not None:
            try:
                predicted, problem = task.fields.from_dict(row["predicted"], "the feedback"), ""
            except FeedbackError as error:
                problem = str(error)
        ids = tokenizer(task.response(row), add_special_tokens=False)["input_ids"]
        text, tokens = token_spans(ids, tokenizer)
        counted = tokens_in(task.rewarded(text), text, tokens)
        result.append(PairedFeedback(text, tokens, counted, truth, predicted, problem))
    return result
