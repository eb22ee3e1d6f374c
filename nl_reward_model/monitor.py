"""What training shows of itself: feedback on validation records, and checkpoints that describe themselves."""

import json
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState
from trl import SFTTrainer

from nl_reward_model.card import reward_model_card
from nl_reward_model.config import RewardModelConfig
from nl_reward_model.data import spread
from text2grad.critics.reward_model.critic import RewardModelCritic, RewardModelDescription
from text2grad.critics.reward_model.prompt import RewardPrompt
from text2grad.feedback import Feedback
from text2grad.grounding import ground
from text2grad.records import Records, save_text


class Monitor(TrainerCallback):
    """Writes feedback on the same few validation records at every evaluation, and describes every checkpoint."""

    trainer: SFTTrainer
    best_step: int | None = None
    """Whose weights are in memory, once training has ended and loaded the best."""

    def __init__(
        self, description: RewardModelDescription, prompt: RewardPrompt, validation: Records, config: RewardModelConfig
    ):
        self.description, self.prompt, self.config = description, prompt, config
        chosen = spread(description.data["validation_ids"], config.feedback_records)
        self.records = {record_id: validation[record_id] for record_id in chosen}
        self._last_step = -1

    def on_evaluate(self, args, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        """All ranks work on the same records: under ZeRO-3 each forward pass needs every rank."""
        step = self.best_step or state.global_step
        if not self.records or self._last_step == step:
            return
        self._last_step = step
        records, task = list(self.records.values()), self.prompt.task
        prompts, responses = [*map(task.prompt, records)], [*map(task.response, records)]
        model = self.trainer.model
        critic = RewardModelCritic(
            model,
            self.prompt,
            name="in training",
            max_length=self.config.max_length,
            max_new_tokens=self.description.max_new_tokens,
            batch_size=self.config.feedback_batch_size,
            examples=self.description.examples,
            device=self.trainer.accelerator.device,
        )
        was_training = model.training
        model.eval()
        with self.trainer.accelerator.autocast():
            texts = critic.write(prompts, responses, records)
        model.train(was_training)
        parsed = [critic.parse(text) for text in texts]
        metrics = feedback_metrics(parsed, responses)
        rows = [
            {"id": record_id, "prediction": str(text), "parse_error": None if isinstance(item, Feedback) else str(item)}
            for record_id, text, item in zip(self.records, texts, parsed, strict=True)
        ]
        if state.is_world_process_zero:
            path = Path(args.output_dir) / "feedback" / f"step-{step:06d}.jsonl"
            save_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        self.trainer.log({f"eval_feedback_{name}": value for name, value in metrics.items()})

    def on_save(self, args, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        """Written last, so that a checkpoint with a description is a whole one."""
        self.trainer.accelerator.wait_for_everyone()
        if state.is_world_process_zero:
            self.description.metrics = self.metrics(state)
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            card = reward_model_card(self.description, self.prompt.prompt, self.config.lora)
            save_text(folder / "README.md", card)
            self.description.save(folder, self.prompt.prompt)

    def metrics(self, state: TrainerState) -> dict[str, Any]:
        """The latest value of each figure of validation, and the mean training loss of all steps logged so far."""
        latest: dict[str, Any] = {"step": state.global_step}
        logged, losses = 0, 0.0  # the trainer's own mean begins where it was last resumed
        for row in state.log_history:
            if "loss" in row:
                losses += row["loss"] * (row["step"] - logged)
                logged = row["step"]
                latest["train_loss"] = losses / logged
            elif "train_loss" in row and not logged:  # too short a training to log a step
                latest["train_loss"] = row["train_loss"]
            if "eval_feedback_parse_rate" in row:  # where none can be read, earlier quotes are not shown instead
                latest = {name: value for name, value in latest.items() if not name.startswith("eval_feedback_")}
            for name, value in row.items():
                if name.startswith(("eval_loss", "eval_mean_token_accuracy", "eval_feedback_")):
                    latest[name] = value
        return latest | ({"best_step": self.best_step} if self.best_step else {})


def feedback_metrics(parsed: list, responses: list[str]) -> dict[str, float]:
    """Share of texts that parse, quotes in each, and the share of quotes that are nowhere in their response."""
    pairs = [(item, response) for item, response in zip(parsed, responses, strict=True) if isinstance(item, Feedback)]
    quotes = [(quote, response) for item, response in pairs for quote in [*item.good, *item.poor]]
    metrics = {"parse_rate": len(pairs) / len(parsed)}
    if pairs:
        metrics["quotes"] = len(quotes) / len(pairs)
    if quotes:
        metrics["unmatched_rate"] = sum(not ground(quote, response) for quote, response in quotes) / len(quotes)
    return metrics
