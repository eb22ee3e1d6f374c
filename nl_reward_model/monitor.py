"""What training shows of itself: judgements of validation records, and checkpoints that explain themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState
from trl import SFTTrainer

from nl_reward_model.config import RewardModelConfig
from nl_reward_model.data import spread
from text2grad.critics.reward_model.critic import RewardModelCritic, RewardModelDescription
from text2grad.critics.reward_model.prompt import RewardPrompt
from text2grad.feedback import Feedback
from text2grad.grounding import ground
from text2grad.records import Records, save_text


class Monitor(TrainerCallback):
    """Judges the same few validation records at every evaluation, and describes every checkpoint."""

    trainer: SFTTrainer

    def __init__(
        self, description: RewardModelDescription, prompt: RewardPrompt, validation: Records, config: RewardModelConfig
    ):
        self.description, self.prompt, self.config = description, prompt, config
        chosen = spread(description.data["validation_ids"], config.judge_records)
        self.records = {record_id: validation[record_id] for record_id in chosen}
        self._judged_step = -1

    def on_evaluate(self, args, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        """All ranks judge the same records, for under ZeRO-3 each forward pass needs them all."""
        if not self.records or self._judged_step == state.global_step:
            return
        self._judged_step = state.global_step
        task, records = self.prompt.task, list(self.records.values())
        model = self.trainer.model
        critic = RewardModelCritic(
            model,
            self.prompt,
            name="in training",
            max_length=self.config.max_length,
            max_new_tokens=self.description.max_new_tokens,
            batch_size=self.config.judge_batch_size,
            examples=self.description.examples,
            device=self.trainer.accelerator.device,
        )
        was_training = model.training
        model.eval()
        with self.trainer.accelerator.autocast():
            texts = critic.write(
                [task.prompt(record) for record in records], [task.response(record) for record in records]
            )
        model.train(was_training)
        judged = [critic.parse(text) for text in texts]
        metrics = judgement_metrics(judged, [task.response(record) for record in records])
        rows = [
            {"id": record_id, "prediction": str(text), "parse_error": None if isinstance(item, Feedback) else str(item)}
            for record_id, text, item in zip(self.records, texts, judged, strict=True)
        ]
        if state.is_world_process_zero:
            path = Path(args.output_dir) / "judgements" / f"step-{state.global_step:06d}.jsonl"
            save_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        self.trainer.log({f"eval_judge_{name}": value for name, value in metrics.items()})

    def on_save(self, args, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        """Written last, so that a checkpoint with a description is a whole one."""
        self.trainer.accelerator.wait_for_everyone()
        if state.is_world_process_zero:
            self.description.metrics = self.metrics(state)
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            self.description.save(folder, self.prompt.prompt)

    def metrics(self, state: TrainerState) -> dict[str, Any]:
        """The latest value of each figure of training and validation."""
        latest: dict[str, Any] = {"step": state.global_step}
        for row in state.log_history:
            for name, value in row.items():
                if name in {"train_loss", "eval_loss", "eval_mean_token_accuracy"} or name.startswith("eval_judge_"):
                    latest[name] = value
        if state.best_metric is not None:
            latest["best_step"] = state.best_global_step
        return latest


def judgement_metrics(judged: list, responses: list[str]) -> dict[str, float]:
    """Share of judgements that parse, quotes in each, and the share of quotes that are nowhere in their response."""
    pairs = [(item, response) for item, response in zip(judged, responses, strict=True) if isinstance(item, Feedback)]
    quotes = [(quote, response) for item, response in pairs for quote in [*item.good, *item.poor]]
    metrics = {"parse_rate": len(pairs) / len(judged)}
    if pairs:
        metrics["quotes"] = len(quotes) / len(pairs)
    if quotes:
        metrics["unmatched_rate"] = sum(not ground(quote, response) for quote, response in quotes) / len(quotes)
    return metrics
