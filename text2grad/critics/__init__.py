"""Critics: R(x, y) = (c, A(y)) (paper, section 3.3); one interface for LLMs, reward models and programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from text2grad.errors import InputError
from text2grad.feedback import Feedback, FeedbackError
from text2grad.tasks import Record, Task, get_task


class Critic(Protocol):
    """Judges responses. ``name`` goes into logs and annotated records.

    A critic whose ``remote`` is true works on other processors: policies are trained on while it does.
    """

    name: str

    def __call__(
        self, prompts: Sequence[str], responses: Sequence[str], records: Sequence[Record] | None = None
    ) -> list[Feedback | FeedbackError]:
        """One item per response, in order; a judgement that failed is a ``FeedbackError`` that says why.

        Args:
            prompts: x of each response: the post, the question (``task.prompt(record)``).
            records: the whole records, for critics that use more of them (unit tests, a human's feedback).
        """
        ...


def load_critic(spec: str, task: str | Task, **options) -> Critic:
    """A critic from a short text.

    Args:
        spec: ``programmatic``; ``openai:MODEL``; ``http://HOST:PORT/v1#MODEL`` (any OpenAI-compatible server, a served
            reward model too); or the folder of a trained reward model.
        task: the task, or its name.
        options: passed to the critic (for a reward model: ``device``, ``batch_size``, …).
    """
    task = get_task(task)
    if spec == "programmatic":
        from text2grad.critics.programs import program_for

        return program_for(task, **options)
    if spec.startswith(("openai:", "http://", "https://")):
        from text2grad.critics.chat import ChatCritic

        return ChatCritic.from_spec(spec, task, **options)
    from text2grad.critics.reward_model.critic import RewardModelCritic

    return RewardModelCritic.load(spec, task, **options)


__all__ = ["Critic", "Feedback", "FeedbackError", "InputError", "load_critic"]
