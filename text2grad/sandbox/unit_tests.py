"""A program and its pytest file, run in the sandbox: the verdict, a record's log, and each test's fate."""

from __future__ import annotations

import ast
import json
import os
import re
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from text2grad.sandbox.box import BOX, PATIENCE, Result, Sandbox
from text2grad.tasks import Record, get_task

LOG_FIELDS = ("passed", "stdout", "stderr", "return_code", "error_type", "missing_modules")

_RECORDER = Path(__file__).with_name("pytest_recorder.py")
_FUTURE = re.compile(r"^from __future__ import .*\n", re.MULTILINE)  # must stay first in its file
_LONGEST_OUTPUT = 4000  # characters of stdout and of stderr that a log keeps
_LIMITS = {"timeout": "TimeoutError", "memory": "MemoryLimit", "output": "OutputLimit", "processes": "ProcessLimit"}


@dataclass(frozen=True)
class Frame:
    """One step of a traceback: a line (from 1) of the solution or of its tests."""

    in_solution: bool
    line: int
    function: str


@dataclass(frozen=True)
class Call:
    """A call from a test into the solution.

    Attributes:
        test_line: where the test calls.
        order: lines of the solution that were executed -> a number that grows with time, of their last execution.
        returned: the line it returned through; None where it raised.
    """

    test_line: int | None
    function: str
    order: Mapping[int, int]
    returned: int | None


@dataclass(frozen=True)
class Trace:
    """What one test executed: of each line, how many calls that a passed assertion confirmed; and the open calls."""

    cleared: Mapping[int, int]
    calls: list[Call]


@dataclass(frozen=True)
class Test:
    """One test's fate.

    Attributes:
        name: "" for the collection of the file.
        outcome: ``passed``, ``failed``, ``skipped``, or ``unfinished`` where the run ended in it.
        error: the exception's type.
        missing: the module or the name that an import or a lookup did not find.
    """

    name: str
    outcome: str
    error: str | None = None
    message: str = ""
    missing: str | None = None
    frames: list[Frame] = field(default_factory=list)
    trace: Trace | None = None


@dataclass(frozen=True)
class TestRun:
    """What the tests said about one program.

    Attributes:
        complete: pytest ran to its end and said so.
        standing: lines of the solution that were being executed when time ran out, outermost first.
    """

    tests: list[Test]
    result: Result
    complete: bool
    standing: list[int] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Every test that ran passed, and at least one did."""
        outcomes = {test.outcome for test in self.tests}
        return (
            self.complete and self.result.returncode == 0 and "passed" in outcomes and outcomes <= {"passed", "skipped"}
        )

    @property
    def failures(self) -> list[Test]:
        return [test for test in self.tests if test.outcome in ("failed", "unfinished")]

    @property
    def error_type(self) -> str | None:
        """The first failure's exception, the limit that was broken, or why no verdict came; None for a pass."""
        if self.passed:
            return None
        if self.result.reason:
            return _LIMITS[self.result.reason]
        if self.failures:
            return self.failures[0].error or "Crash"
        return "NoTests" if self.complete else "Crash"

    @property
    def missing_modules(self) -> list[str]:
        missing = {test.missing for test in self.tests if test.error == "ModuleNotFoundError" and test.missing}
        return sorted(missing - {"solution"})

    @property
    def log(self) -> dict[str, Any]:
        """The record's ``log``. Durations are left out, so that equal runs have equal logs."""
        return {
            "passed": self.passed,
            "stdout": _shortened(re.sub(r" in \d+\.\d+s\b(?: \(\d+:\d\d:\d\d\))?", "", self.result.stdout)),
            "stderr": _shortened(self.result.stderr),
            "return_code": self.result.returncode,
            "error_type": self.error_type,
            "missing_modules": self.missing_modules,
        }


def run_tests(code: str, tests: str, sandbox: Sandbox, trace: bool = False) -> TestRun:
    """Run ``tests`` (a pytest file) against ``code``, which it finds as the module ``solution``.

    The tests see all the solution's names, as if they stood in one file with it: many of KodCode's count on that.

    Args:
        trace: follow what each test executes (``Test.trace``), at the price of a slower run.
    """
    future = list(_FUTURE.finditer(tests))
    start = future[-1].end() if future else 0
    above = tests.count("\n", 0, start)
    files = {
        "solution.py": code,
        "test_solution.py": f"{tests[:start]}from solution import *\n{tests[start:]}",
        _RECORDER.name: _RECORDER.read_text("utf-8"),
    }
    command = [sandbox.python, "-m", "pytest", "-p", _RECORDER.stem, "-p", "no:cacheprovider", "-q", "--no-header"]
    command += ["--tb=short", "--color=no", f"--rootdir={BOX}", f"{BOX}/test_solution.py"]
    environment = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    if trace:
        command += ["-o", "enable_assertion_pass_hook=true"]
        environment |= {"T2G_TRACE": "1", "T2G_ALARM": str(time.time() + 0.9 * PATIENCE * sandbox.seconds)}
    return _read(sandbox.run(files, command, environment), above)


def run_all_tests(
    pairs: Iterable[tuple[str, str]], sandbox: Sandbox, workers: int | None = None, trace: bool = False
) -> list[TestRun]:
    """``run_tests`` for many (code, tests) pairs, ``workers`` at a time (one a core by default); in order."""
    with ThreadPoolExecutor(workers or os.cpu_count()) as pool:
        return list(pool.map(lambda pair: run_tests(*pair, sandbox, trace), pairs))


def with_log(record: Record, sandbox: Sandbox) -> Record:
    """A KodCode record whose ``log`` is filled: its tests are run where the log is empty and there are tests."""
    if record.get("log") or not str(record.get("test") or "").strip():
        return record
    task = get_task("kodcode")
    return {**record, "log": run_tests(task.code(task.response(record)), record["test"], sandbox).log}


def parsed(code: str) -> ast.Module | None:
    """The syntax tree of a program, where it has one."""
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _read(result: Result, above: int) -> TestRun:
    """The events of a report; ``above`` is the number of test lines above the one that was put in."""

    def own(line: int | None) -> int | None:
        return line - 1 if line is not None and line > above else line

    tests: list[Test] = []
    standing: list[int] = []
    running, finished = None, False
    for line in result.report.splitlines():
        try:
            event = json.loads(line)
        except json.JSONDecodeError:
            continue  # the line that the end of the program cut off
        if "started" in event:
            running = event["started"]
        elif "standing" in event:
            standing = event["standing"]
        elif "finished" in event:
            finished = True
        elif "test" in event:
            running = None
            frames = [Frame(*frame) for frame in event.get("frames", [])]
            tests.append(
                Test(
                    name=event["test"],
                    outcome=event["outcome"],
                    error=event.get("error"),
                    message=event.get("message", ""),
                    missing=event.get("name"),
                    frames=[f if f.in_solution else replace(f, line=own(f.line)) for f in frames],
                    trace=_trace(event.get("trace"), own),
                )
            )
    if running is not None:
        tests.append(Test(running, "unfinished"))
    return TestRun(tests, result, finished, standing)


def _trace(told: dict[str, Any] | None, own) -> Trace | None:
    if told is None:
        return None
    calls = [
        Call(
            test_line=own(call["test_line"]),
            function=call["function"],
            order=dict(call["order"]),
            returned=call["returned"],
        )
        for call in told["calls"]
    ]
    return Trace(dict(told["cleared"]), calls)


def _shortened(text: str) -> str:
    if len(text) <= _LONGEST_OUTPUT:
        return text
    half = _LONGEST_OUTPUT // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"
