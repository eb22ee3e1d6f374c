"""What a solution did: the lines that each call from a test executed, and where exceptions left it.

Runs inside the sandbox, in the solution's process; standard library only.
"""

import json
import os
import signal
import sys
import time
from collections import Counter
from types import FrameType
from typing import Any

_BOX = os.path.dirname(os.path.abspath(__file__))
SOLUTION, TESTS = os.path.join(_BOX, "solution.py"), os.path.join(_BOX, "test_solution.py")
_LONGEST = 600  # characters of an exception's text
FRAMES = 40
_EVENTS = 200_000  # after that many lines in one test, following it has cost enough
_CALLS = 20  # suspect calls told of, the last ones


def described(error: BaseException) -> dict[str, Any]:
    """Type, text and the frames of an exception that lie in the solution or its tests."""
    frames, trace = [], error.__traceback__
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        if path in (SOLUTION, TESTS):
            frames.append([path == SOLUTION, trace.tb_lineno, trace.tb_frame.f_code.co_name])
        trace = trace.tb_next
    if isinstance(error, SyntaxError) and error.filename in (SOLUTION, TESTS):
        frames.append([error.filename == SOLUTION, error.lineno or 1, "<module>"])
    kind = type(error).__name__
    try:
        message = str(error)[:_LONGEST]
    except Exception:  # noqa: BLE001 (its own __str__ failed)
        message = ""
    return {
        "error": "TestFailed" if kind == "Failed" else kind,
        "message": message,
        "name": getattr(error, "name", None) if isinstance(error, ImportError | NameError) else None,
        "frames": frames[-FRAMES:],
    }


class Follower:
    """Follows the calls from one test into the solution.

    Attributes:
        line: the line of the tests that calls, where the tests run in another box.
    """

    def __init__(self) -> None:
        self.cleared: Counter[int] = Counter()  # line -> calls before a passed assertion that executed it
        self.calls: list[dict[str, Any]] = []  # since the last passed assertion
        self.stack: list[dict[str, Any]] = []
        self.events = 0
        self.line: int | None = None

    def begin(self) -> None:
        sys.settrace(self.enter)

    def enter(self, frame: FrameType, event: str, argument: object):
        if frame.f_code.co_filename != SOLUTION or self.events > _EVENTS:
            return None
        if not self.stack:
            self.calls.append(
                {
                    "test_line": line_in_tests(frame) or self.line,
                    "function": frame.f_code.co_qualname,
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
        """What was called so far did what its test wanted; of a call that is still open that is not known."""
        ended = len(self.calls) - bool(self.stack)  # a callable of the tests may assert while the solution runs
        for call in self.calls[:ended]:
            self.cleared.update(call["order"].keys())
        del self.calls[:ended]

    def end(self, passed: bool) -> dict[str, Any]:
        sys.settrace(None)
        if passed:
            self.clear()
        told = [{**call, "order": list(call["order"].items())} for call in self.calls]
        return {"cleared": list(self.cleared.items()), "calls": told[-_CALLS:]}


def line_in_tests(frame: FrameType | None) -> int | None:
    """The line of the tests that led to a frame."""
    while frame is not None and frame.f_code.co_filename != TESTS:
        frame = frame.f_back
    return frame.f_lineno if frame is not None else None


def watch_time(report: int) -> None:
    """With ``T2G_TRACE`` set: write to ``report`` which of the solution's lines are executed when time is up."""
    if not os.environ.pop("T2G_TRACE", ""):
        return

    def tell(number: int, frame: FrameType | None) -> None:
        """The lines that the program is at, outermost first."""
        lines = []
        while frame is not None:
            if frame.f_code.co_filename == SOLUTION:
                lines.append(_line(frame))
            frame = frame.f_back
        if lines:  # else the tests have not called it yet, or again
            os.write(report, json.dumps({"standing": lines[::-1][-FRAMES:]}).encode() + b"\n")
        if number == signal.SIGXCPU:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    signal.signal(signal.SIGXCPU, tell)
    signal.signal(signal.SIGALRM, tell)
    signal.setitimer(signal.ITIMER_REAL, max(0.1, float(os.environ.pop("T2G_ALARM")) - time.time()), 0.5)


def _line(frame: FrameType) -> int:
    """The line of a frame, also where it is at the jump back of a loop, which belongs to no line."""
    if frame.f_lineno is not None:
        return frame.f_lineno
    before = [line for start, _, line in frame.f_code.co_lines() if start <= frame.f_lasti and line is not None]
    return before[-1] if before else frame.f_code.co_firstlineno
