"""Verdict and spans in two channels: how good a response is, and where in it. Neither is paid by length.

δ summed up makes each further token pay where most is praised, and cost where most is blamed. Here a response is
compared with the others by its verdict, which also knows what is missing, and each token by the spans with a token of
the others. Whether to stop is left to the verdict. Spans count as far as they agree with it
(:func:`text2grad.advantages.verdict_advantages`).
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from nl_gradient_policy_optimization.algorithms.grpo import GRPO
from nl_gradient_policy_optimization.batch import Batch
from nl_gradient_policy_optimization.config import PolicyConfig
from text2grad.advantages import verdict_advantages
from text2grad.configs import setting


@dataclass
class Verdict(GRPO):
    """Clipped PPO on both channels, without a value head; prompts may have one response or several."""

    name = "verdict"

    outcome: Literal["sum", "mean", "verdict"] = setting("verdict", "as in grpo")
    token_weight: float = setting(
        1.0, "verdict: weight of the spans where they agree with the verdict; 0: leave them out", at_least=0
    )

    def check(self, config: PolicyConfig) -> None:
        """Prompts may have one response."""

    def advantages(self, batch: Batch) -> tuple[Tensor, Tensor]:
        config = self.run.config
        advantages = verdict_advantages(
            batch.rewards,
            batch.mask,
            self.outcomes(batch),
            config.rollouts_per_prompt,
            config.gamma * config.lam,
            self.token_weight,
            self.run.reduce,
        )
        return advantages, torch.zeros_like(batch.mask)
