"""What depends on nothing but the settings and the step: seeds, orders, the learning rate."""

from __future__ import annotations

import math

import torch

from nl_gradient_policy_optimization.config import PolicyConfig


def learning_rate_share(config: PolicyConfig, update: int, total: int) -> float:
    """The share of the learning rate at an update (counted from 0): warm-up, then the schedule down to 0."""
    warmup = round(config.warmup_ratio * total)
    if update < warmup:
        return (update + 1) / warmup
    progress = (update - warmup) / max(total - warmup, 1)
    return {"constant": 1.0, "linear": 1 - progress, "cosine": 0.5 * (1 + math.cos(math.pi * progress))}[
        config.lr_schedule
    ]


def permutation(size: int, *seeds: int) -> list[int]:
    """0 … size − 1 in an order that only the seeds decide."""
    return torch.randperm(size, generator=torch.Generator().manual_seed(mixed_seed(*seeds))).tolist()


def mixed_seed(*numbers: int) -> int:
    """One seed from several numbers; equal for equal numbers on every machine."""
    seed = 0
    for number in numbers:
        seed = (seed * 1_000_003 + number + 1) % 2**32
    return seed
