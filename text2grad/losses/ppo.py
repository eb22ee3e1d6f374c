"""The objectives: the clipped PPO terms (section 3.5). Without a clip they follow the NL-Gradient of definition 1.

Losses come back per token, ``[B, T]``, so that the caller decides over which tokens of which ranks to average.
"""

import torch
from torch import Tensor


def policy_loss(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, clip_range: float) -> tuple[Tensor, Tensor]:
    """max(−ρA, −clip(ρ, 1 ± ε)A) with ρ = π/π_old, and where the clip held the gradient back (as 0/1).

    Source: the policy term of L^PPO, section 3.5.
    """
    ratio = torch.exp(logprobs - old_logprobs)
    plain = -ratio * advantages
    clipped = -ratio.clamp(1 - clip_range, 1 + clip_range) * advantages
    return torch.maximum(plain, clipped), (clipped > plain).to(logprobs.dtype).detach()


def refinement_loss(logprobs: Tensor, advantages: Tensor, gamma: float = 0.1) -> Tensor:
    """−A·π/(π + γ) per token, for a response that π has not sampled: what it finds unlikely moves it most.

    The gradient's weight, γπ/(π + γ)², is largest at π = γ. Source: Critique-GRPO (arXiv 2506.03106).
    """
    probabilities = logprobs.exp()
    return -advantages * probabilities / (probabilities + gamma)


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, clip_range: float | None = None) -> Tensor:
    """½·max((V − R)², (V_clip − R)²), V_clip within ``clip_range`` of the rollout's value (0: no clip)."""
    if not clip_range:
        return 0.5 * (values - returns) ** 2
    clipped = torch.clamp(values, old_values - clip_range, old_values + clip_range)
    return 0.5 * torch.maximum((values - returns) ** 2, (clipped - returns) ** 2)


def capped_ratio(logprobs: Tensor, sampled_with: Tensor, limit: float = 2.0) -> Tensor:
    """min(π/π_sampler, limit) per token without a gradient, a weight where another policy or engine did the sampling.

    Source: truncated importance sampling, Ionides 2008. A token whose ratio is not known (NaN) has weight 1.
    """
    ratio = torch.exp(logprobs - sampled_with).detach().clamp(max=limit)
    return torch.where(ratio.isnan(), torch.ones_like(ratio), ratio)
