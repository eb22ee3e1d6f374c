"""A pytest plugin that runs inside the sandbox and reports each test, as it ends, in one JSON line.

Loaded with ``-p pytest_recorder`` from the box; it imports nothing of this project. The report goes to a pipe of its
own, line by line, so that what happened before a crash or a time limit is known, and so that a program that ends
pytest early (``os._exit(0)``) cannot pass for one whose tests succeeded.

With ``T2G_TRACE`` set the solution is followed: which of its lines each call from a test executed, and through which
line the call returned. A passed assertion clears the calls before it; those left when a test fails are suspect. With
``T2G_IN`` set the solution runs in another box (``tests_side.py``), else here, as the module ``solution``.
"""

import json
import os
from typing import Any

import following
import pytest

_number = int(os.environ.pop("T2G_REPORT"))
_report = os.fdopen(_number, "w", buffering=1, encoding="utf-8", errors="replace")
_apart = "T2G_IN" in os.environ
_following = bool(os.environ.get("T2G_TRACE"))
_errors: dict[str, dict[str, Any]] = {}
_traces: dict[str, dict[str, Any]] = {}
_follower = None


def _say(**event: Any) -> None:
    _report.write(json.dumps(event) + "\n")
    _report.flush()


def _described(error: BaseException) -> dict[str, Any]:
    """Type, text and the frames of an exception that lie in the solution or its tests."""
    if isinstance(error, pytest.Collector.CollectError) and error.__cause__ is not None:
        error = error.__cause__
    here = following.described(error)
    told = getattr(error, "t2g_told", None)  # four known fields (tests_side.py)
    return {**told, "frames": (here["frames"] + told["frames"])[-following.FRAMES :]} if told else here


def _lines(frames: list) -> list[str]:
    """Where an exception went through, in the solution or its tests."""
    return list(dict.fromkeys(f"{'' if own else 'test_'}solution.py:{line}: in {name}" for own, line, name in frames))


if _apart:
    import tests_side

    tests_side.begin(_say)

    class _Follower:
        """Follows the calls where they are executed."""

        def begin(self) -> None:
            tests_side.talk.exchange({"do": "trace", "step": "begin"})

        def clear(self) -> None:
            tests_side.talk.exchange({"do": "trace", "step": "clear"})

        def end(self, passed: bool) -> dict[str, Any]:
            return tests_side.talk.exchange({"do": "trace", "step": "end", "passed": passed}).get("trace")

else:
    _Follower = following.Follower
    following.watch_time(_number)


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
    raised = call.excinfo
    report = yield
    raised = raised or call.excinfo  # of a unittest.TestCase it is there only now
    if raised is not None:
        error = _errors[item.nodeid] = _described(raised.value)
        if _apart and (lines := _lines([frame for frame in error["frames"] if frame[0]])):
            report.sections.append(("in the solution", "\n".join(lines)))
    return report


def pytest_exception_interact(node, call, report) -> None:
    if isinstance(report, pytest.CollectReport):
        error = _described(call.excinfo.value)
        # Without pytest's own frames, whose paths are this machine's: a paid request holds the log.
        report.longrepr = "\n".join([*_lines(error["frames"]), f"E   {error['error']}: {error['message']}"])
        _say(test="", outcome="failed", **error)


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
