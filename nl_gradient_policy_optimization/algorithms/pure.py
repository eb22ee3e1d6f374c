"""PURE: a response is worth about as much as its worst token, and every token is compared with the group's.

Source: PURE (arXiv 2504.15275): min-form rewards softmax(−δ/T)_t·δ_t, minus what a token of the prompt's other
responses earns, summed without discount.
"""

from dataclasses import dataclass

from torch import Tensor

from nl_gradient_policy_optimization.algorithms.text2grad import Text2Grad
from nl_gradient_policy_optimization.batch import Batch
from text2grad.advantages import discounted_sums, leave_one_out_tokens, min_form


@dataclass
class PURE(Text2Grad):
    """Clipped PPO on min-form rewards with a leave-one-out baseline for each token, without a value head."""

    name = "pure"
    uses_values = False
    compares_groups = True

    def token_rewards(self, batch: Batch) -> Tensor:
        return min_form(batch.deltas, batch.mask) + batch.given - batch.deltas

    def advantages(self, batch: Batch) -> Tensor:
        compared = leave_one_out_tokens(batch.rewards, batch.mask, self.run.config.rollouts_per_prompt)
        return discounted_sums(compared, batch.mask, 1.0)
