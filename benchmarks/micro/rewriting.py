"""Demonstrations of an answer that follows a critique: from them a starting policy learns to read critiques."""

import random

from benchmarks.micro.critic import Remark, remarks_on
from benchmarks.micro.task import NOTES, demonstrate, read_statements
from text2grad.feedback import without_quotes
from text2grad.tasks import Record

SPOKEN = 0.75
"""The share of its remarks that a critique in a demonstration makes: what is left out stays as flawed as ever."""


def rewrite(record: Record, rng: random.Random) -> tuple[str, str]:
    """A critique of some flawed answer, and another flawed answer that does what the critique asks.

    It states every note that the critique speaks of, once and rightly, and leaves out what the critique calls invented
    or beside the point. What the critique is silent about is as often wrong as in any demonstration. So a policy gains
    nothing from a critique but what the critique says.
    """
    statements = read_statements(record, demonstrate(record, rng))
    everything = remarks_on(statements, record, praises=rng.random() < 0.5)
    if not everything:
        return "Everything in it is right.", " ".join(right_sentence(record, note, rng) for note in record["notes"])
    said = [remark for remark in everything if rng.random() < SPOKEN] or everything[:1]
    asides = [statement.text.rstrip(".") for statement in statements if statement.verdict == "aside"]
    critique = without_quotes(" ".join(remark.text for remark in said), asides)
    return critique, " ".join(followed(record, said, rng))


def followed(record: Record, said: list[Remark], rng: random.Random) -> list[str]:
    """The sentences of a flawed answer after every remark has been followed."""
    asked = {remark.note for remark in said if remark.note in record["notes"]}
    banned = {remark.note for remark in said if remark.verdict == "invented"}
    no_asides = any(remark.verdict == "aside" for remark in said)
    sentences: list[str] = []
    told: set[str] = set()
    for statement in read_statements(record, demonstrate(record, rng)):
        if statement.note in asked:
            if statement.note not in told:
                sentences.append(right_sentence(record, statement.note, rng))
            told.add(statement.note)
        elif statement.note not in banned and not (no_asides and statement.verdict == "aside"):
            sentences.append(statement.text)
    for note in sorted(asked - told):
        sentences.insert(rng.randint(0, len(sentences)), right_sentence(record, note, rng))
    return sentences


def right_sentence(record: Record, note: str, rng: random.Random) -> str:
    return f"{record['name']} {rng.choice(NOTES[note][0]).format(record['notes'][note])}."
