"""From token rewards to advantages: GAE, returns, whitening, group baselines (paper, section 3.5 and algorithm 4).

Every tensor is ``[B, T]``: rollouts by response tokens, padded on the right; ``mask`` is 1 on response tokens, 0 on
padding. Whatever is under the padding never reaches a result. Pure functions: no model, no state.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Reduce = Callable[[Tensor], Tensor]
"""Sums a small tensor over all ranks (the identity in one process)."""


def _chosen(values: Tensor, mask: Tensor) -> Tensor:
    """0 on padding, also where NaN stands there, which a product with the mask would keep."""
    return values.masked_fill(mask == 0, 0)


def total_rewards(deltas: Tensor, kl: Tensor, kl_coef: float) -> Tensor:
    """r_t = δ_t − β·KL_t, in reward units. Source: section 3.5, r^total = δ + r^KL."""
    return deltas - kl_coef * kl


def gae(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimates and the value function's targets.

    A_t = Σ_l (γλ)^l · (r_{t+l} + γ·V_{t+l+1} − V_{t+l}), V beyond the last response token = 0; R_t = A_t + V_t.
    Source: section 3.5; Schulman et al. 2016, equation 16.

    Args:
        rewards: r_t.
        values: V_t = V(x, y_{<t}), the value before token t is read.

    Returns:
        Advantages and returns, both 0 on padding.
    """
    rewards, values = _chosen(rewards, mask), _chosen(values, mask)
    advantages = torch.zeros_like(rewards)
    running = torch.zeros_like(rewards[:, 0])
    next_value = torch.zeros_like(running)
    for t in reversed(range(rewards.shape[1])):
        error = rewards[:, t] + gamma * next_value - values[:, t]
        # On padding all terms are zero, so a row starts afresh at its own last token.
        running = (error + gamma * lam * running) * mask[:, t]
        advantages[:, t] = running
        next_value = values[:, t]
    return advantages, (advantages + values) * mask


def discounted_sums(rewards: Tensor, mask: Tensor, discount: float) -> Tensor:
    """G_t = Σ_l discount^l · r_{t+l} over the response's tokens. With discount γλ: GAE without a value function."""
    return gae(rewards, torch.zeros_like(rewards), mask, discount, 1.0)[0]


def masked_moments(values: Tensor, mask: Tensor, reduce: Reduce | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Count, mean and (biased) variance over the masked entries of all ranks, in float64 and in two passes."""
    reduce = reduce or (lambda tensor: tensor)
    chosen = _chosen(values.double(), mask)
    count, total = reduce(torch.stack([mask.double().sum(), chosen.sum()]))
    mean = total / count.clamp(min=1)
    squares = reduce((((chosen - mean) * mask) ** 2).sum())
    return count, mean, squares / count.clamp(min=1)


def whiten(values: Tensor, mask: Tensor, reduce: Reduce | None = None, eps: float = 1e-8) -> Tensor:
    """(values − mean) / √(variance + eps) over the masked entries of all ranks; 0 on padding.

    A batch in which all entries are equal becomes all zeros: it says nothing about which token to prefer.
    """
    _, mean, variance = masked_moments(values, mask, reduce)
    return _chosen((values.double() - mean) * torch.rsqrt(variance + eps), mask).to(values.dtype)


def group_advantages(rewards: Tensor, mask: Tensor, group_size: int, discount: float, eps: float = 1e-4) -> Tensor:
    """Token advantages without a value function: each token's discounted sum against its group's.

    With G_t = Σ_l discount^l · r_{t+l}, A_t = (G_t − m) / (s + eps), where m and s are mean and standard deviation of G
    over all response tokens of the ``group_size`` rollouts of one prompt. (GRPO's baseline, Shao et al. 2024, taken per
    token instead of per response.)

    Args:
        rewards: rows i·group_size … (i+1)·group_size − 1 answer the same prompt.
        discount: γλ.
    """
    if rewards.shape[0] % group_size:
        raise ValueError(f"{rewards.shape[0]} rollouts are not whole groups of {group_size}")
    sums = discounted_sums(rewards, mask, discount)
    grouped, weights = (tensor.view(-1, group_size * tensor.shape[1]) for tensor in (sums, mask.to(sums.dtype)))
    count = weights.sum(1, keepdim=True).clamp(min=1)
    mean = (grouped * weights).sum(1, keepdim=True) / count
    deviation = ((((grouped - mean) * weights) ** 2).sum(1, keepdim=True) / count).sqrt()
    return ((grouped - mean) / (deviation + eps) * weights).view_as(sums)


def explained_variance(values: Tensor, returns: Tensor, mask: Tensor, reduce: Reduce | None = None) -> float:
    """1 − Var(R − V) / Var(R): 1 for a perfect value function, 0 for a constant one (and where R is constant)."""
    spread = masked_moments(returns, mask, reduce)[2]
    rest = masked_moments(returns - values, mask, reduce)[2]
    return float(1 - rest / spread) if spread > 1e-12 else 0.0
