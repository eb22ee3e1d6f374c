"""Published methods that compare a prompt's responses: GRPO with other rewards or advantages, and PURE."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from nl_gradient_policy_optimization.algorithms.grpo import GRPO
from nl_gradient_policy_optimization.algorithms.text2grad import Text2Grad
from nl_gradient_policy_optimization.batch import Batch
from text2grad.advantages import (
    before_end,
    centred,
    discounted_sums,
    group_normalised,
    leave_one_out,
    leave_one_out_tokens,
    min_form,
    per_response,
    prime_tokens,
    response_scores,
    whiten,
)
from text2grad.configs import setting


@dataclass
class DrGRPO(GRPO):
    """Dr. GRPO: GRPO without the division by the standard deviation.

    Source: Understanding R1-Zero-Like Training (arXiv 2503.20783). The division weighs those prompts most whose
    responses hardly differ. Its other change, no division by a response's length, holds for every method here: the loss
    is the mean over all tokens of a minibatch.
    """

    name = "dr_grpo"

    def relative(self, batch: Batch) -> Tensor:
        size = self.run.config.rollouts_per_prompt
        return group_normalised(self.outcomes(batch)[1], batch.counts, size, divide=False)


@dataclass
class PAPO(GRPO):
    """PAPO: the outcome against the prompt's other responses, and the spans among those that are right.

    Source: PAPO (arXiv 2603.26535), A = A_out + A_proc, each normalised on its own, A_proc among the right responses of
    a prompt alone: a process reward on wrong ones teaches verbosity. Here a verdict above 0 is right, and a response's
    process reward is its mean δ.
    """

    name = "papo"

    outcome: Literal["sum", "mean", "verdict"] = setting("verdict", "as in grpo")

    def relative(self, batch: Batch) -> Tensor:
        right = batch.counts * (batch.scores.nan_to_num() > 0)
        means = response_scores(batch.deltas, batch.mask, mean=True)
        process = group_normalised(means, right, self.run.config.rollouts_per_prompt)
        return super().relative(batch) + process


@dataclass
class RTT(GRPO):
    """RTT: a response's outcome against those of its prompt, and each token's δ against those of its own response.

    Source: Rubrics to Tokens (arXiv 2604.02795), A_it = A_response + α·A_token. As published the end token counts in
    the second term, which makes going on worth more than ending where most is praised. It is left out here, unless
    ``--rtt_end_token true``.
    """

    name = "rtt"
    eps = 1e-6  # as in the authors' code

    outcome: Literal["sum", "mean", "verdict"] = setting("verdict", "as in grpo")
    rtt_alpha: float = setting(0.5, "rtt: weight α of a token's advantage within its response", at_least=0)
    rtt_end_token: bool = setting(False, "rtt: the end token counts in the second term, as published")

    def advantages(self, batch: Batch) -> Tensor:
        inside = batch.mask if self.rtt_end_token else before_end(batch.mask)
        tokens = centred(batch.deltas, inside, std_eps=self.eps)
        return per_response(self.relative(batch), batch.mask) + self.rtt_alpha * tokens


@dataclass
class PRIME(GRPO):
    """PRIME's advantages: each token against the prompt's mean, and the outcome against the other responses'.

    Source: PRIME (arXiv 2502.01456): both compared apart, then summed without discount and whitened. PRIME's token
    rewards are those of an implicit reward model that learns from outcomes; here they are the critic's δ.
    """

    name = "prime"

    outcome: Literal["sum", "mean", "verdict"] = setting("verdict", "as in grpo")

    def advantages(self, batch: Batch) -> Tensor:
        size, mask = self.run.config.rollouts_per_prompt, batch.mask
        returns = discounted_sums(prime_tokens(batch.deltas, mask, size), mask, 1.0)
        returns = returns + per_response(leave_one_out(self.outcomes(batch)[1], batch.counts, size), mask)
        return whiten(returns, mask, self.run.reduce)


@dataclass
class PURE(Text2Grad):
    """PURE: a response is worth about as much as its worst token, and every token is compared with the group's.

    Source: PURE (arXiv 2504.15275): min-form rewards softmax(−δ/T)_t·δ_t, minus what a token of the prompt's other
    responses earns, summed without discount. Clipped PPO, without a value head.
    """

    name = "pure"
    uses_values = False
    compares_groups = True

    min_temperature: float = setting(0.1, "pure: T of the min-form; near 0 the worst token takes all", above=0)

    def token_rewards(self, batch: Batch) -> Tensor:
        return min_form(batch.deltas, batch.mask, self.min_temperature) + batch.given - batch.deltas

    def advantages(self, batch: Batch) -> Tensor:
        compared = leave_one_out_tokens(batch.rewards, batch.mask, self.run.config.rollouts_per_prompt)
        return discounted_sums(compared, batch.mask, 1.0)
