"""Summaries spoilt on purpose: each change says which characters of the new text are wrong."""

import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from text2grad.critics.programs.english import listed, sentences, unique_quote, words
from text2grad.feedback import Feedback, verdict
from text2grad.grounding import ground, trimmed
from text2grad.tasks import Interval

_NUMBER = re.compile(r"(?<![\w.])\d+(?:,\d+)*(?:\.\d+)?(?![\w.]*\d)")
_NUMBER_WORDS = sorted(
    listed("two three four five six seven eight nine ten eleven twelve fifteen twenty thirty forty fifty")
)
_ROLES = [
    group.split()
    for group in (
        "sister brother cousin",
        "mother father grandmother grandfather",
        "mom dad grandma grandpa",
        "wife husband girlfriend boyfriend",
        "daughter son nephew",
        "boss landlord teacher doctor lawyer",
        "roommate neighbor coworker classmate",
        "car bike truck van",
        "dog cat rabbit parrot",
        "house apartment garage office",
        "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
        "January February March April June July August September October November December",
    )
]
_NAMES = sorted(
    listed("Alice Brian Carol Derek Emma Frank Grace Henry Julia Kevin Laura Martin Nina Peter Rachel Simon")
)
_NO_NAMES = listed("i i'm i've i'd i'll reddit")
_RUN = 12
"""Words of the post that a copy takes."""


@dataclass(frozen=True)
class KnownFault:
    """A changed text.

    Attributes:
        kind: how it was changed.
        text: the new text.
        wrong: its characters that the change made wrong; None where something was left out, or nothing changed.
    """

    kind: str
    text: str
    wrong: Interval | None = None


Corruption = Callable[[str, str, Sequence[str], random.Random], KnownFault | None]
"""Takes a post, a summary of it, summaries of other posts, and a source of chance; None where it cannot be done."""


def unchanged(post: str, summary: str, others: Sequence[str], rng: random.Random) -> KnownFault | None:
    return KnownFault("unchanged", summary)


def left_out(post: str, summary: str, others: Sequence[str], rng: random.Random) -> KnownFault | None:
    """Without one of its sentences."""
    parts = split(summary)
    if len(parts) < 2:
        return None
    gone = rng.randrange(len(parts))
    return KnownFault("left_out", " ".join(parts[:gone] + parts[gone + 1 :]))


def number(post: str, summary: str, others: Sequence[str], rng: random.Random) -> KnownFault | None:
    """With one number exchanged for one that the post does not have."""
    digits = [(match.start(), match.end()) for match in _NUMBER.finditer(summary)]
    spelt = [(word.start, word.end) for word in words(summary) if word.text.lower() in _NUMBER_WORDS]
    places = digits + spelt
    if not places:
        return None
    start, end = rng.choice(places)
    old, known = summary[start:end], {word.text.lower() for word in words(post)}
    if (start, end) in digits:
        value = int(old.replace(",", "").partition(".")[0])
        options = [str(other) for other in (value * 2, value * 3 + 1, value + 7, value // 2, value * 10)]
    else:
        options = _NUMBER_WORDS
    options = [option for option in options if option not in known and option != old.lower()]
    return _exchanged("number", summary, (start, end), rng.choice(options)) if options else None


def name(post: str, summary: str, others: Sequence[str], rng: random.Random) -> KnownFault | None:
    """With one person, thing, day or name exchanged for one that the post does not have."""
    known = {word.text.lower() for word in words(post)}
    starts = {match.end() for match in re.finditer(r"(?:^|[.!?][\"'”’)]*\s+)[\"'“(]*(?=\S)", summary)}
    options: list[tuple[Interval, str]] = []
    for word in words(summary):
        place, lower = (word.start, word.end), word.text.lower()
        roles = [other for group in _ROLES if lower in map(str.lower, group) for other in group]
        like = str.capitalize if word.text[0].isupper() else str
        options += [(place, like(other)) for other in roles if other.lower() not in known]
        proper = word.text[0].isupper() and not word.text.isupper() and lower not in _NO_NAMES
        if proper and word.start not in starts and lower in known and not roles:
            options += [(place, other) for other in _NAMES if other.lower() not in known]
    options = [(place, new) for place, new in options if _article_fits(summary, place[0], new)]
    if not options:
        return None
    place = rng.choice(sorted({place for place, _ in options}))
    return _exchanged("name", summary, place, rng.choice([new for at, new in options if at == place]))


def borrowed(post: str, summary: str, others: Sequence[str], rng: random.Random) -> KnownFault | None:
    """With a sentence of another post's summary in it."""
    foreign = [sentence for other in others for sentence in split(other)]
    if not foreign:
        return None
    return _inserted("borrowed", summary, rng.choice(foreign), rng)


def copied(post: str, summary: str, others: Sequence[str], rng: random.Random) -> KnownFault | None:
    """With a run of the post's own words as a sentence."""
    found = words(post)
    if len(found) < 2 * _RUN:
        return None
    first = rng.randrange(len(found) - _RUN)
    run = " ".join(post[found[first].start : found[first + _RUN - 1].end].split())
    return _inserted("copied", summary, run[0].upper() + run[1:] + ".", rng)


def repeated(post: str, summary: str, others: Sequence[str], rng: random.Random) -> KnownFault | None:
    """With one of its sentences said again at the end."""
    again = rng.choice(split(summary))
    text = f"{summary.rstrip()} {again}"
    return KnownFault("repeated", text, (len(text) - len(again), len(text)))


CORRUPTIONS: dict[str, Corruption] = {
    each.__name__: each for each in (unchanged, left_out, number, name, borrowed, copied, repeated)
}


def spoil(
    post: str, texts: Sequence[str], others: Sequence[str], counts: Counter[str], seen: set[str], rng: random.Random
) -> KnownFault | None:
    """A new text by the kind of change that is rarest so far and possible here; None where there is none."""
    for kind in sorted(CORRUPTIONS, key=lambda kind: (counts[kind], rng.random())):
        for text in rng.sample(texts, len(texts)):
            spoilt = CORRUPTIONS[kind](post, text, others, rng)
            if spoilt is not None and spoilt.text.strip() and spoilt.text not in seen:
                return spoilt
    return None


def marked(judged: Feedback, fault: KnownFault) -> Feedback:
    """A program's feedback with the fault among the poor spans, and no good span that reaches into it.

    Where the program overlooked the fault, the verdict follows from the spans instead.
    """
    if fault.wrong is None:
        return judged
    good = [piece for quote in judged.good for piece in _outside(quote, fault.text, fault.wrong)]
    known = unique_quote(fault.text, *fault.wrong)
    seen = any(known in quote or quote in known for quote in judged.poor)
    poor = [*(quote for quote in judged.poor if quote not in known), known]
    poor = [quote for quote in poor if not any(quote in other and quote != other for other in poor)]
    poor.sort(key=fault.text.find)
    found = replace(judged, good=list(dict.fromkeys(good)), poor=poor)
    if judged.score is not None and not seen:
        found = replace(found, score=round(verdict(replace(found, score=None)).value, 2))
    return found


def _outside(quote: str, text: str, wrong: Interval) -> list[str]:
    """What of a quote lies outside the wrong characters, in whole words."""
    places = [place for place in ground(quote, text) if place[0] < wrong[1] and wrong[0] < place[1]]
    if not places:
        return [quote]
    start, end = places[0]
    before, after = wrong
    while before > start and not text[before - 1].isspace():
        before -= 1
    while after < end and not text[after].isspace():
        after += 1
    pieces = [(start, max(start, before)), (min(after, end), end)]
    return [unique_quote(text, *trimmed(text, *piece)) for piece in pieces if text[slice(*piece)].strip(" .,!?")]


def split(text: str) -> list[str]:
    """The sentences of a text, each with what ends it."""
    found = words(text)
    starts = [found[first].start for first, _, _ in sentences(text, found)]
    edges = [0, *starts[1:], len(text)]
    return [part for start, end in pairwise(edges) if (part := text[start:end].strip())]


def _exchanged(kind: str, text: str, place: Interval, new: str) -> KnownFault:
    """The text with other characters at a place."""
    start, end = place
    return KnownFault(kind, text[:start] + new + text[end:], (start, start + len(new)))


def _inserted(kind: str, text: str, sentence: str, rng: random.Random) -> KnownFault:
    parts = split(text)
    at = rng.randint(0, len(parts))
    before = " ".join(parts[:at]) + (" " if at else "")
    spoilt = " ".join([*parts[:at], sentence, *parts[at:]])
    return KnownFault(kind, spoilt, (len(before), len(before) + len(sentence)))


def _article_fits(text: str, start: int, new: str) -> bool:
    before = text[:start].split()[-1:]
    vowel = new[0].lower() in "aeiou"
    return before not in (["a"], ["A"], ["an"], ["An"]) or vowel == (before[0].lower() == "an")
