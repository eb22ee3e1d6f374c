"""The first line of algorithm 4: sample a step's responses, and score them by the policy and its reference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from nl_gradient_policy_optimization.batch import Batch
from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.policy import PolicyScorer
from nl_gradient_policy_optimization.rewards import PendingRollouts, RewardSource
from nl_gradient_policy_optimization.rollouts import Rollout, encode_prompt, given_logprobs, make_rollout
from nl_gradient_policy_optimization.sampling import check_sampler, make_sampler
from nl_gradient_policy_optimization.schedule import mixed_seed, rank_prompts, total_steps
from nl_gradient_policy_optimization.timing import timed
from nl_gradient_policy_optimization.value_function import ValueFunction
from nl_gradient_policy_optimization.weights import make_optimizer
from text2grad.models import end_token_ids
from text2grad.tasks import Record, Task

PHASES = ("rollout", "reference", "critique", "update")


class Collecting:
    """The part of the trainer that makes rollouts.

    Attributes:
        model: the policy as it is distributed; ``scorer`` is the policy itself.
        seconds: of each phase of this step.
        counted: of this step and rank, what the ledger adds up.
    """

    seconds: dict[str, float]
    counted: dict[str, float]

    def __init__(
        self,
        config: PolicyConfig,
        task: Task,
        policy: PolicyScorer,
        tokenizer: PreTrainedTokenizerBase,
        records: dict[str, Record],
        rewards: RewardSource,
        accelerator: Accelerator,
    ):
        self.config, self.task, self.scorer, self.tokenizer = config, task, policy, tokenizer
        self.records, self.ids, self.rewards, self.accelerator = records, list(records), rewards, accelerator
        self.run = Path(config.output_dir)
        self.end_ids = end_token_ids(policy.model, tokenizer)
        self.model, self.optimizer = accelerator.prepare(policy, make_optimizer(policy, config))
        self.sampler = make_sampler(policy.model, self.model, tokenizer, self.end_ids, config, accelerator)
        self.algorithm = copy(config.algorithm)  # it keeps this run's state
        self.value_function: ValueFunction | None = None
        if self.algorithm.has_values:
            self.value_function = ValueFunction(policy.hidden_size, config, accelerator.device, policy.precision)
        self.start_counting()

    @property
    def total_steps(self) -> int:
        return total_steps(self.config, len(self.ids), self.accelerator.num_processes)

    def start_counting(self) -> None:
        """A step begins."""
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.counted = dict.fromkeys(("critiques", "forward_tokens", "backward_tokens"), 0.0)

    def count(self, forward: float = 0, backward: float = 0, critiques: float = 0) -> None:
        """Add to what the ledger counts; tokens that go backward have gone forward, too."""
        self.counted["critiques"] += critiques
        self.counted["forward_tokens"] += forward + backward
        self.counted["backward_tokens"] += backward

    def seed(self, step: int) -> None:
        set_seed(mixed_seed(self.config.seed, step, self.accelerator.process_index))

    def collect(self, step: int) -> PendingRollouts:
        """A step's rollouts, sampled and scored by the policy as it is now."""
        self.seed(step)
        pending = PendingRollouts(self.rewards)
        with timed(self.seconds, "rollout"):
            for rollouts in self.sample(self.prompts_of(step)):
                pending.add(rollouts)
        pending.batch = self.score(pending.rollouts)
        check_sampler(pending.batch, self.config.generation, self.reduce)
        return pending

    def prompts_of(self, step: int) -> list[str]:
        """The ids of this rank's prompts of a step, each repeated for its rollouts."""
        rank, ranks = self.accelerator.process_index, self.accelerator.num_processes
        return [self.ids[index] for index in rank_prompts(self.config, len(self.ids), step, rank, ranks)]

    def sample(self, record_ids: Sequence[str]) -> Iterator[list[Rollout]]:
        """Sample a response to each prompt; each batch as soon as it is sampled."""
        self.scorer.eval()
        prompts = [self.task.prompt(self.records[record_id]) for record_id in record_ids]
        encoded = [encode_prompt(prompt, self.task, self.tokenizer) for prompt in prompts]
        done = 0
        for responses, logprobs in self.sampler.batches(encoded):
            rollouts = []
            for position, response_ids in enumerate(responses):
                rollout = self._rollout(record_ids[done], encoded[done], response_ids)
                if logprobs is not None:
                    rollout.sampler_logprobs = given_logprobs(logprobs[position], self.scorer.precision)
                rollouts.append(rollout)
                done += 1
            self.count(forward=sum(len(each.prompt_ids) + len(each.response_ids) for each in rollouts))
            yield rollouts
        if done < len(prompts):
            raise RuntimeError(f"the sampler gave no response to {len(prompts) - done} of {len(prompts)} prompts")

    def sample_after(self, rollouts: Sequence[Rollout], reading: Sequence[list[int]]) -> Iterator[Rollout]:
        """Sample another response to each rollout's prompt, by the policy that has read ``reading`` in its place."""
        self.scorer.eval()
        batches = self.sampler.batches(list(reading))
        sampled = [(ids, batch[1]) for batch in batches for ids in batch[0]]
        for former, read, (ids, logprobs) in zip(rollouts, reading, sampled, strict=True):
            self.count(forward=len(read) + len(ids))
            rollout = self._rollout(former.id, former.prompt_ids, ids)
            if logprobs is not None:
                rollout.sampler_logprobs = torch.zeros(len(ids), dtype=self.scorer.precision)
            yield rollout

    def _rollout(self, record_id: str, prompt_ids: list[int], response_ids: list[int]) -> Rollout:
        record = self.records[record_id]
        prompt = self.task.prompt(record)
        return make_rollout(record_id, prompt, record, prompt_ids, response_ids, self.tokenizer, self.end_ids)

    def batch(self, rollouts: Sequence[Rollout]) -> Batch:
        """Rollouts as tensors."""
        pad_id = self.tokenizer.pad_token_id
        return Batch(rollouts, pad_id, self.scorer.precision, self.config.rollouts_per_prompt)

    def score(self, rollouts: Sequence[Rollout]) -> Batch:
        """Log-probabilities, entropy, values and KL under the policy that sampled, before any update."""
        batch = self.batch(rollouts)
        with timed(self.seconds, "reference"):
            options = {"kl": self.config.kl, "entropy": True, **self.algorithm.score_options()}
            scores = self.forward(batch, **options)
        batch.old_logprobs = scores.pop("logprobs")
        for name, column in scores.items():
            batch.put(name, column)
        return batch

    def load_ahead(self, path: Path) -> PendingRollouts:
        """The next step's rollouts as they were sampled; their feedback is asked for again."""
        pending, saved = PendingRollouts(self.rewards), torch.load(path, weights_only=True)
        for row in saved:
            prompt = self.task.prompt(self.records[row["id"]])
            prompt_ids = encode_prompt(prompt, self.task, self.tokenizer)
            pending.add([self._rollout(row["id"], prompt_ids, row["response_ids"])])
        pending.batch = self.batch(pending.rollouts)
        pending.batch.load_columns([row["columns"] for row in saved])
        return pending

    @torch.no_grad()
    def forward(self, batch: Batch, at: str = "", **options: Any) -> dict[str, Tensor]:
        """What the policy says of all rollouts, by the names of :class:`~.policy.Scores`, and the head's ``values``.

        It scores them in micro-batches of similar length; every rank makes the same number of them.

        Args:
            at: the name of ids in ``extra`` whose log-probabilities are asked for.
            options: of :class:`~.policy.PolicyScorer`.
        """
        self.scorer.eval()
        model = self.model if self.accelerator.distributed_type == "DEEPSPEED" else self.scorer
        self.count(forward=batch.tokens * (1 + ("kl" in options)))
        whole: dict[str, Tensor] = {}
        for rows, part in batch.micro_batches(self.config.micro_batch_size):
            part = part.to(self.accelerator.device)
            scores = model(*part.inputs(), at=part.extra[at] if at else None, **options)
            columns = {name: column for name, column in scores._asdict().items() if column is not None}
            hidden = columns.pop("hidden")
            values = self.value_function.head(hidden) if self.value_function else torch.zeros_like(scores.logprobs)
            columns["values"] = values * part.response_mask
            for name, column in columns.items():
                size = (len(batch), batch.response_ids.shape[1], *column.shape[2:])
                whole.setdefault(name, torch.zeros(size, dtype=column.dtype))[rows, : column.shape[1]] = column.cpu()
        return whole

    def reduce(self, values: Tensor) -> Tensor:
        """The sum over all ranks."""
        if self.accelerator.num_processes == 1:
            return values
        return self.accelerator.reduce(values.to(self.accelerator.device), "sum").to(values.device)
