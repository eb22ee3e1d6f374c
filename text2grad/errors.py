"""Errors a user can correct, signals that ask a run to end, and the one place that turns both into an exit code.

A closed terminal, a closed pipe or an old encoding ends no run: output that cannot be written is dropped.
"""

import errno
import functools
import io
import logging
import os
import re
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from text2grad.safety.redaction import redacted

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
"""Ctrl-C, and what schedulers send before they end a job."""
WORKERS = "TEXT2GRAD_WORKERS"
"""Set by launchers: the folder in which every process that may be sent a signal leaves its number and start."""
_NO_MEMORY = re.compile("out of memory|can't allocate memory")  # torch's words
_FULL_DISK = re.compile(r"No space left|os error 28|inline_container.*unexpected pos")  # safetensors', torch's
_ONE_WISH = 2.0  # seconds in which two signals count as one: a launcher may pass on what the terminal sent as well
EXIT_CODE_FILE = "TEXT2GRAD_EXIT_CODE"
"""Set by launchers: the file in which a process leaves its exit code."""


class InputError(ValueError):
    """Something the user gave is wrong: a file, a record, a flag.

    The message names the file, the record and the remedy; entry scripts print it and exit with 2.
    """


class EndpointError(InputError):
    """An endpoint that nothing can come from: the key, the address or the model is wrong, or the quota is used up."""


class StopRunError(Exception):
    """End the run here, keep what is done, fail no record: a spent budget, say, or an update that went wrong."""


class Interrupted(KeyboardInterrupt):
    """One of ``SIGNALS`` asked the run to end."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number = number


_actions: list[Callable[[], Any]] = []


@contextmanager
def when_interrupted(action: Callable[[], Any]) -> Iterator[None]:
    """Call ``action`` at once when a signal comes inside the block: a client, say, sends nothing more."""
    _actions.append(action)
    try:
        yield
    finally:
        _actions.remove(action)


@contextmanager
def handling(handler: Callable[[int], None]) -> Iterator[None]:
    """Inside, ``handler`` gets the number of each of ``SIGNALS``; a second Ctrl-C leaves at once.

    Threads cannot handle signals: in them nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    first: list[float] = []

    def received(number: int, frame: FrameType | None) -> None:
        first.append(time.monotonic())
        if number == signal.SIGINT and first[-1] - first[0] > _ONE_WISH:
            os._exit(128 + number)
        for action in list(_actions):
            action()
        handler(number)

    before = {number: signal.signal(number, received) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handled in before.items():
            signal.signal(number, handled)


def command(main: Callable[..., None]) -> Callable[..., None]:
    """Wrap an entry script's ``main``: ``InputError`` and ``StopRunError`` exit with 2, a signal n with 128 + n.

    All else is a bug and traces. Output that can no longer be written is dropped.
    Remarks of libraries about themselves stay off the screen.
    """

    @functools.wraps(main)
    @_leaving_its_code()
    def wrapped(*args, **kwargs) -> None:
        warnings.filterwarnings("ignore", ".*gradient_checkpointing` is deprecated", FutureWarning)
        logging.getLogger("DeepSpeed").addFilter(lambda record: "Setting accelerator to" not in record.getMessage())
        try:
            with _lasting_output(), handling(_interrupt), _known_to_the_launcher():
                main(*args, **kwargs)
        except Exception as error:
            if (message := _correctable(error)) is None:
                raise
            print(f"error: {message}", file=sys.stderr)
            raise SystemExit(2) from None
        except KeyboardInterrupt as error:
            number = error.number if isinstance(error, Interrupted) else signal.SIGINT
            name = signal.Signals(number).name
            print(f"\ninterrupted ({name}); run the same command again to continue", file=sys.stderr)
            raise SystemExit(128 + number) from None

    return wrapped


def _correctable(error: Exception) -> str | None:
    """What to tell the user; None for a bug."""
    if isinstance(error, InputError | StopRunError):
        return redacted(str(error))
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or _FULL_DISK.search(str(error)):
        return f"{getattr(error, 'filename', None) or 'a file'}: the disk is full; free some space and run again"
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and _NO_MEMORY.search(str(error))):
        which, remedy = ("GPU ", "") if re.search("CUDA|HIP", str(error)) else ("", "raise ulimit -v, or ")
        phase = "".join(getattr(error, "__notes__", ()))
        return f"out of {which}memory{phase}; {remedy}use a smaller model or batch"
    return None


def _interrupt(number: int) -> None:
    raise Interrupted(number)


@contextmanager
def _known_to_the_launcher() -> Iterator[None]:
    """Leave this process' number where the launcher looks for whom to send signals to."""
    folder = os.environ.get(WORKERS)
    if not folder:
        yield
        return
    mark = Path(folder) / str(os.getpid())
    try:
        mark.write_text(_started(), encoding="ascii")
    except FileNotFoundError:  # the launcher has ended
        raise Interrupted(signal.SIGTERM) from None
    try:
        yield
    finally:
        mark.unlink(missing_ok=True)


def _started() -> str:
    """When this process began, in the kernel's ticks: with its number, that names it."""
    try:
        return Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except FileNotFoundError:  # not Linux
        return ""


@contextmanager
def _leaving_its_code() -> Iterator[None]:
    """Write the exit code where the launcher reads it: torchrun ends with 1 whatever its processes ended with."""
    try:
        yield
    except SystemExit as error:
        if isinstance(error.code, int) and (path := os.environ.get(EXIT_CODE_FILE)):
            with Path(path).open("a", encoding="ascii") as file:
                file.write(f"{error.code}\n")
        raise


class _Lasting:
    """A text stream; once it cannot be written to, what is written to it is dropped."""

    def __init__(self, stream: Any):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError:
            self._give_up()
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            self._give_up()

    def _give_up(self) -> None:
        lost = self._stream
        self._stream = io.StringIO() if lost.closed else _nowhere()
        with suppress(OSError, ValueError):  # else Python ends with 120 over what waits in the lost stream's buffer
            os.dup2(self._stream.fileno(), lost.fileno())


def _nowhere() -> io.TextIOWrapper:
    return open(os.devnull, "w", encoding="utf-8")


@contextmanager
def _lasting_output() -> Iterator[None]:
    """Inside, writing to stdout and stderr raises no error of the system's and none of an encoding."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:  # closed: the next file that is opened would take its place
            os.open(os.devnull, os.O_RDWR)
    before = sys.stdout, sys.stderr
    for stream in before:
        if isinstance(stream, io.TextIOWrapper) and (stream.encoding or "").lower().replace("-", "") != "utf8":
            stream.reconfigure(errors="backslashreplace")
    lasting = [_Lasting(_nowhere() if stream is None else stream) for stream in before]
    sys.stdout, sys.stderr = lasting
    try:
        yield
    finally:
        for stream in lasting:
            if not stream.closed:
                stream.flush()
        sys.stdout, sys.stderr = before
