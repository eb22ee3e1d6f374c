"""The critic of profiles: a critique in words, and quotes of the phrases that it is about."""

from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.micro.task import Statement, read_statements
from text2grad.critics import Feedback, FeedbackError
from text2grad.tasks import Record


class ProfileCritic:
    """Praises the phrases that agree with the notes and blames the others; knows nothing of tokens.

    A phrase is quoted whole ("earns a living as a baker"), as people and models do, though only its last word may be
    wrong. ``scores`` says of every sentence whether it is right, for the scheme ``dense``.

    Args:
        praises: the critique also names what is right.
    """

    name = "profiles' program"

    def __init__(self, praises: bool = False):
        self.praises = praises

    def __call__(
        self, prompts: Sequence[str], responses: Sequence[str], records: Sequence[Record] | None = None
    ) -> list[Feedback | FeedbackError]:
        assert records is not None
        return [self.feedback_on(record, response) for record, response in zip(records, responses, strict=True)]

    def feedback_on(self, record: Record, response: str) -> Feedback:
        good: list[str] = []
        poor: list[str] = []
        statements = read_statements(record, response)
        for statement in statements:
            (good if statement.verdict == "right" else poor).append(quote_of(statement, response))
        scores = [(statement.text, 1.0 if statement.verdict == "right" else -1.0) for statement in statements]
        said = [remark.text for remark in remarks_on(statements, record, self.praises)]
        untold = sorted(set(record["notes"]) - {statement.note for statement in statements})
        missing = [f"{record['name']}'s {note.lower()}" for note in untold]
        return Feedback(" ".join(said) or "Everything in it is right.", good, poor, scores, missing)


class Remark(NamedTuple):
    """A sentence of a critique, the note that it is about (none: an aside), and what it says of it."""

    text: str
    note: str
    verdict: str


def remarks_on(statements: Sequence[Statement], record: Record, praises: bool = False) -> list[Remark]:
    """What a critique says of a response's statements, and of the notes that it leaves out."""
    chosen = [statement for statement in statements if praises or statement.verdict != "right"]
    remarks = [Remark(_remark(statement, record), statement.note, statement.verdict) for statement in chosen]
    missing = set(record["notes"]) - {statement.note for statement in statements}
    return remarks + [
        Remark(f"It does not mention {record['name']}'s {note.lower()}.", note, "missing") for note in sorted(missing)
    ]


def quote_of(statement: Statement, response: str) -> str:
    """What is quoted of a sentence: its phrase, or all of it where it claims nothing."""
    return (
        statement.text.rstrip(".") or statement.text if statement.phrase is None else response[slice(*statement.phrase)]
    )


def _remark(statement: Statement, record: Record) -> str:
    if statement.verdict == "aside":
        return f"{statement.text!r} is not about {record['name']}."
    subject = f"{record['name']}'s {statement.note.lower()}"
    return {
        "right": f"It gets {subject} right.",
        "wrong": f"It gets {subject} wrong: the notes say {statement.truth}.",
        "invented": f"The notes say nothing of {subject}.",
        "repeated": f"It speaks of {subject} twice.",
    }[statement.verdict]


PLAIN, PRAISING = ProfileCritic(), ProfileCritic(praises=True)
"""For ``--critic benchmarks.micro.critic:PLAIN``."""
