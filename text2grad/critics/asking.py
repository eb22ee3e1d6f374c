"""Asking a critic about many responses in one call, some of which may be blank; and asking it for several opinions."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from text2grad.critics.unit_test_logs import Complete
from text2grad.feedback import Feedback, FeedbackError
from text2grad.tasks import Record

Ask = Callable[..., list[Feedback | FeedbackError]]
"""A critic, or one of its opinions."""


class Question(NamedTuple):
    """A response, what it answers, and the whole record where there is one."""

    prompt: str
    response: str
    record: Record | None = None


def ask(critic: Ask, questions: Sequence[Question], complete: Complete = list) -> list[Feedback | FeedbackError | None]:
    """The feedback on each response, in order; None on one without text, which no critic sees.

    One call of the critic. Questions with records and questions without make two, as a critic takes all or none.

    Args:
        complete: what a record needs before the critic sees it (``log_completion``).
    """
    answers: dict[int, Any] = {}
    written = [row for row, question in enumerate(questions) if question.response.strip()]
    for known in (True, False):
        rows = [row for row in written if (questions[row].record is not None) == known]
        if rows:
            columns = list(zip(*(questions[row] for row in rows), strict=True))
            given = critic(list(columns[0]), list(columns[1]), complete(list(columns[2])) if known else None)
            answers |= dict(zip(rows, given, strict=True))
    return [answers.get(row) for row in range(len(questions))]


def opinions(critic: Any, count: int) -> list[Ask]:
    """So many opinions of a critic; one that always says the same (a program, a function) gives equal ones.

    Those of a model that samples differ, the first is what it says anyway. Asked again, each is the same.
    """
    if not getattr(critic, "has_opinions", False):
        return [critic] * count
    return [critic, *(partial(critic, number=number) for number in range(1, count))]
