"""NL-Gradient policy optimisation: algorithm 4 of the paper as one loop.

    1  rollouts        y ~ π_old(· | x), with log-probabilities, values and KL to the reference
    2  feedback        a critique c and spans A(y), which become δ_t on the sampled tokens
    3  token rewards   r_t = δ_t − β·KL_t
    4  advantages      GAE, whitened
    5  updates         clipped PPO on policy and value function, several passes

One *step* is all five; an *update* is one step of the optimiser. Randomness is seeded by (seed, step, rank). So a step
depends on the weights, the optimiser, β and rollouts sampled ahead alone, and a resumed run repeats an uninterrupted
one bit for bit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object, set_seed
from torch import Tensor
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from nl_gradient_policy_optimization import weights
from nl_gradient_policy_optimization.checkpoints import Checkpoints
from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.critique_writing import CritiqueWriting, with_critiques
from nl_gradient_policy_optimization.ledger import Ledger
from nl_gradient_policy_optimization.metrics import measure, measure_effect, progress, shown_figures, timed
from nl_gradient_policy_optimization.objective import Losses, ppo_losses, stop_if_broken
from nl_gradient_policy_optimization.pauses import Pauses
from nl_gradient_policy_optimization.policy import PolicyScorer
from nl_gradient_policy_optimization.refresh import Refresh
from nl_gradient_policy_optimization.rewards import PendingRollouts, RewardSource, check_failures
from nl_gradient_policy_optimization.rollouts import (
    METRICS_FILE,
    ROLLOUTS_FILE,
    Rollout,
    RolloutFeedback,
    StepLog,
    counting_mask,
    encode_prompt,
    given_logprobs,
    make_rollout,
    micro_batches,
    model_inputs,
    padded,
    read_column,
    rounded,
    shown,
    write_column,
)
from nl_gradient_policy_optimization.sampling import check_sampler, make_sampler
from nl_gradient_policy_optimization.schedule import (
    learning_rate_share,
    mixed_seed,
    permutation,
    rank_prompts,
    stop_reason,
    total_steps,
)
from nl_gradient_policy_optimization.teacher import Teacher, teacher_figures
from nl_gradient_policy_optimization.value_function import ValueFunction
from text2grad.advantages import discounted_sums, gae, group_advantages, total_rewards, whiten
from text2grad.errors import InputError, Interrupted
from text2grad.losses.kl import KLController
from text2grad.models import end_token_ids
from text2grad.safety.redaction import redacted
from text2grad.tasks import Record, Task


class NLGradientTrainer:
    """Optimises a policy on prompts, against a reward source.

    Args:
        records: the prompts' records by id; every rank holds all of them.
        rewards: gives the rollouts their feedback (see ``rewards.py``); each rank has its own, for its own share.
        accelerator: made before the model, so that DeepSpeed can shard it while loading.
        checkpoints: the run's.
    """

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
    ):
        self.config, self.task, self.tokenizer, self.rewards = config, task, tokenizer, rewards
        self.first = config  # how many responses a step samples first; second attempts come on top
        self.accelerator = accelerator
        self.run = Path(config.output_dir)
        self.records, self.ids = records, list(records)
        self.end_ids = end_token_ids(policy.model, tokenizer)
        self.scorer = policy
        optimizer = weights.make_optimizer(policy, config)
        self.model, self.optimizer = accelerator.prepare(policy, optimizer)
        self.sampler = make_sampler(policy.model, self.model, tokenizer, self.end_ids, config, accelerator)
        self.value_function: ValueFunction | None = None
        if config.advantage == "gae":
            self.value_function = ValueFunction(policy.hidden_size, config, accelerator.device, policy.precision)
        self.teacher = Teacher(config, task, tokenizer, policy) if config.teacher != "off" else None
        self.writing = CritiqueWriting(task, tokenizer) if config.critique_coef else None
        self.refresh: Refresh | None = None  # of the reward model that rewards, where it goes on learning
        self.ledger = Ledger()
        self.kl = KLController(config.kl_coef, config.kl_target, config.kl_horizon)
        self.checkpoints = checkpoints
        self.metrics_log = StepLog(self.run / METRICS_FILE)
        self.rollout_log = StepLog(self.run / ROLLOUTS_FILE)
        self.pauses = Pauses(accelerator)
        self.finished_steps = self.saved_steps = 0
        self.rollout_count = 0
        self.ahead: PendingRollouts | None = None  # the next step's rollouts, with ``rollouts_ahead``
        self.ahead_file = f"ahead-rank{accelerator.process_index}.pt"

    # The run

    @property
    def total_steps(self) -> int:
        return total_steps(self.first, len(self.ids), self.accelerator.num_processes)

    def train(self) -> None:
        """Run (or go on) to the last step, logging and saving on the way."""
        self.resume()
        bar = progress(self.finished_steps, self.total_steps, not self.accelerator.is_local_main_process)
        with self.pauses:
            for step in bar:
                metrics = self.step(step)
                bar.set_postfix(shown_figures(metrics, self.config.kl))
                reason, asked = stop_reason(self.config, metrics, self.metrics_log), self.pauses.asked_anywhere()
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
        seconds = dict.fromkeys(("rollout", "reference", "critique", "update"), 0.0)
        seconds |= {"teacher": 0.0} if self.teacher else {}
        before = self.ahead
        drop = partial(self._drop, before)
        refreshed = self.refresh(step, seconds, self.rollout_log, self.pauses, drop) if self.refresh else {}
        self._seed(step)
        # 1 rollouts
        with self.pauses.droppable(drop, common=False):
            pending = before or self.collect(step, seconds)
            sample_ahead = self.config.rollouts_ahead and step < self.total_steps
            self.ahead = self.collect(step + 1, seconds) if sample_ahead else None
        # 2 feedback
        with self.pauses.droppable(drop, common=True), timed(seconds, "critique"):
            rollouts = self.accept(pending.rollouts, self.pauses.together(pending.feedback))  # remote: the wait
        if self.teacher:
            with timed(seconds, "teacher"):
                self.teach(rollouts)
        # 3 token rewards
        self.reward_tokens(rollouts)
        # 4 advantages
        self.estimate_advantages(rollouts)
        # 5 updates
        with timed(seconds, "update"):
            updates = self.update(rollouts, step)
            if self.teacher:
                self.teacher.follow()
        rescored = self.config.log_rollouts_every and (step % self.config.log_rollouts_every == 0 or step == 1)
        if rescored:
            self.rescore(rollouts)

        self.finished_steps = step
        self.rollout_count += len(rollouts) * self.accelerator.num_processes
        metrics = {"step": step, **measure(rollouts, self.config.kl, self.reduce), **updates, **refreshed}
        if rescored:
            metrics |= measure_effect(rollouts, self.reduce)
        if self.teacher:
            metrics |= teacher_figures(rollouts, self.config, self.reduce)
        metrics |= self.ledger.close(sum(seconds.values()), self.reduce)
        metrics |= {f"seconds/{phase}": spent for phase, spent in seconds.items()}
        metrics["rollouts"] = self.rollout_count
        self.kl.update(metrics[f"kl/{self.config.kl}"], len(rollouts) * self.accelerator.num_processes)
        self.log(step, metrics, rollouts, show=bool(rescored))
        return metrics

    # 1 rollouts

    def collect(self, step: int, seconds: dict[str, float]) -> PendingRollouts:
        """A step's rollouts, sampled and scored by the policy as it is."""
        self._seed(step)
        pending = PendingRollouts(self.rewards)
        with timed(seconds, "rollout"):
            for rollouts in self.sample(self.prompts_of(step)):
                pending.add(rollouts)
        self.ledger.forward(pending.rollouts)
        with timed(seconds, "reference"):
            self.score(pending.rollouts)
        check_sampler(pending.rollouts, self.config, self.reduce)
        return pending

    def _seed(self, step: int) -> None:
        set_seed(mixed_seed(self.config.seed, step, self.accelerator.process_index))

    def prompts_of(self, step: int) -> list[str]:
        """The ids of this rank's prompts of a step, each repeated for its rollouts."""
        rank, ranks = self.accelerator.process_index, self.accelerator.num_processes
        return [self.ids[index] for index in rank_prompts(self.first, len(self.ids), step, rank, ranks)]

    def sample(self, record_ids: Sequence[str]) -> Iterator[list[Rollout]]:
        """Sample a response to each prompt; each batch as soon as it is sampled."""
        self.scorer.eval()
        prompts = self._prompts(record_ids)
        done = 0
        for responses, logprobs in self.sampler.batches([prompt_ids for _, _, prompt_ids in prompts]):
            rollouts = []
            for position, response_ids in enumerate(responses):
                rollout = self._rollout(*prompts[done + position], response_ids)
                if logprobs is not None:
                    rollout.sampler_logprobs = given_logprobs(logprobs[position], self.scorer.precision)
                rollouts.append(rollout)
            done += len(responses)
            yield rollouts
        if done < len(prompts):
            raise RuntimeError(f"the sampler gave no response to {len(prompts) - done} of {len(prompts)} prompts")

    def _prompts(self, record_ids: Sequence[str]) -> list[tuple[str, str, list[int]]]:
        """Each record's id, prompt, and the policy's input."""
        prompts = [self.task.prompt(self.records[record_id]) for record_id in record_ids]
        encoded = [encode_prompt(prompt, self.task, self.tokenizer) for prompt in prompts]
        return list(zip(record_ids, prompts, encoded, strict=True))

    def _rollout(self, record_id: str, prompt: str, prompt_ids: list[int], response_ids: list[int]) -> Rollout:
        record = self.records[record_id]
        return make_rollout(record_id, prompt, record, prompt_ids, response_ids, self.tokenizer, self.end_ids)

    @torch.no_grad()
    def score(self, rollouts: Sequence[Rollout]) -> None:
        """Log-probabilities, entropy, values and KL under the policy that sampled, before any update."""
        self.scorer.eval()
        top_k = self.config.teacher_top_k if self.config.distils else 0
        passes = self._forward_all(rollouts, kl=self.config.kl, entropy=True, top_k=top_k)
        for rows, (logprobs, entropy, hidden, ref_logprobs, kl, *top_ids) in passes:
            values = self.value_function.head(hidden) if self.value_function else torch.zeros_like(logprobs)
            write_column(rows, "old_logprobs", logprobs)
            write_column(rows, "entropy", entropy)
            write_column(rows, "values", values)
            write_column(rows, "ref_logprobs", ref_logprobs)
            write_column(rows, "kl", kl)
            if top_ids:
                write_column(rows, "top_ids", top_ids[0])

    @torch.no_grad()
    def rescore(self, rollouts: Sequence[Rollout]) -> None:
        """Log-probabilities after the updates, for the log."""
        self.scorer.eval()
        for rows, (logprobs, *_) in self._forward_all(rollouts):
            write_column(rows, "new_logprobs", logprobs)

    @torch.no_grad()
    def teach(self, rollouts: Sequence[Rollout]) -> None:
        """Log-probabilities under the policy that has read the critique."""
        assert self.teacher is not None
        self.scorer.eval()
        self.teacher.read(rollouts, self._forward_all, self.reduce)

    # 2 feedback, 3 token rewards, 4 advantages

    def accept(self, rollouts: Sequence[Rollout], feedback: Sequence[RolloutFeedback]) -> list[Rollout]:
        """Give every rollout its feedback, and stop where too much of it failed; returns what the step learns from."""
        self.ledger.critique(rollouts)
        for rollout, given in zip(rollouts, feedback, strict=True):
            if len(given.rewards) != len(rollout.response_ids):
                raise RuntimeError(f"{rollout.id}: {len(given.rewards)} rewards, {len(rollout.response_ids)} tokens")
            rollout.feedback = given
            if given.error is not None:
                tqdm.write(f"no feedback on {rollout.id}: {given.error}")
        check_failures(feedback, self.config, self.rewards.name, self.reduce)
        return list(rollouts)

    def reward_tokens(self, rollouts: Sequence[Rollout]) -> None:
        """r_t = δ_t − β·KL_t; a rollout without feedback gets zeros."""
        mask = counting_mask(rollouts, self.scorer.precision)
        deltas = padded([rollout.received.rewards for rollout in rollouts], mask.dtype)
        kl = read_column(rollouts, "kl", mask.dtype)
        if self.teacher:
            deltas = deltas + self.teacher.changes(rollouts, mask.dtype)
        write_column(rollouts, "rewards", total_rewards(deltas, kl, self.kl.coef) * mask)

    def estimate_advantages(self, rollouts: Sequence[Rollout]) -> None:
        """A_t, whitened, and the returns; a rollout without feedback gets zeros."""
        config, mask = self.config, counting_mask(rollouts, self.scorer.precision)
        rewards, values = (read_column(rollouts, name, mask.dtype) for name in ("rewards", "values"))
        advantages, returns = gae(rewards, values, mask, config.gamma, config.lam)
        if config.value_target == "rewards":
            returns = discounted_sums(rewards, mask, config.gamma)
        if config.advantage == "group":
            advantages = group_advantages(rewards, mask, config.rollouts_per_prompt, config.gamma * config.lam)
        if config.whiten_advantages:
            advantages = whiten(advantages, mask, self.reduce)
        write_column(rollouts, "advantages", advantages)
        write_column(rollouts, "returns", returns)

    # 5 updates

    def update(self, rollouts: list[Rollout], step: int) -> dict[str, float]:
        """``ppo_epochs`` passes of clipped PPO over the step's rollouts; returns the means of the updates' metrics."""
        self.scorer.train()
        history: dict[str, list[float]] = defaultdict(list)
        size = len(rollouts) // self.config.minibatches
        done = 0
        for epoch in range(self.config.ppo_epochs):
            order = permutation(len(rollouts), self.config.seed, step, epoch)
            for start in range(0, len(order), size):
                self._set_learning_rate((step - 1) * self.config.ppo_epochs * self.config.minibatches + done)
                metrics = self.update_on([rollouts[index] for index in order[start : start + size]])
                moved = metrics.pop("moved", 0.0)
                for name, value in metrics.items():
                    history[name].append(value)
                done += 1
            if self.config.update_kl_limit and moved > self.config.update_kl_limit:
                break
        means = {name: sum(values) / len(values) for name, values in history.items()}
        return {**means, "lr": self.learning_rate, "updates": done, "kl/coef": self.kl.coef}

    def update_on(self, minibatch: Sequence[Rollout]) -> dict[str, float]:
        """One update on a minibatch; returns its metrics, and as ``moved`` how far π is from π_old by now.

        Losses are means over the minibatch's response tokens on all ranks, so neither padding nor the way rollouts
        are dealt to ranks and micro-batches changes the gradient. Without any feedback nothing happens.
        """
        world = self.accelerator.num_processes
        tokens = float(self.reduce(counting_mask(minibatch, self.scorer.precision).sum()))
        if tokens == 0:
            return {}
        sums: dict[str, float] = defaultdict(float)
        batches = micro_batches(minibatch, self.config.micro_batch_size)
        for micro_batch in batches:
            with self.accelerator.accumulate(self.model):
                losses = self.losses(micro_batch, tokens)
                self._stop_if_broken(losses.policy.detach() + losses.value.detach(), micro_batch)
                # Ranks' gradients are averaged, and accumulated ones divided by their number: both undone here.
                self.accelerator.backward(losses.policy * world * len(batches))
                if self.value_function:
                    losses.value.backward()
                for name, value in losses.sums.items():
                    sums[name] += value
                if self.accelerator.sync_gradients:
                    norm = weights.clip_gradient(self.accelerator, self.model, self.config.max_grad_norm)
                self.optimizer.step()
                self.optimizer.zero_grad()
        if self.value_function:
            self.value_function.step(self.reduce)
        self._stop_if_broken(torch.tensor(norm), minibatch)
        totals = self.reduce(torch.tensor(list(sums.values()), dtype=torch.float64))
        return {**dict(zip(sums, (totals / tokens).tolist(), strict=True)), "grad_norm": norm}

    def losses(self, micro_batch: Sequence[Rollout], tokens: float) -> Losses:
        """Clipped PPO and the value loss on a micro-batch, of a minibatch with so many ``tokens``."""
        self.ledger.backward(micro_batch)
        at = self._top_ids(micro_batch) if self.config.distils else None
        scored = self.model(*self._inputs(micro_batch), entropy=self.config.entropy_coef != 0, at=at)
        head = self.value_function.head if self.value_function else None
        step, precision = self.finished_steps + 1, self.scorer.precision
        losses = ppo_losses(micro_batch, scored, head, self.config, precision, tokens, step, self.kl.coef)
        if self.writing:
            examples = [self.writing.example(rollout) for rollout in micro_batch]
            self.ledger.backward(examples)
            loss = self.writing.loss(examples, lambda rows: self.model(*self._inputs(rows))[0])
            losses = with_critiques(losses, loss, tokens, self.config, self.accelerator.num_processes)
        return losses

    def _set_learning_rate(self, update: int) -> None:
        total = self.total_steps * self.config.ppo_epochs * self.config.minibatches
        self.learning_rate = self.config.learning_rate * learning_rate_share(self.config, update, total)
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate

    def _stop_if_broken(self, value: Tensor, batch: Sequence[Rollout]) -> None:
        path = self.run / f"broken-batch-{self.finished_steps + 1}-rank{self.accelerator.process_index}.pt"
        stop_if_broken(value, batch, self.config.stop_grad_norm, path, self.finished_steps + 1)

    # Measures and logs

    def log(self, step: int, metrics: dict[str, float], rollouts: Sequence[Rollout], show: bool) -> None:
        rows = [rollout.row(step) for rollout in rollouts]
        rows = gather_object(rows) if self.accelerator.num_processes > 1 else rows
        self.accelerator.log({name: value for name, value in metrics.items() if name != "step"}, step=step)
        if self.accelerator.is_main_process:
            self.rollout_log.append(rows)
            self.metrics_log.append([{name: rounded(value) for name, value in metrics.items()}])
            if show:
                tqdm.write(shown(rows[0]))

    # Checkpoints

    @property
    def parts(self) -> list[ValueFunction | Teacher | Refresh]:
        """Saved and loaded beside the policy."""
        return [part for part in (self.value_function, self.teacher, self.refresh) if part]

    def _drop(self, ahead: PendingRollouts | None) -> None:
        """Keep the steps before one that will not be finished, whose rollouts may have been sampled ahead."""
        self.ahead = ahead
        self.save()

    def save(self) -> None:
        """Write a checkpoint of everything the next step depends on, unless there is one."""
        if self.finished_steps == self.saved_steps:
            return
        state = {
            "rollouts": self.rollout_count,
            "kl_coef": self.kl.coef,
            "ledger": self.ledger.state(),
            "config": redacted(asdict(self.config)),
            "processes": self.accelerator.num_processes,
        }
        with self.checkpoints.write(self.finished_steps, state, 5 * weights.trainable_bytes(self.scorer)) as folder:
            weights.save_policy(self.accelerator, self.model, self.optimizer, folder)
            for part in self.parts if self.accelerator.is_main_process else ():
                part.save(folder)
            if self.ahead:
                torch.save(self.ahead.state(), folder / self.ahead_file)
        if self.config.keeps_policies and self.accelerator.is_main_process:
            weights.keep_policy(self.run, self.finished_steps)
        self.saved_steps = self.finished_steps

    def resume(self) -> None:
        """Go on from the newest whole checkpoint, where there is one."""
        damaged = self.checkpoints.set_aside()
        if (found := self.checkpoints.newest()) is not None:
            folder, state = found
            if state["processes"] != self.accelerator.num_processes:
                raise InputError(
                    f"{folder}: was written by {state['processes']} processes; go on with as many, or choose another "
                    "--output_dir"
                )
            weights.load_policy(self.accelerator, self.model, self.optimizer, folder)
            for part in self.parts:
                part.load(folder)
            self.ledger = Ledger(**state.get("ledger", {}))
            if self.config.rollouts_ahead and (folder / self.ahead_file).exists():
                self.ahead = self._load_ahead(folder / self.ahead_file)
            self.kl.coef, self.rollout_count = state["kl_coef"], state["rollouts"]
            self.finished_steps = self.saved_steps = state["step"]
            self.accelerator.print(f"going on after step {self.finished_steps} ({folder})")
        if self.accelerator.is_main_process:
            for log in (self.metrics_log, self.rollout_log):
                log.rewind(self.finished_steps, lost=bool(damaged))
            if self.refresh:
                self.refresh.rewind(self.finished_steps)
        self.accelerator.wait_for_everyone()

    def _load_ahead(self, path: Path) -> PendingRollouts:
        """The next step's rollouts as they were sampled; their feedback is asked for again."""
        pending, saved = PendingRollouts(self.rewards), torch.load(path, weights_only=True)
        prompts = self._prompts([row["id"] for row in saved])
        for prompt, row in zip(prompts, saved, strict=True):
            rollout = self._rollout(*prompt, row["response_ids"])
            pending.add([replace(rollout, **row["columns"])])
        return pending

    # Tensors

    def reduce(self, values: Tensor) -> Tensor:
        """The sum over all ranks."""
        if self.accelerator.num_processes == 1:
            return values
        return self.accelerator.reduce(values.to(self.accelerator.device), "sum").to(values.device)

    def _forward_all(
        self, rollouts: Sequence[Rollout], at: bool = False, **options: Any
    ) -> Iterator[tuple[list[Rollout], tuple[Tensor, ...]]]:
        """Score rollouts in batches of similar length; every rank makes the same number of batches.

        Args:
            at: also give the log-probabilities of the rollouts' ``top_ids``.
            options: of :class:`~.policy.PolicyScorer`.
        """
        model = self.model if self.accelerator.distributed_type == "DEEPSPEED" else self.scorer
        self.ledger.forward(rollouts, passes=1 + (options.get("kl") is not None))
        for rows in micro_batches(rollouts, self.config.micro_batch_size):
            yield rows, model(*self._inputs(rows), at=self._top_ids(rows) if at else None, **options)

    def _top_ids(self, rollouts: Sequence[Rollout]) -> Tensor:
        return read_column(rollouts, "top_ids", torch.long).to(self.accelerator.device)

    def _inputs(self, rollouts: Sequence[Rollout]) -> tuple[Tensor, Tensor, Tensor]:
        return model_inputs(rollouts, self.tokenizer.pad_token_id, self.accelerator.device)
