"""Reports and messages that no test run writes: the verdict is a failure with a reason, and the judge goes on."""

import json
import random

import pytest

from tests.injuries import injured_text
from text2grad.sandbox import Result
from text2grad.sandbox.unit_tests import run_tests
from text2grad.sandbox.verdict import TestRun as Run
from text2grad.sandbox.verdict import read_report

PAYLOADS = [
    "5", "NaN", "1" * 5000, "[" * 100_000, '{"test": 3}', '{"test": "a", "outcome": "great"}',
    '{"test": "a", "outcome": "passed", "frames": [[true, -1, "f"]]}',
    '{"test": "a", "outcome": "passed", "frames": [[true, 1e400, "f"]]}',
    '{"test": "a", "outcome": "failed", "error": ["x"]}', '{"test": "a", "outcome": "failed", "name": {}}',
    '{"test": "a", "outcome": "passed", "trace": {"cleared": [[1]], "calls": []}}',
    '{"test": "a", "outcome": "passed", "trace": {"cleared": [], "calls": [{"test_line": "x"}]}}',
    '{"started": 3}', '{"standing": ["a"]}', '{"finished": "yes"}', '{"weaker": []}',
    '{"test": "\\ud800", "outcome": "failed", "message": "\\ud800"}',
]  # fmt: skip


def run_of(report: str) -> Run:
    return read_report(Result(0, "", "", report, 0.1), above=0)


@pytest.mark.parametrize("payload", PAYLOADS)
def test_a_line_that_no_test_run_reports_is_a_failure_with_a_reason(payload):
    passed = '{"test": "a", "outcome": "passed"}\n{"finished": 0}\n'
    assert run_of(passed).passed
    run = run_of(f"{payload}\n{passed}")
    if "ud800" not in payload:
        assert (run.passed, run.error_type) == (False, "ForgedReport")
    assert run.error_type
    json.dumps(run.log, ensure_ascii=False).encode()


def test_a_line_that_the_end_of_the_program_cut_off_is_no_forgery():
    run = run_of('{"started": "a"}\n{"test": "a", "outc')
    assert [test.outcome for test in run.tests] == ["unfinished"]
    assert run.forged == ""


@pytest.mark.parametrize(
    ("payload", "shared"),
    [(b"\n5\n", ""), (b'\n{"test": []}\n', ""), (b"\xff\xfe\n" * 100, ""), (b"\x00\x00\x00\x01{", ""),
     (b'\n{"test": []}\n', "import inspect\n")],  # tests that share its process
)  # fmt: skip
def test_a_program_that_writes_to_all_its_descriptors_harms_itself(box, payload, shared):
    code = f"import os\nfor number in range(3, 4096):\n  try: os.write(number, {payload!r})\n  except OSError: pass\n"
    run = run_tests(code, f"{shared}def test_a(): pass\n", box, trace=True)
    assert not run.passed
    assert run.error_type in ("ForgedReport", "Crash")


def test_five_hundred_injured_reports():
    chance, seen = random.Random(0), {"forged": 0, "read": 0}
    trace = {"cleared": [[1, 2]], "calls": [{"test_line": 3, "function": "f", "order": [[1, 1]], "returned": None}]}
    passed = {"test": "test_a", "outcome": "passed", "trace": trace}
    for _ in range(500):
        frame = [chance.random() < 0.5, chance.randrange(99), "f"]
        failed = {"test": "test_b", "outcome": "failed", "error": "E", "message": "m", "name": None, "frames": [frame]}
        events = [{"started": "test_a"}, passed, {"started": "test_b"}, failed, {"standing": [1, 2]}, {"finished": 1}]
        run = run_of(injured_text(chance, "".join(json.dumps(event) + "\n" for event in events)))
        seen["forged" if run.forged else "read"] += 1
        assert run.forged or all(test.outcome in ("passed", "failed", "skipped", "unfinished") for test in run.tests)
        assert run.passed is False or run.error_type is None
        json.dumps(run.log, ensure_ascii=False).encode()
    assert min(seen.values()) > 5, seen
