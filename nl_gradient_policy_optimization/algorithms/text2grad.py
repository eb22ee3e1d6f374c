"""Text2Grad itself: δ on the tokens that the critique quotes, GAE with a value head, clipped PPO (algorithm 4)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from nl_gradient_policy_optimization.algorithms.base import Algorithm, LossInputs, LossOutputs
from nl_gradient_policy_optimization.batch import Batch
from text2grad.advantages import discounted_sums, gae, whiten
from text2grad.losses.ppo import capped_ratio, policy_loss, value_loss


@dataclass
class Text2Grad(Algorithm):
    """Algorithm 4: advantages by GAE, then clipped PPO on policy and value head."""

    name = "text2grad"

    def advantages(self, batch: Batch) -> Tensor:
        """A_t, whitened over all ranks."""
        return whiten(self._gae(batch)[0], batch.mask, self.run.reduce)

    def returns(self, batch: Batch) -> Tensor:
        if not self.uses_values:
            return torch.zeros_like(batch.mask)
        if self.run.config.value_target == "rewards":
            return discounted_sums(batch.rewards, batch.mask, self.run.config.gamma)
        return self._gae(batch)[1]

    def _gae(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return gae(batch.rewards, batch.values, batch.mask, self.run.config.gamma, self.run.config.lam)

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """Clipped PPO with an entropy bonus, and the value loss."""
        config, batch, scores = self.run.config, inputs.batch, inputs.scores
        surrogate, clipped = self.surrogate(inputs)
        value_error = torch.zeros_like(surrogate)
        if inputs.values is not None:
            value_error = value_loss(inputs.values, batch.values, batch.returns, config.value_clip_range)
        return LossOutputs(
            policy=surrogate - config.entropy_coef * scores.entropy,
            value=value_error,
            figures={"policy/loss": surrogate, "policy/clip_fraction": clipped, "value/loss": value_error},
        )

    def surrogate(self, inputs: LossInputs) -> tuple[Tensor, Tensor]:
        """PPO's policy term, and where its clip held the gradient back."""
        batch, clip_range = inputs.batch, self.run.config.clip_range
        term, clipped = policy_loss(inputs.scores.logprobs, batch.old_logprobs, batch.advantages, clip_range)
        return corrected(term, batch), clipped


def corrected(term: Tensor, batch: Batch) -> Tensor:
    """A policy term per token, weighted where another engine than the policy itself sampled."""
    if not batch.has("sampler_logprobs"):
        return term
    return term * capped_ratio(batch.old_logprobs, batch.sampler_logprobs)
