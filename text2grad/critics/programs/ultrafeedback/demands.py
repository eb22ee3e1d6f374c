"""What a request demands of the form of its answer, and where an answer does not obey.

Only demands that a program can check without doubt: numbers of items, sentences, paragraphs, words and characters;
lists, tables and code.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from text2grad.critics.programs.english import concept, listed, sentences, words

Interval = tuple[int, int]


@dataclass(frozen=True)
class Demand:
    """One demand: what it is, in words that follow "asks for", and the parts of the answer that break it."""

    wanted: str
    broken: list[Interval]


_COUNT = (
    r"(\d{1,4}|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|fifteen|twenty|fifty|(?:a|one) hundred)"
)
_UP_TO = (
    r"(?:in|under|within|below|at most|no more than|not more than|up to|max(?:imum)?(?: of)?|(?:less|fewer) than|"
    r"limited? to)"
)
_ITEM = re.compile(r"^[ \t]*(?:[-*•–+]|\(?\d{1,3}[.):]|\(?[a-zA-Z][.)])[ \t]+\S.*$", re.MULTILINE)
_ROW = re.compile(r"^(?:[^|\n]*\|){2,}[^\n]*$|^[^\t\n]+\t[^\n]*$", re.MULTILINE)
_FENCE = re.compile(r"```[^\n]*\n(.*?)(?:```|\Z)", re.DOTALL)
_CODE_LINE = re.compile(
    r"^[ \t]*(?:(?:def|class|import|from|return|function|const|let|var|public|private|#include|using|for|while|if|try|"
    r"else|print|<\?php|SELECT|CREATE|npm|git|sudo|scp|docker|pip)\b.*|[\w.\[\]]+\s*=[^=].*|[\w.]+\(.*\)[;:]?|[{}<].*[;>{}]|"
    r"[$>]\s\w.*)$",
    re.MULTILINE,
)
_UNITS = listed(
    "words sentences paragraphs characters letters lines pages syllables stanzas minutes hours days weeks months years "
    "seconds times dollars euros cents points marks people persons players percent degrees miles inches feet grams "
    "pounds cups sons daughters brothers sisters others options colors colours shirts servers values digits parts sides"
)


def demands(request: str, answer: str) -> list[Demand]:
    """Every demand of a request that is understood, with the breaches of it."""
    return [demand for rule in _RULES for demand in rule(request, answer)]


def items(answer: str) -> list[Interval]:
    """The items of the answer's list: those with the marker, and the margin, of the first."""
    found = list(_ITEM.finditer(answer))
    if len(found) < 2:
        return []

    def style(match: re.Match) -> tuple[str, int]:
        text = match[0].lstrip()
        kind = "number" if text.lstrip("(")[0].isdigit() else "letter" if text.lstrip("(")[0].isalpha() else text[0]
        return kind, len(match[0]) - len(text)

    return [match.span() for match in found if style(match) == style(found[0])]


def code_intervals(answer: str) -> list[Interval]:
    """Fenced blocks, and lines that look like code."""
    fenced = [match.span() for match in _FENCE.finditer(answer)]
    return fenced or [match.span() for match in _CODE_LINE.finditer(answer)]


def is_number(text: str) -> int:
    """The value of a number in digits or words."""
    plain = text.lower()
    return 100 if plain.endswith("hundred") else int(concept(plain))


def _sentences(answer: str) -> list[Interval]:
    found = words(answer)
    return [(found[start].start, found[end - 1].end) for start, end, _ in sentences(answer, found)]


def _first(answer: str) -> list[Interval]:
    return _sentences(answer)[:1]


def _surplus_or_lack(parts: list[Interval], least: int, most: int | None) -> list[Interval]:
    """The parts beyond ``most``; where there are fewer than ``least``, the last one."""
    if most is not None and len(parts) > most:
        return parts[most:]
    return parts[-1:] if len(parts) < least else []


def _number_of_items(request: str, answer: str) -> Iterator[Demand]:
    pattern = (
        r"\b(?:list|give|name|suggest|provide|write|generate|come up with|tell|show|share|create|recommend|what are|"
        rf"make)\b[^.?!\n]{{0,30}}?\b{_COUNT}\s+(?:[\w-]+\s+){{0,3}}?([a-z]+s)\b"
    )
    for match in [
        *re.finditer(pattern, request, re.IGNORECASE),
        *re.finditer(r"\btop (\d+)()\b", request, re.IGNORECASE),
    ]:
        between = request[match.start() : match.end()].lower().split()
        number = is_number(match[1])
        found = items(answer)
        if 2 <= number <= 100 and len(found) >= 2 and not _UNITS & set(between) and "least" not in between:
            yield Demand(f"{number} {match[2] or 'items'}", _surplus_or_lack(found, number, number))
            return


def _number_of_sentences(request: str, answer: str) -> Iterator[Demand]:
    bound = r"(exactly|only|just|at most|no more than|up to|at least|about)?"
    match = re.search(
        rf"\b(?:in|with|using|write|of|to|give|into)\s+(?:a )?{bound}\s*{_COUNT}[- ](?:\w+ )?(sentence|paragraph)s?\b",
        request,
        re.IGNORECASE,
    )
    if not match:
        return
    how, number, unit = (match[1] or "").lower(), is_number(match[2]), match[3].lower()
    parts = _sentences(answer) if unit == "sentence" else _paragraphs(answer)
    least = 0 if how in ("at most", "no more than", "up to", "about") else number
    most = None if how in ("at least", "about") else number
    yield Demand(f"{how} {number} {unit}s".strip(), _surplus_or_lack(parts, least, most))


def _paragraphs(answer: str) -> list[Interval]:
    return [match.span() for match in re.finditer(r"\S(?:.|\n(?!\s*\n))*", answer)]


def _length(request: str, answer: str) -> Iterator[Demand]:
    most = re.search(rf"\b{_UP_TO}\s+{_COUNT}\s+(words|characters)\b", request, re.IGNORECASE) or re.search(
        rf"\b{_COUNT}[- ](words?|characters?)\s+(?:or (?:less|fewer)|max(?:imum)?|limit|at most)\b",
        request,
        re.IGNORECASE,
    )
    least = re.search(rf"\b(?:at least|minimum of|more than|over)\s+{_COUNT}\s+(words)\b", request, re.IGNORECASE)
    if most:
        number, unit = is_number(most[1]), most[2].lower().rstrip("s")
        each = re.search(r"\b(?:each|every|per)\b[^.?!]*$", request[: most.start()], re.IGNORECASE)
        whole = [match.span() for match in re.finditer(r"[^\n]+", answer)] if each else [(0, len(answer))]
        if each and len(whole) == 1:
            return  # nothing shows where one part ends
        broken = [place for start, end in whole for place in _beyond(answer, start, end, number, unit)]
        yield Demand(f"at most {number} {unit}s{' each' if each else ''}", broken)
    elif least:
        number = is_number(least[1])
        yield Demand(f"at least {number} words", _sentences(answer)[-1:] if len(answer.split()) < number else [])


def _beyond(answer: str, start: int, end: int, number: int, unit: str) -> Iterator[Interval]:
    if unit == "character":
        cut = start + number
    else:
        found = list(re.finditer(r"\S+", answer[start:end]))
        cut = start + found[number].start() if len(found) > number else end
    if cut < end and answer[cut:end].strip():
        yield cut, end


def _lists_and_tables(request: str, answer: str) -> Iterator[Demand]:
    if re.search(r"\b(?:in|as|using|with|into)\s+(?:\w+\s+)?bullet(?:ed)?\b|\bbullet points\b", request, re.IGNORECASE):
        yield Demand("bullet points", [] if len(_ITEM.findall(answer)) >= 2 else _first(answer))
    if re.search(r"\bnumbered list\b", request, re.IGNORECASE):
        numbered = re.findall(r"^\s*\d{1,3}[.)]\s+\S", answer, re.MULTILINE)
        yield Demand("a numbered list", [] if len(numbered) >= 2 else _first(answer))
    if re.search(
        r"\b(?:create|make|draw|write|build|give me|provide|complete[d]?|rewrite) (?:a|the)(?: \w+)? table\b"
        r"|\b(?:in|as) (?:a|the) table\b|\btable format\b|\bin tabular form\b",
        request,
        re.IGNORECASE,
    ):
        rows = _ROW.findall(answer) or re.findall(r"^[^,\n]+(?:,[^,\n]+){2,}$", answer, re.MULTILINE)
        yield Demand("a table", [] if len(rows) >= 2 else _first(answer))


def _program(request: str, answer: str) -> Iterator[Demand]:
    if re.search(
        r"\b(?:write|create|give|make|provide|generate|show)\b[^.?!\n]{0,30}"
        r"\b(?:(?:python|bash|shell|java|javascript|sql|php|c\+\+|vba)\s+(?:script|code|program|function|snippet|query)|"
        r"code (?:block|snippet)|a (?:script|function|regex|query))\b",
        request,
        re.IGNORECASE,
    ):
        yield Demand("code", [] if code_intervals(answer) or "`" in answer else _first(answer))


_RULES: tuple[Callable[[str, str], Iterator[Demand]], ...] = (
    _number_of_items,
    _number_of_sentences,
    _length,
    _lists_and_tables,
    _program,
)
