"""The policy on this run's devices: it scores rollouts, and learns from them in the last line of algorithm 4."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from nl_gradient_policy_optimization import weights
from nl_gradient_policy_optimization.algorithms.base import Algorithm, LossInputs, LossOutputs
from nl_gradient_policy_optimization.batch import Batch
from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.costs import StepCosts
from nl_gradient_policy_optimization.policy import PolicyScorer
from nl_gradient_policy_optimization.schedule import learning_rate_share, permutation
from nl_gradient_policy_optimization.value_function import ValueFunction
from text2grad.errors import StopRunError

_SCORED_AT_ONCE = 4
"""Micro-batches that are scored together: without gradients a row takes a fraction of an update's memory."""


class BrokenUpdateError(StopRunError):
    """The update has left every reasonable size."""


class Learner:
    """The policy, its value head, and their optimisers.

    Attributes:
        scorer: the policy with its reference; ``model`` is the same as accelerate or DeepSpeed distributes it.
        step: the step that it learns from.
        value_function: None for an algorithm without values.
    """

    grad_norm_limit = 1e4
    """A loss or gradient norm above it ends the run."""

    def __init__(
        self,
        config: PolicyConfig,
        algorithm: Algorithm,
        policy: PolicyScorer,
        accelerator: Accelerator,
        costs: StepCosts,
    ):
        self.config, self.algorithm, self.accelerator, self.costs = config, algorithm, accelerator, costs
        self.scorer, self.step = policy, 1
        self.model, self.optimizer = accelerator.prepare(policy, weights.make_optimizer(policy, config))
        self.value_function: ValueFunction | None = None
        if algorithm.uses_values:
            width = policy.config.get_text_config().hidden_size
            self.value_function = ValueFunction(width, config, accelerator.device, policy.precision)

    def keeps_graph(self, batch: Batch) -> bool:
        """Whether the first update begins with the pass that scores these rollouts: one micro-batch holds them all."""
        config, base = self.config, self.scorer.base
        described = base.config.to_dict().items()
        dropout = [module.p for module in base.modules() if isinstance(module, nn.Dropout)]
        dropout += [value for name, value in described if "drop" in name and isinstance(value, float)]
        return (
            len(batch) <= config.micro_batch_size
            and config.minibatches == 1
            and not (any(dropout) or config.gradient_checkpointing or config.rollouts_ahead)
            and self.accelerator.distributed_type == "NO"
        )

    def reduce(self, values: Tensor) -> Tensor:
        """The sum over all ranks."""
        if self.accelerator.num_processes == 1:
            return values
        return self.accelerator.reduce(values.to(self.accelerator.device), "sum").to(values.device)

    @torch.no_grad()
    def forward(self, batch: Batch, at: str = "", **options: Any) -> dict[str, Tensor]:
        """What the policy says of all rollouts, by the names of :class:`~.policy.Scores`, and the head's ``values``.

        It scores some micro-batches together; every rank makes the same number of passes.

        Args:
            at: the name of ids in ``extra`` whose log-probabilities are asked for.
            options: of :class:`~.policy.PolicyScorer`.
        """
        self.scorer.eval()
        model = self.model if self.accelerator.distributed_type == "DEEPSPEED" else self.scorer
        self.costs.count(forward=batch.tokens * (1 + ("kl" in options)))
        whole: dict[str, Tensor] = {}
        for rows, part in batch.micro_batches(_SCORED_AT_ONCE * self.config.micro_batch_size):
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

    def update(self, batch: Batch, step: int, total_steps: int) -> dict[str, float]:
        """``ppo_epochs`` passes over the step's rollouts; returns the means of the updates' metrics."""
        self.scorer.train()
        self.step = step
        history: dict[str, list[float]] = defaultdict(list)
        size = len(batch) // self.config.minibatches
        per_step = self.config.ppo_epochs * self.config.minibatches
        orders = [permutation(len(batch), self.config.seed, step, epoch) for epoch in range(self.config.ppo_epochs)]
        parts = [order[start : start + size] for order in orders for start in range(0, len(batch), size)]
        with self.costs.timed("update"):
            for done, rows in enumerate(parts):
                self._set_learning_rate((step - 1) * per_step + done, total_steps * per_step)
                for name, value in self.update_on(batch.select(rows)).items():
                    history[name].append(value)
        self.algorithm.after_update()
        means = {name: sum(values) / len(values) for name, values in history.items()}
        return {**means, "lr": self.learning_rate, "updates": len(history["grad_norm"])}

    def update_on(self, minibatch: Batch) -> dict[str, float]:
        """One update on a minibatch; returns its metrics.

        Losses are means over the minibatch's response tokens on all ranks, so neither padding nor the way rollouts
        are dealt to ranks and micro-batches changes the gradient. Without any feedback nothing happens.
        """
        tokens = float(self.reduce(minibatch.mask.sum()))
        if tokens == 0:
            return {}
        # Gradients of a mean over many tokens are too small for float16: multiplied here, divided in float32.
        scale = tokens if self.scorer.base.dtype == torch.float16 and not self.config.deepspeed else 1.0
        sums: dict[str, float] = defaultdict(float)
        micro_batches = list(minibatch.micro_batches(self.config.micro_batch_size))
        for _, micro_batch in micro_batches:
            with self.accelerator.accumulate(self.model):
                outputs = self.losses(micro_batch)
                mask = micro_batch.mask.to(outputs.policy)
                policy = (outputs.policy * mask).sum() / tokens
                value = (outputs.value * mask).sum() / tokens
                # V may be far off, as long as it is finite: its gradient is clipped.
                self._stop_if_broken(policy.detach() + 0 * value.detach(), micro_batch)
                # Ranks' gradients are averaged, and accumulated ones divided by their number: both undone here.
                self.accelerator.backward(policy * scale * self.accelerator.num_processes * len(micro_batches))
                if self.value_function:
                    value.backward()
                for name, column in outputs.figures.items():
                    sums[name] += float((column.detach() * mask).sum())
                if self.accelerator.sync_gradients:
                    norm = weights.clip_gradient(self.accelerator, self.model, self.config.max_grad_norm, scale)
                self.optimizer.step()
                self.optimizer.zero_grad()
        if self.value_function:
            self.value_function.step(self.reduce)
        self._stop_if_broken(torch.tensor(norm), minibatch)
        totals = self.reduce(torch.tensor(list(sums.values()), dtype=torch.float64))
        return {**dict(zip(sums, (totals / tokens).tolist(), strict=True)), "grad_norm": norm}

    def losses(self, micro_batch: Batch) -> LossOutputs:
        """The algorithm's losses on a micro-batch, which the policy scores for it."""
        self.costs.count(backward=micro_batch.tokens)
        batch = micro_batch.to(self.accelerator.device)
        options = self.algorithm.pass_options(batch)
        scores = self.model(*batch.inputs(), entropy=self.config.entropy_coef != 0, **options)
        values = self.value_function.head(scores.hidden) if self.value_function else None
        return self.algorithm.loss(LossInputs(batch, scores, values))

    def _set_learning_rate(self, update: int, total: int) -> None:
        self.learning_rate = self.config.learning_rate * learning_rate_share(self.config, update, total)
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate

    def _stop_if_broken(self, value: Tensor, batch: Batch) -> None:
        """A loss or gradient norm that is not finite, or beyond reason, ends the run, batch saved."""
        if torch.isfinite(value).all() and float(value) <= self.grad_norm_limit:
            return
        path = Path(self.config.output_dir) / f"broken-batch-{self.step}-rank{self.accelerator.process_index}.pt"
        rows = [
            {"id": each.id, "prompt_ids": each.prompt_ids, "response_ids": each.response_ids, **batch.columns(row)}
            for row, each in enumerate(batch.rollouts)
        ]
        torch.save(rows, path)
        raise BrokenUpdateError(
            f"step {self.step}: loss or gradient norm is {float(value)}; the batch is in {path}. "
            "The newest checkpoint is older than this step: run again with a lower --learning_rate or --clip_range, "
            "and --allow_changed true"
        )
