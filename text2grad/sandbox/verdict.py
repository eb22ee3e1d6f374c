"""What unit tests said about a program, read from the report that comes out of a box: the types are its schema."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field, Strict, TypeAdapter, ValidationError

from text2grad.safety.gate import UnreadableError, as_storable, read_json
from text2grad.sandbox.box import Result

_LONGEST_OUTPUT = 4000  # characters of stdout and of stderr that a log keeps
_LIMITS = {"timeout": "TimeoutError", "memory": "MemoryLimit", "output": "OutputLimit", "processes": "ProcessLimit"}
_MOST_EVENTS = 20_000  # lines of a report
ADDRESS = r" at 0x[0-9a-f]+| \(/[^()\n]+\.(?:py|so)\)"  # of an object, or of a module that lacks an imported name
_VARYING = re.compile(rf" in \d+\.\d+s\b(?: \(\d+:\d\d:\d\d\))?|{ADDRESS}")
"""What differs between runs of one program."""

Line = Annotated[int, Strict(), Field(ge=0, lt=1 << 31)]
Text = Annotated[str, Strict(), BeforeValidator(lambda text: as_storable(text) if isinstance(text, str) else text)]
Counts = Annotated[Mapping[Line, Line], BeforeValidator(dict)]  # a report holds pairs


class Frame(NamedTuple):
    """One step of a traceback: a line (from 1) of the solution or of its tests."""

    in_solution: Annotated[bool, Strict()]
    line: Line
    function: Text


@dataclass(frozen=True)
class Call:
    """A call from a test into the solution.

    Attributes:
        test_line: where the test calls.
        order: lines of the solution that were executed -> a number that grows with time, of their last execution.
        returned: the line it returned through; None where it raised.
    """

    test_line: Line | None
    function: Text
    order: Counts
    returned: Line | None


@dataclass(frozen=True)
class Trace:
    """What one test executed: of each line, how many calls that a passed assertion confirmed; and the open calls."""

    cleared: Counts
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

    name: Annotated[Text, Field(alias="test")]
    outcome: Literal["passed", "failed", "skipped", "unfinished"]
    error: Text | None = None
    message: Text = ""
    missing: Annotated[Text | None, Field(alias="name")] = None
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
    """

    tests: list[Test]
    result: Result
    complete: bool
    standing: list[int] = field(default_factory=list)
    weaker: tuple[str, ...] = ()
    unsupported: str = ""
    forged: str = ""

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
        """Every test passed, and there is one."""
        return (
            self.complete and not self.forged and self.result.returncode == 0 and bool(self.tests) and not self.failures
        )

    @property
    def failures(self) -> list[Test]:
        """A test that is skipped has not shown that the program is right."""
        return [test for test in self.tests if test.outcome != "passed"]

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
        """The record's ``log``. Durations and addresses are left out, so that equal runs have equal logs."""
        return {
            "passed": self.passed,
            "stdout": _shortened(_VARYING.sub("", self.result.stdout)),
            "stderr": _shortened(_VARYING.sub("", self.result.stderr)),
            "return_code": self.result.returncode,
            "error_type": self.error_type,
            "missing_modules": self.missing_modules,
        }


def read_report(result: Result, above: int) -> TestRun:
    """What a program's report says, each event behind a check: who shares a box with the report can write anything.

    Args:
        above: the number of test lines above the one that was put in.
    """

    def own(line):
        return line - 1 if line is not None and line > above else line

    def moved(test: Test) -> Test:
        frames = [frame if frame.in_solution else frame._replace(line=own(frame.line)) for frame in test.frames]
        calls = [replace(call, test_line=own(call.test_line)) for call in (test.trace.calls if test.trace else ())]
        return replace(test, frames=frames, trace=test.trace and replace(test.trace, calls=calls))

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
                    standing = _STANDING.validate_python(stood)
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
                    tests.append(moved(_TEST.validate_python(event)))
                case _:
                    raise UnreadableError("an event that no test run reports")
        except (UnreadableError, ValidationError, TypeError) as error:
            forged = forged or " ".join(str(error).split())[:200]
    if len(lines) > _MOST_EVENTS:
        forged = forged or f"{len(lines)} events"
    if running is not None:
        tests.append(Test(running, "unfinished"))
    return TestRun(tests, result, finished, standing, tuple(dict.fromkeys(weaker)), unsupported, forged)


_TEST = TypeAdapter(Test)
_STANDING = TypeAdapter(list[Line])


def _shortened(text: str) -> str:
    if len(text) <= _LONGEST_OUTPUT:
        return text
    half = _LONGEST_OUTPUT // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"
