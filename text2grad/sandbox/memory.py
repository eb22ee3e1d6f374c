"""Memory of a program and all that it holds in the kernel, limited by a control group where one can be made.

As root, or in a delegated tree. A control group counts shared memory, files in memory and what waits in sockets;
without one, the sandbox refuses what it cannot count and looks at the processes themselves.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_OWN_COST = 64 << 20  # bytes: the sandbox's own processes, and what the kernel holds for any process
_SOCKET_BYTES = 1 << 18  # what can wait in one socket whose buffer has the usual size
_PATIENCE = 2.0  # seconds until a group whose processes were killed can be removed


class Group:
    """One control group, for one run."""

    def __init__(self, folder: Path, unified: bool):
        self.folder, self._unified = folder, unified

    @property
    def command(self) -> list[str]:
        """A command's prefix: it starts inside the group."""
        return ["/bin/sh", "-c", 'echo 0 > "$0" && exec "$@"', str(self.folder / "cgroup.procs")]

    @property
    def exceeded(self) -> bool:
        """Whether the kernel has ended a process for want of memory."""
        name = "memory.events" if self._unified else "memory.oom_control"
        with contextlib.suppress(OSError, ValueError):
            for line in (self.folder / name).read_text().splitlines():
                key, _, value = line.partition(" ")
                if key == "oom_kill":
                    return int(value) > 0
        return False

    def limit(self, size: int) -> None:
        size += _OWN_COST
        if self._unified:
            (self.folder / "memory.max").write_text(str(size))
            _write_if_there(self.folder / "memory.swap.max", "0")
            _write_if_there(self.folder / "memory.oom.group", "1")
        else:
            (self.folder / "memory.limit_in_bytes").write_text(str(size))
            _write_if_there(self.folder / "memory.memsw.limit_in_bytes", str(size))
            _write_if_there(self.folder / "memory.kmem.tcp.limit_in_bytes", str(size))

    def remove(self) -> None:
        patience = time.monotonic() + _PATIENCE
        while True:
            try:
                self.folder.rmdir()
            except FileNotFoundError:
                return
            except OSError:
                if time.monotonic() > patience:
                    return
                time.sleep(0.002)
            else:
                return


@contextmanager
def group_of(size: int) -> Iterator[Group | None]:
    """A control group of at most ``size`` bytes; None where none can be made here."""
    parent = _parent()
    group = None
    if parent is not None:
        folder, unified = parent
        group = Group(folder / f"sandbox-{os.getpid()}-{secrets.token_hex(6)}", unified)
        try:
            group.folder.mkdir()
            group.limit(size)
        except OSError:
            group.remove()
            group = None
    try:
        yield group
    finally:
        if group is not None:
            group.remove()


@functools.cache
def _parent() -> tuple[Path, bool] | None:
    """The folder in which groups can be made, and whether it is of the unified hierarchy; tried once."""
    for line in _lines("/proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        own = path.lstrip("/")
        if controllers == "memory":
            places = [(_ROOT / "memory" / own, False), (_ROOT / "memory", False)]
        elif not controllers:
            places = [((_ROOT / own).parent, True), (_ROOT / own, True)] if own else [(_ROOT, True)]
        else:
            continue
        for folder, unified in places:
            if _can_limit(folder, unified):
                return folder, unified
    return None


def _can_limit(folder: Path, unified: bool) -> bool:
    trial = Group(folder / f"sandbox-{os.getpid()}-trial-{secrets.token_hex(4)}", unified)
    try:
        trial.folder.mkdir()
        trial.limit(1 << 30)
        with open(trial.folder / "cgroup.procs", "w"):
            return True
    except OSError:
        return False
    finally:
        trial.remove()


def descendants(pid: int) -> Iterator[int]:
    """``pid`` and every process below it. Orphans of a namespace hang under its process 1, so none is missed."""
    waiting = [pid]
    while waiting:
        member = waiting.pop()
        yield member
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{member}/task"):
                waiting += map(int, Path(f"/proc/{member}/task/{task}/children").read_text().split())


def held_bytes(pid: int, sockets: bool) -> int:
    """Memory of one process that is not a file's (0 once it is gone).

    Args:
        sockets: count its sockets, too, at what can wait in each.
    """
    kilobytes = 0
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines():
            if line.startswith(("RssAnon:", "RssShmem:")):
                kilobytes += int(line.split()[1])
    return (kilobytes << 10) + (_SOCKET_BYTES * _sockets(pid) if sockets else 0)


def _sockets(pid: int) -> int:
    """Sockets that a process holds open."""
    count = 0
    with contextlib.suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                count += os.readlink(f"/proc/{pid}/fd/{number}").startswith("socket:")
    return count


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def _write_if_there(path: Path, text: str) -> None:
    with contextlib.suppress(OSError):
        path.write_text(text)
