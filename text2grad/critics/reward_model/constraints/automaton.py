"""Which bytes may follow in z: its fixed parts, its free text, and quotes that can only be substrings of the response.

A :class:`State` is an immutable tuple, so that states compare, hash and serve as cache keys:

========  =====================================================================================
kind      what was written last
========  =====================================================================================
LITERAL   ``content`` bytes of fixed part number ``part``
TEXT      a piece of the critique (part 0) or of a missing thing (part 4); ``content`` is :class:`AnyText`'s
OPEN      the bracket that opens list number ``part``: 1 and 2 hold spans, 4 what is missing
SPAN      a piece of a span; ``content`` is that of :class:`Quotes` (or ``AnyText``)
AFTER     the quotation mark that closes an item of a list
BETWEEN   ``content`` bytes of what is between two items
NUMBER    the digits ``content`` of the verdict
END       the last brace
========  =====================================================================================

``tight`` narrows what may follow: 1 closes the text or the list that the state is in, 2 closes everything.
"""

import json
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

from text2grad.feedback import Feedback
from text2grad.tasks import Interval, Task

LITERAL, TEXT, OPEN, SPAN, AFTER, BETWEEN, END, NUMBER = range(8)
MISSING, VERDICT = 4, 6

_LONGEST_ESCAPE = len("\\u0000")
_QUOTE, _COMMA, _BACKSLASH, _BRACE = b'",\\}'
_BETWEEN = b', "'
_VERDICT = re.compile(rb"-?(?:0(?:\.\d{1,4})?|1(?:\.0{1,4})?)")
_VERDICT_BEGUN = re.compile(rb"-?(?:0\.?|1\.?)?")
_HEX = rb"[0-9a-fA-F]"
_ESCAPE = re.compile(
    rb"\\u(?:[0-9a-cA-CeEfF]%b{3}|[dD][0-7]%b{2}|[dD][89abAB]%b{2}\\u[dD][c-fC-F]%b{2})" % (_HEX, _HEX, _HEX, _HEX)
)
"""``\\uXXXX``, or two of them where a character needs a surrogate pair; half a pair alone is no character."""
_SHORT_ESCAPES = {ord(short): json.loads(f'"\\{short}"') for short in '"\\/bfnrt'}


class State(NamedTuple):
    """Where in z the writing is; the table at the head of this file says what the four mean."""

    kind: int
    part: int
    tight: int
    content: Any


class InText(NamedTuple):
    """Content of free text: whether it has a character that shows, and the bytes of an unfinished character."""

    begun: bool
    pending: bytes


class InQuote(NamedTuple):
    """Content of a quote: the bits of the places where it may end so far, whether it is all white space yet, and the
    bytes of an unfinished character."""

    places: int
    blank: bool
    pending: bytes


@lru_cache(maxsize=1 << 16)
def read_character(pending: bytes, byte: int) -> str | bytes | None:
    """One more byte of one character in a JSON string, in any of its spellings.

    Args:
        pending: the bytes of the character so far.

    Returns:
        The character where it is complete, the bytes so far where it is not, None where no character begins so.
    """
    spelling = pending + bytes([byte])
    if spelling[0] != _BACKSLASH:
        if byte < 0x20 or byte == _QUOTE:
            return None
        try:
            return spelling.decode("utf-8")
        except UnicodeDecodeError as error:
            return spelling if error.reason == "unexpected end of data" else None
    if len(spelling) == 1:
        return spelling
    if len(spelling) == 2:
        return spelling if byte == ord("u") else _SHORT_ESCAPES.get(byte)
    if _ESCAPE.fullmatch(spelling):
        return json.loads(b'"' + spelling + b'"')
    rests = (b"\\u0000"[len(spelling) :], b"\\ud800\\udc00"[len(spelling) :])
    return spelling if any(_ESCAPE.fullmatch(spelling + rest) for rest in rests) else None


class AnyText:
    """Any text that does not begin with white space."""

    start = InText(False, b"")
    """The content behind the opening quotation mark."""

    def step(self, content: InText, byte: int) -> InText | None:
        """The content after one more byte; None where it may not follow."""
        character = read_character(content.pending, byte)
        if isinstance(character, str):
            return InText(True, b"") if content.begun or not character.isspace() else None
        return None if character is None else InText(content.begun, character)

    def complete(self, content: InText) -> bool:
        """Whether the closing quotation mark may follow."""
        return content.begun and not content.pending


class Quotes:
    """The substrings of a response's judged text that are more than white space, in every JSON spelling.

    The nondeterministic automaton of all substrings, its states kept as the bits of one integer (shift-and,
    Baeza-Yates and Gonnet 1992): bit i means "the quote so far ends before character i".

    Args:
        judged: the intervals a span must lie inside, one whole span in one interval.

    Attributes:
        start: as of :class:`AnyText`; None where there is nothing to quote.
        blank_tokens: at most so many tokens write the white space that a span may begin with.
    """

    def __init__(self, response: str, judged: Iterable[Interval]):
        # "" where no quote may go on: behind each interval, and at half a surrogate pair, which no file can hold.
        pieces = [*(response[start:end] for start, end in judged)]
        self._characters = ["" if "\ud800" <= c <= "\udfff" else c for piece in pieces for c in (*piece, "")]
        self._at: dict[str, int] = {}  # character -> positions where it is
        self._solid = 0  # positions from which a character other than white space is still to come
        self.blank_tokens = run = 0
        ahead = False
        for position, character in reversed([*enumerate(self._characters)]):
            ahead = bool(character) and (ahead or not character.isspace())
            run = run + (1 if character == " " else _LONGEST_ESCAPE) if ahead and character.isspace() else 0
            self.blank_tokens = max(self.blank_tokens, run)
            self._solid |= ahead << position
            if character:
                self._at[character] = self._at.get(character, 0) | 1 << position

        self._spelled: dict[bytes, int] = {}  # beginning of a spelling -> positions of the characters it may become
        for character, places in self._at.items():
            for beginning in _beginnings(character):
                self._spelled[beginning] = self._spelled.get(beginning, 0) | places
        self._first = {character: bytes({character.encode()[0], *b'\\"'}) for character in self._at}
        self._any = bytes(set().union(*self._first.values()))
        self.start = InQuote(self._solid, True, b"") if self._solid else None

    def step(self, content: InQuote, byte: int) -> InQuote | None:
        positions, blank, pending = content
        character = read_character(pending, byte)
        if isinstance(character, str):
            # Each place moves on by one where the response has this character, and is dropped where it has not.
            positions = (positions & self._at.get(character, 0)) << 1
            if blank and character.isspace():
                positions &= self._solid
            else:
                blank = False
            return InQuote(positions, blank, b"") if positions else None
        if character is None:
            return None
        # An unfinished spelling keeps the places whose character it may become: half a character moves on nowhere.
        key = character.lower() if character[0] == _BACKSLASH else character
        positions &= self._spelled.get(key, 0)
        return InQuote(positions, blank, character) if positions else None

    def complete(self, content: InQuote) -> bool:
        return not content.blank and not content.pending

    def candidates(self, content: InQuote) -> bytes | None:
        """Bytes among which are all that may follow, where they are few; None where any byte is to be tried."""
        positions, _, pending = content
        if pending:
            return None
        if positions & (positions - 1):  # several places
            return self._any
        return self._first.get(self._characters[positions.bit_length() - 1], b'"')


def _beginnings(character: str) -> set[bytes]:
    """The proper beginnings of a character's spellings, hexadecimal digits in lower case."""
    raw = character.encode("utf-8")
    escaped = json.dumps(character).encode() if ord(character) > 0x7F else b'"\\u%04x"' % ord(character)
    return {spelling[:end] for spelling in (raw, escaped[1:-1]) for end in range(1, len(spelling))}


def _rendered(task: Task, feedback: Feedback) -> list[bytes]:
    """z between the strings that are "?"."""
    return task.render_feedback(feedback).encode().split(b'"?"')


class Format:
    """z of one task: the fixed parts are read off what the task itself renders.

    Behind the spans z may end, or go on with what is missing, and behind that with the verdict.

    Args:
        spans: what a span may be; None where only the states before and after spans matter (a span that opens is
            then a state without content).
    """

    def __init__(self, task: Task, spans: Quotes | None):
        *critique, first, second, end = _rendered(task, Feedback("?", ["?"], ["?"]))
        self.has_text = bool(critique)
        head = critique[0] + b'"' if critique else first
        self.literals: tuple[bytes, ...] = (b" " + head, first if critique else b"", second, end)
        if len(whole := _rendered(task, Feedback("?", ["?"], ["?"], missing=["?"], score=0.0))) > 3 + len(critique):
            self.literals += (whole[-2], end, whole[-1].removesuffix(b"0.0}"))
        self.text, self.spans = AnyText(), spans
        self.start = State(LITERAL, 0, 0, 0)

    def step(self, state: State, byte: int) -> State | None:
        """The state after one more byte; None where it may not follow."""
        kind, part, tight, content = state
        if kind == TEXT:
            if byte == _QUOTE and self.text.complete(content):
                return State(AFTER, part, tight & 2, 0) if part == MISSING else State(LITERAL, 1, tight & 2, 0)
            if tight and self.text.complete(content):
                return None
            content = self.text.step(content, byte)
            return None if content is None else State(TEXT, part, tight, content)
        if kind == SPAN and self.spans is not None:
            if byte == _QUOTE and self.spans.complete(content):
                return State(AFTER, part, tight, 0)
            if tight and self.spans.complete(content):
                return None
            content = self.spans.step(content, byte)
            return None if content is None else State(SPAN, part, tight, content)
        if kind == LITERAL:
            return self._literal(part, content, tight, byte)
        if kind == NUMBER:
            return self._number(content, tight, byte)
        if kind == BETWEEN:
            if byte != _BETWEEN[content]:
                return None
            return self.open_span(part, tight) if byte == _QUOTE else State(BETWEEN, part, tight, content + 1)
        if kind == OPEN and byte == _QUOTE and not tight:
            return self.open_span(part, tight)
        if kind == AFTER and byte == _COMMA and not tight:
            return State(BETWEEN, part, tight, 1)
        if kind in (OPEN, AFTER):
            return self._literal(part + 1, 0, tight & 2, byte)
        return None

    def walked(self, state: State, byte: int) -> State:
        """The state after a byte that may follow."""
        after = self.step(state, byte)
        assert after is not None
        return after

    def candidates(self, state: State) -> bytes | None:
        """Bytes among which are all that may follow, where they are few; None where any byte is to be tried."""
        return self.spans.candidates(state.content) if state.kind == SPAN and self.spans is not None else None

    def _literal(self, part: int, written: int, tight: int, byte: int) -> State | None:
        if part + 1 in (MISSING, VERDICT) and written == 1 and byte == _COMMA and not tight & 2:
            part += 1  # z goes on; both begin with the bracket that closes a list
            if part >= len(self.literals):
                return None
        literal = self.literals[part]
        if part == 0 and written == 0 and byte == literal[1]:
            written = 1  # the space before the brace, which only some tokenizers write
        if byte != literal[written]:
            return None
        if written + 1 < len(literal):
            return State(LITERAL, part, tight, written + 1)
        if part == 0 and self.has_text:
            return State(TEXT, 0, tight, self.text.start)
        if part == VERDICT:
            return State(NUMBER, part, tight, b"")
        return State(OPEN, part or 1, tight, 0) if part in (0, 1, 2, MISSING) else State(END, part, 0, 0)

    def _number(self, written: bytes, tight: int, byte: int) -> State | None:
        complete = _VERDICT.fullmatch(written) is not None
        if complete and byte == _BRACE:
            return State(END, VERDICT, 0, 0)
        longer = written + bytes([byte])
        if (complete and tight) or not (_VERDICT.fullmatch(longer) or _VERDICT_BEGUN.fullmatch(longer)):
            return None
        return State(NUMBER, VERDICT, tight, longer)

    def open_span(self, part: int, tight: int) -> State | None:
        """The state behind an item's opening quotation mark; None where the response holds nothing to quote."""
        if part == MISSING:
            return State(TEXT, part, tight, self.text.start)
        if self.spans is None:
            return State(SPAN, part, tight, None)
        return None if self.spans.start is None else State(SPAN, part, tight, self.spans.start)
