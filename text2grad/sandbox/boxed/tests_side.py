"""The module ``solution`` as its tests see it, while the solution runs in another box (``solution_side.py``).

A pytest plugin, loaded before ``pytest_recorder``. Calls cross as plain values, and so do results: whatever the tests
compare is compared here. What is no plain value is a :class:`Remote` (``remotes.py``), which says for itself only
what the tests ask it without telling what they expect.
"""

import importlib
import io
import os
import sys
import types
from importlib.machinery import ModuleSpec

import remotes
from following import TESTS, line_in_tests
from names import Names, lent
from remotes import Remote, RemoteType, new, own
from wire import (
    ATTRIBUTES,
    BINARY,
    BUILTIN_TYPES,
    OF_ITSELF,
    PLAIN,
    Pipes,
    PipesGone,
    TooLargeError,
    UncrossableError,
    WireDecoder,
    WireEncoder,
    WireError,
    checked,
)

__tracebackhide__ = True  # as in remotes.py
_LOOKING = ("len", "iter", "next", "getitem", "getattr", "contains", "bool", "plain", "str", "repr", "hash")
_REACHING = (getattr, setattr, delattr, vars, compile, input, breakpoint, str.format, str.format_map)
_PROTOCOLS = {f"__{name}__" for name in ("len", "iter", "getitem", "contains", "enter", *BINARY)}
"""What the solution cannot ask of an object of the tests': it would seem to have none."""
_MADE = (types.UnionType, types.GetSetDescriptorType, types.MemberDescriptorType, memoryview)
_PLAIN_NAMES = {kind.__name__ for kind in PLAIN}


class Unsupported(BaseException):
    """The tests do something that needs the solution in their own process."""


class SolutionError(Exception):
    """An exception of the solution's of a type that is not Python's own."""

    __module__ = "builtins"  # the log then shows no module


class Conversation:
    """This side of the conversation."""

    def __init__(self, pipes: Pipes, names: Names, say):
        self.pipes, self.names, self.say = pipes, names, say
        self.given: list[object] = []  # callables, iterators and objects of the tests, by number
        self.numbers: dict[int, int] = {}  # of what was given, by id
        self.remotes: dict[int, object] = {}
        self.classes: dict[int, type] = {}
        self.marks: set[str] = set()
        self.sizes: dict[int, int] = {}  # what objects said of their length, or members they gave, since the last call
        self.asked = ""  # the last question
        self.replying = 0  # callables of the tests that run for the solution

    def ask(self, question: dict, arguments: tuple = (), named: dict | None = None):
        """The value of a call over there; raises what it raised."""
        encode = WireEncoder(self.handle)
        try:
            content = [[encode(item) for item in arguments], {key: encode(item) for key, item in (named or {}).items()}]
        except TooLargeError as error:  # the solution can make any value large
            raise ValueError(str(error)) from None
        except UncrossableError as error:
            if self.replying:  # what the solution gave to a callable is not what the tests hand over
                raise TypeError(str(error)) from None
            raise self.unsupported(str(error)) from None
        known = dict(enumerate(encode.kept))
        self.asked = question["do"]
        if self.asked not in _LOOKING:
            self.sizes.clear()
        answer = self.exchange({**question, "arguments": content, "line": line_in_tests(sys._getframe())})
        try:
            decode = WireDecoder(self.value, known)
            decode.refill(answer.get("changed") or {})
            if "raised" not in answer:
                return decode(answer.get("value"))
            self.asked = question["do"]
            error = self.exception(answer["raised"], decode)
        except WireError as forged:
            self.forged(forged)
        raise error

    def exchange(self, message: dict) -> dict:
        """Send one message and return its answer, serving what the solution asks before."""
        try:
            self.pipes.send(message)
            while True:
                told = self.pipes.receive()
                for name, stream in (("out", sys.stdout), ("err", sys.stderr)):
                    if isinstance(told.get(name), str):
                        stream.write(told[name].encode("utf-8", "replace").decode())
                if isinstance(told.get("answer"), dict):
                    return told["answer"]
                self.pipes.send({"reply": self.reply(told)})
        except PipesGone:
            os._exit(71)  # the solution is gone: its own box says why, and the test that ran stays unfinished
        except TooLargeError as error:
            raise ValueError(str(error)) from None
        except WireError as error:
            self.forged(error)

    def forged(self, error: WireError) -> None:
        """End the run: the solution sent what none sends."""
        self.say(forged=str(error))
        os._exit(72)

    def reply(self, told: dict) -> dict:
        """What a callable of the tests says."""
        self.replying += 1
        try:
            return {"value": WireEncoder(self.handle)(self._replied(told))}
        except (TooLargeError, UncrossableError) as error:
            return self._raised(TypeError(str(error)))
        except WireError:
            raise
        except Exception as error:  # noqa: BLE001 (of the tests' own callable: the solution may expect it)
            if isinstance(error, AssertionError):
                self.mark("an assertion failed in what the tests hand over, and the solution may have caught it")
            return self._raised(error)
        finally:
            self.replying -= 1

    def _raised(self, error: Exception) -> dict:
        text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
        return {"raised": [[kind.__name__ for kind in type(error).__mro__], text, self.number(error)]}

    def _replied(self, told: dict) -> object:
        with checked("a question"):
            do, given = told["do"], self.given[told["x"]]
            decode = WireDecoder(self.value)
            arguments = [decode(item) for item in told["arguments"][0]]
            named = {str(key): decode(item) for key, item in told["arguments"][1].items()}
        if do == "call" and callable(given):
            return given(*arguments, **named)
        if do == "next" and hasattr(given, "__next__"):
            return next(given)
        if do in ATTRIBUTES and _is_mine(given) and arguments and not str(arguments[0]).startswith("_"):
            return ATTRIBUTES[do](given, *arguments)
        if do in OF_ITSELF and _is_mine(given):
            return OF_ITSELF[do](given, *arguments)
        raise WireError("a question that is none")

    def handle(self, value: object) -> list:
        """How something that is not plain crosses."""
        if isinstance(value, Remote):
            return ["o", object.__getattribute__(value, "_t2g_number")]
        if isinstance(value, RemoteType):
            return ["o", type.__getattribute__(value, "_t2g_number")]
        if isinstance(value, _MADE):
            raise TooLargeError(f"a {type(value).__name__} cannot cross")
        mine, kind = _is_mine(value), "xi" if hasattr(type(value), "__next__") else "xo"
        if callable(value):
            kind = "xc" if mine else "x"
        known = mine and not _PROTOCOLS.intersection(type.__dir__(type(value)))
        reaching = isinstance(value, io.IOBase) or any(value is each for each in _REACHING)
        if reaching or (kind in ("xo", "xc") and not known):
            raise UncrossableError(f"the tests hand over a {type(value).__name__}")
        if hasattr(type(value), "assertEqual"):
            raise UncrossableError("the tests hand over a test case")
        if isinstance(value, type) and issubclass(value, BaseException):
            raise UncrossableError("the tests hand over an exception class of their own")
        about = [str(getattr(value, name, None) or "") for name in ("__name__", "__doc__")] if kind == "x" else []
        return [kind, self.number(value), *about]

    def number(self, value: object) -> int:
        """By which the other side knows something of the tests'."""
        number = self.numbers.setdefault(id(value), len(self.given))
        if number == len(self.given):
            self.given.append(value)
        return number

    def value(self, told: list) -> object:
        tag, *rest = told
        if tag == "o":
            number, kind = rest
            if number not in self.remotes:
                self.remotes[number] = new(Remote if kind is None else self.kind(kind), number)
            return self.remotes[number]
        if tag == "k":
            return self.kind(rest[0])
        if tag == "x":
            return self.given[rest[0]]
        raise WireError(f"an unknown tag {tag!r}")

    def kind(self, number: int) -> type:
        """The class that represents one of the solution's."""
        if number not in self.classes:
            told = self.exchange({"do": "class", "class": number})["class"]
            bases = [
                self.kind(base) if isinstance(base, int) else BUILTIN_TYPES.get(base, object) for base in told["bases"]
            ]
            wanted = [base for base in bases if isinstance(base, RemoteType)] or [Remote]
            wanted += [base for base in bases if not isinstance(base, RemoteType) and issubclass(base, Exception)]
            plain = told["plain"] if told["plain"] in _PLAIN_NAMES else None
            about = {"_t2g_number": number, "_t2g_plain": plain, "_t2g_equal": bool(told["equal"])}
            about["__module__"] = "solution"
            self.classes[number] = RemoteType.made(str(told["name"]), tuple(wanted), about)
        return self.classes[number]

    def exception(self, raised: dict, decode: WireDecoder) -> BaseException:
        """What represents an exception of the other side: Python's own types, and classes derived from them."""
        with checked("an exception"):
            told = _known_fields(raised["told"])
            if "given" in raised:  # what a callable of the tests raised goes through the solution
                error = self.given[raised["given"]]
                if isinstance(error, Exception) and not isinstance(error, StopIteration):
                    error.t2g_told = told
                    return error
            _, number, class_number, *_ = [*raised["handle"], None]
            arguments = [decode(item) for item in raised["arguments"]]
            kind = BUILTIN_TYPES.get(next(iter(raised["builtin"]), ""), SolutionError)
            if class_number is not None:
                kind = self.kind(class_number)
        try:
            if issubclass(kind, StopIteration) and self._ends_loops():
                raise TypeError
            if isinstance(kind, RemoteType):
                error = new(kind, number)
                error.args = tuple(arguments)
            else:
                if kind is SolutionError or not issubclass(kind, Exception | SystemExit):
                    raise TypeError
                if told["error"] == kind.__name__:
                    error = kind(*arguments)
                else:  # json.JSONDecodeError is a ValueError: whoever expects either gets it
                    error = _derived(kind, str(raised.get("module")), told)
                    error.args = tuple(arguments)
                if isinstance(error, ImportError | NameError):
                    error.name = told["name"]
        except (TypeError, ValueError):
            error = SolutionError(f"{told['error']}: {told['message']}")
        error.t2g_told = told
        return error

    def _ends_loops(self) -> bool:
        """Whether StopIteration would end a loop of the tests in silence, as if all in it had been right."""
        return self.asked != "next" and "StopIteration" not in self.names.used

    def unsupported(self, reason: str) -> Unsupported:
        """The exception to raise; the host then runs solution and tests in one process."""
        self.say(unsupported=reason)
        return Unsupported(reason)

    def check_size(self, value: Remote, size: int) -> int:
        """Loops of the tests end early and in silence where an object gives fewer members than it says it has."""
        number = object.__getattribute__(value, "_t2g_number")
        if self.sizes.setdefault(number, size) != size:
            if not own(value):
                raise SolutionError("an object's length is not the number of its members")
            self.mark("the length of an object of the solution's is not the number of its members")
        return size

    def mark(self, reason: str) -> None:
        """From here on a pass leaves the verdict undecided."""
        if reason not in self.marks:
            self.marks.add(reason)
            self.say(weaker=reason)


talk: Conversation


_LIBRARIES = {
    "_csv", "_queue", "binascii", "calendar", "configparser", "csv", "dataclasses", "decimal", "email", "graphlib",
    "http", "ipaddress", "json", "queue", "re", "sre_constants", "statistics", "struct", "subprocess", "tarfile",
    "tomllib", "urllib", "xml", "zipfile", "zlib", "zoneinfo",
}  # fmt: skip
"""Whose exceptions tests expect. Not unittest's: some of those end a test that did not fail."""


def _known_fields(told: dict) -> dict:
    """What an exception of the other side says of itself; TypeError where it is something else."""
    error, message, name = told["error"], told["message"], told["name"]
    frames = [[True, line, function] for inside, line, function in told["frames"] if inside is True]
    plain = all(isinstance(text, str) for text in (error, message, name or "", *(frame[2] for frame in frames)))
    if not plain or not all(type(frame[1]) is int and 0 <= frame[1] < 1 << 31 for frame in frames):
        raise TypeError("fields of another type")
    if not frames and error in ("ImportError", "ModuleNotFoundError", "NameError", "SyntaxError"):
        frames = [[True, 1, "<module>"]]  # else it would read as the tests' own error
    return {"error": error, "message": message, "name": name, "frames": frames}


def _derived(kind: type, module: str, told: dict) -> BaseException:
    """An exception derived from one of Python's own; of its own class where it is of one of :data:`_LIBRARIES`."""
    known = sys.modules.get(module) if module.partition(".")[0] in _LIBRARIES else None
    own = getattr(known, told["error"], None)
    base = own if isinstance(own, type) and issubclass(own, kind) else kind
    about = {"__module__": "builtins", "__str__": lambda _: told["message"]}
    return base.__new__(type(told["error"], (base,), about))


def _is_mine(value: object) -> bool:
    """An object of a class that the test file defines."""
    return getattr(type(value), "__module__", None) == "test_solution" and not isinstance(value, type)


class Solution(types.ModuleType):
    """The module ``solution``. ``t2g_names``: its names, and of those that are modules the modules' names."""

    def __getattr__(self, name):
        names = self.__dict__.get("t2g_names", {})  # empty while it is imported
        if name == "pytest" and name in names:  # whatever the solution calls so: the tests get their own
            return importlib.import_module("pytest")
        if name.startswith("__") or name not in names or not self.offers(name):
            raise AttributeError(f"module 'solution' has no attribute {name!r} that tests may have")
        if names[name] is not None:
            module, own = lent(name, names[name])
            if not own and name in talk.names.used:
                talk.mark(f"the tests use {name!r}, as the solution calls the module {names[name]}")
            return module
        told = talk.exchange({"do": "name", "name": name})
        if "raised" in told:
            raise AttributeError(f"module 'solution' has no attribute {name!r}")
        if talk.names.doubtful(name):
            talk.mark(f"the tests take {name!r} from the solution without asking for it")
        try:
            value = WireDecoder(talk.value)(told.get("value"))
        except WireError as error:
            talk.forged(error)
        if isinstance(value, RemoteType):
            type.__setattr__(value, "_t2g_named", name[:1].isupper())
        self.__dict__[name] = value
        return value

    def offers(self, name: str) -> bool:
        module = self.__dict__["t2g_names"][name]
        return talk.names.offers(name) and (module is None or lent(name, module)[0] is not None)

    def __setattr__(self, name, value):
        if name.startswith("__"):
            super().__setattr__(name, value)
        else:
            raise talk.unsupported("the tests change the solution's names")


class Finder:
    """Lets ``import solution`` find the module above, and fail as the solution's own import did."""

    def find_spec(self, name, path=None, target=None):
        return ModuleSpec("solution", self) if name == "solution" else None

    def create_module(self, spec):
        return Solution("solution")

    def exec_module(self, module):
        told = talk.exchange({"do": "import"})
        if "raised" in told:
            try:
                error = talk.exception(told["raised"], WireDecoder(talk.value))
            except WireError as forged:
                talk.forged(forged)
            if not isinstance(error, Exception):
                error, told = SolutionError(type(error).__name__), error.t2g_told
                error.t2g_told = told
            raise error
        names = {str(name): module if isinstance(module, str) else None for name, module in told["names"].items()}
        module.__dict__["t2g_names"] = names
        listed = [name for name in map(str, told["all"] or names) if name in names]
        module.__dict__["__all__"] = [name for name in listed if name == "pytest" or module.offers(name)]


def begin(say) -> None:
    """Put the module in place; ``say`` reports events."""
    global talk
    with open(TESTS, encoding="utf-8", errors="surrogateescape") as file:
        try:
            names = Names(file.read())
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            names = Names("")
    talk = remotes.talk = Conversation(Pipes(int(os.environ.pop("T2G_IN")), int(os.environ.pop("T2G_OUT"))), names, say)
    sys.meta_path.insert(0, Finder())
