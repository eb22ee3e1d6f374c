"""An end to whatever waits for another machine."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class DeadlineError(TimeoutError):
    """The work was not done in time."""


def within(seconds: float, work: Callable[[], T]) -> T:
    """``work()``, or ``DeadlineError`` after that many seconds; the work is then left to end by itself."""
    done: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            done.put((work(), None))
        except BaseException as error:  # noqa: BLE001 (raised again below)
            done.put((None, error))

    threading.Thread(target=run, daemon=True, name="request").start()
    try:
        value, error = done.get(timeout=seconds)
    except queue.Empty:
        raise DeadlineError(f"no whole answer within {seconds:g} seconds") from None
    if error is not None:
        raise error
    return value
