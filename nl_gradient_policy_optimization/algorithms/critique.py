"""The policy also learns to write the critique of its own response: RLTF's feedback modelling.

Source: RLTF-FM (arXiv 2602.02482), L = L_RL − coef · log π(c | x, y); here per token of the critique.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from nl_gradient_policy_optimization.algorithms.base import LossInputs, LossOutputs
from nl_gradient_policy_optimization.algorithms.text2grad import Text2Grad
from nl_gradient_policy_optimization.batch import Batch
from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.rollouts import Rollout, padded
from text2grad.configs import setting
from text2grad.errors import InputError
from text2grad.models import chat_ids
from text2grad.prompts import load_prompt, prompt_path
from text2grad.tasks import Task


@dataclass
class CritiqueWriting(Text2Grad):
    """Text2Grad with a second loss."""

    name = "critique"

    critique_coef: float = setting(0.1, "critique: weight of the loss of writing critiques", at_least=0)

    def check(self, config: PolicyConfig) -> None:
        super().check(config)
        if not config.critique:
            raise InputError("--critique false leaves --algorithm critique nothing to learn; leave one of them out")

    def loss(self, inputs: LossInputs) -> LossOutputs:
        outputs, config = super().loss(inputs), self.run.config
        examples = [critique_example(each, self.run.task, self.run.tokenizer) for each in inputs.batch.rollouts]
        written = writing_loss(examples, self._logprobs)
        mean = written * config.minibatches / (config.rollouts_per_device * self.run.accelerator.num_processes)
        figures = {**outputs.figures, "critique/loss": mean}
        return outputs._replace(added=self.critique_coef * mean, figures=figures)

    def _logprobs(self, examples: Sequence[Rollout]) -> Tensor:
        batch = Batch(examples, self.run.tokenizer.pad_token_id, self.run.learner.scorer.precision)
        self.run.costs.count(backward=batch.tokens)
        return self.run.learner.model(*batch.to(self.run.accelerator.device).inputs()).logprobs


def critique_example(rollout: Rollout, task: Task, tokenizer) -> Rollout:
    """The chat up to the question about the response as the prompt, the critique as the response.

    Without a critique its response is the end token alone, which :func:`writing_loss` leaves out.
    """
    request = load_prompt(prompt_path(task, "critique"), required=(), offered=()).fill({})
    chat = [
        *task.messages(rollout.prompt),
        {"role": "assistant", "content": rollout.response},
        {"role": "user", "content": request},
    ]
    critique = rollout.received.critique if rollout.counts else ""
    written = tokenizer(critique, add_special_tokens=False)["input_ids"]
    response = [*written, tokenizer.eos_token_id]
    return replace(rollout, prompt_ids=chat_ids(chat, tokenizer), response_ids=response, sampler_logprobs=None)


def writing_loss(examples: Sequence[Rollout], score: Callable[[Sequence[Rollout]], Tensor]) -> Tensor:
    """The sum over rollouts of a critique's mean −log π(c_t | x, y, c_<t); a rollout without critique adds 0.

    Args:
        score: log-probabilities of rollouts' responses, ``[B, T]``.
    """
    logprobs = score(examples)
    lengths = [len(each.response_ids) if len(each.response_ids) > 1 else 0 for each in examples]
    weights = padded([[1 / max(n, 1)] * n or [0.0] for n in lengths], logprobs.dtype).to(logprobs.device)
    return -(logprobs * weights).sum()
