"""The first line of algorithm 4: sample a step's responses, and score them by the policy and its reference."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from accelerate.utils import set_seed
from transformers import PreTrainedTokenizerBase

from nl_gradient_policy_optimization.batch import Batch
from nl_gradient_policy_optimization.learner import Learner
from nl_gradient_policy_optimization.rewards import PendingRollouts, RewardSource
from nl_gradient_policy_optimization.rollouts import Rollout, encode_prompt
from nl_gradient_policy_optimization.sampling import check_sampler, make_sampler
from nl_gradient_policy_optimization.schedule import mixed_seed, rank_prompts
from text2grad.models import end_token_ids
from text2grad.tasks import Record, Task
from text2grad.token_text import token_spans


class Collector:
    """Makes rollouts.

    Args:
        rewards: they are given each rollout as soon as it is sampled.
    """

    def __init__(
        self,
        task: Task,
        tokenizer: PreTrainedTokenizerBase,
        records: dict[str, Record],
        rewards: RewardSource,
        learner: Learner,
    ):
        self.task, self.tokenizer, self.records, self.ids = task, tokenizer, records, list(records)
        self.rewards, self.learner, self.config, self.costs = rewards, learner, learner.config, learner.costs
        self.rank, self.ranks = learner.accelerator.process_index, learner.accelerator.num_processes
        policy = learner.scorer.model
        self.end_ids = end_token_ids(policy, tokenizer)
        self.sampler = make_sampler(policy, learner.model, tokenizer, self.end_ids, self.config, learner.accelerator)

    def seed(self, step: int) -> None:
        set_seed(mixed_seed(self.config.seed, step, self.rank))

    def collect(self, step: int) -> PendingRollouts:
        """A step's rollouts, sampled and scored by the policy as it is now."""
        self.seed(step)
        pending = PendingRollouts(self.rewards)
        with self.costs.timed("rollout"):
            for rollouts in self.sample(self.prompts_of(step)):
                pending.add(rollouts)
        pending.batch = self.score(pending.rollouts)
        check_sampler(pending.batch, self.config.generation, self.learner.reduce)
        return pending

    def prompts_of(self, step: int) -> list[str]:
        """The ids of this rank's prompts of a step, each repeated for its rollouts."""
        return [self.ids[index] for index in rank_prompts(self.config, len(self.ids), step, self.rank, self.ranks)]

    def sample(self, record_ids: Sequence[str], reading: Sequence[list[int]] = ()) -> Iterator[list[Rollout]]:
        """Sample a response to each prompt; each batch as soon as it is sampled.

        Args:
            reading: the ids that the policy reads in place of each prompt's.
        """
        self.learner.scorer.eval()
        prompts = [self.task.prompt(self.records[record_id]) for record_id in record_ids]
        encoded = [encode_prompt(prompt, self.task, self.tokenizer) for prompt in prompts]
        read = list(reading) or encoded
        asked = zip(record_ids, encoded, read, strict=True)
        for responses, logprobs in self.sampler.batches(read):
            rollouts = []
            for position, response_ids in enumerate(responses):
                record_id, prompt_ids, read_ids = next(asked)
                rollout = self._rollout(record_id, prompt_ids, response_ids)
                if logprobs is not None:
                    rollout.sampler_logprobs = torch.tensor(logprobs[position], dtype=self.learner.scorer.precision)
                rollouts.append(rollout)
                self.costs.count(forward=len(read_ids) + len(response_ids))
            yield rollouts
        if rest := [*asked]:
            raise RuntimeError(f"the sampler gave no response to {len(rest)} of {len(prompts)} prompts")

    def _rollout(self, record_id: str, prompt_ids: list[int], response_ids: list[int]) -> Rollout:
        """A rollout of sampled ids, with its text and what each token wrote."""
        record = self.records[record_id]
        prompt = self.task.prompt(record)
        text, spans = token_spans(response_ids, self.tokenizer)
        tokens = [
            text[start:end] if end > start else self.tokenizer.decode([token])
            for (start, end), token in zip(spans, response_ids, strict=True)
        ]
        finished = response_ids[-1] in self.end_ids
        return Rollout(record_id, prompt, record, prompt_ids, response_ids, text, spans, tokens, finished)

    def batch(self, rollouts: Sequence[Rollout]) -> Batch:
        """Rollouts as tensors."""
        pad_id = self.tokenizer.pad_token_id
        return Batch(rollouts, pad_id, self.learner.scorer.precision, self.config.rollouts_per_prompt)

    def score(self, rollouts: Sequence[Rollout]) -> Batch:
        """Log-probabilities, entropy, values and KL under the policy that sampled, before any update."""
        batch = self.batch(rollouts)
        with self.costs.timed("reference"):
            options = {"kl": self.config.kl, "entropy": True, **self.learner.algorithm.score_options()}
            scores = self.learner.forward(batch, keep=self.learner.keeps_graph(batch), **options)
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
