"""Generated wrong solutions that lie to their tests, thousands of them: none passes, and the critic approves of none.

The slow test runs 20 250 of them, and 2250 right ones. ``python -m tests.text2grad.test_generated_liars FIRST COUNT``
runs a part by seeds.
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

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the boxes are forks that Linux can wait for")
LONG = [pytest.mark.slow, pytest.mark.timeout(4 * 3600)]
_BATCH = 50  # programs that one call of the critic judges


def judged(first: int, count: int) -> Counter[str]:
    """What became of solutions by their seeds, each tenth a right one; stops at one that gets what it does not earn."""
    critic, seen = CodeCritic(ForkedBoxes(), workers=1), Counter()
    for start in range(first, first + count, _BATCH):
        seeds = range(start, min(start + _BATCH, first + count))
        codes, records, earned = [], [], []
        for seed in seeds:
            chance = random.Random(seed)
            case, numbers = drawn(chance)
            codes.append(liar(chance, case, numbers) if seed % 10 else filled(case.right, numbers))
            records.append({"question": "q", "test": filled(case.tests, numbers)})
            right = "not judged" if case.doubtful else "approved"
            earned.append(["rejected", "not judged"] if seed % 10 else [right])
        for seed, feedback, outcomes in zip(seeds, critic(["q"] * len(codes), codes, records), earned, strict=True):
            if isinstance(feedback, FeedbackError):
                outcome = "not judged"
            else:
                outcome = "rejected" if feedback.poor and feedback.score < 1 else "approved"
            assert outcome in outcomes, f"seed {seed} is {outcome}: {feedback}"
            seen[outcome] += 1
    return seen


@pytest.mark.parametrize("count", [80, pytest.param(22_500, marks=LONG)])
def test_no_lie_passes_and_right_solutions_do(count):
    """In an interpreter that has run nothing else: boxes are forks, and inherit what other tests left."""
    seen = json.loads(run_command(sys.executable, "-m", __name__, 0, count, timeout=4 * 3600).stdout)
    print(seen)
    assert seen["rejected"] > 45 and seen["approved"] > 4


if __name__ == "__main__":
    print(json.dumps(judged(int(sys.argv[1]), int(sys.argv[2]))))
