"""What offsets into a text count: code points or UTF-16 units, with CRLF as it is or as one character.

Annotation tools run in browsers, whose strings count UTF-16 units and whose pages show CRLF as one line break. Tools,
their versions and their programs differ in what they write into an export. The quoted text that lies beside the
offsets decides: one convention must explain every span of an export.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from text2grad.errors import InputError
from text2grad.safety.gate import shown
from text2grad.tasks import Interval


class Convention(NamedTuple):
    """``utf16``: offsets count UTF-16 units. ``one_newline``: CRLF and CR count as one character."""

    utf16: bool
    one_newline: bool


CONVENTIONS = tuple(Convention(utf16, one_newline) for utf16 in (False, True) for one_newline in (False, True))


def positions(text: str, convention: Convention) -> dict[int, int]:
    """Offset -> index of the character that begins there; offsets inside a character are left out."""
    found: dict[int, int] = {}
    offset = 0
    for index, char in enumerate(text):
        found.setdefault(offset, index)
        if not (convention.one_newline and text[index : index + 2] == "\r\n"):  # counted with its line feed
            offset += 2 if convention.utf16 and ord(char) > 0xFFFF else 1
    found.setdefault(offset, len(text))
    return found


def interval(value: Mapping[str, Any], text: str, convention: Convention) -> Interval | None:
    """The characters that a span's ``start`` and ``end`` mean; None where they are not its ``text``."""
    start, end = value.get("start"), value.get("end")
    known = positions(text, convention)
    if start not in known or end not in known or known[start] >= known[end]:
        return None
    found = known[start], known[end]
    quoted = value.get("text")
    return found if quoted is None or _same(quoted, text[slice(*found)]) else None


def chosen_convention(
    marked: Sequence[tuple[str, Mapping[str, Any]]], offsets: str = "auto", source: str = "the export"
) -> Convention:
    """The convention that explains every span.

    Args:
        marked: each span's text and its ``start``, ``end`` and ``text``.
        offsets: ``code_points`` or ``utf16`` where it is known.

    Raises:
        InputError: none does, or two do and mean different characters.
    """
    candidates = [each for each in CONVENTIONS if offsets == "auto" or each.utf16 == (offsets == "utf16")]
    fitting = [each for each in candidates if all(interval(value, text, each) for text, value in marked)]
    if not fitting:
        best = max(candidates, key=lambda each: sum(interval(value, text, each) is not None for text, value in marked))
        text, value = next((text, value) for text, value in marked if interval(value, text, best) is None)
        raise InputError(
            f"{source}: offsets {value.get('start')} to {value.get('end')} are not {shown(value.get('text'))} in "
            f"{shown(text)}, however they are counted; was the response changed after it was annotated?"
        )
    for text, value in marked:
        if len(meant := {interval(value, text, each) for each in fitting}) > 1:
            raise InputError(
                f"{source}: offsets {value.get('start')} to {value.get('end')} may mean {len(meant)} places of "
                f"{shown(value.get('text'))}, in code points or in UTF-16; say which, --offsets code_points or utf16"
            )
    return fitting[0]


def _same(quoted: Any, found: str) -> bool:
    """Whether a quoted text is the one found, line breaks aside."""
    if not isinstance(quoted, str):
        return False
    forms = quoted, quoted.replace("\\n", "\n")  # some write a line break as a backslash and an n
    # "\r\r\n" may be quoted with its pair alone as one break, "\r\n", which must not be read as a pair again
    return any(form == found.replace("\r\n", "\n") or _lines(form) == _lines(found) for form in forms)


def _lines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")
