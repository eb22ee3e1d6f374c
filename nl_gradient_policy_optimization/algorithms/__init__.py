"""The methods that a policy can be trained by, one file each; ``--algorithm`` names one.

A new method is a class in a new file, a subclass of :class:`~.base.Algorithm` or of a method that it changes, and a
line below. Its dataclass fields are flags. Nothing here loads torch: ``--help`` need not wait for it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nl_gradient_policy_optimization.algorithms.base import Algorithm

ALGORITHMS = {
    "text2grad": "text2grad.Text2Grad",
    "verdict": "verdict.Verdict",
    "grpo": "grpo.GRPO",
    "dr_grpo": "dr_grpo.DrGRPO",
    "rtt": "rtt.RTT",
    "papo": "papo.PAPO",
    "pure": "pure.PURE",
    "prime": "prime.PRIME",
    "scalar": "scalar.Scalar",
    "steps": "steps.Steps",
    "capo": "capo.CAPO",
    "teacher": "teacher.Teacher",
    "verdict_teacher": "teacher.TaughtVerdict",
    "sdpo": "teacher.SDPO",
    "second": "second.SecondAttempts",
}
"""``--algorithm`` and the class behind it, in this package."""


def algorithm_class(name: str) -> type[Algorithm]:
    """The class of an algorithm; the first call loads torch."""
    module, _, kind = ALGORITHMS[name].partition(".")
    return getattr(import_module(f"{__name__}.{module}"), kind)
