"""The three tasks behind one interface: ``get_task("slf5k" | "kodcode" | "ultrafeedback")``."""

from __future__ import annotations

from text2grad.errors import InputError
from text2grad.tasks.base import Interval, LabelValues, Record, Task
from text2grad.tasks.kodcode import KodCode
from text2grad.tasks.slf5k import SLF5K
from text2grad.tasks.ultrafeedback import UltraFeedback

TASKS: dict[str, Task] = {task.name: task for task in (SLF5K(), KodCode(), UltraFeedback())}

__all__ = ["TASKS", "Interval", "LabelValues", "Record", "Task", "get_task"]


def get_task(name: str | Task) -> Task:
    """The task of that name (a task is passed through)."""
    if isinstance(name, Task):
        return name
    if name not in TASKS:
        raise InputError(f"there is no task {name!r}; choose one of {', '.join(TASKS)}")
    return TASKS[name]
