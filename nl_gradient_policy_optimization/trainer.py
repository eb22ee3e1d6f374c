"""NL-Gradient policy optimisation: algorithm 4 of the paper as one loop.

    sample y ~ π_old(· | x)  →  critique c and spans A(y)  →  δ_t on the sampled tokens  →  r_t = δ_t − β·KL_t
    →  GAE, whitening  →  clipped PPO on policy and value function, several passes

Randomness is drawn anew at each step from (seed, step, rank); so a step depends on the weights, the optimiser, β and
rollouts sampled ahead alone, and a resumed run repeats an uninterrupted one bit for bit.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object, set_seed
from torch import Tensor
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from nl_gradient_policy_optimization.checkpoints import Checkpoints
from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.metrics import measure, measure_effect
from nl_gradient_policy_optimization.policy import PolicyScorer
from nl_gradient_policy_optimization.rewards import Batch, RewardSource
from nl_gradient_policy_optimization.rollouts import Judgement, Rollout, StepLog, micro_batches, padded, shown
from nl_gradient_policy_optimization.sampling import end_token_ids, make_sampler
from nl_gradient_policy_optimization.schedule import learning_rate_share, mixed_seed, permutation, stop_reason
from nl_gradient_policy_optimization.value_function import ValueFunction
from nl_gradient_policy_optimization.weights import load_policy, make_optimizer, save_policy, trainable_bytes
from text2grad.advantages import gae, group_advantages, total_rewards, whiten
from text2grad.errors import InputError
from text2grad.kl import KLController
from text2grad.losses import policy_kl, policy_loss, sampler_correction, value_loss
from text2grad.redaction import redacted
from text2grad.tasks import Record, Task
from text2grad.token_text import token_spans


class NLGradientTrainer:
    """Optimises a policy on prompts, against a reward source.

    Args:
        records: the prompts' records by id; every rank holds all of them.
        rewards: judges the rollouts (see ``rewards.py``); each rank has its own and judges its own share.
        accelerator: made before the model, so that DeepSpeed can shard it while loading.
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
    ):
        self.config, self.task, self.tokenizer, self.rewards = config, task, tokenizer, rewards
        self.accelerator = accelerator
        self.run = Path(config.output_dir)
        self.ids = list(records)
        self.records = records
        self.end_ids = end_token_ids(policy.model, tokenizer)
        self.scorer = policy
        optimizer = make_optimizer(policy, config)
        self.model, self.optimizer = accelerator.prepare(policy, optimizer)
        self.sampler = make_sampler(policy.model, self.model, tokenizer, self.end_ids, config, accelerator)
        self.value_function = (
            ValueFunction(policy.hidden_size, config, accelerator.device, policy.precision)
            if config.advantage == "gae"
            else None
        )
        self.kl = KLController(config.kl_coef, config.kl_target, config.kl_horizon)
        self.checkpoints = Checkpoints(self.run, config.save_total_limit, accelerator)
        self.metrics_log = StepLog(self.run / "metrics.jsonl")
        self.rollout_log = StepLog(self.run / "rollouts.jsonl")
        self.finished_steps = 0
        self.rollout_count = 0
        self.ahead: Batch | None = None  # the next step's rollouts, with ``rollouts_ahead``
        self.ahead_file = f"ahead-rank{accelerator.process_index}.pt"

    # The run

    @property
    def prompts_per_step(self) -> int:
        """Over all ranks."""
        return self.config.rollouts_per_device * self.accelerator.num_processes // self.config.rollouts_per_prompt

    @property
    def total_steps(self) -> int:
        if self.config.max_steps > 0:
            return self.config.max_steps
        return max(1, math.ceil(self.config.epochs * len(self.ids) / self.prompts_per_step))

    def train(self) -> None:
        """Run (or go on) to the last step, logging and saving on the way."""
        self.resume()
        bar = tqdm(
            range(self.finished_steps + 1, self.total_steps + 1),
            initial=self.finished_steps,
            total=self.total_steps,
            desc="policy",
            unit="step",
            disable=not self.accelerator.is_local_main_process,
        )
        for step in bar:
            metrics = self.step(step)
            bar.set_postfix(
                {
                    "δ": f"{metrics['delta/mean']:+.3f}",
                    "KL": f"{metrics[f'kl/{self.config.kl}']:.3g}",
                    "H": f"{metrics['entropy']:.2f}",
                    "spans": f"{metrics['spans/matched']:.0f}",
                }
            )
            if reason := stop_reason(self.config, metrics, self.metrics_log):
                self.accelerator.print(f"stopping: {reason}")
                self.save()
                break
            if step == self.total_steps or (self.config.save_every and step % self.config.save_every == 0):
                self.save()

    def step(self, step: int) -> dict[str, float]:
        """One cycle: rollouts, critique, scores, advantages, updates, logs."""
        seconds = dict.fromkeys(("rollout", "reference", "critique", "update"), 0.0)
        self._seed(step)
        batch = self.ahead or self.collect(step, seconds)
        more = self.config.rollouts_ahead and step < self.total_steps
        self.ahead = self.collect(step + 1, seconds) if more else None
        with _timed(seconds, "critique"):  # what is left of it, where the critic works elsewhere
            self.judge(rollouts := batch.rollouts, batch.judgements())
        self.estimate_advantages(rollouts)
        with _timed(seconds, "update"):
            update = self.update(rollouts, step)
        rescored = self.config.log_rollouts_every and (step % self.config.log_rollouts_every == 0 or step == 1)
        if rescored:
            self.rescore(rollouts)

        self.finished_steps = step
        self.rollout_count += len(rollouts) * self.accelerator.num_processes
        metrics = {"step": step, **measure(rollouts, self.config.kl, self.reduce), **update}
        if rescored:
            metrics |= measure_effect(rollouts, self.reduce)
        metrics |= {f"seconds/{phase}": spent for phase, spent in seconds.items()}
        metrics["rollouts"] = self.rollout_count
        self.kl.update(metrics[f"kl/{self.config.kl}"], len(rollouts) * self.accelerator.num_processes)
        self.log(step, metrics, rollouts, show=bool(rescored))
        return metrics

    # Rollouts

    def collect(self, step: int, seconds: dict[str, float]) -> Batch:
        """A step's rollouts, sampled and scored by the policy as it is."""
        self._seed(step)
        batch = Batch(self.rewards)
        with _timed(seconds, "rollout"):
            for rollouts in self.sample(self.prompts_of(step)):
                batch.add(rollouts)
        with _timed(seconds, "reference"):
            self.score(batch.rollouts)
        return batch

    def _seed(self, step: int) -> None:
        set_seed(mixed_seed(self.config.seed, step, self.accelerator.process_index))

    def prompts_of(self, step: int) -> list[str]:
        """The ids of this rank's prompts of a step, each repeated for its rollouts.

        The prompts stand in one endless row, shuffled anew in each pass; a step takes the next ones.
        """
        count, size = self.prompts_per_step, len(self.ids)
        chosen = []
        for position in range((step - 1) * count, step * count):
            order = permutation(size, self.config.seed, position // size)
            chosen.append(self.ids[order[position % size]])
        share = count // self.accelerator.num_processes
        mine = chosen[self.accelerator.process_index * share :][:share]
        return [record_id for record_id in mine for _ in range(self.config.rollouts_per_prompt)]

    def sample(self, record_ids: Sequence[str]) -> Iterator[list[Rollout]]:
        """Sample a response to each prompt; each batch as soon as it is sampled."""
        self.scorer.eval()
        prompts = self._prompts(record_ids)
        asked = iter(prompts)
        for responses, sampled_with in self.sampler.batches([prompt_ids for *_, prompt_ids in prompts]):
            rollouts = [self._rollout(*next(asked), response_ids) for response_ids in responses]
            for rollout, logprobs in zip(rollouts, sampled_with or (), strict=bool(sampled_with)):
                rollout.series["sampled_with"] = torch.tensor(logprobs, dtype=self.scorer.precision)
            yield rollouts
        if left := list(asked):
            raise RuntimeError(f"the sampler gave no response to {len(left)} of {len(prompts)} prompts")

    def _prompts(self, record_ids: Sequence[str]) -> list[tuple[str, str, list[int]]]:
        """Each record's id, prompt, and the policy's input."""
        return [
            (key, prompt := self.task.prompt(self.records[key]), encode_prompt(prompt, self.task, self.tokenizer))
            for key in record_ids
        ]

    def _rollout(self, record_id: str, prompt: str, prompt_ids: list[int], response_ids: list[int]) -> Rollout:
        text, spans = token_spans(response_ids, self.tokenizer)
        tokens = [
            text[start:end] if end > start else self.tokenizer.decode([token])
            for (start, end), token in zip(spans, response_ids, strict=True)
        ]
        return Rollout(
            id=record_id,
            prompt=prompt,
            record=self.records[record_id],
            prompt_ids=prompt_ids,
            response_ids=response_ids,
            response=text,
            spans=spans,
            tokens=tokens,
            finished=response_ids[-1] in self.end_ids,
        )

    def judge(self, rollouts: Sequence[Rollout], judgements: Sequence[Judgement]) -> None:
        """Give every rollout its judgement; stop where too many failed."""
        for rollout, judgement in zip(rollouts, judgements, strict=True):
            if len(judgement.rewards) != len(rollout.response_ids):
                raise RuntimeError(
                    f"{rollout.id}: {len(judgement.rewards)} rewards, {len(rollout.response_ids)} tokens"
                )
            rollout.judgement = judgement
        failed = [rollout for rollout in rollouts if not rollout.counts]
        for rollout in failed:
            tqdm.write(f"no judgement of {rollout.id}: {rollout.judgement.error}")
        count, total = self.reduce(torch.tensor([float(len(failed)), float(len(rollouts))])).tolist()
        if count > self.config.max_critic_failures * total:
            reason = failed[0].judgement.error if failed else "see the other ranks' messages"
            raise InputError(
                f"{count:.0f} of {total:.0f} critiques failed ({reason}); mend the critic {self.rewards.name!r}, or "
                "raise --max_critic_failures, and run the same command again"
            )

    @torch.no_grad()
    def score(self, rollouts: Sequence[Rollout]) -> None:
        """Log-probabilities, entropy, values and KL under the policy that sampled, before any update."""
        self.scorer.eval()
        for rows, (logprobs, entropy, hidden, ref_logprobs, kl) in self._forward_all(rollouts, self.config.kl):
            values = self.value_function.head(hidden) if self.value_function else torch.zeros_like(logprobs)
            columns = {
                "old_logprobs": logprobs,
                "entropy": entropy,
                "values": values,
                "ref_logprobs": ref_logprobs,
                "kl": kl,
            }
            for index, rollout in enumerate(rows):
                for name, column in columns.items():
                    rollout.series[name] = column[index, : len(rollout.response_ids)].cpu()

    @torch.no_grad()
    def rescore(self, rollouts: Sequence[Rollout]) -> None:
        """Log-probabilities after the update, for the log."""
        self.scorer.eval()
        for rows, (logprobs, *_) in self._forward_all(rollouts, None):
            for index, rollout in enumerate(rows):
                rollout.series["new_logprobs"] = logprobs[index, : len(rollout.response_ids)].cpu()

    def estimate_advantages(self, rollouts: Sequence[Rollout]) -> None:
        """r_t = δ_t − β·KL_t, then A_t and returns; a rollout that was not judged gets zeros."""
        mask = self._mask(rollouts)
        deltas = padded([rollout.judgement.rewards for rollout in rollouts], mask.dtype)
        rewards = total_rewards(deltas, self._column(rollouts, "kl"), self.kl.coef) * mask
        values = self._column(rollouts, "values")
        gamma, lam = self.config.gamma, self.config.lam
        advantages, returns = gae(rewards, values, mask, gamma, lam)
        if self.config.advantage == "group":
            advantages = group_advantages(rewards, mask, self.config.rollouts_per_prompt, gamma * lam)
        if self.config.whiten_advantages:
            advantages = whiten(advantages, mask, self.reduce)
        for index, rollout in enumerate(rollouts):
            length = len(rollout.response_ids)
            for name, column in (("rewards", rewards), ("advantages", advantages), ("returns", returns)):
                rollout.series[name] = column[index, :length].clone()

    # Updates

    def update(self, rollouts: list[Rollout], step: int) -> dict[str, float]:
        """``ppo_epochs`` passes of clipped PPO over the step's rollouts; returns the updates' metrics."""
        self.scorer.train()
        sums: dict[str, list[float]] = defaultdict(list)
        size = len(rollouts) // self.config.minibatches
        done = 0
        for epoch in range(self.config.ppo_epochs):
            order = permutation(len(rollouts), self.config.seed, step, epoch)
            for start in range(0, len(order), size):
                self._set_learning_rate((step - 1) * self.config.ppo_epochs * self.config.minibatches + done)
                moved = self.update_on([rollouts[index] for index in order[start : start + size]], sums)
                done += 1
            if self.config.update_kl_limit and moved > self.config.update_kl_limit:
                break
        means = {name: sum(values) / len(values) for name, values in sums.items()}
        return {**means, "lr": self.learning_rate, "updates": done, "kl/coef": self.kl.coef}

    def update_on(self, minibatch: Sequence[Rollout], sums: dict[str, list[float]]) -> float:
        """One optimiser step on a minibatch; adds its metrics to ``sums``; returns how far it is from π_old by now.

        Losses are means over the minibatch's response tokens on all ranks, so neither padding nor the way rollouts
        are dealt to ranks and micro-batches changes the gradient.
        """
        world = self.accelerator.num_processes
        tokens = float(self.reduce(self._mask(minibatch).sum()))
        if tokens == 0:
            return 0.0
        totals = torch.zeros(4, dtype=torch.float64)
        batches = micro_batches(minibatch, self.config.micro_batch_size)
        for micro_batch in batches:
            with self.accelerator.accumulate(self.model):
                loss, critic_loss, parts = self.losses(micro_batch, tokens)
                self._stop_if_broken(loss.detach() + critic_loss.detach(), micro_batch)
                # Ranks' gradients are averaged, and accumulated ones divided by their number: both undone here.
                self.accelerator.backward(loss * world * len(batches))
                if self.value_function:
                    critic_loss.backward()
                totals += parts
                if self.accelerator.sync_gradients:
                    norm = self._clip()
                self.optimizer.step()
                self.optimizer.zero_grad()
        if self.value_function:
            self.value_function.step(self.reduce)
        self._stop_if_broken(torch.tensor(norm), minibatch)
        policy, clipped, critic, moved = (self.reduce(totals) / tokens).tolist()
        sums["policy/loss"].append(policy)
        sums["policy/clip_fraction"].append(clipped)
        sums["value/loss"].append(critic)
        sums["grad_norm"].append(norm)
        return moved

    def losses(self, micro_batch: Sequence[Rollout], tokens: float) -> tuple[Tensor, Tensor, Tensor]:
        """The policy's and the value head's share of the minibatch's mean losses, and their sums for the metrics."""
        config = self.config
        logprobs, entropy, hidden = self.model(*self._inputs(micro_batch), entropy=config.entropy_coef != 0)
        mask = self._mask(micro_batch).to(logprobs)
        old, advantages, old_values, returns = (
            self._column(micro_batch, name).to(logprobs) for name in ("old_logprobs", "advantages", "values", "returns")
        )
        surrogate, clipped = policy_loss(logprobs, old, advantages, config.clip_range)
        if "sampled_with" in micro_batch[0].series:
            surrogate = surrogate * sampler_correction(old, self._column(micro_batch, "sampled_with").to(old))
        critic = torch.zeros_like(surrogate)
        if self.value_function:
            critic = value_loss(self.value_function.head(hidden), old_values, returns, config.value_clip_range)
        moved = policy_kl(logprobs, old).detach()
        loss = ((surrogate - config.entropy_coef * entropy) * mask).sum() / tokens
        critic_loss = config.value_coef * (critic * mask).sum() / tokens
        parts = torch.stack([(column * mask).sum() for column in (surrogate, clipped, critic, moved)])
        return loss, critic_loss, parts.detach().double().cpu()

    def _clip(self) -> float:
        """The norm of the policy's gradient over all ranks, before it is clipped."""
        norm = self.accelerator.clip_grad_norm_(self.model.parameters(), self.config.max_grad_norm)
        if norm is None:  # DeepSpeed has clipped and stepped already
            norm = self.model.get_global_grad_norm()
        return float(norm)

    def _set_learning_rate(self, update: int) -> None:
        total = self.total_steps * self.config.ppo_epochs * self.config.minibatches
        self.learning_rate = self.config.learning_rate * learning_rate_share(self.config, update, total)
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate

    def _stop_if_broken(self, value: Tensor, batch: Sequence[Rollout]) -> None:
        """A loss or gradient norm that is not finite, or a norm beyond reason, ends the run, batch saved."""
        if torch.isfinite(value).all() and float(value) <= self.config.stop_grad_norm:
            return
        path = self.run / f"broken-batch-{self.finished_steps + 1}-rank{self.accelerator.process_index}.pt"
        torch.save(
            [{"id": r.id, "prompt_ids": r.prompt_ids, "response_ids": r.response_ids, **r.series} for r in batch], path
        )
        raise RuntimeError(
            f"step {self.finished_steps + 1}: loss or gradient norm is {float(value)}; the batch is in {path}. "
            "The newest checkpoint is older than this step: lower --learning_rate or --clip_range and run again"
        )

    # Measures and logs

    def log(self, step: int, metrics: dict[str, float], rollouts: Sequence[Rollout], show: bool) -> None:
        rows = [rollout.row(step) for rollout in rollouts]
        rows = gather_object(rows) if self.accelerator.num_processes > 1 else rows
        self.accelerator.log({name: value for name, value in metrics.items() if name != "step"}, step=step)
        if self.accelerator.is_main_process:
            self.rollout_log.append(rows)
            self.metrics_log.append(
                [
                    {
                        name: float(f"{value:.7g}") if isinstance(value, float) else value
                        for name, value in metrics.items()
                    }
                ]
            )
            if show:
                tqdm.write(shown(rows[0]))

    # Checkpoints

    def save(self) -> None:
        """Write a checkpoint of everything the next step depends on."""
        state = {
            "rollouts": self.rollout_count,
            "kl_coef": self.kl.coef,
            "config": redacted(asdict(self.config)),
            "processes": self.accelerator.num_processes,
        }
        with self.checkpoints.write(self.finished_steps, state, 4 * trainable_bytes(self.scorer)) as folder:
            save_policy(self.accelerator, self.model, self.optimizer, folder)
            if self.value_function and self.accelerator.is_main_process:
                self.value_function.save(folder)
            if self.ahead:
                columns = zip(*((r.id, r.response_ids, r.series) for r in self.ahead.rollouts), strict=True)
                torch.save([list(column) for column in columns], folder / self.ahead_file)

    def resume(self) -> None:
        """Go on from the newest complete checkpoint, where there is one."""
        self.checkpoints.clear_partial()
        if (found := self.checkpoints.newest()) is not None:
            folder, state = found
            if state["processes"] != self.accelerator.num_processes:
                raise InputError(
                    f"{folder}: was written by {state['processes']} processes; go on with as many, or choose another "
                    "--output_dir"
                )
            load_policy(self.accelerator, self.model, self.optimizer, folder)
            if self.value_function:
                self.value_function.load(folder)
            if self.config.rollouts_ahead and (folder / self.ahead_file).exists():
                self.ahead = self._load_ahead(folder / self.ahead_file)
            self.kl.coef, self.rollout_count = state["kl_coef"], state["rollouts"]
            self.finished_steps = state["step"]
            self.accelerator.print(f"going on after step {self.finished_steps} ({folder})")
        if self.accelerator.is_main_process:
            self.metrics_log.rewind(self.finished_steps)
            self.rollout_log.rewind(self.finished_steps)
        self.accelerator.wait_for_everyone()

    def _load_ahead(self, path: Path) -> Batch:
        """The next step's rollouts as they were sampled; they are judged again."""
        batch, (ids, *columns) = Batch(self.rewards), torch.load(path, weights_only=True)
        for asked, response, series in zip(self._prompts(ids), *columns, strict=True):
            rollout = self._rollout(*asked, response)
            rollout.series = series
            batch.add([rollout])
        return batch

    # Tensors

    def reduce(self, values: Tensor) -> Tensor:
        """The sum over all ranks."""
        if self.accelerator.num_processes == 1:
            return values
        return self.accelerator.reduce(values.to(self.accelerator.device), "sum").to(values.device)

    def _forward_all(
        self, rollouts: Sequence[Rollout], kl: str | None
    ) -> Iterator[tuple[list[Rollout], tuple[Tensor, ...]]]:
        """Score rollouts in batches of similar length; every rank makes the same number of batches."""
        model = self.model if self.accelerator.distributed_type == "DEEPSPEED" else self.scorer
        for rows in micro_batches(rollouts, self.config.micro_batch_size):
            yield rows, model(*self._inputs(rows), kl=kl, entropy=kl is not None)

    def _inputs(self, rollouts: Sequence[Rollout]) -> tuple[Tensor, Tensor, Tensor]:
        """``input_ids``, ``attention_mask`` and ``response_mask`` of :class:`PolicyScorer`."""
        pad = self.tokenizer.pad_token_id
        prompts = padded([r.prompt_ids for r in rollouts], torch.long, "left", pad)
        prompt_mask = padded([[1] * len(r.prompt_ids) for r in rollouts], torch.long, "left")
        responses = padded([r.response_ids for r in rollouts], torch.long, "right", pad)
        response_mask = padded([[1] * len(r.response_ids) for r in rollouts], torch.long, "right")
        device = self.accelerator.device
        ids, mask = torch.cat([prompts, responses], 1), torch.cat([prompt_mask, response_mask], 1)
        return ids.to(device), mask.to(device), response_mask.to(device)

    def _mask(self, rollouts: Sequence[Rollout]) -> Tensor:
        """``[B, T]``: 1 on the response tokens that may move the policy."""
        return padded([[float(r.counts)] * len(r.response_ids) for r in rollouts], self.scorer.precision)

    def _column(self, rollouts: Sequence[Rollout], name: str) -> Tensor:
        return padded([rollout.series[name] for rollout in rollouts], self.scorer.precision)


def encode_prompt(prompt: str, task: Task, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The policy's input for x: the task's messages in the model's own chat template."""
    encoded = tokenizer.apply_chat_template(task.messages(prompt), add_generation_prompt=True, return_dict=True)
    return list(encoded["input_ids"])


@contextmanager
def _timed(seconds: dict[str, float], phase: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[phase] += time.perf_counter() - start
