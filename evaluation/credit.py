"""Where credit goes under token-level and under end-of-sequence rewards (paper, section 3.6 and appendix A).

All values V and KL terms are left out, as in the appendix, so that an advantage is a discounted sum of rewards. Token
indices run from 0 to T − 1; ``decay`` is γλ.
"""

import numpy as np
import torch
from scipy.stats import mannwhitneyu

from text2grad.advantages import discounted_sums


def token_level_advantages(rewards: np.ndarray, decay: float) -> np.ndarray:
    """Setting A: A_t = Σ_{k ≥ t} (γλ)^{k−t} δ_k.  rewards, result: [T]."""
    row = torch.tensor(np.asarray(rewards, dtype=float))[None]
    return discounted_sums(row, torch.ones_like(row), decay)[0].numpy()


def end_of_sequence_advantages(rewards: np.ndarray, decay: float) -> np.ndarray:
    """Setting B as it is trained: the whole sum at the last token, A_t = (γλ)^{T−1−t} Σ_k δ_k.  [T] -> [T]."""
    return _weights(len(rewards), decay) * np.sum(rewards)


def end_of_sequence_advantages_from(rewards: np.ndarray, decay: float) -> np.ndarray:
    """Setting B as appendix A writes it, with what comes from t on: A_t = (γλ)^{T−1−t} Σ_{k ≥ t} δ_k.  [T] -> [T]."""
    rewards = np.asarray(rewards, dtype=float)
    return _weights(len(rewards), decay) * np.cumsum(rewards[::-1])[::-1]


def amplification(distance: np.ndarray | float, decay: float) -> np.ndarray | float:
    """α = (γλ)^−(T−k): how much more a reward ``distance`` tokens before the end weighs in setting A than in B."""
    return decay ** -np.asarray(distance, dtype=float)


def advantage_gaps(better: np.ndarray, worse: np.ndarray, decay: float) -> tuple[np.ndarray, np.ndarray]:
    """ΔA_t of two trajectories under both settings, A and then B as the appendix writes it.  [T1], [T2] -> 2 × [T].

    A trajectory that ends earlier earns nothing after its end: T is the longer one's length.
    """
    length = max(len(better), len(worse))
    difference = np.zeros(length)
    difference[: len(better)] += better
    difference[: len(worse)] -= worse
    return token_level_advantages(difference, decay), end_of_sequence_advantages_from(difference, decay)


def separation(advantages: np.ndarray, labels: np.ndarray) -> float:
    """How well advantages tell praised tokens from criticised ones: P(A_praised > A_criticised), ties half.

    Args:
        advantages, labels: [N]; the sign of a label counts, zeros do not. NaN where one of the two kinds is missing.
    """
    good, poor = advantages[labels > 0], advantages[labels < 0]
    if not len(good) or not len(poor):
        return float("nan")
    return float(mannwhitneyu(good, poor).statistic / (len(good) * len(poor)))


def _weights(length: int, decay: float) -> np.ndarray:
    return decay ** np.arange(length - 1, -1, -1, dtype=float)
