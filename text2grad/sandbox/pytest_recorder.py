"""A pytest plugin that runs inside the sandbox and reports each test, as it ends, in one JSON line.

Loaded with ``-p pytest_recorder`` from the box; it imports nothing of this project. The report goes to a pipe of its
own, line by line, so that what happened before a crash or a time limit is known, and so that a program that ends
pytest early (``os._exit(0)``) cannot pass for one whose tests succeeded.

With ``T2G_TRACE`` set it also follows the solution: which of its lines each call from a test executed, and through
which line the call returned. A passed assertion clears the calls before it; those left when a test fails are suspect.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import Counter
from types import FrameType
from typing import Any

import pytest

SOLUTION, TESTS = "/box/solution.py", "/box/test_solution.py"
_LONGEST = 600  # characters of an exception's text
_FRAMES = 40
_EVENTS = 200_000  # after that many lines in one test, following it has cost enough
_CALLS = 20  # suspect calls told of, the last ones

_report = os.fdopen(int(os.environ.pop("T2G_REPORT")), "w", buffering=1, encoding="utf-8", errors="replace")


def _say(**event: Any) -> None:
    _report.write(json.dumps(event) + "\n")
    _report.flush()


def _described(error: BaseException) -> dict[str, Any]:
    """Type, text and the frames of an exception that lie in the solution or its tests."""
    if isinstance(error, pytest.Collector.CollectError) and error.__cause__ is not None:
        error = error.__cause__
    frames, trace = [], error.__traceback__
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        if path in (SOLUTION, TESTS):
            frames.append([path == SOLUTION, trace.tb_lineno, trace.tb_frame.f_code.co_name])
        trace = trace.tb_next
    if isinstance(error, SyntaxError) and error.filename in (SOLUTION, TESTS):
        frames.append([error.filename == SOLUTION, error.lineno or 1, "<module>"])
    kind = type(error).__name__
    return {
        "error": "TestFailed" if kind == "Failed" else kind,
        "message": str(error)[:_LONGEST],
        "name": getattr(error, "name", None) if isinstance(error, ImportError | NameError) else None,
        "frames": frames[-_FRAMES:],
    }


class _Follower:
    """Follows the calls from one test into the solution."""

    def __init__(self) -> None:
        self.cleared = Counter()  # line -> calls before a passed assertion that executed it
        self.calls: list[dict[str, Any]] = []  # since the last passed assertion
        self.stack: list[dict[str, Any]] = []
        self.events = 0

    def begin(self) -> None:
        sys.settrace(self.enter)

    def enter(self, frame: FrameType, event: str, argument: object):
        if frame.f_code.co_filename != SOLUTION or self.events > _EVENTS:
            return None
        if not self.stack:
            self.calls.append(
                {
                    "test_line": _line_in_tests(frame),
                    "function": frame.f_code.co_qualname if sys.version_info >= (3, 11) else frame.f_code.co_name,
                    "order": {},
                    "returned": None,
                }
            )
        self.stack.append({"frame": frame, "raised": False})
        return self.follow

    def follow(self, frame: FrameType, event: str, argument: object):
        if not self.stack or self.stack[-1]["frame"] is not frame:
            return None  # a generator that another call left behind
        state, call = self.stack[-1], self.calls[-1]
        if event == "line":
            self.events += 1
            state["raised"] = False
            call["order"][frame.f_lineno] = self.events
            if self.events > _EVENTS:
                sys.settrace(None)
                self.stack.clear()
                return None
        elif event == "exception":
            state["raised"] = True
        elif event == "return":
            self.stack.pop()
            if not self.stack and not state["raised"]:
                call["returned"] = frame.f_lineno
        return self.follow

    def clear(self) -> None:
        """What was called so far did what its test wanted."""
        for call in self.calls:
            self.cleared.update(call["order"].keys())
        self.calls = []

    def end(self, passed: bool) -> dict[str, Any]:
        sys.settrace(None)
        if passed:
            self.clear()
        told = [{**call, "order": list(call["order"].items())} for call in self.calls]
        return {
            "cleared": list(self.cleared.items()),
            "calls": told[-_CALLS:],
            "cut": self.events > _EVENTS,
        }


def _line_in_tests(frame: FrameType | None) -> int | None:
    while frame is not None and frame.f_code.co_filename != TESTS:
        frame = frame.f_back
    return frame.f_lineno if frame is not None else None


def _tell_where_it_stands(number: int, frame: FrameType | None) -> None:
    """When the time is used up, the processor's or the clock's: the lines that the program is at, outermost first."""
    lines = []
    while frame is not None:
        if frame.f_code.co_filename == SOLUTION:
            lines.append(_line(frame))
        frame = frame.f_back
    _say(standing=lines[::-1][-_FRAMES:])
    if number == signal.SIGXCPU:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def _line(frame: FrameType) -> int:
    """The line of a frame, also where it is at the jump back of a loop, which belongs to no line."""
    if frame.f_lineno is not None:
        return frame.f_lineno
    before = [line for start, _, line in frame.f_code.co_lines() if start <= frame.f_lasti and line is not None]
    return before[-1] if before else frame.f_code.co_firstlineno


_errors: dict[str, dict[str, Any]] = {}
_traces: dict[str, dict[str, Any]] = {}
_following = bool(os.environ.pop("T2G_TRACE", ""))
_follower: _Follower | None = None
if _following:
    signal.signal(signal.SIGXCPU, _tell_where_it_stands)
    signal.signal(signal.SIGALRM, _tell_where_it_stands)
    signal.setitimer(signal.ITIMER_REAL, max(0.1, float(os.environ.pop("T2G_ALARM")) - time.time()))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    global _follower
    if not _following:
        return (yield)
    _follower = _Follower()
    passed = False
    try:
        _follower.begin()
        result = yield
        passed = True
        return result
    finally:
        _traces[item.nodeid] = _follower.end(passed)
        _follower = None


def pytest_assertion_pass() -> None:
    if _follower is not None:
        _follower.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    if call.excinfo is not None:
        _errors[item.nodeid] = _described(call.excinfo.value)
    return (yield)


def pytest_exception_interact(node, call, report) -> None:
    if isinstance(report, pytest.CollectReport):
        _say(test="", outcome="failed", **_described(call.excinfo.value))


def pytest_runtest_logstart(nodeid) -> None:
    _say(started=nodeid.split("::", 1)[-1])


def pytest_runtest_logreport(report) -> None:
    if report.when == "call" or report.outcome != "passed":
        _say(
            test=report.nodeid.split("::", 1)[-1],
            outcome=report.outcome,
            trace=_traces.get(report.nodeid),
            **_errors.get(report.nodeid, {}),
        )


def pytest_sessionfinish(exitstatus) -> None:
    _say(finished=int(exitstatus))
