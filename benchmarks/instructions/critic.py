"""The critic of requests, for ``--critic .../critic.py:judge``.

What the checkers quote is poor, what they miss is missing, sentences without a fault are good. The verdict is the share
of rules that are kept; half of what a rule counts depends on how badly it is broken.
"""

from typing import Any

from benchmarks.instructions.checks import sentences_of, violations
from text2grad.feedback import Feedback


def judge(prompt: str, response: str, record: dict[str, Any]) -> Feedback:
    found = violations(response, record["rules"])
    poor = [quote for violation in found for quote in violation.quotes]
    critique = " ".join(violation.remark for violation in found) or "It follows every rule."
    good = [each for each in sentences_of(response) if not any(quote in each or each in quote for quote in poor)]
    broken = sum(0.5 + violation.size / 2 for violation in found) / len(record["rules"])
    missing = [violation.missing for violation in found if violation.missing]
    return Feedback(critique, good, poor, missing=missing, score=1 - 2 * broken)
