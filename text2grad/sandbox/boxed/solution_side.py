"""The solution, alone in its box: answers calls from its tests, which run in another (``tests_side.py``).

It learns the arguments of each call and nothing else of the tests: what it returns is compared over there. Standard
library only; started as a script. With ``T2G_TRACE`` set it follows what each call executes.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import io
import operator
import os
import sys
from types import ModuleType

import following
from wire import (
    ATTRIBUTES,
    BINARY,
    BUILTIN_TYPES,
    DEEPEST,
    OF_ITSELF,
    PLAIN,
    Pipes,
    PipesGone,
    WireDecoder,
    WireEncoder,
    WireError,
)

MOST_OUTPUT = 1 << 20  # characters of output that one answer carries


def plain(value: object) -> object:
    """A value of a subclass as its base class has it, whatever methods it has of its own."""
    base = next(kind for kind in PLAIN if isinstance(value, kind))
    if base in (int, float, complex):
        return base.__pos__(value)
    if base in (str, bytes):
        return base.__getitem__(value, slice(None))
    return base(dict.items(value) if base is dict else base.__iter__(value))


_OPERATORS = {name: getattr(operator, f"__{name}__") for name in BINARY}
OPERATIONS = {
    "len": len, "iter": iter, "next": next, "getitem": operator.getitem, "setitem": operator.setitem,
    "delitem": operator.delitem, "contains": operator.contains,
    "int": int, "float": float, "complex": complex, "index": operator.index, "abs": abs, "neg": operator.neg,
    "pos": operator.pos, "invert": operator.invert, "round": round, "reversed": reversed, "format": format,
    "plain": plain, "dir": dir,
    "enter": lambda value, *arguments: type(value).__enter__(value, *arguments),  # as the interpreter calls it
    "exit": lambda value, *arguments: type(value).__exit__(value, *arguments),
    **ATTRIBUTES, **OF_ITSELF,
    **_OPERATORS,
    **{f"r{name}": lambda first, second, call=call: call(second, first) for name, call in _OPERATORS.items()},
    **{f"i{name}": getattr(operator, f"i{name}") for name in BINARY},
}  # fmt: skip


class Callback:
    """Something of the tests that no plain value stands for."""

    def __init__(self, side: Side, number: int):
        self.__dict__["_t2g_asked"] = side, number


def _ask(callback: Callback, do: str, /, *arguments, **named):
    side, number = object.__getattribute__(callback, "_t2g_asked")
    return side.ask({"do": do, "x": number}, arguments, named)


class CallbackFunction(Callback):
    """Something callable of the tests."""

    def __call__(self, *arguments, **named):
        return _ask(self, "call", *arguments, **named)


class CallbackIterator(CallbackFunction):
    """An iterator of the tests."""

    def __iter__(self):
        return self

    def __next__(self):
        return _ask(self, "next")


class CallbackObject(Callback):
    """An object of a class that the tests define: its public attributes, and what it says of itself."""

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return _ask(self, "getattr", name)

    def __setattr__(self, name, value):
        if name.startswith("_"):
            object.__setattr__(self, name, value)
        else:
            _ask(self, "setattr", name, value)

    def __delattr__(self, name):
        if name.startswith("_"):
            object.__delattr__(self, name)
        else:
            _ask(self, "delattr", name)


for _name in OF_ITSELF:
    setattr(CallbackObject, f"__{_name}__", lambda self, *others, _do=_name: _ask(self, _do, *others))
CallbackObject.__deepcopy__ = lambda self, _: _ask(self, "deepcopy")  # what is known already stays on this side


class CallableObject(CallbackObject, CallbackFunction):
    """One that can be called."""


_CALLBACKS = {"x": CallbackFunction, "xi": CallbackIterator, "xo": CallbackObject, "xc": CallableObject}


def _error_of_tests(names: list[str], text: str, number: int) -> Exception:
    """An exception that a callable of the tests raised, as far as this side can know its class."""
    base = next(BUILTIN_TYPES[name] for name in names if name in BUILTIN_TYPES)
    error = (base if base.__name__ == names[0] else type(names[0], (base,), {}))(text)
    error.t2g_given = number
    return error


class Side:
    """This side of the conversation: keeps what it has given away, and answers."""

    def __init__(self, pipes: Pipes):
        self.pipes = pipes
        self.objects: list[object] = []  # by handle; alive, so that no id is used twice
        self.handles: dict[int, int] = {}
        self.callbacks: dict[int, Callback] = {}  # by number: what the tests hand over twice is one object here, too
        self.module: ModuleType | None = None
        self.follower: following.Follower | None = None
        self.output = {"out": _captured("stdout"), "err": _captured("stderr")}

    def serve(self) -> None:
        while True:
            self._answer(self.pipes.receive())

    def ask(self, question: dict, arguments: tuple = (), named: dict | None = None):
        """Ask the tests' side; answer what it asks before it replies."""
        encode = WireEncoder(self.handle)
        content = [[encode(item) for item in arguments], {key: encode(item) for key, item in (named or {}).items()}]
        self.pipes.send({**question, "arguments": content, **self._printed()})
        while True:
            message = self.pipes.receive()
            if "reply" in message:
                break
            self._answer(message)
        if "raised" in message["reply"]:
            raise _error_of_tests(*message["reply"]["raised"])
        return WireDecoder(self.value, deepest=DEEPEST + 10)(message["reply"]["value"])

    def handle(self, value: object) -> list:
        """How something that is not plain crosses."""
        if isinstance(value, Callback):
            return ["x", object.__getattribute__(value, "_t2g_asked")[1]]
        number = self.handles.get(id(value))
        if number is None:
            number = self.handles[id(value)] = len(self.objects)
            self.objects.append(value)
        if isinstance(value, type):
            return ["k", number] if value.__module__ == "solution" else ["o", number, None]
        kind = type(value)
        if kind.__module__ == "solution":
            return ["o", number, self.handle(kind)[1]]
        return ["o", number, None]

    def value(self, told: list) -> object:
        tag, *rest = told
        if tag in _CALLBACKS:
            number, *about = rest
            if number not in self.callbacks:
                self.callbacks[number] = _CALLBACKS[tag](self, number)
                self.callbacks[number].__dict__.update(zip(("__name__", "__doc__"), about, strict=False))
            return self.callbacks[number]
        if tag == "o":
            return self.objects[rest[0]]
        raise WireError(f"an unknown tag {tag!r}")

    def _answer(self, message: dict) -> None:
        try:
            answer = self._answered(message)
        except (PipesGone, WireError):
            raise
        except BaseException as error:  # noqa: BLE001 (told to the tests, whatever it is)
            answer = {"raised": self._raised(error)}
        try:
            self.pipes.send({"answer": answer, **self._printed()})
        except WireError as error:
            self.pipes.send({"answer": {"raised": self._raised(ValueError(str(error)))}, **self._printed()})

    def _answered(self, message: dict) -> dict:
        match message["do"]:
            case "import":
                self.module = imported()
                names = {
                    name: value.__name__ if isinstance(value, ModuleType) else None
                    for name, value in vars(self.module).items()
                    if isinstance(name, str)
                }
                return {"names": names, "all": [name for name in getattr(self.module, "__all__", ()) if name in names]}
            case "name":
                return {"value": WireEncoder(self.handle)(getattr(self.module, message["name"]))}
            case "class":
                return {"class": self._class(self.objects[message["class"]])}
            case "trace":
                return {"trace": self._follow(message["step"], message.get("passed", False))}
            case _:
                return self._called(message)

    def _called(self, message: dict) -> dict:
        decode = WireDecoder(self.value, deepest=DEEPEST + 10)
        arguments = [decode(item) for item in message["arguments"][0]]
        named = {key: decode(item) for key, item in message["arguments"][1].items()}
        known = {id(item): number for number, item in decode.known.items()}
        encode = WireEncoder(self.handle, known)
        before = {number: encode.content(item) for number, item in decode.known.items()}
        call = OPERATIONS.get(message["do"]) if message["do"] != "call" else arguments.pop(0)
        raised: dict = {}
        try:
            if self.follower:
                self.follower.line = message.get("line")
                sys.settrace(self.follower.enter)
            value = call(*arguments, **named)
        except BaseException as error:  # noqa: BLE001 (told to the tests, whatever it is)
            raised = {"raised": self._raised(error)}
        finally:
            if self.follower:
                sys.settrace(None)
        encode = WireEncoder(self.handle, known)
        changed = {}
        for number, item in decode.known.items():
            content = encode.content(item)
            if content != before[number]:
                changed[number] = content
        return {"changed": changed, **(raised or {"value": encode(value)})}

    def _class(self, kind: type) -> dict:
        """What the other side needs to represent a class: its name, its bases, whether it is a plain value's."""
        bases = [
            self.handle(base)[1]
            if base.__module__ == "solution"
            else next(each.__name__ for each in base.__mro__ if each.__module__ == "builtins")
            for base in kind.__bases__
        ]
        plain = next((base.__name__ for base in kind.__mro__ if base in PLAIN), None)
        return {"name": kind.__name__, "bases": bases, "plain": plain, "equal": kind.__eq__ is not object.__eq__}

    def _raised(self, error: BaseException) -> dict:
        told, given = following.described(error), error.args
        if isinstance(error, OSError) and type(error).__module__ == "builtins" and error.filename is not None:
            given = (*given, error.filename)  # which its text names, and its arguments do not
        try:
            arguments = [WireEncoder(self.handle)(item) for item in given]
        except WireError:
            arguments = []
        mro = [kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins"]
        given = {"given": error.t2g_given} if hasattr(error, "t2g_given") else {}
        kind = {"builtin": mro, "module": type(error).__module__}
        return {"told": told, "arguments": arguments, "handle": self.handle(error), **kind, **given}

    def _printed(self) -> dict:
        return {name: text for name, stream in self.output.items() if (text := _taken(stream))}

    def _follow(self, step: str, passed: bool) -> dict | None:
        if step == "begin":
            self.follower = following.Follower()
        elif step == "clear" and self.follower:
            self.follower.clear()
        elif step == "end" and self.follower:
            follower, self.follower = self.follower, None
            return follower.end(passed)
        return None


def imported() -> ModuleType:
    """The solution as the module ``solution``."""
    spec = importlib.util.spec_from_loader(
        "solution", importlib.machinery.SourceFileLoader("solution", following.SOLUTION)
    )
    module = sys.modules["solution"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _captured(name: str) -> io.TextIOWrapper:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    setattr(sys, name, stream)
    return stream


def _taken(stream: io.TextIOWrapper) -> str:
    try:
        text = stream.buffer.getvalue()[:MOST_OUTPUT].decode("utf-8", "replace")
        stream.buffer.seek(0)
        stream.buffer.truncate()
    except ValueError:  # the solution closed it
        return ""
    return text


def main() -> None:
    pipes = Pipes(int(os.environ.pop("T2G_IN")), int(os.environ.pop("T2G_OUT")))
    following.watch_time(int(os.environ.pop("T2G_REPORT")))
    side = Side(pipes)
    try:
        side.serve()
    except PipesGone:
        os._exit(0)  # the tests are done
    except WireError:
        os._exit(70)


if __name__ == "__main__":
    main()
