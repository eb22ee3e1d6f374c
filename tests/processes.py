"""Run functions and scripts in processes of their own, quickly: a server imports the heavy libraries once and forks."""

import multiprocessing
import os
import random
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from glob import glob
from io import TextIOWrapper
from pathlib import Path
from subprocess import Popen
from typing import Any, cast

ROOT = Path(__file__).parent.parent
PRELOADED = [
    "torch", "nl_gradient_policy_optimization.optimize", "nl_reward_model.train_rm", "tests.tiny_runs", "datasets",
    "nl_gradient_policy_optimization.baselines.dpo", "deepspeed", "scipy.stats", "sklearn.metrics", "matplotlib.pyplot",
    "rm_data_anno.annotate", "nltk.stem.snowball",
]  # fmt: skip


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def flags(**settings: object) -> list[str]:
    """Settings as they are typed."""
    return [str(part) for name, value in settings.items() for part in (f"--{name}", value)]


def run_command(
    *command: object, code: int = 0, cwd: Path = ROOT, timeout: float = 1800, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command as it is typed, with this Python first on PATH; its exit code has to be ``code``."""
    words, environment = list(map(str, command)), _with_this_python(variables)
    done = subprocess.run(words, cwd=cwd, env=environment, text=True, capture_output=True, timeout=timeout, check=False)
    assert done.returncode == code, (done.stdout + done.stderr)[-5000:]
    return done


def start_command(*command: object, cwd: Path = ROOT, output: Any = subprocess.PIPE, **variables: str) -> Popen[str]:
    """Start a command in a session of its own, with this Python first on PATH; its errors go where its output goes."""
    return Popen(
        list(map(str, command)), cwd=cwd, env=_with_this_python(variables), text=True, stdin=subprocess.DEVNULL,
        stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip


def all_said(process: Popen[str], code: int = 0, timeout: float = 1800) -> str:
    """The whole output of a started command, which has to end with ``code``."""
    said = process.communicate(timeout=timeout)[0]
    assert process.returncode == code, said[-3000:]
    return said


def cut_power(machine: Popen) -> None:
    """SIGKILL to the launcher and all that it started; torchrun gives its processes sessions of their own."""
    started = [machine.pid]
    for pid in started:
        found = subprocess.run(["pgrep", "-P", str(pid)], text=True, capture_output=True, check=False)
        started += [int(line) for line in found.stdout.split()]
    for pid in started:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    machine.wait()


def running(word: object) -> str:
    """The command lines, as files, that hold a word."""
    command = ["grep", "-lsF", str(word), *glob("/proc/[0-9]*/cmdline")]
    return subprocess.run(command, text=True, capture_output=True, check=False).stdout


def _with_this_python(variables: Mapping[str, str]) -> dict[str, str]:
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **variables}


class Server:
    """``with Server(command, log):``, or ``start()`` and ``kill()``: a program that serves at ``url``.

    Args:
        command: its words; "PORT" stands for a free one.
        log: what it says, added at the end.
        health: what answers as soon as it is ready.
    """

    def __init__(self, command: Sequence[object], log: Path, health: str = "/health", **variables: str):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.command = [str(self.port if word == "PORT" else word) for word in command]
        self.log, self.health, self.variables = log, self.url + health, variables
        self.process: Popen | None = None

    def start(self, seconds: float = 1500) -> "Server":
        """Wait until it answers, or so long; 0: do not wait."""
        with self.log.open("a") as log:
            self.process = start_command(*self.command, output=log, **self.variables)
        end = time.monotonic() + seconds
        while seconds and not self._answers():
            if self.process.poll() is not None or time.monotonic() > end:
                self.kill()
                raise AssertionError(self.log.read_text(errors="replace")[-3000:])
            time.sleep(0.1)
        return self

    def kill(self) -> None:
        """All of its processes at once, as a power cut would; they share a session of their own."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    def __enter__(self) -> "Server":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _answers(self) -> bool:
        try:
            return urllib.request.urlopen(self.health, timeout=5).status == 200
        except OSError:
            return False


def run_forked(script: str, *args: object, code: int = 0, **settings: object) -> subprocess.CompletedProcess[str]:
    """Run a script of the repository from its root, as ``python SCRIPT ARGS...`` would but for the time of imports.

    Its exit code has to be ``code``; keywords are flags. Variables of the hub's library count no more: it has been
    loaded.
    """
    command = [sys.executable, str(ROOT / script), *map(str, args), *flags(**settings)]
    with tempfile.TemporaryDirectory() as folder:
        outputs = Path(folder, "out"), Path(folder, "err")
        process = _context().Process(target=_run_script, args=(command[1:], dict(os.environ), outputs))
        process.start()
        process.join(600)
        if process.exitcode is None:
            process.kill()
            raise subprocess.TimeoutExpired(command, 600)
        said = [output.read_text(encoding="utf-8", errors="replace") for output in outputs]
    assert process.exitcode == code, said[1][-3000:]
    return subprocess.CompletedProcess(command, code, *said)


def _run_script(command: list[str], environment: dict[str, str], outputs: tuple[Path, Path]) -> None:
    for number, output in enumerate(outputs, start=1):
        with output.open("wb") as file:
            os.dup2(file.fileno(), number)
    for stream in (sys.stdout, sys.stderr):
        cast(TextIOWrapper, stream).reconfigure(line_buffering=True)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(ROOT)
    sys.argv = command
    sys.path.insert(0, os.path.dirname(command[0]))
    runpy.run_path(command[0], run_name="__main__")


def _context() -> multiprocessing.context.ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def run_ranks(function: Callable, ranks: int, *arguments, timeout: float = 240) -> list[int]:
    """Call ``function(*arguments)`` in ``ranks`` processes that torch.distributed can join; returns their exit codes.

    A process that was killed by a signal has that signal's negative number. When one ends badly the others are killed,
    as a launcher would.
    """
    context = _context()
    port = free_port()
    processes = []
    for rank in range(ranks):
        environment = {"OMP_NUM_THREADS": "1"}
        if ranks > 1:
            environment |= {
                "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
            }  # fmt: skip
        process = context.Process(target=_start, args=(environment, function, arguments))
        process.start()
        processes.append(process)
    waiting = list(processes)
    while waiting:
        ready = multiprocessing.connection.wait([process.sentinel for process in waiting], timeout)
        waiting = [process for process in waiting if process.sentinel not in ready]
        if not ready or any(process.exitcode for process in processes):
            for process in waiting:
                process.kill()
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]


def run_alone(function: Callable, *arguments) -> int:
    """The exit code of ``function(*arguments)`` in a process of its own."""
    return run_ranks(function, 1, *arguments)[0]


def die() -> None:
    """What a power cut does."""
    os.kill(os.getpid(), signal.SIGKILL)


def die_after(seconds: float | None) -> None:
    """Die then, wherever this process has come to; never for None."""
    if seconds is not None:
        signal.signal(signal.SIGALRM, lambda *_: die())
        signal.setitimer(signal.ITIMER_REAL, seconds)


def killed_at_random(start: Callable[[float | None], Sequence[int]], folder: Path, kills: int, whole: float) -> None:
    """Call ``start`` until ``kills`` of its lives were ended by the clock and a last one ended well.

    Args:
        start: gives the exit codes of processes that :func:`die_after` the seconds it gets.
        folder: what they work in; emptied where they finish before the last kill.
        whole: seconds that they need undisturbed, or more. A life lasts up to half of it: most kills fall where work
            is done. It is halved where they finish first: the machine is quicker now than it was.
    """
    draw, killed = random.Random(20), 0
    while True:
        codes = start(draw.uniform(0.1, 0.5) * whole if killed < kills else None)
        if -signal.SIGKILL in codes:
            killed += 1
        else:
            assert not any(codes), codes
            if killed == kills:
                return
            shutil.rmtree(folder)
            whole /= 2


def full(disk: Path) -> Path:
    """The file that leaves no byte on a disk."""
    path = disk / "filler"
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    return path


def flip_byte(path: Path) -> None:
    """Damage that leaves a file's length as it was."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _start(environment: dict[str, str], function: Callable, arguments: tuple) -> None:
    os.environ.update(environment)
    function(*arguments)
