"""Ways to spoil an answer so that the place is known: each says which characters of the new text are wrong."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from text2grad.critics.programs.english import sentences, words
from text2grad.tasks import Interval

_REFUSALS = (
    "I'm sorry, but I cannot help with that.",
    "As an AI language model, I do not have personal experience with this.",
    "I apologize, but I am not able to answer this.",
    "I am just a computer program, so I can't say.",
    "I'm unable to say more about this.",
    "As an AI, I don't have access to that.",
)
_OPENERS = (
    "Sure!", "Certainly!", "Great question!", "Of course!", "Absolutely!", "Thank you for asking!",
    "I'd be happy to help!", "That's a great question!",
)  # fmt: skip
_CLOSERS = (
    "I hope this helps!", "Let me know if you need more.", "Feel free to ask me anything else.",
    "If you have any other questions, just ask.", "Please let me know if this is clear.", "I hope that is useful.",
)  # fmt: skip
_STOCK = (
    "It is important to note that there are many factors.",
    "At the end of the day, it depends on many things.",
    "There are many different ways to go about it.",
    "Overall, it is worth considering all of the options.",
    "In conclusion, there are many things to keep in mind.",
    "When it comes to this, it is crucial to understand all sides of it.",
    "In today's world, this is something that people think about a lot.",
)


@dataclass(frozen=True)
class Injected:
    """A changed answer; ``wrong`` are the characters that the change made wrong, None where it made none so."""

    kind: str
    text: str
    wrong: Interval | None = None


Injection = Callable[[str, Sequence[str], Sequence[str], random.Random], "Injected | None"]
"""Takes a request, an answer in pieces, answers to others, and a source of chance; None where it cannot be done."""


def pieces(text: str) -> list[str]:
    """Sentences and list items, each with what ends it and the white space after it."""
    found = words(text)
    starts = [0, *(found[first].start for first, _, _ in sentences(text, found)[1:])]
    margins = [len(text[:start]) - len(text[:start].split("\n")[-1]) for start in starts]
    starts = [
        margin if 0 < start - margin < 6 and not any(char.isalpha() for char in text[margin:start]) else start
        for start, margin in zip(starts, margins, strict=True)
    ]  # a list mark belongs to its item
    return [text[start:end] for start, end in pairwise([*starts, len(text)]) if text[start:end].strip()]


def unchanged(request: str, parts: Sequence[str], others: Sequence[str], rng: random.Random) -> Injected | None:
    return Injected("unchanged", "".join(parts).strip())


def refusal(request: str, parts: Sequence[str], others: Sequence[str], rng: random.Random) -> Injected | None:
    return _inserted("refusal", parts, rng.choice(_REFUSALS), rng.choice([0, len(parts)]))


def filler(request: str, parts: Sequence[str], others: Sequence[str], rng: random.Random) -> Injected | None:
    """A courtesy before or after, or a stock phrase between."""
    texts, at = rng.choice([(_OPENERS, 0), (_CLOSERS, len(parts)), (_STOCK, rng.randint(0, len(parts)))])
    return _inserted("filler", parts, rng.choice(texts), at)


def repetition(request: str, parts: Sequence[str], others: Sequence[str], rng: random.Random) -> Injected | None:
    """One of its sentences once more, later."""
    which = rng.randrange(len(parts))
    return _inserted("repetition", parts, parts[which].strip(), rng.randint(which + 1, len(parts)))


def copying(request: str, parts: Sequence[str], others: Sequence[str], rng: random.Random) -> Injected | None:
    """The request said back."""
    asked = request.strip().split("\n")[0].rstrip("?.! ")
    if not 5 <= len(asked.split()) <= 30:
        return None
    return _inserted("copying", parts, f"{asked[0].upper()}{asked[1:]}.", rng.choice([0, len(parts)]))


def off_topic(request: str, parts: Sequence[str], others: Sequence[str], rng: random.Random) -> Injected | None:
    """A sentence of an answer to another request in it; or nothing else."""
    foreign = pieces(rng.choice(list(others)))
    if rng.random() < 0.4:
        text = "".join(foreign[: len(parts)]).strip()
        return Injected("off_topic", text, (0, len(text)))
    return _inserted("off_topic", parts, rng.choice(foreign).strip(), rng.randint(0, len(parts)))


def no_end(request: str, parts: Sequence[str], others: Sequence[str], rng: random.Random) -> Injected | None:
    """The last sentence cut off."""
    last = parts[-1].split()
    if len(last) < 6:
        return None
    before = "".join(parts[:-1])
    text = before + " ".join(last[: rng.randint(3, len(last) - 2)]).rstrip(".!?")
    return Injected("no_end", text, (len(before), len(text)))


def no_language(request: str, parts: Sequence[str], others: Sequence[str], rng: random.Random) -> Injected | None:
    """The words of one sentence in an order by chance."""
    which = rng.randrange(len(parts))
    body = parts[which].strip()
    found = body.rstrip(".!?").split()
    if len(found) < 8:
        return None
    end, space = body[len(body.rstrip(".!?")) :], parts[which][len(parts[which].rstrip()) :]
    before, mixed = "".join(parts[:which]), " ".join(rng.sample(found, len(found))) + end
    text = before + mixed + space + "".join(parts[which + 1 :])
    return Injected("no_language", text.rstrip(), (len(before), len(before) + len(mixed)))


def arithmetic(request: str, parts: Sequence[str], others: Sequence[str], rng: random.Random) -> Injected | None:
    """An equation that does not hold."""
    one, other = rng.randint(12, 90), rng.randint(3, 40)
    sign, right = rng.choice([("+", one + other), ("-", one - other)])
    wrong = right + rng.choice([-10, -2, -1, 1, 2, 10])
    lead, equation = "In numbers, ", f"{one} {sign} {other} = {wrong}"
    return _inserted("arithmetic", parts, equation, rng.randint(1, len(parts)), (lead, "."))


INJECTIONS: dict[str, Injection] = {
    each.__name__: each
    for each in (
        unchanged, refusal, filler, repetition, copying, off_topic, no_end, no_language, arithmetic,
    )
}  # fmt: skip


def _inserted(kind: str, parts: Sequence[str], wrong: str, at: int, around: tuple[str, str] = ("", "")) -> Injected:
    """The answer with wrong characters before its piece ``at``; what is ``around`` them is not wrong itself."""
    before = "".join(parts[:at])
    before += ("" if not before or before[-1].isspace() else " ") + around[0]
    text = f"{before}{wrong}{around[1]} {''.join(parts[at:])}".rstrip()
    return Injected(kind, text, (len(before), len(before) + len(wrong)))
