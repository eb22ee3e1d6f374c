"""Generated wrong solutions that lie to their tests, thousands of them: none passes, and the critic approves of none.

The slow test runs 20 000 of them; ``python -m tests.text2grad.test_generated_liars FIRST COUNT`` runs a part by seeds.
"""

import json
import random
import sys
from collections import Counter

import pytest

from tests.processes import run_command
from tests.text2grad.forked_boxes import ForkedBoxes
from tests.text2grad.liars import drawn, filled, liar
from text2grad.critics.programs.kodcode.critic import CodeCritic
from text2grad.feedback import FeedbackError
from text2grad.sandbox.unit_tests import TestRun as Run
from text2grad.sandbox.unit_tests import run_tests

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the boxes are forks that Linux can wait for")
LONG = [pytest.mark.slow, pytest.mark.timeout(4 * 3600)]
_BATCH = 50  # programs that one call of the critic judges


def judged_liars(first: int, count: int) -> Counter[str]:
    """What became of wrong solutions by their seeds; stops at one that its critic does not reject."""
    critic, seen = CodeCritic(ForkedBoxes(), workers=1), Counter()
    for start in range(first, first + count, _BATCH):
        seeds = range(start, min(start + _BATCH, first + count))
        codes, records = [], []
        for seed in seeds:
            chance = random.Random(seed)
            case, numbers = drawn(chance)
            codes.append(liar(chance, case, numbers))
            records.append({"question": "q", "test": filled(case.tests, numbers)})
        for seed, feedback in zip(seeds, critic(["q"] * len(codes), codes, records), strict=True):
            if isinstance(feedback, FeedbackError):
                seen["not judged"] += 1
                continue
            assert feedback.poor and feedback.score < 1, f"seed {seed} is approved: {feedback.critique}"
            seen["rejected"] += 1
    return seen


def judged_right_ones(first: int, count: int) -> Counter[str]:
    """What became of right solutions; stops at one that fails."""
    boxes, seen = ForkedBoxes(), Counter()
    for seed in range(first, first + count):
        case, numbers = drawn(random.Random(seed))
        run: Run = run_tests(filled(case.right, numbers), filled(case.tests, numbers), boxes)
        assert run.undecided if case.doubtful else run.passed, f"seed {seed}: {run}"
        seen["undecided" if run.undecided else "passed"] += 1
    return seen


@pytest.mark.parametrize(
    ("kind", "count", "outcome", "least"),
    [
        ("liars", 60, "rejected", 45),
        ("right", 30, "passed", 20),
        pytest.param("liars", 20_000, "rejected", 45, marks=LONG),
        pytest.param("right", 1000, "passed", 20, marks=LONG),
    ],
)
def test_no_lie_passes_and_right_solutions_do(kind, count, outcome, least):
    """In an interpreter that has run nothing else: boxes are forks, and inherit what other tests left."""
    judged = json.loads(run_command(sys.executable, "-m", __name__, 0, count, kind, timeout=4 * 3600).stdout)
    print(judged)
    assert judged[outcome] > least


if __name__ == "__main__":
    judged = judged_right_ones if sys.argv[3:] == ["right"] else judged_liars
    print(json.dumps(judged(int(sys.argv[1]), int(sys.argv[2]))))
