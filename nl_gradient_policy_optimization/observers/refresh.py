"""A reward model that goes on learning while the policy moves away from what it was trained on.

Every ``--refresh_every`` steps the trusted critic (``--audit_critic``) annotates the latest rollouts. The reward model
then makes ``--refresh_updates`` updates: half of each batch are rollouts of this run, annotated now or before, and half
are the records that it learnt from (``--refresh_data``). Two files tell of it: ``RUN/refreshed.jsonl`` holds the
annotated rollouts, and a checkpoint's ``reward_model`` is the reward model as it was then, a folder like any other's.
"""

import random
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object, set_seed
from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
from safetensors.torch import load_file
from torch import Tensor

from nl_gradient_policy_optimization.batch import Batch
from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.observers.base import Observer
from nl_gradient_policy_optimization.rewards import CriticRewards, RewardSource
from nl_gradient_policy_optimization.rollouts import StepLog, padded
from nl_gradient_policy_optimization.schedule import mixed_seed
from nl_gradient_policy_optimization.weights import trainable, unsharded
from text2grad.critics.asking import Question, ask
from text2grad.critics.reward_model.critic import RewardModelCritic, RewardModelDescription
from text2grad.critics.reward_model.examples import NO_LOSS, encode, load_annotated, score_feedback
from text2grad.errors import InputError
from text2grad.feedback import Feedback
from text2grad.journal.checksums import save_checksums
from text2grad.models import is_adapter, load_model, portable_base_name
from text2grad.tasks import Record

REFRESHED_FILE = "refreshed.jsonl"
FOLDER, OPTIMIZER_FILE = "reward_model", "refresh.pt"
Example = dict[str, list[int]]


class Refresh(Observer):
    """Trains the critic's adapter; a reward model of whole weights gets an adapter on top of them.

    Args:
        rewards: of the reward model that rewards the policy.
        trusted: of the critic that annotates.
        records: the prompts' records by id.

    Raises:
        InputError: the critic is no reward model in this process, or the old records cannot be read.
    """

    def __init__(
        self,
        rewards: RewardSource,
        trusted: CriticRewards,
        records: dict[str, Record],
        config: PolicyConfig,
        accelerator: Accelerator,
    ):
        if not isinstance(rewards, CriticRewards) or not isinstance(rewards.critic, RewardModelCritic):
            raise InputError(f"--refresh_every needs a reward model's folder as --critic, not {config.critic}")
        self.critic, self.trusted, self.records = rewards.critic, trusted, records
        self.task = self.critic.task
        self.config, self.settings, self.accelerator = config, config.refresh, accelerator
        self.measured: dict[str, float] = {}  # of the refresh that this step began with
        self.description, self.prompt = RewardModelDescription.load(config.critic, self.task)
        self.log = StepLog(Path(config.output_dir) / REFRESHED_FILE)
        self.done = 0  # the last step that began with a refresh
        self.own: list[Example] = []  # the first ``read`` rows of the log, as far as they fit
        self.read = 0
        self.old = (
            self._encoded(load_annotated(config.refresh.refresh_data, self.task)) if config.refresh.refresh_data else []
        )
        with unsharded():
            self.model = self._adapter().to(accelerator.device)
        self.optimizer = torch.optim.AdamW(
            trainable(self.model), lr=config.refresh.refresh_learning_rate, weight_decay=0.0
        )

    def due(self, step: int) -> bool:
        """Whether this step begins with a refresh that has not been made."""
        return step > 1 and (step - 1) % self.settings.refresh_every == 0 and self.done < step

    def before_step(self, step: int) -> None:
        """Where a refresh is due: annotate, then learn, before the step's rollouts are judged."""
        run, self.measured = self.run, {}
        run.costs.seconds["refresh"] = 0.0
        if not self.due(step):
            return
        with run.costs.timed("refresh"):
            with run.pauses.droppable(run.drop, common=True):
                rows = self.latest(run.rollout_log)
                annotated = self.gathered(run.pauses.together(partial(self.annotate, rows)))
            self.measured = self.learn(step, annotated)

    def figures(self, batch: Batch) -> dict[str, float]:
        return self.measured

    def latest(self, rollouts: StepLog) -> list[dict[str, Any]]:
        """This rank's share of the run's latest rollouts: ``id``, ``response`` and ``audit`` of each.

        Args:
            rollouts: the run's log; the main process reads it.
        """
        latest: list[Any] = [None]
        if self.accelerator.is_main_process:
            rows = rollouts.latest(self.settings.refresh_records)
            latest = [[{name: row.get(name) for name in ("id", "response", "audit")} for row in rows]]
        if self.accelerator.num_processes > 1:
            broadcast_object_list(latest)
        return latest[0][self.accelerator.process_index :: self.accelerator.num_processes]

    def annotate(self, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Rollouts with the trusted critic's feedback; what it said of them in an audit is not asked again.

        Returns:
            One row for each rollout that has feedback now: ``id``, ``response``, and the task's feedback fields.
        """
        rows = [row for row in rows if row["response"].strip()]
        known: dict[int, Any] = {index: _audited(row["audit"]) for index, row in enumerate(rows) if row["audit"]}
        asked = [index for index in range(len(rows)) if index not in known]
        questions = [self._question(rows[index]) for index in asked]
        known |= dict(zip(asked, ask(self.trusted.critic, questions, self.trusted.complete), strict=True))
        return [
            {"id": row["id"], "response": row["response"], **self.task.fields.to_dict(given)}
            for index, row in enumerate(rows)
            if isinstance(given := known[index], Feedback) and (given.critique or not self.task.fields.with_critique)
        ]

    def gathered(self, annotated: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The annotated rollouts of all ranks, on every rank."""
        annotated = gather_object(annotated) if self.accelerator.num_processes > 1 else annotated
        if not annotated:
            raise InputError(
                f"--audit_critic {self.config.audit.audit_critic}: gave no feedback on any of the latest rollouts"
            )
        return annotated

    def _question(self, row: dict[str, Any]) -> Question:
        record = self.records[row["id"]]
        return Question(self.task.prompt(record), row["response"], self.task.with_response(record, row["response"]))

    def learn(self, step: int, annotated: Sequence[dict[str, Any]]) -> dict[str, float]:
        """Make the updates, and let the critic judge by the new weights; returns the refresh's metrics."""
        set_seed(mixed_seed(self.config.seed, step, 0))
        if self.accelerator.is_main_process:
            self.log.append([{"step": step, **row} for row in annotated])
        self.accelerator.wait_for_everyone()
        rows = self.log.rows()
        self.own += self._encoded({str(index): self._record(row) for index, row in enumerate(rows[self.read :])})
        self.read = len(rows)
        if not self.own:
            raise InputError("--refresh_every: none of the annotated rollouts fits the reward model's lengths")
        draw, size = random.Random(f"{self.config.seed} {step}"), self.settings.refresh_batch_size
        self.model.train()
        losses = []
        for _ in range(self.settings.refresh_updates):
            old = draw.choices(self.old, k=size // 2) if self.old else []
            losses.append(self._update(old + draw.choices(self.own, k=size - len(old))))
        self.done = step
        self._use()
        return {"refresh/records": float(len(annotated)), "refresh/loss": sum(losses) / len(losses)}

    def _update(self, batch: Sequence[Example]) -> float:
        """One update on the batch, of which each rank takes its share; returns the mean loss of a token of z."""
        tokens = sum(label != NO_LOSS for example in batch for label in example["labels"])
        mine = sorted(batch, key=lambda example: len(example["labels"]))
        mine = mine[self.accelerator.process_index :: self.accelerator.num_processes]
        total = torch.zeros(1, dtype=torch.float64)
        for start in range(0, len(mine), self.config.micro_batch_size):
            inputs = self._inputs(mine[start : start + self.config.micro_batch_size])
            loss = score_feedback(self.model, inputs).loss / tokens
            loss.backward()
            total += loss.detach().double().cpu()
        for weight in trainable(self.model):
            gradient = torch.zeros_like(weight) if weight.grad is None else weight.grad
            weight.grad = self.run.reduce(gradient)
        torch.nn.utils.clip_grad_norm_(trainable(self.model), self.config.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(self.run.reduce(total))

    def _inputs(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        ids = padded([example["input_ids"] for example in examples], torch.long)
        mask = padded([[1] * len(example["input_ids"]) for example in examples], torch.long)
        labels = padded([example["labels"] for example in examples], torch.long, value=NO_LOSS)
        columns = {"input_ids": ids, "attention_mask": mask, "labels": labels}
        return {name: column.to(self.accelerator.device) for name, column in columns.items()}

    def _encoded(self, records: Any) -> list[Example]:
        return encode(records, self.task, self.critic.prompt, self.critic.max_length).examples

    def _record(self, row: dict[str, Any]) -> Record:
        record = self.task.with_response(self.records[row["id"]], row["response"])
        return {**record, **{name: value for name, value in row.items() if name not in ("step", "id", "response")}}

    def _adapter(self) -> Any:
        """The reward model, with an adapter whose weights can be trained."""
        folder = self.config.critic
        model: Any = load_model(folder, trainable=True)
        if not is_adapter(folder):
            model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"))
            model.peft_config["default"].base_model_name_or_path = portable_base_name(folder)
        return model

    def _use(self) -> None:
        """Let the critic judge by the adapter as it is now."""
        self.model.eval()
        self.critic.decoder.use(deepcopy(self.model).merge_and_unload().requires_grad_(False))

    # Checkpoints

    def save(self, folder: Path) -> None:
        """The reward model as a folder of stage 2's, and what its training goes on from."""
        target = folder / FOLDER
        self.model.save_pretrained(target)
        self.critic.prompt.tokenizer.save_pretrained(target)
        save_checksums(target)
        self.description.save(target, self.prompt)
        torch.save({"optimizer": self.optimizer.state_dict(), "done": self.done}, folder / OPTIMIZER_FILE)

    def load(self, folder: Path, state: Mapping[str, Any]) -> None:
        """The inverse of :meth:`save`, bit for bit."""
        set_peft_model_state_dict(self.model, load_file(folder / FOLDER / "adapter_model.safetensors"))
        saved = torch.load(folder / OPTIMIZER_FILE, weights_only=True)
        self.optimizer.load_state_dict(saved["optimizer"])
        self.done = saved["done"]
        if self.done:
            self._use()

    def rewind(self, finished: int) -> None:
        """Drop the annotations of refreshes that a checkpoint of so many steps does not have."""
        self.log.rewind(max(finished, self.done))


def _audited(audit: dict[str, Any]) -> Feedback | None:
    """What the trusted critic said in an audit, from the rollout's row; None where it failed."""
    if audit["error"] is not None:
        return None
    whole = {"missing": audit.get("missing", []), "score": audit.get("verdict")}
    return Feedback(audit["critique"], audit["good"], audit["poor"], **whole)
