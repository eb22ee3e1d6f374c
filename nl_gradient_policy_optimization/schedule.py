"""What depends on the settings and nothing else: seeds, orders, the learning rate."""

import math

import torch

from nl_gradient_policy_optimization.config import PolicyConfig


def prompts_per_step(config: PolicyConfig, ranks: int) -> int:
    """Prompts of one step on all ranks."""
    return config.algorithm.sampled(config.rollouts_per_device) * ranks // config.rollouts_per_prompt


def total_steps(config: PolicyConfig, prompts: int, ranks: int) -> int:
    """Steps of a whole run on so many prompts."""
    if config.max_steps > 0:
        return config.max_steps
    return max(1, math.ceil(config.epochs * prompts / prompts_per_step(config, ranks)))


def prompt_order(prompts: int, step: int, count: int, seed: int) -> list[int]:
    """Which prompts a step takes: the next ``count`` of one endless row, which is shuffled again in each pass."""
    positions = range((step - 1) * count, step * count)
    orders = {turn: permutation(prompts, seed, turn) for turn in {position // prompts for position in positions}}
    return [orders[position // prompts][position % prompts] for position in positions]


def rank_prompts(config: PolicyConfig, prompts: int, step: int, rank: int, ranks: int) -> list[int]:
    """A rank's prompts of a step, each repeated for its rollouts."""
    count = prompts_per_step(config, ranks)
    share = count // ranks
    mine = prompt_order(prompts, step, count, config.seed)[rank * share :][:share]
    return [index for index in mine for _ in range(config.rollouts_per_prompt)]


def learning_rate_share(config: PolicyConfig, update: int, total: int) -> float:
    """The share of the learning rate at an update (counted from 0)."""
    progress = update / total
    shares = {"constant": 1.0, "linear": 1 - progress, "cosine": 0.5 * (1 + math.cos(math.pi * progress))}
    return shares[config.lr_schedule]


def permutation(size: int, *seeds: int) -> list[int]:
    """0 … size − 1 in an order that only the seeds decide."""
    return torch.randperm(size, generator=torch.Generator().manual_seed(mixed_seed(*seeds))).tolist()


def mixed_seed(*numbers: int) -> int:
    """One seed from several numbers; equal for equal numbers on every machine."""
    seed = 0
    for number in numbers:
        seed = (seed * 1_000_003 + number + 1) % 2**32
    return seed
