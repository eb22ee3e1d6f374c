"""What a run has spent, so that methods can be compared at equal rollouts and at equal cost."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from nl_gradient_policy_optimization.batch import Batch
from nl_gradient_policy_optimization.observers.base import Observer

SPENT = ("critiques", "forward_tokens", "backward_tokens", "seconds")


class Ledger(Observer):
    """Sums over all steps and ranks, as metrics ``ledger/…``.

    ``critiques``: responses that a critic was asked about. ``forward_tokens``, ``backward_tokens``: tokens, prompts
    included, that went through the policy, its reference or its teacher, and tokens that a gradient went back through.
    A critic's own tokens are not in them. ``seconds``: of all phases of the steps, on the slowest rank's clock where
    ranks wait for each other.
    """

    def __init__(self) -> None:
        self.spent = dict.fromkeys(SPENT, 0.0)

    def figures(self, batch: Batch) -> dict[str, float]:
        step = torch.tensor([self.run.costs.counted[name] for name in SPENT[:-1]], dtype=torch.float64)
        for name, value in zip(SPENT[:-1], self.run.reduce(step).tolist(), strict=True):
            self.spent[name] += value
        self.spent["seconds"] += sum(self.run.costs.seconds.values())
        return {f"ledger/{name}": value for name, value in self.spent.items()}

    def state(self) -> dict[str, Any]:
        return {"ledger": self.spent}

    def load(self, folder: Path, state: Mapping[str, Any]) -> None:
        self.spent |= state.get("ledger", {})
