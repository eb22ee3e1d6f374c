"""Many versions of one program against one test file: for data whose programs a program of ours changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from text2grad.sandbox.box import Sandbox
from text2grad.sandbox.unit_tests import run_tests


@dataclass(frozen=True)
class Verdict:
    """Whether a version passes its tests; of the first test that it fails, its name, its line, and what it raised.

    ``test`` is empty where the failure is outside any test. Where processor time ran out, the error is TimeoutError.
    """

    passed: bool
    test: str = ""
    line: int = 0
    error: str = ""
    message: str = ""


def run_versions(codes: Sequence[str], tests: str, sandbox: Sandbox) -> list[Verdict | None]:
    """A verdict on each of ``codes``, which the tests find as the module ``solution``; None where it is undecided."""
    return [_verdict(code, tests, sandbox) for code in codes]


def _verdict(code: str, tests: str, sandbox: Sandbox) -> Verdict | None:
    run = run_tests(code, tests, sandbox)
    if run.passed or run.undecided:
        return Verdict(True) if run.passed else None
    if not run.failures:
        return Verdict(False, error=run.error_type or "")
    first = run.failures[0]
    lines = [frame.line for frame in first.frames if not frame.in_solution]
    return Verdict(False, first.name, lines[-1] if lines else 0, run.error_type or "", first.message)
