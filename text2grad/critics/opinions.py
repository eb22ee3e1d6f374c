"""Several opinions of one critic on a response: those of a model that samples differ. Asked again, each is the same."""

from collections.abc import Sequence
from typing import Any

from text2grad.critics import Critic
from text2grad.feedback import Feedback, FeedbackError
from text2grad.tasks import Record


class Opinion:
    """One of the opinions of a critic that takes their ``number``, as a critic. The first is what it says anyway."""

    def __init__(self, critic: Any, number: int):
        self.critic, self.number, self.name = critic, number, critic.name

    def __call__(
        self, prompts: Sequence[str], responses: Sequence[str], records: Sequence[Record] | None = None
    ) -> list[Feedback | FeedbackError]:
        return self.critic(prompts, responses, records, number=self.number)


def opinions(critic: Critic, count: int) -> list[Critic]:
    """So many opinions of a critic; one that always says the same (a program, a function) gives equal ones."""
    if not getattr(critic, "has_opinions", False):
        return [critic] * count
    return [critic, *(Opinion(critic, number) for number in range(1, count))]
