"""Dr. GRPO: GRPO without the division by the standard deviation.

Source: Understanding R1-Zero-Like Training (arXiv 2503.20783). The division weighs those prompts most whose responses
hardly differ. Its other change, no division by a response's length, holds for every method here: the loss is the mean
over all tokens of a minibatch.
"""

from dataclasses import dataclass

from torch import Tensor

from nl_gradient_policy_optimization.algorithms.grpo import GRPO
from nl_gradient_policy_optimization.batch import Batch
from text2grad.advantages import group_normalised


@dataclass
class DrGRPO(GRPO):
    """GRPO on differences from the prompt's mean."""

    name = "dr_grpo"

    def relative(self, batch: Batch) -> Tensor:
        size = self.run.config.rollouts_per_prompt
        return group_normalised(self.outcomes(batch)[1], batch.counts, size, divide=False)
