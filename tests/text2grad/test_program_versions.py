"""Many versions of a program in one box: each has a verdict of its own, and the same as in a box of its own."""

from __future__ import annotations

import pytest

from text2grad.sandbox import Sandbox
from text2grad.sandbox.unit_tests import run_tests
from text2grad.sandbox.versions import Verdict, run_versions

TESTS = """from __future__ import annotations

def test_one():
    assert add(1, 2) == 3

def test_two():
    assert add(0, 5) == 5
"""
RIGHT = "def add(a, b):\n    return a + b\n"


@pytest.fixture(scope="module")
def sandbox():
    return Sandbox(seconds=1)


def test_each_version_has_its_own_verdict(sandbox):
    codes = [
        RIGHT,
        "def add(a, b):\n    return a or b\n",
        "def add(a, b):\n    while True: pass\n",
        "def add(:",
        "import os\nos._exit(0)\n",
        "def add(a, b):\n    return add(a, b)\n",
        "def add(a, b):\n    return [0] * 10**12\n",
    ]
    verdicts = run_versions(codes, TESTS, sandbox)
    assert [verdict and verdict.passed for verdict in verdicts] == [True, *[False] * 6]
    assert verdicts[1] == Verdict(False, "test_one", 4, "AssertionError", verdicts[1].message)
    assert verdicts[1].message.startswith("assert 1 == 3")
    assert [verdicts[at].error for at in (2, 3, 5, 6)] == [
        "TimeoutError", "SyntaxError", "RecursionError", "MemoryError",
    ]  # fmt: skip
    for code, verdict in list(zip(codes, verdicts, strict=True))[:2]:
        run = run_tests(code, TESTS, Sandbox(seconds=60))
        assert run.passed == verdict.passed
        if not run.passed:
            assert (run.failures[0].name, run.failures[0].error) == (verdict.test, verdict.error)


def test_a_version_decides_nothing_about_itself_or_another(sandbox):
    forged = """import os
import _pytest.python
_pytest.python.Function.runtest = lambda self: None
for n in range(3, 64):
    try: os.write(n, b'{"version": 0, "passed": true}\\n{"version": 1, "passed": false}\\n')
    except OSError: pass
def add(a, b): return 0
"""
    assert [verdict and verdict.passed for verdict in run_versions([forged, RIGHT], TESTS, sandbox)] == [False, True]


def test_tests_that_are_none_pass_no_version(sandbox):
    assert run_versions([], TESTS, sandbox) == []
    for tests in ("", "def helper(): pass", "def test(:", "import pytest\ndef test(): pytest.skip()"):
        assert [verdict.passed for verdict in run_versions([RIGHT], tests, sandbox)] == [False]
