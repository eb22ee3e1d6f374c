"""What one update minimises: clipped PPO and the value loss on a micro-batch of rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.rollouts import Rollout, counting_mask, read_column
from nl_gradient_policy_optimization.teacher import distillation
from nl_gradient_policy_optimization.value_function import ValueHead
from text2grad.losses.kl import sampled_kl
from text2grad.losses.ppo import policy_kl, policy_loss, refinement_loss, sampler_correction, value_loss


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
    step: int,
    kl_coef: float,
) -> Losses:
    """Clipped PPO and the value loss on a micro-batch, of a minibatch with so many ``tokens``.

    A teacher adds its divergence. With ``--teacher all`` that is all there is, beside the KL to the reference, which
    the rewards would hold otherwise.

    Args:
        scored: what :class:`~.policy.PolicyScorer` says of it now: log-probabilities, entropy, hidden states, and with
            a teacher that distils the log-probabilities of ``top_ids``.
        precision: of everything computed per token.
    """
    logprobs, entropy, hidden, *at = scored
    mask = counting_mask(micro_batch, precision).to(logprobs)
    old, advantages, old_values, returns = (
        read_column(micro_batch, name, precision).to(logprobs)
        for name in ("old_logprobs", "advantages", "values", "returns")
    )
    surrogate, clipped = policy_loss(logprobs, old, advantages, config.clip_range)
    if any(rollout.refined for rollout in micro_batch):
        refined = torch.tensor([[rollout.refined] for rollout in micro_batch], device=surrogate.device)
        surrogate = torch.where(refined, refinement_loss(logprobs, advantages), surrogate)
    if micro_batch[0].sampler_logprobs is not None:
        sampled_with = read_column(micro_batch, "sampler_logprobs", precision).to(old)
        surrogate = surrogate * sampler_correction(old, sampled_with)
    value_error = torch.zeros_like(surrogate)
    if value_head is not None:
        value_error = value_loss(value_head(hidden), old_values, returns, config.value_clip_range)
    taught = torch.zeros_like(surrogate)
    if at:
        taught = distillation(micro_batch, logprobs, old, at[0], config, step)
    if config.teacher == "all":
        reference = read_column(micro_batch, "ref_logprobs", precision).to(old)
        surrogate = kl_coef * sampled_kl("k3", logprobs, reference)
    measured = {
        "policy/loss": surrogate,
        "policy/clip_fraction": clipped,
        "value/loss": value_error,
        "moved": policy_kl(logprobs, old),
        **({"teacher/loss": taught} if at else {}),
    }
    sums = torch.stack([(column.detach() * mask).sum() for column in measured.values()])
    return Losses(
        policy=((surrogate + taught - config.entropy_coef * entropy) * mask).sum() / tokens,
        value=config.value_coef * (value_error * mask).sum() / tokens,
        sums=dict(zip(measured, sums.double().tolist(), strict=True)),
    )


class BrokenUpdateError(RuntimeError):
    """The update has left every reasonable size."""


def stop_if_broken(value: Tensor, batch: Sequence[Rollout], limit: float, path: Path, step: int) -> None:
    """A loss or gradient norm that is not finite, or a norm beyond reason, ends the run, batch saved."""
    if torch.isfinite(value).all() and float(value) <= limit:
        return
    torch.save(
        [{"id": r.id, "prompt_ids": r.prompt_ids, "response_ids": r.response_ids, **r.columns()} for r in batch], path
    )
    raise BrokenUpdateError(
        f"step {step}: loss or gradient norm is {float(value)}; the batch is in {path}. "
        "The newest checkpoint is older than this step: lower --learning_rate or --clip_range and run again"
    )
