"""A scalar reward model: one number for a whole response; and PPO's reward from it, on the last token alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from pydantic import ConfigDict
from transformers import AutoModelForSequenceClassification, PreTrainedModel, PreTrainedTokenizerBase, logging

from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.rewards import EMPTY_REWARD, shape
from nl_gradient_policy_optimization.rollouts import Rollout, RolloutFeedback, encode_prompt, padded
from text2grad.critics.reward_model.prompt import completion_ids
from text2grad.errors import InputError
from text2grad.models import (
    base_of,
    best_device,
    from_hub,
    is_adapter,
    load_tokenizer,
    model_path,
    without_cudnn_attention,
)
from text2grad.records import load_json, save_json
from text2grad.safety.schema import checked
from text2grad.tasks import Task, get_task

DESCRIPTION_FILE = "scalar_reward.json"


@dataclass
class ScalarDescription:
    """What a scalar reward model's folder says about itself (``scalar_reward.json``).

    ``mean`` and ``deviation`` of the raw scores over its training responses, computed in ``dtype``, make rewards
    comparable between models.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    task: str
    dtype: str
    mean: float
    deviation: float
    metrics: dict[str, Any] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        save_json(folder / DESCRIPTION_FILE, asdict(self))

    @classmethod
    def load(cls, folder: str | Path, task: Task) -> ScalarDescription:
        path = Path(folder) / DESCRIPTION_FILE
        if not path.is_file():
            raise InputError(f"{folder}: no scalar reward model ({DESCRIPTION_FILE} is missing); train one first")
        description = checked(cls, load_json(path), path, "train the model again")
        if description.task != task.name:
            raise InputError(f"{folder}: judges {description.task}, not {task.name}; give a model of that task")
        return description


class ScalarModel:
    """Scores responses: the reward head's output at the end of [prompt; response; end token].

    Where the end token also pads (SmolLM2), transformers takes the response's last token instead, as in training.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, task: Task, batch_size: int = 8):
        self.model, self.tokenizer, self.task, self.batch_size = model, tokenizer, task, batch_size

    def __call__(self, prompts: Sequence[str], responses: Sequence[str]) -> list[float]:
        """Raw scores, in order."""
        ids = [
            encode_prompt(prompt, self.task, self.tokenizer) + completion_ids(self.tokenizer, response)
            for prompt, response in zip(prompts, responses, strict=True)
        ]
        return self.score_ids(ids)

    @torch.no_grad()
    def score_ids(self, ids: Sequence[list[int]]) -> list[float]:
        """Raw scores of token ids, in order; batched by length."""
        scores = [0.0] * len(ids)
        order = sorted(range(len(ids)), key=lambda row: len(ids[row]))
        self.model.eval()
        for start in range(0, len(order), self.batch_size):
            rows = order[start : start + self.batch_size]
            inputs = padded([ids[row] for row in rows], torch.long, value=self.tokenizer.pad_token_id)
            mask = padded([[1] * len(ids[row]) for row in rows], torch.long)
            device = self.model.device
            logits = self.model(input_ids=inputs.to(device), attention_mask=mask.to(device), use_cache=False).logits
            for row, score in zip(rows, logits[:, 0].float().tolist(), strict=True):
                scores[row] = score
        return scores


def load_classifier(name: str, dtype: torch.dtype) -> PreTrainedModel:
    """A causal LM (or a trained scalar model's folder) with a reward head of one output."""
    path = model_path(name)
    if is_adapter(path):
        from peft import PeftModel

        if not (Path(path) / DESCRIPTION_FILE).is_file():
            raise InputError(f"{name}: is an adapter; a reward model starts from a whole model (merge it first)")
        adapted = PeftModel.from_pretrained(load_classifier(base_of(path), dtype), path)
        return adapted.merge_and_unload()
    without_cudnn_attention()
    before = logging.get_verbosity()
    logging.set_verbosity_error()  # a causal LM has no reward head: transformers would warn each time that it makes one
    try:
        return from_hub(AutoModelForSequenceClassification.from_pretrained, path, num_labels=1, dtype=dtype)
    finally:
        logging.set_verbosity(before)


def load_scalar_model(folder: str, task: Task | str) -> tuple[ScalarModel, ScalarDescription]:
    """What ``scalar_reward.py`` wrote; on the CPU, for the caller to place."""
    task = get_task(task)
    description = ScalarDescription.load(folder, task)
    tokenizer = load_tokenizer(folder)
    model = load_classifier(folder, getattr(torch, description.dtype)).requires_grad_(False)
    model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
    return ScalarModel(model, tokenizer, task), description


class ScalarRewards:
    """A :class:`~nl_gradient_policy_optimization.rewards.RewardSource`: the score, standardised, on the last token."""

    remote = False

    def __init__(self, folder: str, task: Task, config: PolicyConfig):
        self.model, self.description = load_scalar_model(folder, task)
        self.config = config
        self.name = f"scalar:{folder}"

    def __call__(self, rollouts: Sequence[Rollout]) -> list[RolloutFeedback]:
        self.model.model.to(best_device())  # only now has this rank chosen its GPU
        written = [rollout for rollout in rollouts if not rollout.blank]
        scores = iter(self.model([r.prompt for r in written], [r.response for r in written]))
        return [self._feedback(rollout, None if rollout.blank else next(scores)) for rollout in rollouts]

    def _feedback(self, rollout: Rollout, score: float | None) -> RolloutFeedback:
        if score is None:
            reward, remark = EMPTY_REWARD, "The response is empty."
        else:
            reward = (score - self.description.mean) / self.description.deviation
            remark = f"Score {score:.4g}, standardised {reward:+.3f}."
        rewards = [0.0] * (len(rollout.response_ids) - 1) + [reward]
        return shape(RolloutFeedback(rewards=rewards, critique=remark), rollout, self.config)
