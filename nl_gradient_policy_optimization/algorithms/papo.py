"""PAPO: the outcome against the prompt's other responses, and the spans among those that are right.

Source: PAPO (arXiv 2603.26535), A = A_out + A_proc, each normalised on its own, A_proc among the right responses of a
prompt alone: a process reward on wrong ones teaches verbosity. Here a verdict above 0 is right, less what its length
costs, and a response's process reward is its mean δ.
"""

from dataclasses import dataclass

from torch import Tensor

from nl_gradient_policy_optimization.algorithms.grpo import GRPO, Outcome
from nl_gradient_policy_optimization.batch import Batch
from text2grad.advantages import group_normalised, response_scores
from text2grad.configs import setting


@dataclass
class PAPO(GRPO):
    """GRPO on the outcome, plus GRPO on mean δ among the right responses."""

    name = "papo"

    outcome: Outcome = setting("verdict", "as in grpo")

    def relative(self, batch: Batch) -> Tensor:
        wishes = response_scores(batch.given - batch.deltas, batch.mask)  # about length: a cut-off answer loses by them
        right = batch.counts * (batch.scores.nan_to_num() + wishes > 0)
        means = response_scores(batch.deltas, batch.mask, mean=True)
        process = group_normalised(means, right, self.run.config.rollouts_per_prompt)
        return super().relative(batch) + process
