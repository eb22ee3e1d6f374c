"""GRPO: one reward for a response, its δ and KL summed up, against those of the other responses to its prompt.

Source: DeepSeekMath (arXiv 2402.03300), A = (R − mean R of the prompt) / standard deviation, the same on all tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nl_gradient_policy_optimization.algorithms.base import per_response
from nl_gradient_policy_optimization.algorithms.text2grad import Text2Grad, needs_groups
from nl_gradient_policy_optimization.batch import Batch
from nl_gradient_policy_optimization.config import PolicyConfig
from text2grad.advantages import group_normalised, response_scores


@dataclass
class GRPO(Text2Grad):
    """PPO's clipped loss on group-relative advantages of whole responses, without a value head."""

    name = "grpo"
    uses_values = False

    def check(self, config: PolicyConfig) -> None:
        needs_groups(f"--algorithm {self.name}", config)

    def advantages(self, batch: Batch) -> tuple[Tensor, Tensor]:
        scores = response_scores(batch.rewards, batch.mask)
        relative = group_normalised(scores, batch.counts, self.run.config.rollouts_per_prompt)
        return per_response(relative, batch.mask), torch.zeros_like(batch.mask)
