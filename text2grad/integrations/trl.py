"""Text2Grad in TRL: GRPO with an advantage per token.

    trainer = TokenGRPOTrainer(model, critic="programmatic", task="slf5k", args=GRPOConfig(...), train_dataset=...)

Written for TRL 1.16. It overrides what TRL keeps for subclasses, and refuses settings that do not go with that. TRL
does not plan advantages per token (its issue 7182), so :func:`check_seam` looks whether they still reach the loss.
:func:`verdict_reward` is the way that needs no seam: a reward function, one number per response.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from trl import GRPOTrainer
from trl import __version__ as version

from text2grad.advantages import group_advantages
from text2grad.critics import Critic
from text2grad.errors import InputError, StopRunError
from text2grad.integrations.core import TokenFeedback, TokenJudge, critic_of, prompt_and_record
from text2grad.tasks import Task
from text2grad.token_rewards import Scheme

_SEAM = {"_generate_and_score_completions": '"advantages": advantages', "_compute_loss": "if advantages.dim() == 1"}
"""Methods that we override or rely on, and a line of each: with another one, advantages may not mean the same."""


def check_seam() -> None:
    """Refuse a TRL whose code has changed where an advantage per token goes in.

    Raises:
        InputError: with what to do.
    """
    for name, line in _SEAM.items():
        method = getattr(GRPOTrainer, name, None)
        if method is None or line not in inspect.getsource(method):
            raise InputError(
                f"TRL {version}: GRPOTrainer.{name} has changed, so TokenGRPOTrainer cannot be sure of its advantages; "
                "install trl==1.16.0, or use reward_funcs=verdict_reward(critic, task), or stage 3 (text2grad train), "
                "which needs no TRL trainer"
            )


class TokenGRPOTrainer(GRPOTrainer):
    """GRPO whose advantages come from quotes: one per token, against the other rollouts of the prompt.

    Everything of TRL's stays: sampling, losses, logs, checkpoints. There is no value head.

    Args:
        critic, task, scheme: who gives feedback, whose label values count, and how a span's reward spreads
            (:class:`~text2grad.integrations.core.TokenJudge`). A row of the data set that has the task's fields is
            the critic's record, and its ``prompt``, where it has none, is what the task asks.
        discount: γλ of :func:`~text2grad.advantages.group_advantages`.
        outcome_weight: how much of GRPO's own advantage, from ``reward_funcs``, is added to each token's.
        max_failures: the run stops when more than this share of a batch has no feedback.
        critic_options: for a critic that ``critic`` names, or for its class, such as ``batch_size``.
    """

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        *args: Any,
        critic: Critic | str | Any,
        task: Task | str = "plain",
        scheme: Scheme = "uniform",
        discount: float = 0.95,
        outcome_weight: float = 0.0,
        max_failures: float = 0.5,
        critic_options: dict[str, Any] | None = None,
        **options: Any,
    ):
        check_seam()
        if outcome_weight and not reward_funcs:
            raise InputError("outcome_weight: weighs the rewards of reward_funcs; give some, or leave it at 0")
        super().__init__(model, reward_funcs or no_outcome, *args, **options)
        if self.off_policy_mask_threshold is not None:
            raise InputError("off_policy_mask_threshold: takes one advantage per response; leave it None")
        if self.loss_type == "vespo":
            raise InputError("loss_type vespo: takes one advantage per response; choose dapo, grpo or another")
        self.discount, self.outcome_weight, self.max_failures = discount, outcome_weight, max_failures
        # Of a model that also sees, the processor has the tokenizer.
        tokenizer = getattr(self.processing_class, "tokenizer", self.processing_class)
        made = critic_of(critic, task, **(critic_options or {}))  # TokenJudge would take some options for its own
        self.token_judge = TokenJudge(made, task, tokenizer, scheme=scheme)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        task = self.token_judge.task
        asked = [row if "prompt" in row else {**row, "prompt": task.messages(task.prompt(row))} for row in inputs]
        output = super()._generate_and_score_completions(asked)
        mask = output["completion_mask"]
        if output.get("tool_mask") is not None:
            mask = mask * output["tool_mask"]  # the policy did not write what a tool wrote
        written = zip(output["completion_ids"], output["completion_mask"], strict=True)
        judged = judge_rows(self.token_judge, inputs, [row[kept.bool()].tolist() for row, kept in written])
        deltas = padded([each.rewards for each in judged], mask.shape[1]) * mask.cpu()
        known = mask * torch.tensor([[0.0] if each.failed else [1.0] for each in judged]).to(mask.device)
        self._log_feedback(judged, deltas, known)
        outcomes = self.outcome_weight * output["advantages"].unsqueeze(1)
        output["advantages"] = self._in_groups(deltas.to(mask.device), known) + outcomes * known
        return output

    def _in_groups(self, deltas: Tensor, mask: Tensor) -> Tensor:
        """Token advantages ``[B, T]`` of this process's rollouts; a prompt's rollouts may lie on several processes."""
        every = [self.accelerator.gather(self.accelerator.pad_across_processes(each, dim=1)) for each in (deltas, mask)]
        size = self.num_generations if self.model.training else self.num_generations_eval
        advantages = group_advantages(every[0], every[1], size, self.discount)
        first = self.accelerator.process_index * len(deltas)
        return advantages[first : first + len(deltas), : deltas.shape[1]]

    def _log_feedback(self, judged: Sequence[TokenFeedback], deltas: Tensor, known: Tensor) -> None:
        """Shares per token are of the responses that have feedback."""
        failed = [each.error for each in judged if each.failed]
        if judged and len(failed) / len(judged) > self.max_failures:
            raise StopRunError(f"{len(failed)} of {len(judged)} responses have no feedback; the first: {failed[0]}")
        tokens = known.sum().clamp(min=1).item()
        found = sum(each.matched for each in judged)
        offered = found + sum(each.unmatched for each in judged)
        figures = {
            "delta": deltas.sum().item() / tokens,
            "praised": (deltas > 0).sum().item() / tokens,
            "criticised": (deltas < 0).sum().item() / tokens,
            "failed": len(failed) / len(judged),
            "quotes_found": found / offered if offered else 1.0,
        }
        metrics = self._metrics["train" if self.model.training else "eval"]
        for name, value in figures.items():
            metrics[f"text2grad/{name}"].append(value)


def verdict_reward(
    critic: Critic | str | Any, task: Task | str = "plain", **critic_options: Any
) -> Callable[..., list[float | None]]:
    """A function for ``reward_funcs``: the critic's verdict on each response, in [−1, 1]; None where it has none.

    It uses nothing but what TRL documents of reward functions. Where in a response the quotes are, it cannot say.
    """
    judge = TokenJudge(critic_of(critic, task, **critic_options), task)

    def verdict(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        own = {name: values for name, values in columns.items() if isinstance(values, list)}
        rows = [{"prompt": x, **{name: own[name][at] for name in own}} for at, x in enumerate(prompts)]
        texts = [each if isinstance(each, str) else each[-1]["content"] for each in completions]
        judged = judge_rows(judge, rows, texts)
        if judged and all(each.error for each in judged):
            raise StopRunError(f"the critic failed on all {len(judged)} responses, first: {judged[0].error}")
        return [each.verdict for each in judged]

    return verdict


def no_outcome(prompts: Sequence[Any], **_: Any) -> list[float]:
    """The reward function of a run in which the critic's feedback is all there is; TRL asks for one."""
    return [0.0] * len(prompts)


def judge_rows(
    judge: TokenJudge, rows: Sequence[dict[str, Any]], responses: Sequence[Sequence[int] | str]
) -> list[TokenFeedback]:
    """Feedback on responses (sampled ids, or texts), each an answer to its row of the data set."""
    pairs = [prompt_and_record(row, judge.task) for row in rows]
    return judge([prompt for prompt, _ in pairs], responses, [record for _, record in pairs])


def padded(rows: Sequence[Sequence[float]], width: int) -> Tensor:
    """``[B, width]``, with zeros on the right of each row."""
    return torch.tensor([[*row, *[0.0] * (width - len(row))] for row in rows])
