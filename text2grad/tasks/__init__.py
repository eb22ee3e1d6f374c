"""Tasks behind one interface: ``get_task("slf5k")``, or your own by ``get_task("my_task.py")``."""

import re
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from text2grad.errors import InputError
from text2grad.safety.gate import shown
from text2grad.tasks.base import Interval, LabelValues, Record, SpanWords, Task, text_field
from text2grad.tasks.commands import given
from text2grad.tasks.kodcode import KodCode
from text2grad.tasks.loading import load_task, names_object
from text2grad.tasks.plain import PlainTask
from text2grad.tasks.slf5k import SLF5K
from text2grad.tasks.ultrafeedback import UltraFeedback

TASKS: dict[str, Task] = {}

__all__ = [
    "TASKS",
    "Interval",
    "LabelValues",
    "PlainTask",
    "Record",
    "SpanWords",
    "Task",
    "get_task",
    "register",
    "settings_of_task",
    "task_of",
    "text_field",
]


def register(task: Task) -> Task:
    """Make a task known by its name. Returns the task now known: the first, where the same one is registered twice.

    Raises:
        InputError: another task has that name, or it cannot be part of a file name.
    """
    name = getattr(task, "name", None)
    if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+", name):
        raise InputError(f"{task.source}: a task cannot be called {name!r}; give it a name of letters, digits, - and _")
    known = TASKS.setdefault(task.name, task)
    if known is not task and _origin(known) != _origin(task):
        where = known.source or "it comes with the package"
        raise InputError(f"there is another task {task.name!r} already ({where}); rename yours")
    return known


def get_task(name: str | Task) -> Task:
    """The task of that name, or the user's own that ``my_task.py`` or ``package.module:OBJECT`` names.

    A task is passed through.
    """
    if isinstance(name, Task):
        return name
    if name in TASKS:
        return TASKS[name]
    if names_object(name):
        return register(load_task(name))
    close = get_close_matches(name, TASKS, n=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    raise InputError(
        f"there is no task {name!r}{hint}; choose one of {', '.join(TASKS)}, or name your own as my_task.py or "
        "package.module:OBJECT"
    )


def task_of(about: Mapping[str, Any]) -> Task:
    """The task that a file of an earlier stage names. A user's own must be known already: files name no code to run.

    Raises:
        InputError: it is not; the message says what ``--task`` was when the file was written.
    """
    name, source = about["task"], about.get("task_source")
    if isinstance(name, str) and name in TASKS:
        return TASKS[name]
    then = f" (it was {shown(source, 300)} then)" if source else ""
    raise InputError(f"it is about the task {shown(name)}, which is your own; add --task FILE.py{then}")


def settings_of_task(kind: str) -> Path | None:
    """The YAML of settings (``Task.places``) of the task that the command line names; None where there is none."""
    named = given("--task")
    path = get_task(named).place(kind) if named else None
    return path if path is not None and path.is_file() else None


def _origin(task: Task) -> tuple[str, ...]:
    """What is equal for one task whose module is imported twice: its class, and its own file for a ready class."""
    kind = type(task)
    file = getattr(sys.modules.get(kind.__module__), "__file__", None) or kind.__module__
    return file, kind.__qualname__, task.source if kind.__module__.startswith(__name__) else ""


PLAIN = PlainTask()
PLAIN.folder, PLAIN.places = UltraFeedback.folder, UltraFeedback.places  # its prompts suit any request and any answer
for _task in (SLF5K(), KodCode(), UltraFeedback(), PLAIN):
    register(_task)
