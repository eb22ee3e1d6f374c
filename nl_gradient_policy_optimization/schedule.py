"""What depends on nothing but the settings and the log: seeds, orders, the learning rate, when to stop."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from nl_gradient_policy_optimization.audit import audit_stop_reason
from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.rollouts import StepLog


def prompts_per_step(config: PolicyConfig, ranks: int) -> int:
    """Prompts of one step on all ranks."""
    return config.rollouts_per_device * ranks // config.rollouts_per_prompt


def total_steps(config: PolicyConfig, prompts: int, ranks: int) -> int:
    """Steps of a whole run on so many prompts."""
    if config.max_steps > 0:
        return config.max_steps
    return max(1, math.ceil(config.epochs * prompts / prompts_per_step(config, ranks)))


def prompt_order(prompts: int, step: int, count: int, seed: int) -> list[int]:
    """Which prompts a step takes: the next ``count`` of one endless row, which is shuffled again in each pass."""
    chosen = []
    for position in range((step - 1) * count, step * count):
        order = permutation(prompts, seed, position // prompts)
        chosen.append(order[position % prompts])
    return chosen


def rank_prompts(config: PolicyConfig, prompts: int, step: int, rank: int, ranks: int) -> list[int]:
    """A rank's prompts of a step, each repeated for its rollouts."""
    count = prompts_per_step(config, ranks)
    share = count // ranks
    mine = prompt_order(prompts, step, count, config.seed)[rank * share :][:share]
    return [index for index in mine for _ in range(config.rollouts_per_prompt)]


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


def stop_reason(config: PolicyConfig, metrics: Mapping[str, float], log: StepLog) -> str:
    """Why the run should end after the step of ``metrics`` (empty: it should not).

    Args:
        log: the metrics of all steps so far; read only where a rule needs them.
    """
    if config.kl_limit and metrics[f"kl/{config.kl}"] > config.kl_limit:
        return f"a response's KL to the reference is above --kl_limit {config.kl_limit}"
    if config.patience:
        means = [row["delta/mean"] for row in log.rows()]
        smooth = [sum(means[end - 5 : end]) / 5 for end in range(5, len(means) + 1)]
        if len(smooth) > config.patience and max(smooth[-config.patience :]) <= max(smooth[: -config.patience]):
            return f"mean δ has no new best for {config.patience} steps (--patience)"
    if config.audit_flip_limit or config.audit_gap_limit:
        return audit_stop_reason(log.rows(), config.audit_flip_limit, config.audit_gap_limit)
    return ""
