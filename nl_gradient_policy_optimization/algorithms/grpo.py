"""GRPO: one number for a response, against those of the other responses to its prompt.

Source: DeepSeekMath (arXiv 2402.03300), A = (R − mean R of the prompt) / standard deviation, the same on all tokens.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from nl_gradient_policy_optimization.algorithms.text2grad import Text2Grad
from nl_gradient_policy_optimization.batch import Batch
from text2grad.advantages import group_normalised, per_response, response_scores
from text2grad.configs import setting
from text2grad.errors import InputError

Outcome = Literal["sum", "mean", "verdict"]


@dataclass
class GRPO(Text2Grad):
    """PPO's clipped loss on group-relative advantages of whole responses, without a value head."""

    name = "grpo"
    uses_values = False
    compares_groups = True
    eps: ClassVar[float] = 1e-4
    """Beside the standard deviation, as in TRL."""

    outcome: Outcome = setting(
        "sum", "what a response is worth: the sum or the mean of its tokens' rewards, or the critic's verdict"
    )

    def advantages(self, batch: Batch) -> Tensor:
        return per_response(self.relative(batch), batch.mask)

    def relative(self, batch: Batch) -> Tensor:
        """Each response against the others to its prompt, ``[B]``.

        Where all are worth the same this is 0: the deviation would blow their KL penalties up to full size.
        """
        size, (worths, outcomes), reduce = self.run.config.rollouts_per_prompt, self.outcomes(batch), self.run.reduce
        differences = group_normalised(worths, batch.counts, size, divide=False, reduce=reduce)
        relative = group_normalised(outcomes, batch.counts, size, self.eps, reduce=reduce)
        if size == 1:  # a step is one group
            return relative * (not self._nothing(differences))
        return relative * (differences.view(-1, size).abs() > 1e-5).any(1).repeat_interleave(size)

    def _nothing(self, differences: Tensor) -> bool:
        """Whether there are none, on any rank."""
        return float(self.run.reduce(differences.abs().amax())) < 1e-5

    def outcome_of(self, batch: Batch) -> str:
        """What a step's responses are worth; the same on all ranks."""
        return self.outcome

    def outcomes(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """R of each response, ``[B]``, with wishes about length: before and after the KL penalty.

        Verdicts lie in −1..1, as the mean of a token does, so the KL penalty is then the mean of a token's, too.
        """
        outcome, before = self.outcome_of(batch), self.token_rewards(batch)
        if outcome != "verdict":
            mean = outcome == "mean"
            return response_scores(before, batch.mask, mean), response_scores(batch.rewards, batch.mask, mean)
        if batch.scores[batch.counts > 0].isnan().any():
            raise InputError("--outcome verdict: the rewards come from no critic; choose sum or mean")
        worths = batch.scores + response_scores(batch.given - batch.deltas, batch.mask)
        return worths, worths + response_scores(batch.rewards - before, batch.mask, mean=True)
