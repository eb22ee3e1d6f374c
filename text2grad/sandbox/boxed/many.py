"""Runs one test file against many versions of a solution, each in a process of its own, inside the box.

pytest is imported once: a version then costs some tens of milliseconds. It tells of each version, in one JSON line,
whether its tests pass, and of the first that does not: its name, the line of the test file, the exception.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from pathlib import Path

import pytest

_PATIENCE = 30  # seconds by the clock for each of processor time
_BOX = Path(__file__).parent
_number = int(os.environ.pop("T2G_REPORT"))


def _say(**event) -> None:
    os.write(_number, (json.dumps(event) + "\n").encode("utf-8", "replace"))


class _FirstFailure:
    def __init__(self):
        self.passed, self.failure = 0, None

    def keep(self, name: str, excinfo) -> None:
        if self.failure is None:
            error = excinfo.value
            if isinstance(error, pytest.Collector.CollectError) and error.__cause__ is not None:
                error = error.__cause__
            lines, step = [], error.__traceback__
            while step is not None:
                if Path(step.tb_frame.f_code.co_filename).name == "test_solution.py":
                    lines.append(step.tb_lineno)
                step = step.tb_next
            self.failure = {"test": name, "error": type(error).__name__, "message": str(error)[:1000]}
            self.failure["line"] = lines[-1] if lines else 0

    def pytest_runtest_makereport(self, item, call):
        if call.excinfo is not None and not isinstance(call.excinfo.value, pytest.skip.Exception):
            self.keep(item.name, call.excinfo)

    def pytest_exception_interact(self, node, call, report):
        if isinstance(report, pytest.CollectReport):
            self.keep("", call.excinfo)

    def pytest_runtest_logreport(self, report):
        self.passed += report.when == "call" and report.outcome == "passed"


def _run(version: int, seconds: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nowhere, number)
    sys.path.insert(0, str(_BOX / f"version_{version}"))
    seen = _FirstFailure()
    options = ["-x", "-q", "--disable-plugin-autoload", "-p", "no:cacheprovider", "-p", "no:faulthandler"]
    code = pytest.main([*options, f"--rootdir={_BOX}", str(_BOX / "test_solution.py")], plugins=[seen])
    _say(version=version, passed=code == 0 and seen.passed > 0, **(seen.failure or {}))


def _ended_by(child: int, until: float) -> int | None:
    """The signal that ended it, 0 where none did; None where it had to be given up, asleep or never at its turn."""
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status & 0x7F
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        time.sleep(0.005)


def main(count: int, seconds: int) -> None:
    for version in range(count):
        child = os.fork()
        if not child:
            try:
                _run(version, seconds)
            finally:
                os._exit(0)
        number = _ended_by(child, time.monotonic() + _PATIENCE * seconds)
        if number:
            timeout = number in (signal.SIGXCPU, signal.SIGKILL)
            _say(version=version, passed=False, error="TimeoutError" if timeout else signal.Signals(number).name)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
