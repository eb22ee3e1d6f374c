"""What unit tests said about a program, read from the report that comes out of a box."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from text2grad.safety.gate import UnreadableError, read_json
from text2grad.sandbox.box import Result

_LONGEST_OUTPUT = 4000  # characters of stdout and of stderr that a log keeps
_LIMITS = {"timeout": "TimeoutError", "memory": "MemoryLimit", "output": "OutputLimit", "processes": "ProcessLimit"}
_OUTCOMES = ("passed", "failed", "skipped")
_MOST_EVENTS = 20_000  # lines of a report


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
        weaker: why a wrong solution could have made its tests pass; empty where the verdict was made outside its
            process, on plain values.
        unsupported: why the tests need the solution in their own process; "" where they do not.
        forged: the report holds what no test run writes: nothing in it is believed.
        may_skip: tests that the reference solution skips as well.
    """

    tests: list[Test]
    result: Result
    complete: bool
    standing: list[int] = field(default_factory=list)
    weaker: tuple[str, ...] = ()
    unsupported: str = ""
    forged: str = ""
    may_skip: frozenset[str] = frozenset()

    @property
    def passed(self) -> bool:
        """Every test passed, and no wrong solution could have brought that about."""
        return self._all_passed and not self.weaker

    @property
    def undecided(self) -> bool:
        """Every test passed, but a wrong solution could have brought that about: ``weaker`` says how."""
        return self._all_passed and bool(self.weaker)

    @property
    def _all_passed(self) -> bool:
        """Every test passed (or is skipped with the reference solution, too), and at least one did."""
        return (
            self.complete
            and not self.forged
            and self.result.returncode == 0
            and any(test.outcome == "passed" for test in self.tests)
            and not self.failures
        )

    @property
    def skipped(self) -> frozenset[str]:
        return frozenset(test.name for test in self.tests if test.outcome == "skipped")

    @property
    def failures(self) -> list[Test]:
        """A test that is skipped has not shown that the program is right."""
        return [
            test
            for test in self.tests
            if test.outcome != "passed" and not (test.outcome == "skipped" and test.name in self.may_skip)
        ]

    @property
    def error_type(self) -> str | None:
        """The first failure's exception, the limit that was broken, or why no verdict came; None for a pass."""
        if self._all_passed:
            return "Undecided" if self.weaker else None
        if self.result.reason:
            return _LIMITS[self.result.reason]
        if self.forged:
            return "ForgedReport"
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


def read_report(result: Result, above: int) -> TestRun:
    """What a program's report says, each event behind a check: who shares a box with the report can write anything.

    Args:
        above: the number of test lines above the one that was put in.
    """

    def own(line: int | None) -> int | None:
        return line - 1 if line is not None and line > above else line

    tests: list[Test] = []
    standing: list[int] = []
    weaker: list[str] = []
    running, finished, unsupported, forged = None, False, "", ""
    lines = result.report.split("\n")
    for line in lines[:-1][:_MOST_EVENTS]:  # the last one was cut off by the end of the program, or is empty
        try:
            event = read_json(line)
            match event:
                case {"started": str(name)}:
                    running = name
                case {"standing": list(stood)}:
                    standing = [_line(number) for number in stood]
                case {"weaker": str(reason)}:
                    weaker.append(reason[:200])
                case {"unsupported": str(reason)}:
                    unsupported = reason[:200]
                case {"forged": str(reason)}:
                    forged = reason[:200]
                case {"finished": int()}:
                    finished = True
                case {"test": str()}:
                    running = None
                    tests.append(_test(event, own))
                case _:
                    raise UnreadableError("an event that no test run reports")
        except (UnreadableError, KeyError, TypeError, ValueError, AttributeError) as error:
            forged = forged or f"{type(error).__name__}: {error}"[:200]
    if len(lines) > _MOST_EVENTS:
        forged = forged or f"{len(lines)} events"
    if running is not None:
        tests.append(Test(running, "unfinished"))
    return TestRun(tests, result, finished, standing, tuple(dict.fromkeys(weaker)), unsupported, forged)


def _test(event: dict[str, Any], own) -> Test:
    outcome = event["outcome"]
    if outcome not in _OUTCOMES:
        raise UnreadableError(f"no outcome of a test: {outcome!r}"[:100])
    frames = []
    for in_solution, line, function in event.get("frames") or []:
        frames.append(Frame(in_solution is True, _line(line), _text(function)))
    return Test(
        name=event["test"],
        outcome=outcome,
        error=_text(event.get("error"), None),
        message=_text(event.get("message"), ""),
        missing=_text(event.get("name"), None),
        frames=[frame if frame.in_solution else replace(frame, line=own(frame.line)) for frame in frames],
        trace=_trace(event.get("trace"), own),
    )


def _trace(told: dict[str, Any] | None, own) -> Trace | None:
    if told is None:
        return None
    calls = [
        Call(
            test_line=own(_line(call["test_line"], None)),
            function=_text(call["function"]),
            order={_line(line): _line(number) for line, number in call["order"]},
            returned=_line(call["returned"], None),
        )
        for call in told["calls"]
    ]
    return Trace({_line(line): _line(count) for line, count in told["cleared"]}, calls)


_REQUIRED: Any = object()


def _line(value: object, default: Any = _REQUIRED) -> int:
    """A number of lines or calls; ``default`` for None where one is given."""
    if value is None and default is not _REQUIRED:
        return default
    if type(value) is not int or not 0 <= value < 1 << 31:
        raise UnreadableError("no number of a line")
    return value


def _text(value: object, default: Any = _REQUIRED) -> str:
    if value is None and default is not _REQUIRED:
        return default
    if not isinstance(value, str):
        raise UnreadableError("no text")
    return value.encode("utf-8", "replace").decode()


def _shortened(text: str) -> str:
    if len(text) <= _LONGEST_OUTPUT:
        return text
    half = _LONGEST_OUTPUT // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"
