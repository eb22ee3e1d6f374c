"""A second attempt after the critique, trained back into the first: RLTF-SD and Critique-GRPO.

Half of a step's responses are first attempts y0. The policy reads the critique of each, ``prompts/teacher.txt`` says
how, and answers again: y1. The critic judges y1 as well. A response's reward R is the sum of its r_t, so the KL to the
reference is in it. All tokens of a response share its advantage.

- ``rltf_sd`` (arXiv 2602.02482) learns log π(y1 | x) with A = R(y1) − mean R(y0) of the prompt. y0 is not learnt.
- ``critique_grpo`` (arXiv 2506.03106) learns both with A = R − mean R of the prompt's first and second attempts. On y1
  π/(π + γ) takes the place of PPO's clipped ratio.

Both take the same reading prompt here. Their authors' also shows y0: ``--teacher_prompt`` names a file with
``${response}``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from accelerate.utils import set_seed
from torch import Tensor

from nl_gradient_policy_optimization.algorithms.base import LossInputs
from nl_gradient_policy_optimization.algorithms.teacher import CritiqueReader
from nl_gradient_policy_optimization.algorithms.text2grad import Text2Grad, corrected
from nl_gradient_policy_optimization.batch import Batch
from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.rollouts import Rollout
from nl_gradient_policy_optimization.schedule import mixed_seed
from text2grad.advantages import per_response
from text2grad.configs import setting
from text2grad.errors import InputError
from text2grad.losses.ppo import policy_loss, refinement_loss

Learn = Literal["rltf_sd", "critique_grpo"]


@dataclass
class SecondAttempts(Text2Grad):
    """Second attempts; advantages are not whitened, which would take their baseline away again."""

    name = "second"
    uses_values = False

    learn: Learn = setting("rltf_sd", "second: how second attempts are learnt")
    teacher_prompt: str = setting(
        "", "teacher, second: file of what the policy reads; by default the task's prompts/teacher.txt"
    )

    @property
    def label(self) -> str:
        return self.learn

    def check(self, config: PolicyConfig) -> None:
        if not config.critique:
            raise InputError("--critique false leaves --algorithm second nothing to read; leave one of them out")
        if config.deepspeed or config.generation.startswith("vllm"):
            raise InputError(
                "--algorithm second is for runs without --deepspeed, and with --generation auto, decoder or "
                "transformers"
            )
        learnt = config.minibatches * config.micro_batch_size if self.learn == "rltf_sd" else 1
        for name, parts in (
            ("--rollouts_per_prompt", config.rollouts_per_prompt),
            ("--minibatches times --micro_batch_size", learnt),
        ):
            if config.rollouts_per_device % (2 * parts):
                raise InputError(
                    f"half of --rollouts_per_device {config.rollouts_per_device} are first attempts; make that half a "
                    f"multiple of {name} ({parts})"
                )

    def begin(self, run) -> None:
        super().begin(run)
        self.reader = CritiqueReader(self.teacher_prompt, run)

    def sampled(self, count: int) -> int:
        return count // 2

    def learnt(self, count: int) -> int:
        return count // 2 if self.learn == "rltf_sd" else count

    def on_batch(self, batch: Batch) -> Batch:
        """The first attempts with their feedback, and the second ones with theirs."""
        with self.run.costs.timed("rollout"):
            tried = self.try_again(batch.rollouts)
        second = self.run.collector.score(tried)
        if second.has("sampler_logprobs"):  # another prompt sampled them: no ratio corrects for that
            second.sampler_logprobs.fill_(float("nan"))
        with self.run.costs.timed("critique"):
            self.run.receive(second, self.run.pauses.together(lambda: self.run.rewards(second.rollouts)))
        both = batch.joined(second)
        both.extra["refined"] = torch.arange(len(both)) >= (len(batch) if self.learn == "critique_grpo" else len(both))
        return both

    def try_again(self, first: Sequence[Rollout]) -> list[Rollout]:
        """y1 of each rollout: sampled by the policy that has read the critique, with the prompt of y0."""
        run = self.run
        set_seed(mixed_seed(run.config.seed, run.finished_steps + 1, run.accelerator.process_index, 1))
        ids = self.reader.requests(first, run.config.max_new_tokens)
        prompts = [read or y0.prompt_ids for read, y0 in zip(ids, first, strict=True)]
        return [each for batch in run.collector.sample([y0.id for y0 in first], prompts) for each in batch]

    def advantages(self, batch: Batch) -> Tensor:
        scores, group_size = (batch.rewards * batch.mask).sum(1), self.run.config.rollouts_per_prompt
        advantages = torch.cat(attempt_advantages(scores, batch.counts, group_size, self.learn))
        return per_response(advantages, batch.mask)

    def to_learn(self, batch: Batch) -> Batch:
        return batch.select(range(len(batch) // 2, len(batch))) if self.learn == "rltf_sd" else batch

    def surrogate(self, inputs: LossInputs) -> tuple[Tensor, Tensor]:
        batch, logprobs = inputs.batch, inputs.scores.logprobs
        term, clipped = policy_loss(logprobs, batch.old_logprobs, batch.advantages, self.run.config.clip_range)
        refined, loss = batch.extra["refined"][:, None], refinement_loss(logprobs, batch.advantages)
        return corrected(torch.where(refined, loss, term), batch), clipped * ~refined


def attempt_advantages(scores: Tensor, counts: Tensor, group_size: int, learn: Learn) -> tuple[Tensor, Tensor]:
    """A of the first and of the second attempts, ``[N]`` each.

    Args:
        scores: their rewards R, the first attempts' before the second ones': ``[2N]``.
        counts: ``[2N]``, 1 for attempts with feedback; the others are nobody's baseline.
        group_size: rows i·group_size … (i+1)·group_size − 1 of the N answer the same prompt.
    """
    known = counts if learn == "critique_grpo" else counts * (torch.arange(len(counts)) < len(counts) // 2)
    total, count = (column.view(2, -1, group_size).sum((0, 2)) for column in (scores * known, known))
    # NaN, and so 0, where no attempt at the prompt has feedback
    first, second = (each - (total / count).repeat_interleave(group_size) for each in scores.chunk(2))
    return torch.zeros_like(first) if learn == "rltf_sd" else first.nan_to_num(), second.nan_to_num()
