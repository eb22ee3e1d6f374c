"""How far a policy has moved from its reference: KL per token, and the coefficient that holds it there.

``[B, T]`` or any other shape: one entry per response token, in nats.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

ESTIMATORS = {
    "k1": lambda log_ratio: log_ratio,
    "abs": lambda log_ratio: log_ratio.abs(),
    "mse": lambda log_ratio: 0.5 * log_ratio**2,
    "k3": lambda log_ratio: torch.expm1(-log_ratio) + log_ratio,
}
"""KL from the sampled token only, as functions of k1 = log π(y_t) − log π_ref(y_t).

k1 is unbiased and may be negative; mse = ½·k1² (Schulman's k2) and k3 = 1/ρ − 1 + log ρ with ρ = π/π_ref are never
negative, k3 unbiased too. Source: J. Schulman, "Approximating KL Divergence", 2020.
"""


def sampled_kl(kind: str, logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """An estimate of KL(π ‖ π_ref) at each token from the log-probabilities of the sampled tokens."""
    if kind not in ESTIMATORS:
        raise ValueError(f"no KL estimator {kind!r} on sampled tokens; choose one of {', '.join(ESTIMATORS)}")
    return ESTIMATORS[kind](logprobs - ref_logprobs)


def full_kl(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """KL(π ‖ π_ref) = Σ_v π(v)·(log π(v) − log π_ref(v)) exactly, over the last dimension (the vocabulary).

    ``[N, V] -> [N]``; call it on chunks of response positions, so that ``[B, T, V]`` never exists.
    """
    return expectation(log_probs.exp(), log_probs - ref_log_probs)


def expectation(probabilities: Tensor, values: Tensor) -> Tensor:
    """Σ_v π(v)·value(v) over the last dimension: ``[N, V], [N, V] -> [N]``; 0 · log 0 = 0, as is 0 · anything."""
    return (probabilities * torch.where(probabilities > 0, values, 0.0)).sum(-1)


@dataclass
class KLController:
    """β of r^KL = −β·KL: fixed, or steered so that the KL of a response stays near ``target``.

    β ← β · (1 + clip(KL/target − 1, ±0.2) · n / horizon). Source: Ziegler et al. 2019, section 2.2. A step
    of more than ``horizon`` rollouts counts as one of ``horizon``: β never changes sign.

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
            self.coef *= 1 + error * min(1.0, rollouts / self.horizon)
