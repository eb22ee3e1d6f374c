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

import math
from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from nl_gradient_policy_optimization import weights
from nl_gradient_policy_optimization.batch import Batch
from nl_gradient_policy_optimization.checkpoints import Checkpoints
from nl_gradient_policy_optimization.collector import Collector
from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.costs import StepCosts
from nl_gradient_policy_optimization.learner import Learner
from nl_gradient_policy_optimization.observers.base import Observer
from nl_gradient_policy_optimization.observers.metrics import shown_figures
from nl_gradient_policy_optimization.pauses import Pauses
from nl_gradient_policy_optimization.policy import PolicyScorer
from nl_gradient_policy_optimization.rewards import PendingRollouts, RewardSource, check_failures
from nl_gradient_policy_optimization.rollouts import (
    METRICS_FILE,
    ROLLOUTS_FILE,
    RolloutFeedback,
    StepLog,
    rounded,
    shown,
)
from nl_gradient_policy_optimization.run_record import changed_at
from nl_gradient_policy_optimization.schedule import total_steps
from text2grad.advantages import total_rewards
from text2grad.errors import InputError, Interrupted
from text2grad.journal.run_folder import RUN_FILE
from text2grad.losses.kl import KLController
from text2grad.prompts import POLICY_PROMPT, load_prompt
from text2grad.records import load_json, save_text
from text2grad.safety.redaction import redacted
from text2grad.tasks import Record, Task


class NLGradientTrainer:
    """Optimises a policy on prompts, against a reward source.

    Args:
        records: the prompts' records by id; every rank holds all of them.
        rewards: gives the rollouts their feedback (see ``rewards.py``); each rank has its own, for its own share.
        accelerator: made before the model, so that DeepSpeed can shard it while loading.
        observers: they measure, in this order.
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
        observers: Sequence[Observer],
    ):
        self.config, self.task, self.tokenizer = config, task, tokenizer
        self.words = load_prompt(config.words, ("prompt",)).text if config.words else ""  # that ask this policy
        self.rewards, self.accelerator, self.checkpoints = rewards, accelerator, checkpoints
        self.run = Path(config.output_dir)
        self.costs = StepCosts()
        self.algorithm = copy(config.algorithm)  # it keeps this run's state
        self.learner = Learner(config, self.algorithm, policy, accelerator, self.costs)
        self.reduce = self.learner.reduce  # the sum over all ranks
        self.collector = Collector(task, tokenizer, records, rewards, self.learner)
        self.kl = KLController(config.kl_coef, config.kl_target, config.kl_horizon)
        self.metrics_log = StepLog(self.run / METRICS_FILE)
        self.rollout_log = StepLog(self.run / ROLLOUTS_FILE)
        self.pauses = Pauses(accelerator)
        self.finished_steps = self.saved_steps = self.rollout_count = 0
        self.ahead: PendingRollouts | None = None  # the next step's rollouts, with ``rollouts_ahead``
        self.ahead_file = f"ahead-rank{accelerator.process_index}.pt"
        self.algorithm.begin(self)
        self.observers: list[Observer] = []
        for observer in observers:
            self.watch(observer)

    def watch(self, observer: Observer) -> None:
        """Let one more observer watch the run."""
        self.observers.append(observer)
        observer.begin(self)

    @property
    def total_steps(self) -> int:
        return total_steps(self.config, len(self.collector.ids), self.accelerator.num_processes)

    # The run

    def train(self) -> None:
        """Run (or go on) to the last step, logging and saving on the way."""
        self.resume()
        if self.finished_steps and (reason := self.stop_reason()):  # as the last call of this run did
            self.accelerator.print(f"stopped: {reason}")
            return
        steps = range(self.finished_steps + 1, self.total_steps + 1)
        quiet = not self.accelerator.is_local_main_process
        bar = tqdm(steps, "policy", self.total_steps, unit="step", disable=quiet, initial=self.finished_steps)
        with self.pauses:
            for step in bar:
                metrics = self.step(step)
                bar.set_postfix(shown_figures(metrics, self.config))
                reason, asked = self.stop_reason(), self.pauses.asked_anywhere()
                due = step == self.total_steps or (self.config.save_every and step % self.config.save_every == 0)
                if due or reason or asked:
                    self.save()
                if asked:
                    raise Interrupted(asked)
                if reason:
                    self.accelerator.print(f"stopping: {reason}")
                    break

    def judged_rows(self) -> list[dict[str, Any]]:
        """The metrics that limits judge: of the steps since the settings were last changed."""
        steps = [change["from_step"] for change in load_json(self.run / RUN_FILE).get("changes", [])]
        return [row for row in self.metrics_log.rows() if row["step"] >= max(steps, default=1)]

    def stop_reason(self) -> str:
        """Why an observer ends the run after the last step; the main process says it, which alone has the logs."""
        found = [""]
        if self.accelerator.is_main_process:
            found = [next(filter(None, (observer.stop_reason() for observer in self.observers)), "")]
        return broadcast_object_list(found)[0]

    def step(self, step: int) -> dict[str, float]:
        """One step of algorithm 4, logged; returns its metrics."""
        self.costs.begin()
        self._ahead_before = self.ahead
        self.collector.seed(step)
        # 1 rollouts, 2 feedback: nothing of the run changes, so what is cut short here is done again
        with self.pauses.droppable(self.drop, common=False):
            pending = self.take_rollouts(step)
        with self.pauses.droppable(self.drop, common=True):
            batch = self.algorithm.on_batch(self.take_feedback(pending))
        # 3 token rewards, 4 advantages
        self.credit(batch)
        # 5 updates
        updates = self.learner.update(self.algorithm.to_learn(batch), step, self.total_steps)
        return self.finish(step, batch, updates)

    def drop(self) -> None:
        """Keep the steps before one that will not be finished, and the rollouts that were sampled ahead for it."""
        self.ahead = self._ahead_before
        self.save()

    # 1 rollouts

    def take_rollouts(self, step: int) -> PendingRollouts:
        """The step's rollouts; with ``rollouts_ahead`` the next step's are sampled now as well."""
        pending = self.ahead or self.collector.collect(step)
        sample_ahead = self.config.rollouts_ahead and step < self.total_steps
        self.ahead = self.collector.collect(step + 1) if sample_ahead else None
        return pending

    # 2 feedback

    def take_feedback(self, pending: PendingRollouts) -> Batch:
        """The rollouts with their feedback; for a remote critic this is the wait."""
        with self.costs.timed("critique"):
            self.receive(pending.batch, self.pauses.together(pending.feedback))
        return pending.batch

    def receive(self, batch: Batch, feedback: Sequence[RolloutFeedback]) -> None:
        """Give every rollout its feedback, and stop where too much of it failed."""
        self.costs.count(critiques=sum(not rollout.blank for rollout in batch.rollouts))
        for rollout, given in zip(batch.rollouts, feedback, strict=True):
            if len(given.rewards) != len(rollout.response_ids) or not all(map(math.isfinite, given.rewards)):
                raise RuntimeError(
                    f"{rollout.id}: {self.rewards.name} gave {len(given.rewards)} rewards for "
                    f"{len(rollout.response_ids)} tokens, or one that is not finite"
                )
            if given.error is not None:
                tqdm.write(f"no feedback on {rollout.id}: {given.error}")
        batch.receive(feedback)
        check_failures(feedback, self.config, self.rewards.name, self.reduce)

    # 3 token rewards, 4 advantages

    def credit(self, batch: Batch) -> Batch:
        """What each token earns, which is 0 in a rollout without feedback, and its advantage."""
        earned = self.algorithm.token_rewards(batch)
        batch.rewards = total_rewards(earned, batch.kl, self.kl.coef) * batch.mask
        batch.advantages, batch.returns = self.algorithm.advantages(batch), self.algorithm.returns(batch)
        return batch

    # Measures and logs

    def finish(self, step: int, batch: Batch, updates: dict[str, float]) -> dict[str, float]:
        """Measure and log a step whose updates are made."""
        every = self.config.log_rollouts_every
        rescored = bool(every) and (step % every == 0 or step == 1)
        if rescored:
            batch.new_logprobs = self.learner.forward(batch)["logprobs"]
        responses = len(batch) * self.accelerator.num_processes
        self.finished_steps, self.rollout_count = step, self.rollout_count + responses
        metrics: dict[str, float] = {"step": step, **updates, "kl/coef": self.kl.coef, **self.algorithm.figures(batch)}
        for observer in self.observers:
            metrics |= observer.figures(batch)
        metrics |= self.costs.ledger(self.reduce)
        metrics |= {f"seconds/{phase}": spent for phase, spent in self.costs.seconds.items()}
        metrics["rollouts"] = self.rollout_count
        self.kl.update(metrics[f"kl/{self.config.kl}"], responses)
        rows = gather_object(batch.log_rows(step))
        self.accelerator.log({name: value for name, value in metrics.items() if name != "step"}, step=step)
        if self.accelerator.is_main_process:
            self.rollout_log.append(rows)
            self.metrics_log.append([{name: rounded(value) for name, value in metrics.items()}])
            if rescored:
                tqdm.write(shown(rows[0]))
        return metrics

    # Checkpoints

    def save(self) -> None:
        """Write a checkpoint of everything the next step depends on, unless there is one."""
        if self.finished_steps == self.saved_steps:
            return
        learner = self.learner
        state = {
            "rollouts": self.rollout_count,
            "kl_coef": self.kl.coef,
            "config": redacted(self.config.flat()),
            "processes": self.accelerator.num_processes,
            "rows": {log.path.name: log.count for log in (self.metrics_log, self.rollout_log)},
            "ledger": self.costs.spent,
        }
        times = 2 if self.config.optimizer == "adafactor" else 8 if self.config.deepspeed else 5
        size = times * weights.trainable_bytes(learner.scorer)
        with self.checkpoints.write(self.finished_steps, state, size) as folder:
            weights.save_policy(self.accelerator, learner.model, learner.optimizer, folder)
            if self.accelerator.is_main_process:
                self.save_beside(folder / "policy")
                if learner.value_function:
                    learner.value_function.save(folder)
                self.algorithm.save(folder)
            if self.ahead:
                torch.save(self.ahead.state(), folder / self.ahead_file)
        self.keep_policy()
        self.saved_steps = self.finished_steps

    def save_beside(self, policy: Path) -> None:
        """Into a policy's folder, what it is asked by: the words that it learnt, and its tokenizer."""
        if self.words:
            save_text(policy / POLICY_PROMPT, self.words)
        self.tokenizer.save_pretrained(policy)  # an adapter's, too: its base may have none, and it may be moved

    def keep_policy(self) -> None:
        """Keep the policy of the newest checkpoint, which will be deleted."""
        if self.config.keeps_policies and self.accelerator.is_main_process:
            weights.keep_policy(self.run, self.finished_steps)

    def resume(self) -> None:
        """Go on from the newest whole checkpoint, where there is one."""
        damaged = self.checkpoints.set_aside()
        rows: dict[str, int] = {}
        if (found := self.checkpoints.newest()) is not None:
            (folder, state), learner = found, self.learner
            if state["processes"] != self.accelerator.num_processes:
                raise InputError(
                    f"{folder}: was written by {state['processes']} processes; go on with as many, or choose another "
                    "--output_dir"
                )
            weights.load_policy(self.accelerator, learner.model, learner.optimizer, folder)
            for group in learner.optimizer.param_groups:
                group["weight_decay"] = self.config.weight_decay  # a changed one; each update sets the rate
            if learner.value_function:
                learner.value_function.load(folder)
            self.algorithm.load(folder)
            self.costs.spent |= state.get("ledger", {})
            changed = changed_at(load_json(self.run / RUN_FILE), state["step"] + 1)  # rollouts ahead are of before
            if self.config.rollouts_ahead and not changed and (folder / self.ahead_file).exists():
                self.ahead = self.collector.load_ahead(folder / self.ahead_file)
            if state["config"]["kl_coef"] == self.config.kl_coef:
                self.kl.coef = state["kl_coef"]
            self.rollout_count = state["rollouts"]
            rows = {} if self.config.allow_changed else state.get("rows", {})
            self.finished_steps = self.saved_steps = state["step"]
            self.keep_policy()  # a kill may have come between the two
            self.accelerator.print(f"going on after step {self.finished_steps} ({folder})")
        if self.accelerator.is_main_process:
            for log in (self.metrics_log, self.rollout_log):
                log.rewind(self.finished_steps, bool(damaged), rows.get(log.path.name))
        self.accelerator.wait_for_everyone()
