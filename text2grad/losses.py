"""What is minimised: the clipped PPO terms (section 3.5), KL to the reference, and the NL-Gradient of definition 1.

Losses and KL come back per token, ``[B, T]``, so that the caller decides over which tokens of which ranks to average.
KL is in nats: how far a policy has moved from its reference, and the coefficient that holds it there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

ESTIMATORS = {
    "k1": lambda log_ratio: log_ratio,
    "abs": lambda log_ratio: log_ratio.abs(),
    "mse": lambda log_ratio: 0.5 * log_ratio**2,
    "k3": lambda log_ratio: torch.expm1(-log_ratio) + log_ratio,
}
"""KL from the sampled token alone, as functions of k1 = log π(y_t) − log π_ref(y_t).

k1 is unbiased and may be negative; mse = ½·k1² (Schulman's k2) and k3 = 1/ρ − 1 + log ρ with ρ = π/π_ref are never
negative, k3 unbiased too. Source: J. Schulman, "Approximating KL Divergence", 2020.
"""

KLKind = Literal["k1", "abs", "mse", "k3", "full"]
"""The estimators, and ``full``: the sum over the vocabulary."""


def policy_loss(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, clip_range: float) -> tuple[Tensor, Tensor]:
    """max(−ρA, −clip(ρ, 1 ± ε)A) with ρ = π/π_old, and where the clip held the gradient back (as 0/1).

    Source: the policy term of L^PPO, section 3.5.
    """
    ratio = torch.exp(logprobs - old_logprobs)
    plain = -ratio * advantages
    clipped = -ratio.clamp(1 - clip_range, 1 + clip_range) * advantages
    return torch.maximum(plain, clipped), (clipped > plain).to(logprobs.dtype).detach()


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, clip_range: float | None = None) -> Tensor:
    """½·max((V − R)², (V_clip − R)²), V_clip within ``clip_range`` of the rollout's value (0: no clip)."""
    if not clip_range:
        return 0.5 * (values - returns) ** 2
    clipped = torch.clamp(values, old_values - clip_range, old_values + clip_range)
    return 0.5 * torch.maximum((values - returns) ** 2, (clipped - returns) ** 2)


def policy_kl(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """How far this update has moved already: k3 of KL(π_old ‖ π) per token, on tokens that π_old sampled."""
    log_ratio = logprobs - old_logprobs
    return torch.expm1(log_ratio) - log_ratio


def sampler_correction(old_logprobs: Tensor, sampled_with: Tensor, limit: float = 2.0) -> Tensor:
    """min(π_old/π_sampler, limit) per token, a weight on the policy loss where another engine did the sampling.

    Source: truncated importance sampling, Ionides 2008, as used against the rounding of inference engines. A token
    whose log-probability the engine did not give (NaN) has weight 1.
    """
    ratio = torch.exp(old_logprobs - sampled_with).clamp(max=limit)
    return torch.where(ratio.isnan(), torch.ones_like(ratio), ratio)


def sampled_kl(kind: str, logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """An estimate of KL(π ‖ π_ref) at each token from the log-probabilities of the sampled tokens."""
    if kind not in ESTIMATORS:
        raise ValueError(f"no KL estimator {kind!r} on sampled tokens; choose one of {', '.join(ESTIMATORS)}")
    return ESTIMATORS[kind](logprobs - ref_logprobs)


def full_kl(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """KL(π ‖ π_ref) = Σ_v π(v)·(log π(v) − log π_ref(v)) exactly, over the last dimension (the vocabulary).

    ``[N, V] -> [N]``; call it on chunks of response positions, so that ``[B, T, V]`` never exists.
    """
    probabilities = log_probs.exp()
    # A token that π can never sample adds nothing, whatever the reference thinks of it (0 · log 0 = 0).
    difference = torch.where(probabilities > 0, log_probs - ref_log_probs, 0.0)
    return (probabilities * difference).sum(-1)


@dataclass
class KLController:
    """β of r^KL = −β·KL: fixed, or steered so that the KL of a response stays near ``target``.

    β ← β · (1 + clip(KL/target − 1, ±0.2) · n / horizon). Source: Ziegler et al. 2019, section 2.2.

    Attributes:
        coef: β now.
        target: nats per response; None or 0 keeps β fixed.
        horizon: rollouts over which β may grow or shrink by 20 % (nearly).
    """

    coef: float
    target: float | None = None
    horizon: float = 10_000

    def update(self, kl: float, rollouts: int) -> None:
        """Take in the mean KL of a response (its tokens' KL summed) over the ``rollouts`` of one step."""
        if self.target:
            error = min(max(kl / self.target - 1, -0.2), 0.2)
            self.coef *= 1 + error * rollouts / self.horizon


def nl_gradient(logprobs: Tensor, deltas: Tensor, parameters: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """g = Σ_t δ_t · ∇_θ log π_θ(y_t | x, y_{<t}), one tensor per parameter. Source: definition 1, section 3.1.

    This is the definition. Training does not call it: tests hold the gradient of the loss above against it.

    Args:
        logprobs: log π of the sampled tokens, still attached to their graph.
        deltas: δ_t, of the same shape; 0 on padding.
    """
    return torch.autograd.grad((deltas * logprobs).sum(), list(parameters))
