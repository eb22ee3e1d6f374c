"""What a run has spent, so that methods can be compared at equal rollouts and at equal cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch

from nl_gradient_policy_optimization.rollouts import Rollout
from text2grad.advantages import Reduce


@dataclass
class Ledger:
    """Sums over all steps and ranks.

    Attributes:
        critiques: responses that a critic was asked about.
        forward_tokens, backward_tokens: tokens, prompts included, that went through the policy, its reference or its
            teacher, and tokens that a gradient went back through. A critic's own tokens are not in them.
        seconds: of all phases of the steps, on the slowest rank's clock where ranks wait for each other.
    """

    critiques: float = 0.0
    forward_tokens: float = 0.0
    backward_tokens: float = 0.0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self._begin_step()

    def _begin_step(self) -> None:
        self._critiques = self._forward = self._backward = 0.0  # of this step and rank

    def critique(self, rollouts: Sequence[Rollout]) -> None:
        self._critiques += sum(bool(rollout.response.strip()) for rollout in rollouts)

    def forward(self, rollouts: Sequence[Rollout], passes: int = 1) -> None:
        self._forward += passes * tokens_of(rollouts)

    def backward(self, rollouts: Sequence[Rollout]) -> None:
        self._forward += tokens_of(rollouts)
        self._backward += tokens_of(rollouts)

    def close(self, seconds: float, reduce: Reduce) -> dict[str, float]:
        """Add a step's share of all ranks; returns the sums so far, as metrics."""
        step = reduce(torch.tensor([self._critiques, self._forward, self._backward], dtype=torch.float64)).tolist()
        self.critiques, self.forward_tokens, self.backward_tokens = (
            before + now
            for before, now in zip((self.critiques, self.forward_tokens, self.backward_tokens), step, strict=True)
        )
        self.seconds += seconds
        self._begin_step()
        return {
            "ledger/critiques": self.critiques,
            "ledger/forward_tokens": self.forward_tokens,
            "ledger/backward_tokens": self.backward_tokens,
            "ledger/seconds": self.seconds,
        }

    def state(self) -> dict[str, float]:
        return asdict(self)


def tokens_of(rollouts: Sequence[Rollout]) -> int:
    return sum(len(rollout.prompt_ids) + len(rollout.response_ids) for rollout in rollouts)
