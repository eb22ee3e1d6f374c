"""Generated wrong solutions that lie to their tests: none passes, and the critic approves of none."""

import random
from collections import Counter

import pytest

from tests.text2grad.liars import drawn, filled, liar
from text2grad.critics.programs.kodcode.critic import CodeCritic
from text2grad.feedback import FeedbackError
from text2grad.sandbox import Sandbox

LONG = [pytest.mark.slow, pytest.mark.timeout(4 * 3600)]


@pytest.mark.parametrize("count", [30, pytest.param(3000, marks=LONG)])
def test_no_lie_passes_and_right_solutions_do(count):
    """Each tenth solution is a right one."""
    codes, records, earned = [], [], []
    for seed in range(count):
        chance = random.Random(seed)
        case, numbers = drawn(chance)
        codes.append(liar(chance, case, numbers) if seed % 10 else filled(case.right, numbers))
        records.append({"question": "q", "test": filled(case.tests, numbers)})
        right = "not judged" if case.doubtful else "approved"
        earned.append(["rejected", "not judged"] if seed % 10 else [right])
    seen = Counter[str]()
    for seed, feedback in enumerate(CodeCritic(Sandbox(seconds=20))(["q"] * count, codes, records)):
        if isinstance(feedback, FeedbackError):
            outcome = "not judged"
        else:
            outcome = "rejected" if feedback.poor and feedback.score < 1 else "approved"
        assert outcome in earned[seed], f"seed {seed} is {outcome}: {feedback}"
        seen[outcome] += 1
    assert seen["rejected"] > count / 2 and seen["approved"]
