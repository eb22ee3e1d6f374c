"""Plain values between a solution and its tests, which run in two boxes: JSON in frames over two pipes.

Runs inside the sandbox, on both sides; standard library only. Only plain values cross: numbers, texts, containers of
them, a few types of the standard library, numpy arrays. Everything else stays where it is and crosses as a handle.
A value of a subclass crosses as its base class would have it, so that no method of the sender's is called by the
receiver: an object that calls itself equal to everything is only a handle over there.
"""

import base64
import collections
import contextlib
import copy
import datetime
import decimal
import fractions
import json
import math
import operator
import os
import sys

MOST_BYTES = 64 << 20  # of one message
DEEPEST = 150
_EXACT = (1 << 53) - 1
BUILTIN_TYPES = {name: kind for name, kind in vars(__import__("builtins")).items() if isinstance(kind, type)}

BINARY = (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift",
)  # fmt: skip
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
ATTRIBUTES = {"getattr": getattr, "setattr": setattr, "delattr": delattr}
OF_ITSELF = {
    "str": str, "repr": repr, "bool": bool, "hash": hash, "copy": copy.copy, "deepcopy": copy.deepcopy,
    **{name: getattr(operator, name) for name in COMPARISONS},
}  # fmt: skip
"""What either side may ask an object of the other's of itself, as it does by comparing, printing or storing it."""
PLAIN = (int, float, complex, str, bytes, list, tuple, dict, set, frozenset)
_RAW = "biufc"  # numpy's kinds of numbers, which cross as bytes
_FACTORIES = {kind.__name__: kind for kind in (*PLAIN, bool)}  # what a defaultdict may make: it crosses again


class WireError(Exception):
    """A value or a message that cannot cross."""


class UncrossableError(WireError):
    """A value of this side's own of a kind that cannot cross."""


class TooLargeError(WireError):
    """A value that is too large, or nested too deeply, to cross."""


@contextlib.contextmanager
def checked(what: str):
    """Whatever goes wrong with a message that no other side of this kind sends is a :class:`WireError`."""
    try:
        yield
    except (TypeError, ValueError, LookupError, AttributeError, RecursionError, ArithmeticError) as error:
        raise WireError(f"{what} that is none: {type(error).__name__}: {error}") from None


class PipesGone(BrokenPipeError):
    """The other side is gone. A solution may raise its own BrokenPipeError."""


class Pipes:
    """Messages over two pipes: one for reading, one for writing."""

    def __init__(self, incoming: int, outgoing: int):
        self._incoming, self._outgoing = incoming, outgoing

    def send(self, message: object) -> None:
        try:
            data = json.dumps(message).encode()
        except (ValueError, TypeError, RecursionError) as error:
            raise TooLargeError(f"a value that cannot cross: {error}") from None
        if len(data) > MOST_BYTES:
            raise TooLargeError(f"a value of {len(data) >> 20} MB is too large to cross")
        view = memoryview(len(data).to_bytes(4, "big") + data)
        try:
            while view:
                view = view[os.write(self._outgoing, view) :]
        except BrokenPipeError:
            raise PipesGone from None

    def receive(self) -> dict:
        """The next message; :class:`PipesGone` where the other side is gone."""
        size = int.from_bytes(self._exactly(4), "big")
        if size > MOST_BYTES:
            raise WireError("a message that is too large")
        try:
            message = json.loads(self._exactly(size))
        except (ValueError, RecursionError) as error:
            raise WireError(f"a message that is not JSON: {error}") from None
        if not isinstance(message, dict):
            raise WireError("a message that is no object")
        return message

    def _exactly(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            part = os.read(self._incoming, min(1 << 20, size - len(parts)))
            if not part:
                raise PipesGone
            parts += part
        return bytes(parts)


class WireEncoder:
    """Values of this side as JSON.

    Args:
        handle: ``(value) -> JSON list`` for whatever is not plain.
        known: containers that the other side knows by number, ``id(container) -> number``.
    """

    def __init__(self, handle, known=None):
        self._handle = handle
        self.known = dict(known or {})
        self.kept: list = []  # containers in the order of their numbers; alive, so that no id is used twice

    def __call__(self, value: object, depth: int = 0) -> object:
        kind = type(value)
        if value is None or kind is bool or kind is str:
            return value
        if kind is int:
            return value if -_EXACT <= value <= _EXACT else ["i", hex(value)]
        if kind is float:
            return value if math.isfinite(value) else ["f", repr(value)]
        if depth > DEEPEST:
            raise TooLargeError("a value that is nested too deeply to cross")
        if kind is tuple:
            return ["t", [self(item, depth + 1) for item in value]]
        if kind is frozenset:
            return ["z", [self(item, depth + 1) for item in _ordered(value)]]
        if kind in _CONTAINERS:
            return self._known(_CONTAINERS[kind], value, depth)
        if kind in _SCALARS:
            tag, write, _ = _SCALARS[kind]
            return [tag, write(value)]
        if _is_numpy(value, "ndarray") and value.dtype.names is None:
            return self._known("array", value, depth)
        if _is_numpy(value, "generic"):
            return ["number", *_raw(value)] if value.dtype.kind in _RAW else self(value.item(), depth + 1)
        if kind in (type({}.keys()), type({}.items()), type({}.values())):
            return ["view", kind.__name__, self(list(value), depth + 1)]
        fields = getattr(kind, "_fields", None)
        if issubclass(kind, tuple) and isinstance(fields, tuple) and not _has_methods(kind, fields):
            return ["nt", kind.__name__, list(fields), [self(item, depth + 1) for item in tuple.__iter__(value)]]
        if isinstance(value, type) and BUILTIN_TYPES.get(value.__name__) is value:
            return ["type", value.__name__]
        return self._handle(value)

    def _known(self, tag: str, value: object, depth: int) -> list:
        """A mutable container, told once: what the other side changes in it is told by its number."""
        if id(value) in self.known:
            return ["same", self.known[id(value)]]
        number = self.known[id(value)] = len(self.known)
        self.kept.append(value)
        return [tag, number, *self.content(value, depth)]

    def content(self, value: object, depth: int = 0) -> list:
        """What a mutable container holds."""
        if isinstance(value, dict):
            items = [[self(key, depth + 1), self(item, depth + 1)] for key, item in dict.items(value)]
            if type(value) is collections.defaultdict:
                return [items, self(value.default_factory, depth + 1)]
            return [items]
        if isinstance(value, bytearray):
            return [base64.b64encode(value).decode()]
        if isinstance(value, set):
            return [[self(item, depth + 1) for item in _ordered(value)]]
        if _is_numpy(value, "ndarray"):
            if value.dtype.kind in _RAW:
                return [*_raw(value), list(value.shape)]
            return [None, [self(item, depth + 1) for item in value.flat], list(value.shape)]
        items = [self(item, depth + 1) for item in value]
        return [items, value.maxlen] if isinstance(value, collections.deque) else [items]


def _has_methods(kind: type, fields: tuple) -> bool:
    """Whether a class of named tuples has public members besides its fields."""
    more = set(dir(kind)) - set(dir(tuple)) - set(fields)
    return any(not name.startswith("_") for name in more)


class WireDecoder:
    """JSON as values of this side; :class:`WireError` for anything that an encoder would not have written.

    Args:
        handle: ``(JSON list) -> value`` for tags that are not plain.
        known: containers that the other side may name by number.
        deepest: nesting that is followed; less than an encoder follows, so that what came over can go back.
    """

    def __init__(self, handle, known=None, deepest: int = DEEPEST - 20):
        self._handle = handle
        self.known = dict(known or {})
        self._deepest = deepest

    def __call__(self, told: object) -> object:
        with checked("a value"):
            return self._value(told)

    def _value(self, told: object, depth: int = 0) -> object:
        if not isinstance(told, list):
            if isinstance(told, dict):
                raise WireError("an object of JSON")
            return told
        if depth > self._deepest:
            raise WireError("a value that is nested too deeply")
        tag, *rest = told
        if tag in _FILLED:
            number, *content = rest
            made = self.known[int(number)] = _empty(tag, content)
            self.fill(made, content, depth)
            return made
        if tag in _READERS:
            return _READERS[tag](*rest)
        if tag == "same":
            return self.known[rest[0]]
        if tag in ("t", "z"):
            return _KINDS[tag](self._value(item, depth + 1) for item in rest[0])
        if tag == "view":
            return _VIEWS[rest[0]](self._value(rest[1], depth + 1))
        if tag == "nt":
            kind = collections.namedtuple(str(rest[0]), [str(name) for name in rest[1]], rename=True)
            return kind(*(self._value(item, depth + 1) for item in rest[2]))
        if tag == "array":
            number, *content = rest
            made = self.known[int(number)] = self._array(*content, depth)
            return made
        if tag == "number":
            return self._array(*rest, [1], depth)[0]
        if tag == "type":
            return BUILTIN_TYPES[rest[0]]
        return self._handle(told)

    def refill(self, changed: dict) -> None:
        """Give containers that the other side knows the content that it told."""
        with checked("a change"):
            for number, content in changed.items():
                self.fill(self.known[int(number)], content)

    def fill(self, made: object, content: list, depth: int = 0) -> None:
        """Give a mutable container the content that was told, in place of what it held."""
        items = content[0]
        if isinstance(made, bytearray):
            made[:] = base64.b64decode(items)
            return
        if _is_numpy(made, "ndarray"):
            made[...] = self._array(*content, depth)
            return
        if isinstance(made, dict):
            pairs = [(self._value(key, depth + 1), self._value(item, depth + 1)) for key, item in items]
            made.clear()
            made.update(dict(pairs))  # of pairs a Counter would count each as one
            return
        values = [self._value(item, depth + 1) for item in items]
        made.clear()
        (made.update if isinstance(made, set) else made.extend)(values)

    def _array(self, kind, data, shape, depth):
        import numpy

        if kind is None:
            array = numpy.empty(len(data), dtype=object)
            for place, item in enumerate(data):  # at once, lists of equal length would become further dimensions
                array[place] = self._value(item, depth + 1)
            return array.reshape(shape)
        dtype = numpy.dtype(kind)
        if dtype.kind not in _RAW:
            raise WireError("an array of objects")
        return numpy.frombuffer(base64.b64decode(data), dtype=dtype).copy().reshape(shape)


def _is_numpy(value: object, kind: str) -> bool:
    """Whether a value is of numpy's class of this name; a box that has not imported numpy holds none."""
    return "numpy" in sys.modules and isinstance(value, getattr(sys.modules["numpy"], kind))


def _raw(value) -> list:
    """The dtype and the bytes of numbers."""
    return [value.dtype.str, base64.b64encode(value.tobytes()).decode()]


def _ordered(items) -> list:
    """A set's members in an order of its own content where they have one, so that equal sets read the same."""
    try:
        return sorted(items)
    except TypeError:
        return list(items)


def _empty(tag: str, content: list):
    if tag == "q" and content[1] is not None:
        return collections.deque(maxlen=int(content[1]))
    if tag == "dd":
        factory = content[1]
        known = isinstance(factory, list) and factory[0] == "type"
        return collections.defaultdict(_FACTORIES.get(factory[1]) if known else None)
    return _KINDS[tag]()


_CONTAINERS = {
    tuple: "t", frozenset: "z", list: "l", dict: "d", set: "s", bytearray: "a", collections.deque: "q",
    collections.defaultdict: "dd", collections.OrderedDict: "od", collections.Counter: "cn",
}  # fmt: skip
_KINDS = {tag: kind for kind, tag in _CONTAINERS.items()}
_FILLED = _KINDS.keys() - {"t", "z"}
_SCALARS = {  # type -> its tag, how it is written, how it is read
    bytes: ("b", lambda v: base64.b64encode(v).decode(), base64.b64decode),
    complex: ("c", lambda v: [repr(v.real), repr(v.imag)], lambda v: complex(float(v[0]), float(v[1]))),
    range: ("r", lambda v: [v.start, v.stop, v.step], lambda v: range(*v)),
    slice: ("sl", lambda v: [v.start, v.stop, v.step], lambda v: slice(*(part and int(part) for part in v))),
    decimal.Decimal: ("D", str, decimal.Decimal),
    fractions.Fraction: ("F", str, fractions.Fraction),
    type(...): ("dots", lambda v: 0, lambda v: ...),
    type(NotImplemented): ("ni", lambda v: 0, lambda v: NotImplemented),
    datetime.timedelta: ("td", lambda v: [v.days, v.seconds, v.microseconds], lambda v: datetime.timedelta(*v)),
    datetime.timezone: (
        "tz", lambda v: v.utcoffset(None).total_seconds(), lambda v: datetime.timezone(datetime.timedelta(seconds=v)),
    ),
    **{
        kind: (kind.__name__, kind.isoformat, kind.fromisoformat)
        for kind in (datetime.date, datetime.datetime, datetime.time)
    },
}  # fmt: skip
_VIEWS = {
    "dict_keys": lambda items: dict.fromkeys(items).keys(),
    "dict_items": lambda items: dict(items).items(),
    "dict_values": lambda items: dict(enumerate(items)).values(),
}
_READERS = {"i": lambda v: int(v, 16), "f": float, **{tag: read for tag, _, read in _SCALARS.values()}}
