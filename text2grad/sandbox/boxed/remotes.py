"""What stands for the solution's objects and classes among its tests, which run in another box (``tests_side.py``)."""

import operator
import sys
from collections.abc import Iterator

from wire import BINARY, BUILTIN_TYPES, COMPARISONS

_UNARY = (
    "next", "str", "repr", "bool", "hash", "int", "float", "complex", "index", "abs", "neg", "pos",
    "invert", "reversed", "copy", "dir",
)  # fmt: skip
_GIVEN = ("getitem", "setitem", "delitem", "delattr", "format", "round", "enter")
_OF_CLASSES = ("setattr", "iter", "len", "getitem")
_MEMBERS = {*dir(str), *dir(frozenset), "items", "keys", "values"}
"""What may answer with true, or with what it is given, where the tests believe to ask a plain value."""
_TOLD = ("__name__", "__qualname__", "__doc__")  # what may be asked that begins with underscores

__tracebackhide__ = True  # not in the log: it shows what the tests and the solution did
talk = None  # the conversation with the solution, once it has begun


def new(kind: type, number: int):
    value = (Exception if issubclass(kind, Exception) else object).__new__(kind)
    object.__setattr__(value, "_t2g_number", number)
    object.__setattr__(value, "_t2g_own", False)
    return value


def _hidden(name: str) -> bool:
    """Protocols of libraries, such as numpy's, would tell the solution what is expected, and let it answer."""
    return name.startswith("__") and name not in _TOLD


class RemoteType(type):
    """The class of the classes that represent the solution's."""

    def __new__(cls, name, bases, about):
        if bases:
            raise talk.unsupported("the tests derive from a class of the solution's")
        return super().__new__(cls, name, bases, about)

    @classmethod
    def made(cls, name: str, bases: tuple, about: dict) -> type:
        return super().__new__(cls, name, bases, about)

    def __call__(cls, *arguments, **named):
        if cls is Remote:
            raise TypeError("there is no such class")
        value = talk.ask({"do": "call"}, (cls, *arguments), named)
        return _as_own(cls, value)

    def __getattr__(cls, name):
        if cls is Remote or name == "_t2g_number" or _hidden(name):
            raise AttributeError(name)
        return _as_own(cls, talk.ask({"do": "getattr"}, (cls, name)))  # a member of an enumeration

    def __bool__(cls):
        return True

    def __contains__(cls, item):
        return any(item is member or item == member for member in cls)

    def __instancecheck__(cls, value):
        """A named tuple crosses as one of a class of this side's own, with the same name and fields."""
        if type.__instancecheck__(cls, value):
            return True
        named = cls._t2g_plain == "tuple" and type(value).__module__ == "wire" and type(value).__name__ == cls.__name__
        return named and isinstance(value, tuple) and cls._fields == type(value)._fields


class Remote(metaclass=RemoteType):
    """Something of the solution's that is no plain value, over there."""

    _t2g_plain = None
    _t2g_equal = False
    _t2g_named = False

    def __getattr__(self, name):
        if name in ("_t2g_number", "_t2g_own", "t2g_told") or _hidden(name):
            raise AttributeError(name)
        if name in _MEMBERS and not own(self):
            talk.mark(f"an object of the solution's answers for {name}, as plain values do")
        return talk.ask({"do": "getattr"}, (self, name))

    @property
    def __class__(self):
        """What ``isinstance`` asks beside the type: a value of a class derived from list is a list."""
        return BUILTIN_TYPES.get(type(self)._t2g_plain, type(self))

    def __len__(self):
        return talk.check_size(self, talk.ask({"do": "len"}, (self,)))

    def __iter__(self):
        members = talk.ask({"do": "iter"}, (self,))
        return members if members is self else _members(self, members)

    def __setattr__(self, name, value):
        if name in ("t2g_told", "args", "__traceback__", "__context__", "__cause__", "__notes__"):
            object.__setattr__(self, name, value)
        else:
            talk.ask({"do": "setattr"}, (self, name, value))

    def __call__(self, *arguments, **named):
        return talk.ask({"do": "call"}, (self, *arguments), named)

    def __contains__(self, item):
        if own(self):
            return talk.ask({"do": "contains"}, (self, item))
        return any(item is member or item == member for member in self)

    def __deepcopy__(self, _):
        return _same(self, talk.ask({"do": "deepcopy"}, (self,)))

    def __exit__(self, kind, error, trace):
        shown = [kind if BUILTIN_TYPES.get(getattr(kind, "__name__", "")) is kind else None, None, None]
        ends = talk.ask({"do": "exit"}, (self, *shown))
        if not ends or kind is None:
            return ends
        if not issubclass(kind, Exception) or issubclass(kind, AssertionError):
            return False  # a failed test stays one
        talk.mark("the solution's context manager ends an exception of the tests")
        return True


def own(value: Remote) -> bool:
    return isinstance(value, Remote) and bool(object.__getattribute__(value, "_t2g_own"))


def _as_own(kind: RemoteType, value: object) -> object:
    """What the tests make of a class that they name: a class in place of a function they do not take for one."""
    if type.__instancecheck__(kind, value) and type.__getattribute__(kind, "_t2g_named"):
        object.__setattr__(value, "_t2g_own", True)
    return value


def _members(owner: Remote, members: Iterator):
    count = 0
    for member in members:
        yield member
        count += 1
    talk.check_size(owner, count)


def _of_a_library(value: object) -> bool:
    module = type(value).__module__.partition(".")[0]
    return module != "builtins" and module in sys.stdlib_module_names


def _same(first: Remote, value: object) -> object:
    """The result of an operator on an object that the tests made is as theirs, where it is of the same class."""
    return _as_own(type(first), value) if own(first) else value


def _given(name: str):
    """What is asked over there as it is."""

    def method(self, *arguments):
        return talk.ask({"do": name}, (self, *arguments))

    return method


def _unary(name: str):
    def method(self):
        return _same(self, talk.ask({"do": name}, (self,)))

    return method


def _operator(name: str):
    """Operands go over only to objects that the tests made: others could learn from them what is expected."""

    def method(self, other):
        if not own(self):
            return NotImplemented
        if not isinstance(other, Remote):
            talk.mark("the solution's own operators are told plain values")
        return _same(self, talk.ask({"do": name}, (self, other)))

    return method


def _comparison(name: str):
    """Plain values are compared here. An object that the tests made decides itself, and the verdict is marked."""

    def method(self, other):
        if type(self)._t2g_plain and isinstance(other, Remote) and type(other)._t2g_plain:
            other = talk.ask({"do": "plain"}, (other,))
        if isinstance(other, Remote):
            if self is other and name in ("eq", "ne"):
                return name == "eq"
            if not (own(self) or own(other)):
                return NotImplemented
            if name in ("eq", "ne") and not (type(self)._t2g_equal or type(other)._t2g_equal):
                return name == "ne"
        elif type(self)._t2g_plain:
            return getattr(operator, name)(talk.ask({"do": "plain"}, (self,)), other)
        elif type(self) is Remote and _of_a_library(other):
            raise talk.unsupported("an object of a library's that cannot cross is compared")
        elif not own(self) or (name in ("eq", "ne") and not type(self)._t2g_equal):
            return NotImplemented
        talk.mark("the solution compares its own objects")
        return talk.ask({"do": name}, (self, other))

    return method


type.__setattr__(Remote, "__doc__", property(lambda self: talk.ask({"do": "getattr"}, (self, "__doc__"))))
for _name in _OF_CLASSES:
    setattr(RemoteType, f"__{_name}__", _given(_name))
for _name in _GIVEN:
    type.__setattr__(Remote, f"__{_name}__", _given(_name))
for _name in _UNARY:
    type.__setattr__(Remote, f"__{_name}__", _unary(_name))
for _name in COMPARISONS:
    type.__setattr__(Remote, f"__{_name}__", _comparison(_name))
for _name in BINARY:
    for _form in (_name, f"r{_name}", f"i{_name}"):
        type.__setattr__(Remote, f"__{_form}__", _operator(_form))
