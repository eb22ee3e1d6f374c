"""RTT: a response's outcome against those of its prompt, and each token's δ against those of its own response.

Source: Rubrics to Tokens (arXiv 2604.02795), A_it = A_response + α·A_token. R is the mean reward of a token here. The
end token is left out of the second term: counted in, it would make going on worth more than ending.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nl_gradient_policy_optimization.algorithms.base import per_response
from nl_gradient_policy_optimization.algorithms.grpo import GRPO
from nl_gradient_policy_optimization.batch import Batch
from nl_gradient_policy_optimization.config import PolicyConfig
from text2grad.advantages import before_end, centred, group_normalised, response_scores
from text2grad.configs import setting
from text2grad.errors import InputError


@dataclass
class RTT(GRPO):
    """GRPO on the mean reward of a token, with the spans as a second term that sums to 0 in each response."""

    name = "rtt"

    rtt_alpha: float = setting(0.5, "rtt: weight α of a token's advantage within its response")

    def check(self, config: PolicyConfig) -> None:
        super().check(config)
        if self.rtt_alpha < 0:
            raise InputError(f"--rtt_alpha must be 0 or more, not {self.rtt_alpha}")

    def advantages(self, batch: Batch) -> tuple[Tensor, Tensor]:
        means = response_scores(batch.rewards, batch.mask, mean=True)
        anchor = group_normalised(means, batch.counts, self.run.config.rollouts_per_prompt)
        within = centred(batch.deltas, before_end(batch.mask), std_eps=1e-6)
        return per_response(anchor, batch.mask) + self.rtt_alpha * within, torch.zeros_like(batch.mask)
