"""The critique as a teacher: π_T is a policy that has read it, and Δ_t says what it would have done differently.

With Δ_t = log π_T(y_t | x, c, y_<t) − log π(y_t | x, y_<t) and l_t ∈ [−1, 1] the label that the quotes give a token.
Labels and Δ are ``[B, T]``; whatever is under the padding has label 0.
"""

import torch
from torch import Tensor

from text2grad.losses.kl import full_kl

TAIL_FLOOR = 1e-7
"""The least probability that the rest of the vocabulary keeps, in nats of log-probability of the chosen tokens."""


def weighted(labels: Tensor, gap: Tensor, clip: float) -> Tensor:
    """δ'_t = l_t · clip(exp(sign(l_t)·Δ_t), 1 ± clip): the quote gives place and sign, the teacher the size.

    Source: RLSD (arXiv 2604.03128), with the sign of each quote in place of the rollout's.
    """
    return labels * torch.exp(labels.sign() * gap).clamp(1 - clip, 1 + clip)


def gated(labels: Tensor, gap: Tensor, scale: float = 1.0) -> Tensor:
    """Labels with which the teacher disagrees shrink: δ'_t = l_t · min(1, 2·σ(sign(l_t)·Δ_t / scale)).

    A label with which the teacher agrees stays as it is, and one that it rejects goes to 0: a wrong sign becomes a lost
    span. The factor 2 makes the change continuous.

    Args:
        gap: Δ of the token, or of all that its label was given for (:func:`span_sums`).
        scale: nats of disagreement over which a label shrinks.
    """
    return labels * (2 * torch.sigmoid(labels.sign() * gap / scale)).clamp(max=1.0)


def span_sums(labels: Tensor, gap: Tensor) -> Tensor:
    """At each labelled token the sum of Δ over its span: the log-ratio of both policies for all that was quoted.

    A span is a run of neighbouring labels of one sign. Tokens without a label keep their own Δ.
    """
    signs = labels.sign()
    begins = torch.ones_like(signs, dtype=torch.bool)
    begins[:, 1:] = (signs[:, 1:] != signs[:, :-1]) | (signs[:, 1:] == 0)
    runs = begins.flatten().cumsum(0).view_as(labels) - 1
    sums = torch.zeros(labels.numel(), dtype=gap.dtype, device=gap.device)
    return sums.scatter_add(0, runs.flatten(), gap.flatten())[runs]


def divergence(log_probs: Tensor, teacher_log_probs: Tensor, alpha: float = 1.0) -> Tensor:
    """How far the policy is from the teacher over a set of tokens: ``[..., K], [..., K] -> [...]``.

    ``alpha`` 1 is KL(π ‖ π_T), 0 is KL(π_T ‖ π). Between them lies the generalised Jensen–Shannon divergence
    alpha·KL(π_T ‖ m) + (1 − alpha)·KL(π ‖ m) with m = (1 − alpha)·π + alpha·π_T. Source: SDPO (arXiv 2601.20802).
    """
    if alpha == 1:
        return full_kl(log_probs, teacher_log_probs)
    if alpha == 0:
        return full_kl(teacher_log_probs, log_probs)
    own, teachers = (torch.log(torch.tensor(share).to(log_probs)) for share in (1 - alpha, alpha))
    mixture = torch.logaddexp(log_probs + own, teacher_log_probs + teachers)
    return alpha * full_kl(teacher_log_probs, mixture) + (1 - alpha) * full_kl(log_probs, mixture)


def with_tail(log_probs: Tensor) -> Tensor:
    """``[..., K] -> [..., K + 1]``: one more token, which has all the probability that the K leave over."""
    whole = torch.logsumexp(log_probs, -1, keepdim=True).clamp(max=-TAIL_FLOOR)
    return torch.cat([log_probs, torch.log(-torch.expm1(whole))], -1)
