"""NL-Gradient policy optimisation: algorithm 4 of the paper as one loop.

    1  rollouts        y ~ π_old(· | x), with log-probabilities, values and KL to the reference
    2  feedback        a critique c and spans A(y), which become δ_t on the sampled tokens
    3  token rewards   r_t = δ_t − β·KL_t
    4  advantages      GAE, whitened
    5  updates         clipped PPO on policy and value function, several passes

What δ, advantages and losses are is the algorithm's to say (``algorithms/``); what is measured on the way is said by
observers (``observers/``). One *step* is all five; an *update* is one step of the optimiser. Randomness is seeded by
(seed, step, rank): a step depends on nothing but the weights, the optimiser, β and rollouts sampled ahead, and a
resumed run repeats an uninterrupted one bit for bit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from copy import copy
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object, set_seed
from torch import Tensor
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from nl_gradient_policy_optimization import weights
from nl_gradient_policy_optimization.algorithms.base import LossInputs, LossOutputs
from nl_gradient_policy_optimization.batch import Batch
from nl_gradient_policy_optimization.checkpoints import Checkpoints
from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.observers.base import Observer
from nl_gradient_policy_optimization.observers.metrics import shown_figures
from nl_gradient_policy_optimization.pauses import Pauses
from nl_gradient_policy_optimization.policy import PolicyScorer
from nl_gradient_policy_optimization.rewards import PendingRollouts, RewardSource, check_failures
from nl_gradient_policy_optimization.rollouts import (
    METRICS_FILE,
    ROLLOUTS_FILE,
    Rollout,
    RolloutFeedback,
    StepLog,
    encode_prompt,
    given_logprobs,
    make_rollout,
    rounded,
    shown,
)
from nl_gradient_policy_optimization.sampling import check_sampler, make_sampler
from nl_gradient_policy_optimization.schedule import (
    learning_rate_share,
    mixed_seed,
    permutation,
    rank_prompts,
    total_steps,
)
from nl_gradient_policy_optimization.timing import timed
from nl_gradient_policy_optimization.value_function import ValueFunction
from nl_gradient_policy_optimization.vllm_server import SamplerError
from text2grad.advantages import total_rewards
from text2grad.errors import InputError, Interrupted
from text2grad.losses.kl import KLController
from text2grad.models import end_token_ids
from text2grad.safety.redaction import redacted
from text2grad.tasks import Record, Task

PHASES = ("rollout", "reference", "critique", "update")


class BrokenUpdateError(RuntimeError):
    """The update has left every reasonable size."""


class NLGradientTrainer:
    """Optimises a policy on prompts, against a reward source.

    Args:
        records: the prompts' records by id; every rank holds all of them.
        rewards: gives the rollouts their feedback (see ``rewards.py``); each rank has its own, for its own share.
        accelerator: made before the model, so that DeepSpeed can shard it while loading.
        checkpoints: the run's.
        observers: they measure, in this order.

    Attributes:
        seconds: of each phase of this step.
        counted: of this step and rank, what the ledger adds up.
    """

    grad_norm_limit = 1e4
    """A loss or gradient norm above it ends the run."""

    def __init__(
        self,
        config: PolicyConfig,
        task: Task,
        policy: PolicyScorer,
        tokenizer: PreTrainedTokenizerBase,
        records: dict[str, Record],
        rewards: RewardSource,
        accelerator: Accelerator,
        checkpoints: Checkpoints,
        observers: Sequence[Observer],
    ):
        self.config, self.task, self.tokenizer, self.rewards = config, task, tokenizer, rewards
        self.accelerator, self.checkpoints = accelerator, checkpoints
        self.run = Path(config.output_dir)
        self.records, self.ids = records, list(records)
        self.end_ids = end_token_ids(policy.model, tokenizer)
        self.scorer = policy
        optimizer = weights.make_optimizer(policy, config)
        self.model, self.optimizer = accelerator.prepare(policy, optimizer)
        self.sampler = make_sampler(policy.model, self.model, tokenizer, self.end_ids, config, accelerator)
        self.algorithm = copy(config.algorithm)  # it keeps this run's state
        self.value_function: ValueFunction | None = None
        if self.algorithm.has_values:
            self.value_function = ValueFunction(policy.hidden_size, config, accelerator.device, policy.precision)
        self.kl = KLController(config.kl_coef, config.kl_target, config.kl_horizon)
        self.metrics_log = StepLog(self.run / METRICS_FILE)
        self.rollout_log = StepLog(self.run / ROLLOUTS_FILE)
        self.pauses = Pauses(accelerator, SamplerError)
        self.finished_steps = self.saved_steps = self.rollout_count = 0
        self.ahead: PendingRollouts | None = None  # the next step's rollouts, with ``rollouts_ahead``
        self.ahead_file = f"ahead-rank{accelerator.process_index}.pt"
        self._start_counting()
        self.algorithm.begin(self)
        self.observers: list[Observer] = []
        for observer in observers:
            self.watch(observer)

    def watch(self, observer: Observer) -> None:
        """Let one more observer watch the run."""
        self.observers.append(observer)
        observer.begin(self)

    # The run

    @property
    def total_steps(self) -> int:
        return total_steps(self.config, len(self.ids), self.accelerator.num_processes)

    def train(self) -> None:
        """Run (or go on) to the last step, logging and saving on the way."""
        self.resume()
        steps = range(self.finished_steps + 1, self.total_steps + 1)
        quiet = not self.accelerator.is_local_main_process
        bar = tqdm(steps, "policy", self.total_steps, unit="step", disable=quiet, initial=self.finished_steps)
        with self.pauses:
            for step in bar:
                metrics = self.step(step)
                bar.set_postfix(shown_figures(metrics, self.config.kl))
                reasons = [observer.stop_reason(metrics) for observer in self.observers]
                reason, asked = next(filter(None, reasons), ""), self.pauses.asked_anywhere()
                due = step == self.total_steps or (self.config.save_every and step % self.config.save_every == 0)
                if due or reason or asked:
                    self.save()
                if asked:
                    raise Interrupted(asked)
                if reason:
                    self.accelerator.print(f"stopping: {reason}")
                    break

    def step(self, step: int) -> dict[str, float]:
        """One step of algorithm 4, logged; returns its metrics."""
        self._start_counting()
        for observer in self.observers:
            observer.before_step(step)
        self._seed(step)
        # 1 rollouts, 2 feedback: nothing of the run changes, so what is cut short here is done again
        with self.pauses.droppable(self.drop, common=False):
            pending = self.take_rollouts(step)
        with self.pauses.droppable(self.drop, common=True):
            batch = self.algorithm.on_batch(self.take_feedback(pending))
        # 3 token rewards: zeros for a rollout without feedback
        batch.rewards = total_rewards(self.algorithm.token_rewards(batch), batch.kl, self.kl.coef) * batch.mask
        # 4 advantages
        batch.advantages, batch.returns = self.algorithm.advantages(batch)
        # 5 updates
        updates = self.update(self.algorithm.to_learn(batch), step)
        return self.finish(step, batch, updates)

    def drop(self) -> None:
        """Keep the steps before one that will not be finished, and the rollouts that were sampled ahead for it."""
        self.ahead = self._ahead_before
        self.save()

    def count(self, forward: float = 0, backward: float = 0, critiques: float = 0) -> None:
        """Add to what the ledger counts; tokens that go backward have gone forward, too."""
        self.counted["critiques"] += critiques
        self.counted["forward_tokens"] += forward + backward
        self.counted["backward_tokens"] += backward

    def _start_counting(self) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.counted = dict.fromkeys(("critiques", "forward_tokens", "backward_tokens"), 0.0)
        self._ahead_before = self.ahead

    # 1 rollouts

    def take_rollouts(self, step: int) -> PendingRollouts:
        """The step's rollouts; with ``rollouts_ahead`` the next step's are sampled now as well."""
        pending = self.ahead or self.collect(step)
        sample_ahead = self.config.rollouts_ahead and step < self.total_steps
        self.ahead = self.collect(step + 1) if sample_ahead else None
        return pending

    def collect(self, step: int) -> PendingRollouts:
        """A step's rollouts, sampled and scored by the policy as it is now."""
        self._seed(step)
        pending = PendingRollouts(self.rewards)
        with timed(self.seconds, "rollout"):
            for rollouts in self.sample(self.prompts_of(step)):
                pending.add(rollouts)
        pending.batch = self.score(pending.rollouts)
        check_sampler(pending.batch, self.config.generation, self.reduce)
        return pending

    def _seed(self, step: int) -> None:
        set_seed(mixed_seed(self.config.seed, step, self.accelerator.process_index))

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

    # 2 feedback

    def take_feedback(self, pending: PendingRollouts) -> Batch:
        """The rollouts with their feedback; for a remote critic this is the wait."""
        with timed(self.seconds, "critique"):
            self.receive(pending.batch, self.pauses.together(pending.feedback))
        return pending.batch

    def receive(self, batch: Batch, feedback: Sequence[RolloutFeedback]) -> None:
        """Give every rollout its feedback, and stop where too much of it failed."""
        self.count(critiques=sum(bool(rollout.response.strip()) for rollout in batch.rollouts))
        for rollout, given in zip(batch.rollouts, feedback, strict=True):
            if len(given.rewards) != len(rollout.response_ids):
                raise RuntimeError(f"{rollout.id}: {len(given.rewards)} rewards, {len(rollout.response_ids)} tokens")
            if given.error is not None:
                tqdm.write(f"no feedback on {rollout.id}: {given.error}")
        batch.receive(feedback)
        check_failures(feedback, self.config, self.rewards.name, self.reduce)

    # 5 updates

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

    # Measures and logs

    def finish(self, step: int, batch: Batch, updates: dict[str, float]) -> dict[str, float]:
        """Measure and log a step whose updates are made."""
        every = self.config.log_rollouts_every
        rescored = bool(every) and (step % every == 0 or step == 1)
        if rescored:
            batch.new_logprobs = self.forward(batch)["logprobs"]
        responses = len(batch) * self.accelerator.num_processes
        self.finished_steps, self.rollout_count = step, self.rollout_count + responses
        metrics: dict[str, float] = {"step": step, **updates, **self.algorithm.figures(batch)}
        for observer in self.observers:
            metrics |= observer.figures(batch)
        metrics |= {f"seconds/{phase}": spent for phase, spent in self.seconds.items()}
        metrics["rollouts"] = self.rollout_count
        self.kl.update(metrics[f"kl/{self.config.kl}"], responses)
        self.log(metrics, batch.log_rows(step), show=rescored)
        for observer in self.observers:
            observer.after_step(metrics)
        return metrics

    def log(self, metrics: dict[str, float], rows: list[dict[str, Any]], show: bool) -> None:
        rows = gather_object(rows) if self.accelerator.num_processes > 1 else rows
        tracked = {name: value for name, value in metrics.items() if name != "step"}
        self.accelerator.log(tracked, step=int(metrics["step"]))
        if self.accelerator.is_main_process:
            self.rollout_log.append(rows)
            self.metrics_log.append([{name: rounded(value) for name, value in metrics.items()}])
            if show:
                tqdm.write(shown(rows[0]))

    # Checkpoints

    def save(self) -> None:
        """Write a checkpoint of everything the next step depends on, unless there is one."""
        if self.finished_steps == self.saved_steps:
            return
        state = {
            "rollouts": self.rollout_count,
            "kl_coef": self.kl.coef,
            "config": redacted(self.config.flat()),
            "processes": self.accelerator.num_processes,
            "rows": {log.path.name: log.count for log in (self.metrics_log, self.rollout_log)},
        }
        for observer in self.observers:
            state |= observer.state()
        with self.checkpoints.write(self.finished_steps, state, 5 * weights.trainable_bytes(self.scorer)) as folder:
            weights.save_policy(self.accelerator, self.model, self.optimizer, folder)
            if self.accelerator.is_main_process:
                for part in (self.value_function, self.algorithm, *self.observers):
                    if part:
                        part.save(folder)
            if self.ahead:
                torch.save(self.ahead.state(), folder / self.ahead_file)
        if self.config.keeps_policies and self.accelerator.is_main_process:
            weights.keep_policy(self.run, self.finished_steps)
        self.saved_steps = self.finished_steps

    def resume(self) -> None:
        """Go on from the newest whole checkpoint, where there is one."""
        damaged = self.checkpoints.set_aside()
        rows: dict[str, int] = {}
        if (found := self.checkpoints.newest()) is not None:
            folder, state = found
            if state["processes"] != self.accelerator.num_processes:
                raise InputError(
                    f"{folder}: was written by {state['processes']} processes; go on with as many, or choose another "
                    "--output_dir"
                )
            weights.load_policy(self.accelerator, self.model, self.optimizer, folder)
            if self.value_function:
                self.value_function.load(folder)
            self.algorithm.load(folder)
            for observer in self.observers:
                observer.load(folder, state)
            if self.config.rollouts_ahead and (folder / self.ahead_file).exists():
                self.ahead = self._load_ahead(folder / self.ahead_file)
            self.kl.coef, self.rollout_count = state["kl_coef"], state["rollouts"]
            rows = {} if self.config.allow_changed else state.get("rows", {})
            self.finished_steps = self.saved_steps = state["step"]
            self.accelerator.print(f"going on after step {self.finished_steps} ({folder})")
        if self.accelerator.is_main_process:
            for log in (self.metrics_log, self.rollout_log):
                log.rewind(self.finished_steps, bool(damaged), rows.get(log.path.name))
            for observer in self.observers:
                observer.rewind(self.finished_steps)
        self.accelerator.wait_for_everyone()

    def _load_ahead(self, path: Path) -> PendingRollouts:
        """The next step's rollouts as they were sampled; their feedback is asked for again."""
        pending, saved = PendingRollouts(self.rewards), torch.load(path, weights_only=True)
        for row in saved:
            prompt = self.task.prompt(self.records[row["id"]])
            prompt_ids = encode_prompt(prompt, self.task, self.tokenizer)
            pending.add([self._rollout(row["id"], prompt_ids, row["response_ids"])])
        pending.batch = self.batch(pending.rollouts)
        pending.batch.load_columns([row["columns"] for row in saved])
        return pending

    # Tensors

    def reduce(self, values: Tensor) -> Tensor:
        """The sum over all ranks."""
        if self.accelerator.num_processes == 1:
            return values
        return self.accelerator.reduce(values.to(self.accelerator.device), "sum").to(values.device)

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
