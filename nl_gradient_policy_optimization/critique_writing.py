"""The policy also learns to write the critique of its own response (``--critique_coef``): RLTF's feedback modelling.

Source: RLTF-FM (arXiv 2602.02482), L = L_RL − coef · log π(c | x, y); here per token of the critique.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.objective import Losses
from nl_gradient_policy_optimization.rollouts import Rollout, padded
from text2grad.models import chat_ids
from text2grad.prompts import load_prompt, prompt_path
from text2grad.tasks import Task


class CritiqueWriting:
    """Makes of a rollout and its critique an example of writing that critique."""

    def __init__(self, task: Task, tokenizer: PreTrainedTokenizerBase):
        self.task, self.tokenizer = task, tokenizer
        self.request = load_prompt(prompt_path(task, "critique"), required=(), offered=()).fill({})

    def example(self, rollout: Rollout) -> Rollout:
        """The chat up to the question about the response as the prompt, the critique as the response.

        Without a critique its response is the end token alone, which :meth:`loss` leaves out.
        """
        chat = [
            *self.task.messages(rollout.prompt),
            {"role": "assistant", "content": rollout.response},
            {"role": "user", "content": self.request},
        ]
        critique = rollout.received.critique if rollout.counts else ""
        written = self.tokenizer(critique, add_special_tokens=False)["input_ids"]
        response = [*written, self.tokenizer.eos_token_id]
        return replace(rollout, prompt_ids=chat_ids(chat, self.tokenizer), response_ids=response)

    def loss(self, examples: Sequence[Rollout], score: Callable[[Sequence[Rollout]], Tensor]) -> Tensor:
        """The sum over rollouts of a critique's mean −log π(c_t | x, y, c_<t); a rollout without critique adds 0.

        Args:
            score: log-probabilities of rollouts' responses, ``[B, T]``.
        """
        logprobs = score(examples)
        lengths = [len(each.response_ids) if len(each.response_ids) > 1 else 0 for each in examples]
        weights = padded([[1 / max(n, 1)] * n or [0.0] for n in lengths], logprobs.dtype).to(logprobs.device)
        return -(logprobs * weights).sum()


def with_critiques(losses: Losses, loss: Tensor, tokens: float, config: PolicyConfig, ranks: int) -> Losses:
    """The losses of a micro-batch with that of writing its critiques: its mean over the minibatch's rollouts.

    Args:
        loss: what :meth:`CritiqueWriting.loss` gives for the micro-batch.
        tokens: of the minibatch on all ranks, by which the metrics' sums are divided.
    """
    loss = loss * config.minibatches / (config.rollouts_per_device * ranks)
    sums = {**losses.sums, "critique/loss": float(loss.detach()) * tokens}
    return losses._replace(policy=losses.policy + config.critique_coef * loss, sums=sums)
