"""Runs untrusted programs: what a policy wrote must not reach the network, the home folder, or the run that trains it.

    sandbox = Sandbox(seconds=10)
    sandbox.run({"solution.py": code}, [sandbox.python, "/box/solution.py"])

Each run gets namespaces of its own (bubblewrap, else ``unshare``), a read-only view of the system and of this Python,
another user id, a filter on system calls, and limits; when it ends, everything it started is killed. See
docs/sandbox.md for what that holds against and what it does not.
"""

import contextlib
import functools
import json
import math
import os
import platform
import re
import secrets
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from text2grad.errors import InputError

BOX = "/box"  # where a run's files lie, read-only; programs start in /tmp, which they may write
REPORT_VARIABLE = "T2G_REPORT"  # the environment variable that names the report's file descriptor

# Without resolving the last step: a virtual environment's Python is a link that must be started by this name.
_PYTHON = str(Path(sys.executable).parent.resolve() / Path(sys.executable).name)
_INSIDE = Path(__file__).with_name("inside.py")
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime")
PATIENCE = 4  # seconds by the clock for each second of processor time
_LAST_MOMENT = 1.0  # seconds for a program to end by itself when it is no longer needed
_TICK = 0.02  # seconds between two looks at memory and processes
_MOMENT = 0.001  # seconds between two looks whether a process without streams has ended
_SOCKET_BYTES = 1 << 18  # what can wait in one Unix socket whose buffer has the usual size
_IN_BOX = re.compile(rf"(^|=){BOX}(?=/|$)")  # a path of the box in an argument: FILE, or --flag=FILE
_REPORT_BYTES = 8 << 20  # of a report, at least: it may trace hundreds of failing tests
_BACKENDS = ("bubblewrap", "namespaces")
_ENVIRONMENT = {
    "PATH": f"{Path(_PYTHON).parent}:/usr/bin:/bin",
    "HOME": "/tmp",
    "USER": "nobody",
    "LOGNAME": "nobody",
    "LANG": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "2",
}


@dataclass(frozen=True)
class Result:
    """What became of one program.

    Attributes:
        returncode: the program's, 128 + n where signal n ended it, −9 where the sandbox did.
        report: what it wrote to the file descriptor named by the environment variable ``T2G_REPORT``.
        seconds: wall clock.
        reason: why the sandbox ended it: ``timeout``, ``memory``, ``processes`` or ``output``, or ``stopped`` where the
            caller did; None where neither did.
    """

    returncode: int
    stdout: str
    stderr: str
    report: str
    seconds: float
    reason: str | None = None


@dataclass(frozen=True)
class Sandbox:
    """A way to run untrusted programs, several at once.

    Args:
        seconds: processor time that each of its processes may take, and a quarter of what the whole may take by
            the clock. So a verdict does not hang on how busy the machine is.
        memory_mb: memory of all its processes together, and address space of each one.
        processes: processes and threads at one time.
        file_mb: size of a file it writes, and of each of the two folders it may write in.
        output_kb: what it may print, and report (at least 8 MB); a program that writes more is ended.
        allow_unsafe: go on with the limits alone where the system offers no isolation.
        backend: ``bubblewrap`` or ``namespaces``; by default the first of them that works.

    Raises:
        InputError: the system offers no isolation and ``allow_unsafe`` is not set, or Python has no ``os.waitid``.
    """

    seconds: float = 10.0
    memory_mb: int = 1024
    processes: int = 32
    file_mb: int = 16
    output_kb: int = 1024
    allow_unsafe: bool = False
    backend: str | None = None

    def __post_init__(self) -> None:
        if not hasattr(os, "waitid"):
            raise InputError("the sandbox needs os.waitid: run this on Linux, or on macOS with Python 3.13 or newer")
        for name in ("seconds", "memory_mb", "processes", "file_mb", "output_kb"):
            if getattr(self, name) <= 0:
                raise InputError(f"the sandbox's {name} is {getattr(self, name)}; give a number above 0")
        if self.backend not in (None, *_BACKENDS, *(("none",) if self.allow_unsafe else ())):
            raise InputError(f"there is no sandbox {self.backend!r}; choose one of {', '.join(_BACKENDS)}")
        if self.backend is None:
            object.__setattr__(self, "backend", _working_backend(self.allow_unsafe))

    @property
    def python(self) -> str:
        """This interpreter, with its packages, as programs see it."""
        return _PYTHON

    @property
    def protection(self) -> str:
        """What is in force, in one line for people."""
        limits = (
            f"{self.seconds:g} s of processor time, {self.memory_mb} MB memory, {self.processes} processes, "
            f"{self.file_mb} MB files, {self.output_kb} kB output"
        )
        if self.backend == "none":
            return f"NO ISOLATION (allow_unsafe), only limits: {limits}"
        walls = ["no network", "no home", "read-only system", "own processes"]
        walls += ["another user id"] if os.geteuid() == 0 else []
        walls += ["filtered system calls"] if platform.machine() in ("x86_64", "aarch64") else []
        return f"{self.backend}: {', '.join(walls)}; limits: {limits}"

    def run(
        self,
        files: Mapping[str, str],
        argv: Sequence[str],
        environment: Mapping[str, str] | None = None,
        *,
        pipes: Sequence[int] = (),
        stop: int | None = None,
    ) -> Result:
        """Run one program to its end.

        Args:
            files: text by relative path; they lie read-only in ``/box``.
            argv: the program (an absolute path) and its arguments.
            environment: added to the small clean environment that programs get.
            pipes: descriptors that the program gets by the same numbers. They are its own from now on: closed here.
            stop: a descriptor; when something can be read from it the program is ended, unless it does so itself.
        """
        with contextlib.ExitStack() as stack:
            handed = [stack.enter_context(os.fdopen(number, "rb", 0)) for number in pipes]
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sandbox-")))
            report, report_end = (stack.enter_context(os.fdopen(number, "rb", 0)) for number in os.pipe())
            view = {BOX: str(_written(files, folder / "box")), **_system_view()}
            root = folder / "root"
            root.mkdir()
            orders = self._orders(root, view, argv, environment or {}, report_end.fileno(), pipes)
            inside = "/.inside.py" if self.backend == "bubblewrap" else str(_INSIDE)
            started = time.monotonic()
            process = stack.enter_context(
                subprocess.Popen(
                    [*self._isolation(view), _PYTHON, "-I", "-S", inside],
                    bufsize=0,  # nothing is left to be written when it died before it read
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
                    cwd="/",
                    pass_fds=[report_end.fileno(), *pipes],
                    start_new_session=True,
                )
            )
            stack.callback(_kill, process, self.backend != "none")
            assert process.stdin
            with contextlib.suppress(BrokenPipeError):  # its standard error says why
                process.stdin.write(json.dumps(orders).encode())
            for pipe in (process.stdin, report_end, *handed):
                pipe.close()
            streams, reason = self._watch(process, report.fileno(), started + PATIENCE * self.seconds, stop)
            seconds = time.monotonic() - started
        ready, newline, written = streams["report"].partition(b"\n")
        if ready != b"ready" or not newline:
            if reason is None:
                said = streams["stderr"].decode(errors="replace").strip()
                raise RuntimeError(f"the sandbox ({self.backend}) did not start: {said or 'no message'}")
            written = b""
        returncode = process.returncode if process.returncode >= 0 else 128 - process.returncode
        if reason is None and (
            returncode == 128 + signal.SIGXCPU or (returncode == 128 + signal.SIGKILL and seconds > self.seconds)
        ):
            reason = "timeout"  # the kernel ended it: its processor time was used up
        return Result(
            returncode=returncode if reason is None else -9,
            stdout=streams["stdout"].decode(errors="replace"),
            stderr=streams["stderr"].decode(errors="replace"),
            report=written.decode(errors="replace"),
            seconds=seconds,
            reason=reason,
        )

    def _orders(
        self,
        root: Path,
        view: Mapping[str, str],
        argv: Sequence[str],
        environment: Mapping[str, str],
        report: int,
        pipes: Sequence[int],
    ) -> dict[str, Any]:
        """What ``inside.py`` is told."""
        isolated, box = self.backend != "none", view[BOX]
        variables = {"PYTHONPATH": BOX if isolated else box, REPORT_VARIABLE: str(report)}
        mounts = {"root": str(root), "read_only": view, "size": self.file_mb << 20}
        return {
            "argv": list(argv) if isolated else [_IN_BOX.sub(rf"\1{box}", part) for part in argv],
            "folder": "/tmp" if isolated else str(root),
            "isolated": isolated,
            "user": _unused_user() if isolated and os.geteuid() == 0 else None,
            "limits": self._limits(),
            "report": report,
            "pipes": list(pipes),
            "root": mounts if self.backend == "namespaces" else None,
            "environment": {**_ENVIRONMENT, **variables, **environment},
        }

    def _watch(
        self, process: subprocess.Popen, report: int, deadline: float, stop: int | None
    ) -> tuple[dict[str, bytes], str | None]:
        """Read a run's streams until its process ends or breaks a limit, then kill what is left of it."""
        assert process.stdout and process.stderr
        names = {process.stdout.fileno(): "stdout", process.stderr.fileno(): "stderr", report: "report"}
        streams = {name: bytearray() for name in names.values()}
        most, reason = 1024 * self.output_kb, None
        room = {"stdout": most, "stderr": most, "report": max(most, _REPORT_BYTES)}
        with selectors.DefaultSelector() as selector:
            for number in names:
                selector.register(number, selectors.EVENT_READ)
            if stop is not None:
                selector.register(stop, selectors.EVENT_READ)
            look = time.monotonic() + _TICK
            running, late = True, "timeout"
            while reason is None and running:
                open_streams = len(selector.get_map()) > (stop is not None)
                wake = look if open_streams else time.monotonic() + _MOMENT  # they end just before the process does
                for key, _ in selector.select(max(0.0, min(wake, deadline) - time.monotonic())):
                    if key.fileobj == stop:
                        # A program that has just ended by itself says how, some milliseconds later if all is busy.
                        selector.unregister(stop)
                        stop, late, deadline = None, "stopped", min(deadline, time.monotonic() + _LAST_MOMENT)
                    else:
                        _read(key.fd, streams[names[key.fd]], selector)
                # It is not waited for, so that its number stays its own; os.pidfd_open is not in every Python.
                running = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
                printed, told = len(streams["stdout"]) + len(streams["stderr"]), len(streams["report"])
                if printed > most or told > room["report"]:
                    reason = "output"
                elif running and time.monotonic() >= deadline:
                    reason = late
                elif running and time.monotonic() >= look:
                    reason = self._broken_limit(process.pid)
                    look = time.monotonic() + _TICK
            _kill(process, self.backend != "none")
            if stop is not None:
                selector.unregister(stop)
            # The pipes end when the kernel has killed the last process that holds them.
            patience = time.monotonic() + 5
            while selector.get_map() and time.monotonic() < patience:
                for key, _ in selector.select(0.1):
                    _read(key.fd, streams[names[key.fd]], selector, room[names[key.fd]])
        return {name: bytes(stream[: room[name]]) for name, stream in streams.items()}, reason

    def _broken_limit(self, pid: int) -> str | None:
        members = list(_descendants(pid))
        if sum(map(_held_bytes, members)) > self.memory_mb << 20:
            return "memory"
        if self.backend == "none" and len(members) > self.processes:
            return "processes"
        return None

    def _limits(self) -> dict[str, tuple[int, int]]:
        """Resource limits of each process, as (soft, hard)."""
        cpu = math.ceil(self.seconds)
        size = {"AS": self.memory_mb << 20, "FSIZE": self.file_mb << 20}
        limits = {**size, "NOFILE": 256, "CORE": 0, "MSGQUEUE": 0, "MEMLOCK": 0}
        if self.backend != "none":  # without a user id or namespace of its own it would count all of this user's
            limits["NPROC"] = self.processes
        return {"CPU": (cpu, cpu + 1), **{name: (value, value) for name, value in limits.items()}}

    def _isolation(self, view: Mapping[str, str]) -> list[str]:
        """The command before a program's own that isolates it; empty where nothing does."""
        if self.backend == "bubblewrap":
            return self._bubblewrap(view)
        if self.backend == "none":
            return []
        command = ["unshare", "--mount", "--pid", "--net", "--ipc", "--uts", "--cgroup", "--fork", "--kill-child"]
        return [*command, *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), "--"]

    def _bubblewrap(self, view: Mapping[str, str]) -> list[str]:
        command = ["bwrap", "--die-with-parent"]
        if os.geteuid() == 0:  # no user namespace: the user id is changed inside, once the mounts stand
            command += ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
            command += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        else:
            command += ["--unshare-all"]
        writable = ["--perms", "1777", "--size", str(self.file_mb << 20), "--tmpfs"]
        command += [*writable, "/tmp"]  # before the view, part of which may lie inside: a project under /tmp
        for target, source in {"/.inside.py": str(_INSIDE), **view}.items():
            for parent in reversed(PurePosixPath(target).parents[:-1]):  # by itself bwrap makes them for root alone
                command += ["--perms", "0755", "--dir", str(parent)]
            if Path(source).is_symlink():
                command += ["--symlink", os.readlink(source), target]
            else:
                command += ["--ro-bind", source, target]
        command += ["--proc", "/proc", "--dev", "/dev", *writable, "/dev/shm"]
        command += ["--ro-bind", "/dev/null", "/dev/zero"]  # mapped shared, zero is memory that no process owns
        return [*command, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/", "--"]


def _written(files: Mapping[str, str], box: Path) -> Path:
    """The files of a run, readable for the program's user whatever the umask is."""
    box.mkdir()
    for name, text in files.items():
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise ValueError(f"a sandboxed file needs a relative path, not {name!r}")
        target = box / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8", errors="surrogatepass", newline="")
        target.chmod(0o644)
    for folder in (box, *(path for path in box.rglob("*") if path.is_dir())):
        folder.chmod(0o755)
    return box


@functools.cache
def _system_view() -> dict[str, str]:
    """What a program sees of this system, by place: libraries, and this Python with its packages."""
    pythons = {str(Path(_PYTHON).parent.parent), str(Path(_PYTHON).resolve().parent.parent)}
    for prefix in (sys.prefix, sys.base_prefix):
        pythons |= {os.path.abspath(prefix), os.path.realpath(prefix)}
    places = [place for place in (*_SYSTEM, *sorted(pythons)) if os.path.lexists(place)]
    inside = [place for place in places if not any(place.startswith(other + "/") for other in places)]
    return {place: place for place in inside}


def _unused_user() -> int:
    """A user id that nobody has, another one for each run: the kernel counts processes by user."""
    rows = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
    first, _, length = max(((int(a), int(b), int(c)) for a, b, c in rows), key=lambda row: row[2])
    if length > 1 << 31:
        return (1 << 30) + secrets.randbelow(1 << 29)
    return first + length - 1 - secrets.randbelow(max(1, length // 4))


def _read(number: int, into: bytearray, selector: selectors.BaseSelector, room: int | None = None) -> None:
    part = os.read(number, 1 << 16)
    if not part:
        selector.unregister(number)
    elif room is None or len(into) < room:
        into += part


def _kill(process: subprocess.Popen, isolated: bool) -> None:
    """Kill a run. A namespace dies with its first process; without one, kill all that can be found."""
    if process.returncode is not None:  # waited for: its number may be another process's by now
        return
    members = [] if isolated else list(_descendants(process.pid))
    process.kill()
    for member in members:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(member, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _descendants(pid: int) -> Iterator[int]:
    """``pid`` and every process below it. Orphans of a namespace hang under its process 1, so none is missed."""
    waiting = [pid]
    while waiting:
        member = waiting.pop()
        yield member
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{member}/task"):
                waiting += map(int, Path(f"/proc/{member}/task/{task}/children").read_text().split())


def _held_bytes(pid: int) -> int:
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


_PROBE = """
import json, os, sys
status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
seen = {
    "network": sorted({line.split(":")[0].strip() for line in list(open("/proc/net/dev"))[2:]} - {"lo"}),
    "outside": [path for path in sys.argv[1:] if os.path.exists(path)],
    "processes": [pid for pid in os.listdir("/proc") if pid.isdigit() and int(pid) > 9],
    "capabilities": int(status["CapEff"], 16),
    "writable": [path for path in ("/", "/box", "/usr", "/etc", sys.prefix) if os.access(path, os.W_OK)],
}
child = os.fork()
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
open("/tmp/file", "w").close()
print(json.dumps({name: value for name, value in seen.items() if value}))
"""


@functools.cache
def _problem(backend: str) -> str | None:
    """Why a backend cannot be used here: it does not run, or what runs in it sees more than it should."""
    tool = {"bubblewrap": "bwrap", "namespaces": "unshare"}[backend]
    if shutil.which(tool, path="/usr/bin:/bin") is None:
        return f"{tool} is not installed"
    sandbox = Sandbox(backend=backend)
    with tempfile.NamedTemporaryFile() as marker:
        hidden = [marker.name, str(_INSIDE.parent / "__init__.py")]
        try:
            result = sandbox.run({}, [sandbox.python, "-I", "-S", "-c", _PROBE, *hidden])
        except (OSError, RuntimeError) as error:
            return str(error)
    if result.returncode or result.stdout.strip() != "{}":
        return f"a test program found {result.stdout.strip() or result.stderr.strip() or result.reason!r} inside"
    return None


@functools.cache
def _working_backend(allow_unsafe: bool) -> str:
    problems = {}
    for backend in _BACKENDS:
        problem = _problem(backend) if sys.platform == "linux" else "needs Linux"
        if problem is None:
            return backend
        problems[backend] = problem
    if allow_unsafe:
        return "none"
    found = "; ".join(f"{backend}: {problem}" for backend, problem in problems.items())
    raise InputError(
        f"this system offers no way to isolate untrusted code ({found}). Install bubblewrap (apt install bubblewrap) "
        "on Linux with user namespaces allowed, or, where losing this machine's data would not matter, run with "
        "--allow_unsafe (resource limits only)"
    )
