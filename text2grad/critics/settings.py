"""The settings of whoever gives feedback: one group of flags for every command that asks a critic."""

from dataclasses import dataclass
from typing import Any, Literal

from text2grad.configs import check_used, setting
from text2grad.critics import CRITIC_FORMS, Critic, load_critic
from text2grad.endpoints import is_endpoint
from text2grad.tasks import Task


@dataclass(kw_only=True)
class PromptedCritic:
    """What the critic that a command's ``critic`` names is asked with, where it is behind an endpoint."""

    critic_prompt: str = setting("", "for an endpoint: its prompt file (a served reward model's reward_prompt.txt)")

    def __post_init__(self: Any) -> None:
        check_used(self, ("critic_prompt", "an endpoint as --critic", is_endpoint(self.critic or "")))

    def load_critic(self: Any, task: Task, **options: Any) -> Critic:
        """The critic that is named; :func:`~text2grad.critics.load_critic` says what it raises."""
        prompt = {"prompt": self.critic_prompt} if self.critic_prompt else {}
        return load_critic(self.critic, task, **prompt, **options)


@dataclass(kw_only=True)
class CriticChoice(PromptedCritic):
    """Which critic, and how it is asked; the commands have a policy, too, so each name begins with critic."""

    critic_concurrency: int = setting(16, "for an endpoint: requests in flight, on each rank", above=0)
    critic_timeout: float = setting(
        120.0, "for an endpoint: seconds of silence after which a request is sent again", above=0
    )
    critic_retries: int = setting(6, "for an endpoint: how often a request is sent again", at_least=0)
    critic_max_cost_usd: float | None = setting(None, "for an endpoint: stop before a run costs more, on each rank")
    critic: str = setting("programmatic", f"who gives feedback: {CRITIC_FORMS}", "--annotator")
    critic_batch_size: int = setting(16, "for a reward model's folder: responses in one batch", above=0)
    critic_constrained: Literal["none", "quotes"] = setting(
        "none",
        "for a reward model, in a folder or in vLLM: what its replies must be; quotes: JSON that quotes the response",
    )

    def client_options(self) -> dict[str, Any]:
        """For :class:`~text2grad.endpoints.client.ChatClient`."""
        names = ("concurrency", "timeout", "retries", "max_cost_usd")
        return {name: getattr(self, f"critic_{name}") for name in names}
