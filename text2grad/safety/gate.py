"""One gate for JSON and text from outside: what models, servers and programs write, and the files of users.

Whatever is wrong with it becomes an :class:`UnreadableError` with a reason: broken JSON, bytes that are not UTF-8,
half of a surrogate pair, numbers too long to hold, nesting too deep to follow, NaN where JSON has no such number.
"""

import errno
import json
import math
import stat
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

MOST_DIGITS = 1000  # of a whole number; Python itself refuses to print one of more than 4300
DEEPEST = 200  # lists and objects inside one another; Python follows about 900 at most


class UnreadableError(ValueError):
    """Text from outside that cannot be used; the message says why."""


def regular(path: Path) -> Path:
    """A file that a user named, to be read; ``OSError`` for devices and named pipes, which may have no end."""
    kind = path.stat().st_mode
    if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind) or path.parent == Path("/dev/fd")):
        raise OSError(errno.EINVAL, "not a regular file")
    return path


def whole_number(digits: str) -> int:
    """The integer that JSON text spells (``parse_int`` of a decoder)."""
    if len(digits) > MOST_DIGITS:
        raise UnreadableError(f"it holds a number of {len(digits)} digits")
    return int(digits)


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these pairs (``object_pairs_hook`` of a decoder); a key that occurs twice is an error."""
    value = dict(pairs)
    if len(value) != len(pairs):
        twice = sorted(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise UnreadableError(f"it names a field twice: {shown(twice)}")
    return value


def read_json(text: str | bytes, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """The value of a JSON text.

    Args:
        pairs: makes an object of its pairs; :func:`unique_keys`, or of two equal keys the last by default.

    Raises:
        UnreadableError: whatever is wrong with it.
    """
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8", "surrogatepass")  # half pairs are told of by their place
        except UnicodeDecodeError as error:
            raise UnreadableError(f"it is not UTF-8 text at byte {error.start}") from None
    try:
        return json.loads(text, parse_int=whole_number, object_pairs_hook=pairs)
    except json.JSONDecodeError as error:
        raise UnreadableError(f"it is not JSON: {error.msg} at line {error.lineno} column {error.colno}") from None
    except RecursionError:
        raise UnreadableError("it nests lists and objects too deeply") from None


def fault(value: Any, finite: bool = True) -> str | None:
    """Why a decoded value cannot be stored as JSON and read back, and where; None where it can.

    Args:
        finite: NaN and infinity are faults, too; Python reads back what it writes for them, others do not.
    """
    waiting: list[tuple[Any, int, str]] = [(value, 0, "")]
    while waiting:
        item, depth, where = waiting.pop()
        if depth > DEEPEST:
            return f"it nests more than {DEEPEST} lists and objects"
        if isinstance(item, str):
            if not storable(item):
                return f"{where or 'it'} contains a lone surrogate: {shown(item)}"
        elif isinstance(item, float):
            if finite and not math.isfinite(item):
                return f"{where or 'it'} holds {item}, which is no number of JSON"
        elif isinstance(item, dict):
            for key, part in item.items():
                if isinstance(key, str) and not storable(key):
                    return f"a field's name contains a lone surrogate: {shown(key)}"
                waiting.append((part, depth + 1, where or f"its field {shown(key)}"))
        elif isinstance(item, list | tuple):
            waiting += [(part, depth + 1, where) for part in item]
    return None


def storable(text: str) -> bool:
    """Whether UTF-8 can hold the text: half of a surrogate pair it cannot."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def as_storable(text: str) -> str:
    """A message that quotes from outside, with � for what UTF-8 cannot hold."""
    return text if storable(text) else "".join("\ufffd" if "\ud800" <= char <= "\udfff" else char for char in text)


def storable_value(value: Any) -> Any:
    """A JSON value that every file can store: half surrogate pairs become �, numbers beyond JSON's become text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {storable_value(name): storable_value(item) for name, item in value.items()}
    if isinstance(value, list):
        return [storable_value(item) for item in value]
    return as_storable(value) if isinstance(value, str) else value


def shown(value: object, most: int = 80) -> str:
    """A value in a message: its ``repr``, cut in the middle, since two paths differ at their ends."""
    if isinstance(value, str) and len(value) > 2 * most:
        value = value[:most] + value[-most:]  # a long text is not spelled out only to be cut
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        text = f"a {type(value).__name__} that cannot be shown"
    half = most // 2
    return text if len(text) <= most else f"{text[: half - 3]}...{text[-half:]}"
