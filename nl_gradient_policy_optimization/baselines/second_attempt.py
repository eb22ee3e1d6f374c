"""A second attempt after the critique, trained back into the first: RLTF-SD and Critique-GRPO.

    python nl_gradient_policy_optimization/baselines/second_attempt.py --task slf5k --learn rltf_sd \\
        --data_path RECORDS.json --critic REWARD_MODEL --output_dir runs/rltf_sd --rollouts_per_prompt 2

Half of a step's responses are first attempts y0. The policy reads the critique of each, ``prompts/teacher.txt`` says
how, and answers again: y1. The critic judges y1 as well. A response's reward R is the sum of its r_t, so the KL to the
reference is in it. All tokens of a response share its advantage.

- ``rltf_sd`` (arXiv 2602.02482) learns log π(y1 | x) with A = R(y1) − mean R(y0) of the prompt. y0 is not learnt.
- ``critique_grpo`` (arXiv 2506.03106) learns both with A = R − mean R of the prompt's first and second attempts. On y1
  π/(π + γ) takes the place of PPO's clipped ratio.

Both take the same reading prompt here. Their authors' also shows y0: ``--teacher_prompt`` names a file with
``${response}``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from accelerate.utils import set_seed
from torch import Tensor

from nl_gradient_policy_optimization import schedule
from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.optimize import optimize
from nl_gradient_policy_optimization.rollouts import (
    Rollout,
    RolloutFeedback,
    counting_mask,
    read_column,
    write_column,
)
from nl_gradient_policy_optimization.teacher import Reader
from nl_gradient_policy_optimization.trainer import NLGradientTrainer
from text2grad.configs import TaskConfig, check_choices, parse, setting
from text2grad.errors import InputError, command
from text2grad.tasks import get_task, settings_of_task

Learn = Literal["rltf_sd", "critique_grpo"]


def attempt_advantages(first: Tensor, second: Tensor, group_size: int, learn: Learn) -> tuple[Tensor, Tensor]:
    """A of the first and of the second attempts, from their rewards R: all ``[N]``.

    Args:
        group_size: entries i·group_size … (i+1)·group_size − 1 answer the same prompt.
    """
    groups = [first.view(-1, group_size)] + ([second.view(-1, group_size)] if learn == "critique_grpo" else [])
    baseline = torch.cat(groups, 1).mean(1).repeat_interleave(group_size)
    return (torch.zeros_like(first) if learn == "rltf_sd" else first - baseline), second - baseline


class SecondAttemptTrainer(NLGradientTrainer):
    """Text2Grad's trainer, whose step has a second attempt after each first one's critique."""

    learn: Learn

    def __init__(self, config: PolicyConfig, task, policy, tokenizer, *rest):
        super().__init__(config, task, policy, tokenizer, *rest)
        self.reader = Reader(config, task, tokenizer, policy)
        self.first = replace(config, rollouts_per_device=config.rollouts_per_device // 2)
        if self.learn == "rltf_sd":
            share = self.first.rollouts_per_device // (config.minibatches * config.micro_batch_size)
            self.accelerator.gradient_accumulation_steps = share

    def accept(self, rollouts: Sequence[Rollout], feedback: Sequence[RolloutFeedback]) -> list[Rollout]:
        """The first attempts with their feedback, and the second ones with theirs."""
        first = super().accept(rollouts, feedback)
        second = self.try_again(first)
        return [*first, *super().accept(second, self.rewards(second))]

    def try_again(self, first: Sequence[Rollout]) -> list[Rollout]:
        """y1 of each rollout: sampled by the policy that has read the critique, scored by the one that has not."""
        rank = self.accelerator.process_index
        set_seed(schedule.mixed_seed(self.config.seed, self.finished_steps + 1, rank, 1))
        self.scorer.eval()
        readers = [replace(each, prompt_ids=self.reader.prompt_ids(each) or each.prompt_ids) for each in first]
        sampled = [ids for batch, _ in self.sampler.batches([each.prompt_ids for each in readers]) for ids in batch]
        second = [
            replace(self._rollout(each.id, each.prompt, each.prompt_ids, ids), refined=self.learn == "critique_grpo")
            for each, ids in zip(first, sampled, strict=True)
        ]
        self.ledger.forward([replace(read, response_ids=ids) for read, ids in zip(readers, sampled, strict=True)])
        self.score(second)
        if first[0].sampler_logprobs is not None:
            for each in second:  # another request sampled them: no ratio corrects for that
                each.sampler_logprobs = each.old_logprobs
        return second

    def estimate_advantages(self, rollouts: Sequence[Rollout]) -> None:
        """One advantage for all tokens of a response; it is not whitened, which would take the baseline away again."""
        mask = counting_mask(rollouts, self.scorer.precision)
        first, second = (read_column(rollouts, "rewards", mask.dtype) * mask).sum(1).chunk(2)
        advantages = torch.cat(attempt_advantages(first, second, self.config.rollouts_per_prompt, self.learn))
        write_column(rollouts, "advantages", advantages[:, None] * mask)
        write_column(rollouts, "returns", torch.zeros_like(mask))

    def update(self, rollouts: list[Rollout], step: int) -> dict[str, float]:
        return super().update(rollouts[len(rollouts) // 2 :] if self.learn == "rltf_sd" else rollouts, step)


class RLTFSDTrainer(SecondAttemptTrainer):
    learn = "rltf_sd"


class CritiqueGRPOTrainer(SecondAttemptTrainer):
    learn = "critique_grpo"


TRAINERS: dict[str, type[SecondAttemptTrainer]] = {"rltf_sd": RLTFSDTrainer, "critique_grpo": CritiqueGRPOTrainer}


@dataclass
class SecondAttemptConfig(TaskConfig):
    """What the task's own settings do not say."""

    learn: Learn = setting("rltf_sd", "how second attempts are learnt")


def checked(config: PolicyConfig, learn: str) -> PolicyConfig:
    """The settings with what the method changes.

    Raises:
        InputError: settings that a second attempt cannot have.
    """
    if config.teacher != "off" or config.critique_coef or config.deepspeed or config.generation.startswith("vllm"):
        raise InputError(
            "a second attempt is for runs with --teacher off, --critique_coef 0, no --deepspeed, and --generation "
            "auto, decoder or transformers"
        )
    for name in ("rollouts_per_prompt", "minibatches", "micro_batch_size"):
        parts = getattr(config, name) * (config.micro_batch_size if name == "minibatches" else 1)
        if config.rollouts_per_device % (2 * parts):
            raise InputError(
                f"half of --rollouts_per_device {config.rollouts_per_device} are first attempts; make that half a "
                f"multiple of --{name} ({parts})"
            )
    return replace(config, method=learn, advantage="group", whiten_advantages=False)


def train(attempt: SecondAttemptConfig, config: PolicyConfig) -> NLGradientTrainer:
    check_choices(attempt)
    return optimize(get_task(attempt.task), checked(config, attempt.learn), trainer=TRAINERS[attempt.learn])


@command
def main() -> None:
    train(*parse(SecondAttemptConfig, PolicyConfig, default_config=settings_of_task("policy_config")))


if __name__ == "__main__":
    main()
