"""What one update minimises: clipped PPO and the value loss on a micro-batch of rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.rollouts import Rollout, counting_mask, read_column
from nl_gradient_policy_optimization.value_function import ValueHead
from text2grad.losses import policy_kl, policy_loss, sampler_correction, value_loss


class Losses(NamedTuple):
    """What a micro-batch adds to the losses of one update.

    Attributes:
        policy, value: its share of the means over the minibatch's tokens, for policy and value head to learn from.
        sums: for the metrics, over its own tokens.
    """

    policy: Tensor
    value: Tensor
    sums: dict[str, float]


def ppo_losses(
    micro_batch: Sequence[Rollout],
    scored: tuple[Tensor, ...],
    value_head: ValueHead | None,
    config: PolicyConfig,
    precision: torch.dtype,
    tokens: float,
) -> Losses:
    """Clipped PPO and the value loss on a micro-batch, of a minibatch with so many ``tokens``.

    Args:
        scored: what :class:`~.policy.PolicyScorer` says of it now: log-probabilities, entropy, hidden states.
        precision: of everything computed per token.
    """
    logprobs, entropy, hidden = scored
    mask = counting_mask(micro_batch, precision).to(logprobs)
    old, advantages, old_values, returns = (
        read_column(micro_batch, name, precision).to(logprobs)
        for name in ("old_logprobs", "advantages", "values", "returns")
    )
    surrogate, clipped = policy_loss(logprobs, old, advantages, config.clip_range)
    if micro_batch[0].sampler_logprobs is not None:
        sampled_with = read_column(micro_batch, "sampler_logprobs", precision).to(old)
        surrogate = surrogate * sampler_correction(old, sampled_with)
    value_error = torch.zeros_like(surrogate)
    if value_head is not None:
        value_error = value_loss(value_head(hidden), old_values, returns, config.value_clip_range)
    measured = {
        "policy/loss": surrogate,
        "policy/clip_fraction": clipped,
        "value/loss": value_error,
        "moved": policy_kl(logprobs, old),
    }
    sums = torch.stack([(column.detach() * mask).sum() for column in measured.values()])
    return Losses(
        policy=((surrogate - config.entropy_coef * entropy) * mask).sum() / tokens,
        value=config.value_coef * (value_error * mask).sum() / tokens,
        sums=dict(zip(measured, sums.double().tolist(), strict=True)),
    )
