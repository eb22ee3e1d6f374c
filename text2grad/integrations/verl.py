"""Text2Grad's token rewards in verl (written for 0.9): a reward manager, and the seam that verl does not have.

    VERL_USE_EXTERNAL_MODULES=text2grad.integrations.verl python -m verl.trainer.main_ppo \\
        algorithm.adv_estimator=gae reward.reward_manager.name=text2grad \\
        +text2grad.critic=served:http://HOST:8765 +text2grad.task=slf5k ...

The variable makes every process of verl import this module. Importing it registers the manager, and it puts the
rewards on their tokens where verl itself would write one number on the last token. ``text2grad.critic`` is any critic's
spec. A served one keeps models, and their version of transformers, out of verl's processes.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Sequence
from typing import Any

import torch
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, AgentLoopWorker
from verl.experimental.reward_loop.reward_manager import register
from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase

from text2grad.errors import InputError
from text2grad.integrations.core import TokenFeedback, TokenJudge, prompt_and_record

KEY = "text2grad_token_rewards"
"""The rewards in a sample's ``reward_extra_info``: a JSON list, since verl makes an array of each field's values."""

SUMMED = (
    "grpo", "grpo_vectorized", "grpo_passk", "gdpo", "reinforce_plus_plus_baseline", "rloo", "rloo_vectorized", "opo",
    "gpg",
)  # fmt: skip
"""Estimators that add a response's token rewards up. Of ±1 per token that makes a score that favours length."""

_LAST_TOKEN = (
    (AgentLoopOutput, "as_dict", "rm_scores[-1] = reward_score"),
    (AgentLoopWorker, "_postprocess", "rm_scores[torch.arange(response_mask.size(0)), response_length] ="),
)
"""Where verl writes a score on the last token, and the line that does it."""


class TokenScore(float):
    """The sum of a response's rewards, as verl wants it, that still knows them one by one."""

    rewards: list[float]

    def __new__(cls, rewards: Sequence[float]) -> TokenScore:
        score = super().__new__(cls, sum(rewards))
        score.rewards = list(rewards)
        return score

    def __reduce__(self) -> tuple:
        return TokenScore, (self.rewards,)


@register("text2grad")
class Text2GradRewardManager(RewardManagerBase):
    """Feedback on one rollout at a time, in batches of the rollouts that finish about the same time."""

    def __init__(self, config: Any, tokenizer: Any, compute_score: Any = None, **_: Any):
        super().__init__(config, tokenizer, compute_score)
        settings = config.get("text2grad") or {}
        if not settings.get("critic"):
            raise InputError("+text2grad.critic: names no critic; give a critic's spec, and +text2grad.task its task")
        estimator = str(config.algorithm.adv_estimator)
        if estimator in SUMMED:
            raise InputError(
                f"algorithm.adv_estimator={estimator}: adds the token rewards of a response up, so their places would "
                "be lost and long responses favoured; use gae or reinforce_plus_plus"
            )
        self.judge = TokenJudge(
            settings["critic"], settings.get("task", "plain"), tokenizer, scheme=settings.get("scheme", "uniform")
        )

    async def run_single(self, data: Any) -> dict[str, Any]:
        """``reward_score`` and, in ``reward_extra_info``, the rewards of one response and what was said about it."""
        item = data[-1]
        responses = item.batch["responses"]
        count = int(item.batch["attention_mask"][-responses.shape[-1] :].sum())
        row = {**(item.non_tensor_batch.get("extra_info") or {}), "prompt": list(item.non_tensor_batch["raw_prompt"])}
        prompt, record = prompt_and_record(row, self.judge.task)
        found = await self.judge.one(prompt, responses[:count].tolist(), record)
        return {"reward_score": TokenScore(found.rewards), "reward_extra_info": extra_info(found)}

    @classmethod
    def assemble_rm_scores(cls, data: Any, scores: Sequence[TokenScore]) -> torch.Tensor:
        """``[B, T]`` of a batch that was scored after sampling (a colocated reward model's path)."""
        rm_scores = torch.zeros_like(data.batch["responses"], dtype=torch.float32)
        for row, score in zip(rm_scores, scores, strict=True):
            row[: len(score.rewards)] = torch.tensor(score.rewards)
        return rm_scores


def extra_info(found: TokenFeedback) -> dict[str, Any]:
    """What verl logs with the score; the same fields for every sample."""
    return {
        KEY: json.dumps(found.rewards),
        "text2grad_critique": found.feedback.critique if found.feedback else "",
        "text2grad_failed": float(found.failed),
        "text2grad_error": found.error,
    }


def token_rewards_of(extra_fields: dict[str, Any]) -> list[float] | None:
    """The rewards that the manager gave to a sample; None where another manager scored it."""
    info = extra_fields.get("reward_extra_info") or {}
    return json.loads(info[KEY]) if KEY in info else None


def lay_on_tokens() -> None:
    """Make verl's two places that write a score on the last token write the rewards on all of them.

    Raises:
        InputError: this version of verl has other code there.
    """
    if getattr(AgentLoopOutput.as_dict, "lays_token_rewards", False):
        return
    for kind, name, line in _LAST_TOKEN:
        if line not in inspect.getsource(getattr(kind, name)):
            from verl import __version__

            raise InputError(f"verl {__version__}: {kind.__name__}.{name} has changed; this adapter knows verl 0.9")
    AgentLoopOutput.as_dict = _one_output(AgentLoopOutput.as_dict)
    AgentLoopWorker._postprocess = _batch_of_outputs(AgentLoopWorker._postprocess)


def _one_output(as_dict: Any) -> Any:
    @functools.wraps(as_dict)
    def wrapped(self: Any) -> dict[str, Any]:
        output = as_dict(self)
        rewards = token_rewards_of(self.extra_fields)
        if rewards is not None and "rm_scores" in output:
            output["rm_scores"] = _laid(rewards, output["rm_scores"], len(self.response_ids))
        return output

    wrapped.lays_token_rewards = True  # type: ignore[attr-defined]
    return wrapped


def _batch_of_outputs(postprocess: Any) -> Any:
    @functools.wraps(postprocess)
    def wrapped(self: Any, inputs: Sequence[Any], *args: Any, **options: Any) -> Any:
        data = postprocess(self, inputs, *args, **options)
        if "rm_scores" in data.batch.keys():  # noqa: SIM118 (a TensorDict iterates over its rows)
            for row, output in enumerate(inputs):
                rewards = token_rewards_of(output.extra_fields)
                if rewards is not None:
                    count = int(output.attention_mask[0, -output.response_ids.shape[1] :].sum())
                    data.batch["rm_scores"][row] = _laid(rewards, data.batch["rm_scores"][row], count)
        return data

    return wrapped


def _laid(rewards: Sequence[float], like: torch.Tensor, count: int) -> torch.Tensor:
    """``[T]`` with the rewards at its beginning; zeros for an earlier turn, which was not what the critic read."""
    laid = torch.zeros_like(like)
    if len(rewards) == count:
        laid[:count] = torch.tensor(rewards)
    return laid


lay_on_tokens()
