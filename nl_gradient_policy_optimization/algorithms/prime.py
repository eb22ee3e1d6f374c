"""PRIME's advantages: each token against the prompt's mean, and the outcome against the other responses'.

Source: PRIME (arXiv 2502.01456): both compared apart, then summed without discount and whitened. PRIME's token rewards
are those of an implicit reward model that learns from outcomes; here they are the critic's δ.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from nl_gradient_policy_optimization.algorithms.grpo import GRPO, Outcome
from nl_gradient_policy_optimization.batch import Batch
from text2grad.advantages import discounted_sums, leave_one_out, per_response, prime_tokens, whiten
from text2grad.configs import setting


@dataclass
class PRIME(GRPO):
    """Clipped PPO on per-token leave-one-out returns, without a value head."""

    name = "prime"

    outcome: Outcome = setting("verdict", "as in grpo")

    def advantages(self, batch: Batch) -> Tensor:
        size, mask = self.run.config.rollouts_per_prompt, batch.mask
        tokens, outcomes = discounted_sums(prime_tokens(batch.deltas, mask, size), mask, 1.0), self.outcomes(batch)
        told, returns = (tokens + per_response(leave_one_out(each, batch.counts, size), mask) for each in outcomes)
        if self._nothing(told):  # whitened, the KL penalties would be all there is
            return torch.zeros_like(returns)
        return whiten(returns, mask, self.run.reduce)
