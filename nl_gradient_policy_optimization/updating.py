"""The last line of algorithm 4: several passes of updates over a step's rollouts."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor

from nl_gradient_policy_optimization import weights
from nl_gradient_policy_optimization.algorithms.base import LossInputs, LossOutputs
from nl_gradient_policy_optimization.batch import Batch
from nl_gradient_policy_optimization.collecting import Collecting
from nl_gradient_policy_optimization.schedule import learning_rate_share, permutation
from nl_gradient_policy_optimization.timing import timed
from text2grad.losses.kl import KLController


class BrokenUpdateError(RuntimeError):
    """The update has left every reasonable size."""


class Updating(Collecting):
    """The part of the trainer that updates the policy."""

    kl: KLController
    finished_steps: int
    grad_norm_limit = 1e4
    """A loss or gradient norm above it ends the run."""

    def update(self, batch: Batch, step: int) -> dict[str, float]:
        """``ppo_epochs`` passes over the step's rollouts; returns the means of the updates' metrics."""
        self.scorer.train()
        history: dict[str, list[float]] = defaultdict(list)
        size = len(batch) // self.config.minibatches
        done = 0
        with timed(self.seconds, "update"):
            for epoch in range(self.config.ppo_epochs):
                order = permutation(len(batch), self.config.seed, step, epoch)
                for start in range(0, len(order), size):
                    self._set_learning_rate((step - 1) * self.config.ppo_epochs * self.config.minibatches + done)
                    for name, value in self.update_on(batch.select(order[start : start + size])).items():
                        history[name].append(value)
                    done += 1
        self.algorithm.after_update()
        means = {name: sum(values) / len(values) for name, values in history.items()}
        return {**means, "lr": self.learning_rate, "updates": done, "kl/coef": self.kl.coef}

    def update_on(self, minibatch: Batch) -> dict[str, float]:
        """One update on a minibatch; returns its metrics.

        Losses are means over the minibatch's response tokens on all ranks, so neither padding nor the way rollouts
        are dealt to ranks and micro-batches changes the gradient. Without any feedback nothing happens.
        """
        tokens = float(self.reduce(minibatch.mask.sum()))
        if tokens == 0:
            return {}
        sums: dict[str, float] = defaultdict(float)
        micro_batches = list(minibatch.micro_batches(self.config.micro_batch_size))
        for _, micro_batch in micro_batches:
            with self.accelerator.accumulate(self.model):
                outputs = self.losses(micro_batch)
                mask = micro_batch.mask.to(outputs.policy)
                policy = (outputs.policy * mask).sum() / tokens + outputs.added
                value = self.config.value_coef * (outputs.value * mask).sum() / tokens
                self._stop_if_broken(policy.detach() + value.detach(), micro_batch)
                # Ranks' gradients are averaged, and accumulated ones divided by their number: both undone here.
                self.accelerator.backward(policy * self.accelerator.num_processes * len(micro_batches))
                if self.value_function:
                    value.backward()
                for name, column in outputs.figures.items():
                    sums[name] += float((column.detach() * mask).sum() if column.dim() else column.detach() * tokens)
                if self.accelerator.sync_gradients:
                    norm = weights.clip_gradient(self.accelerator, self.model, self.config.max_grad_norm)
                self.optimizer.step()
                self.optimizer.zero_grad()
        if self.value_function:
            self.value_function.step(self.reduce)
        self._stop_if_broken(torch.tensor(norm), minibatch)
        totals = self.reduce(torch.tensor(list(sums.values()), dtype=torch.float64))
        return {**dict(zip(sums, (totals / tokens).tolist(), strict=True)), "grad_norm": norm}

    def losses(self, micro_batch: Batch) -> LossOutputs:
        """The algorithm's losses on a micro-batch, which the policy scores for it."""
        self.count(backward=micro_batch.tokens)
        batch = micro_batch.to(self.accelerator.device)
        options = self.algorithm.pass_options(batch)
        scores = self.model(*batch.inputs(), entropy=self.config.entropy_coef != 0, **options)
        values = self.value_function.head(scores.hidden) if self.value_function else None
        return self.algorithm.loss(LossInputs(batch, scores, values))

    def _set_learning_rate(self, update: int) -> None:
        total = self.total_steps * self.config.ppo_epochs * self.config.minibatches
        self.learning_rate = self.config.learning_rate * learning_rate_share(self.config, update, total)
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate

    def _stop_if_broken(self, value: Tensor, batch: Batch) -> None:
        """A loss or gradient norm that is not finite, or beyond reason, ends the run, batch saved."""
        if torch.isfinite(value).all() and float(value) <= self.grad_norm_limit:
            return
        step = self.finished_steps + 1
        path = self.run / f"broken-batch-{step}-rank{self.accelerator.process_index}.pt"
        rows = [
            {"id": each.id, "prompt_ids": each.prompt_ids, "response_ids": each.response_ids, **batch.columns(row)}
            for row, each in enumerate(batch.rollouts)
        ]
        torch.save(rows, path)
        raise BrokenUpdateError(
            f"step {step}: loss or gradient norm is {float(value)}; the batch is in {path}. "
            "The newest checkpoint is older than this step: lower --learning_rate or --clip_range and run again"
        )
