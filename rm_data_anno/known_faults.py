"""Texts spoilt on purpose, so that the place of their fault is known."""

from dataclasses import dataclass, replace

from text2grad.critics.programs.english import unique_quote
from text2grad.feedback import Feedback, verdict
from text2grad.grounding import ground, trimmed
from text2grad.tasks import Interval


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


def exchanged(kind: str, text: str, place: Interval, new: str) -> KnownFault:
    """The text with other characters at a place."""
    start, end = place
    return KnownFault(kind, text[:start] + new + text[end:], (start, start + len(new)))


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
