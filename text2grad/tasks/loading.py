"""Python objects that a user names on the command line: ``package.module:NAME`` or ``path/to/file.py:NAME``."""

import hashlib
import importlib
import importlib.util
import re
import sys
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import Any

from text2grad.errors import InputError
from text2grad.feedback import FeedbackFields
from text2grad.tasks.base import LabelValues, SpanWords, Task

_FILE = re.compile(r"(?P<place>.+\.py)(?::(?P<name>[^\W\d]\w*))?")
_MODULE = re.compile(r"(?P<place>[^\W\d]\w*(?:\.[^\W\d]\w*)*):(?P<name>[^\W\d]\w*)")

_PLAIN = (bool, int, str, tuple, FeedbackFields, LabelValues, SpanWords)  # what a task's attributes are


def names_object(spec: str) -> bool:
    """Whether a text has the form ``package.module:NAME``, ``file.py:NAME`` or ``file.py``."""
    return bool(_FILE.fullmatch(spec) or _MODULE.fullmatch(spec))


def load_object(spec: str, folder: Path | None = None) -> Any:
    """The object that ``package.module:NAME`` or ``file.py:NAME`` names.

    Args:
        folder: what a relative path starts from; the working folder by default.

    Raises:
        InputError: no such module, file or name.
    """
    module, name = _open(spec, folder)
    if not name:
        raise InputError(f"{spec}: names no object; write {spec}:NAME")
    if not hasattr(module, name):
        raise InputError(f"{spec}: {module.__file__} defines no {name}; check the name after the colon")
    return getattr(module, name)


def load_task(spec: str) -> Task:
    """The task that ``package.module:NAME``, ``file.py:NAME`` or ``file.py`` (with one task in it) names."""
    module, name = _open(spec)
    found = load_object(spec) if name else _only_task(module, spec)
    if isinstance(found, type) and issubclass(found, Task):
        try:
            found = found()
        except Exception as error:  # it lacks a method, or its __init__ fails
            raise InputError(f"{spec}: {fault(error, module.__file__ or '')}; correct it there") from error
    if not isinstance(found, Task):
        raise InputError(f"{spec}: is {type(found).__name__}, not a Task; name a Task object or a subclass of Task")
    for attribute, default in vars(Task).items():
        kind, value = type(default), getattr(found, attribute)
        if kind in _PLAIN and attribute[0] != "_" and not isinstance(value, kind):
            raise InputError(f"{spec}: {attribute} is a {kind.__name__}, not {value!r}; correct it there")
    file = Path(module.__file__ or ".").resolve()
    if not found.source:
        found.source = f"{file}:{name}".rstrip(":") if _FILE.fullmatch(spec) else spec
    found.folder = found.folder or file.parent
    return found


def _only_task(module: ModuleType, spec: str) -> Task | type[Task]:
    """The one Task object of a file, or its one subclass of Task where it makes no object."""
    items = {id(item): item for item in vars(module).values()}.values()
    classes = [item for item in items if isinstance(item, type) and item.__module__ == module.__name__]
    found: list[Task | type[Task]] = [item for item in items if isinstance(item, Task)]
    found = found or [item for item in classes if issubclass(item, Task)]
    if len(found) != 1:
        raise InputError(f"{spec}: defines {len(found) or 'no'} tasks; define one, or name it: {spec}:NAME")
    return found[0]


def _open(spec: str, folder: Path | None = None) -> tuple[ModuleType, str]:
    """The module, and the name after the colon."""
    if match := _FILE.fullmatch(spec):
        return _module_of((folder or Path.cwd()) / match["place"]), match["name"] or ""
    match = _MODULE.fullmatch(spec)
    if match is None:
        raise InputError(f"{spec}: is neither package.module:NAME nor file.py:NAME")
    if str(Path.cwd()) not in sys.path:  # a script's own folder is there, the folder one works in is not
        sys.path.append(str(Path.cwd()))
    found = None
    try:
        found = importlib.util.find_spec(match["place"])
        known = _known(Path(found.origin)) if found is not None and found.origin else None
        return known or importlib.import_module(match["place"]), match["name"]
    except ModuleNotFoundError as error:
        raise InputError(f"{spec}: there is no module {error.name}; check the name, or write file.py:NAME") from None
    except Exception as error:
        raise InputError(f"{spec}: {fault(error, (found and found.origin) or '')}; correct it there") from error


def _module_of(path: Path) -> ModuleType:
    """The module in a file; a file is executed once, however often it is named."""
    path = path.resolve()
    if not path.is_file():
        raise InputError(f"{path}: no such file; check the path")
    if known := _known(path):
        return known
    name = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    found = importlib.util.spec_from_file_location(name, path)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))  # a script's own folder may hold a config.py as well
    try:
        found.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise InputError(f"{path}: {fault(error, path)}; correct it there") from error
    return module


def fault(error: BaseException, path: str | Path) -> str:
    """What went wrong in a user's file, and in which of its lines."""
    lines = [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == str(path)]
    line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
    reason = error.msg if isinstance(error, SyntaxError) else error
    return f"{type(error).__name__}{f' in line {line}' if line else ''}: {reason}"


def fault_of_task(error: Exception, task: Task) -> str:
    """What went wrong in a task's methods, for the end of a message that begins with file and record."""
    file = getattr(sys.modules.get(type(task).__module__), "__file__", None) or ""
    return f"the task {task.name} fails on it ({fault(error, file)}); correct the record or the task"


def _known(path: Path) -> ModuleType | None:
    """The module that a file was executed as; the script that runs does not count."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None) or ""
        if file.endswith(path.name) and module.__name__ != "__main__" and Path(file).resolve() == path.resolve():
            return module
    return None
