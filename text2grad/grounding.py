"""Where a quote stands in the response it was copied from.

A critique is only worth the tokens it can be tied to, so a quote is either found or it is not: nothing is matched by
similarity. Differences that models make when they copy are forgiven only where the exact quote does not occur.
"""

import functools
import re
import unicodedata
from collections.abc import Iterator

from text2grad.tasks.base import Interval

_QUOTATION = str.maketrans({**dict.fromkeys("‘’‚‛′`´", "'"), **dict.fromkeys("“”„‟″«»", '"')})
_DASHES = str.maketrans(dict.fromkeys("‐‑‒–—―−﹘﹣－", "-"))
_ESCAPES = str.maketrans({"\b": r"\b", "\f": r"\f", "\n": r"\n", "\r": r"\r", "\t": r"\t"})
_LONGEST_CLUSTER = 32  # characters of a letter and its marks: no writing stacks more, and to order many takes long
_ELLIPSIS = re.compile(r"\.{3,}|…")


def ground(quote: str, response: str) -> list[Interval]:
    """Every place where ``quote`` stands in ``response``.

    The exact quote first (as given, then without white space around it, then with ``\\n`` in place of a line break and
    the like: code that a model copied into JSON without doubling its backslashes). Where it does not occur, these
    differences are forgiven: runs of white space, curly against straight quotation marks, kinds of dashes, composed
    against decomposed characters, the case of the first and the last letter, and around the quote quotation marks, an
    ellipsis, or a full stop at its end. A forgiven quote must stand between word boundaries.

    Returns:
        Half-open character intervals of ``response`` in order; occurrences may overlap; [] where it is not there.
    """
    if not quote.strip():
        return []
    for exact in dict.fromkeys((quote, quote.strip(), quote.translate(_ESCAPES))):
        if found := _occurrences(exact, response):
            return found
    return _forgiving(quote, response)


def trimmed(text: str, start: int, end: int) -> Interval:
    """An interval without white space at its ends."""
    piece = text[start:end]
    return start + len(piece) - len(piece.lstrip()), start + len(piece.rstrip())


def inside(intervals: list[Interval], places: list[Interval]) -> list[Interval]:
    """The places that lie wholly in one of the intervals."""
    return [(start, end) for start, end in places if any(low <= start and end <= high for low, high in intervals)]


def as_whole_words(places: list[Interval], text: str) -> list[Interval]:
    """The places that cut no word in two ("the" in "there"), where there are such; else all of them."""
    return [place for place in places if not cuts_a_word(text, *place)] or places


def cuts_a_word(text: str, start: int, end: int) -> bool:
    """Whether one of a span's ends is in the middle of a word."""
    return any(_is_spelt(text[edge - 1 : edge]) and _is_spelt(text[edge : edge + 1]) for edge in (start, end))


def _is_spelt(char: str) -> bool:
    """Whether it is part of a word in a script that parts its words by spaces: cased letters, digits, underscores."""
    return char.isdigit() or char == "_" or char.lower() != char.upper()


def _occurrences(quote: str, text: str) -> list[Interval]:
    found: list[Interval] = []
    start = text.find(quote)
    while start != -1:
        if found and start < found[-1][1]:
            return found + [(place, place + len(quote)) for place in _overlapping(quote, text, start)]
        found.append((start, start + len(quote)))
        start = text.find(quote, start + 1)
    return found


def _overlapping(quote: str, text: str, start: int) -> Iterator[int]:
    """Where ``quote`` begins in ``text``, from ``start`` on, in linear time (Knuth, Morris and Pratt 1977)."""
    borders = [0]  # of each beginning of the quote, the longest end that is a shorter beginning as well
    matched = 0
    for char in quote[1:]:
        while matched and char != quote[matched]:
            matched = borders[matched - 1]
        matched += char == quote[matched]
        borders.append(matched)
    matched = 0
    for place in range(start, len(text)):
        while matched and (matched == len(quote) or text[place] != quote[matched]):
            matched = borders[matched - 1]
        matched += text[place] == quote[matched]
        if matched == len(quote):
            yield place + 1 - len(quote)


def _forgiving(quote: str, response: str) -> list[Interval]:
    text, starts, ends = _simplified(response)
    for core in _cores(_simplified(quote)[0]):
        if any(char.isalnum() for char in core) and (found := _forgiven(core, text)):
            return [(starts[start], ends[end - 1]) for start, end in found]
    return []


def _cores(quote: str) -> list[str]:
    """The quote, and what is left of it without what a model may have put around it, from least to most."""
    cores = [quote.strip()]
    for pattern in (r"^(?:\.{3})?\s*(.*?)\s*(?:\.{3})?$", r"^(.*?)\s*\.$", r"^[\"']\s*(.*?)\s*[\"']$", r"^(.*?)\s*\.$"):
        match = re.match(pattern, cores[-1], re.DOTALL)
        if match and match.group(1) and match.group(1) != cores[-1]:
            cores.append(match.group(1))
    return cores


def _forgiven(core: str, text: str) -> list[Interval]:
    """Where ``core`` stands between word boundaries, its first and last letter in either case.

    Places may overlap; a single letter keeps its case.
    """
    middle, length = core[1:-1], len(core)
    flags = re.IGNORECASE if length > 1 else 0
    first, last = (re.compile(re.escape(char), flags) for char in (core[0], core[-1]))
    if middle:
        starts = (start - 1 for start, _ in _occurrences(middle, text) if start)
    else:
        starts = (match.start() for match in first.finditer(text))
    found = []
    for start in starts:
        end = start + length
        if (
            end <= len(text)
            and first.match(text, start)
            and last.match(text, end - 1)
            and not cuts_a_word(text, start, end)
        ):
            found.append((start, end))
    return found


@functools.lru_cache(maxsize=16)  # all quotes of a critique are looked for in one response
def _simplified(text: str) -> tuple[str, list[int], list[int]]:
    """``text`` with forgivable differences removed, and for each of its characters the interval it stands for."""
    chars: list[str] = []
    starts: list[int] = []
    ends: list[int] = []

    position = 0
    while position < len(text):
        end = position + 1
        if text[position].isspace():
            while end < len(text) and text[end].isspace():
                end += 1
            piece = " "
        elif ellipsis := _ELLIPSIS.match(text, position):
            end, piece = ellipsis.end(), "..."
        else:
            while end < len(text) and end - position < _LONGEST_CLUSTER and _joins(text[end]):
                end += 1
            cluster = unicodedata.normalize("NFC", text[position:end])
            piece = cluster.translate(_QUOTATION).translate(_DASHES)
        chars += piece
        starts += [position] * len(piece)
        ends += [end] * len(piece)
        position = end
    return "".join(chars), starts, ends


def _joins(char: str) -> bool:
    """Whether it belongs to the letter before it: a mark, or a vowel or final consonant of decomposed Hangul."""
    return unicodedata.combining(char) > 0 or "\u1160" <= char <= "\u11ff"
