"""The processes of a running program, and the memory that they hold."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_SOCKET_BYTES = 1 << 18  # what can wait in one Unix socket whose buffer has the usual size


def descendants(pid: int) -> Iterator[int]:
    """``pid`` and every process below it. Orphans of a namespace hang under its process 1, so none is missed."""
    waiting = [pid]
    while waiting:
        member = waiting.pop()
        yield member
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{member}/task"):
                waiting += map(int, Path(f"/proc/{member}/task/{task}/children").read_text().split())


def held_bytes(pid: int) -> int:
    """Memory of one process that is not a file's, and the most that can wait in its sockets (0 once it is gone)."""
    kilobytes = sockets = 0
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines():
            if line.startswith(("RssAnon:", "RssShmem:")):
                kilobytes += int(line.split()[1])
        for number in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                sockets += os.readlink(f"/proc/{pid}/fd/{number}").startswith("socket:")
    return (kilobytes << 10) + _SOCKET_BYTES * sockets
