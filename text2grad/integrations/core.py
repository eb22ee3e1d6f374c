"""``TokenJudge``: prompts and sampled ids in; token rewards and feedback, or an error for each, out.

What every adapter to another trainer is built on. It imports neither torch nor transformers, so that it
works with any versions of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from text2grad.critics import Critic, as_critic, check_new_responses, load_critic
from text2grad.critics.asking import Question, ask, log_completion
from text2grad.errors import InputError
from text2grad.feedback import Feedback, FeedbackError
from text2grad.integrations.batching import CriticQueue
from text2grad.tasks import Interval, Record, Task, get_task
from text2grad.token_rewards import SCHEMES, Scheme, rewards_on
from text2grad.token_text import token_spans

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class TokenFeedback:
    """What is known about one response.

    Attributes:
        rewards: δ_t, one per sampled id; all 0 where there is an error.
        error: why there is no feedback. Such a response must not move the policy.
        matched, unmatched, conflicts: quotes found and not found, tokens claimed by a poor and a good quote.
        verdict: on the whole response, in [−1, 1], given by the critic or implied by its spans; None with an error.
    """

    rewards: list[float]
    feedback: Feedback | None = None
    error: str = ""
    matched: int = 0
    unmatched: int = 0
    conflicts: int = 0
    response: str = field(default="", repr=False)
    verdict: float | None = None

    @property
    def failed(self) -> bool:
        return bool(self.error)


class TokenJudge:
    """A critic whose feedback lies on sampled ids.

    Args:
        critic: a critic's spec (see :func:`text2grad.critics.load_critic`), a critic, or your own function.
        task: whose labels' values count; ``plain`` gives +1 in good spans, −1 in poor ones and 0 in other text.
        tokenizer: the policy's. Without one, responses are texts in place of ids, and each character has a reward.
        scheme: how a span's reward spreads over its tokens.
        empty_reward: on the last id of a response without text, which no critic is asked about.
        window, batch_size: for :meth:`one`, how long and for how many responses a batch is collected.
    """

    def __init__(
        self,
        critic: Critic | str | Any,
        task: Task | str = "plain",
        tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        scheme: Scheme = "uniform",
        empty_reward: float = -1.0,
        window: float = 0.02,
        batch_size: int = 64,
        **critic_options: Any,
    ):
        if scheme not in SCHEMES:
            raise InputError(f"there is no token-weighting scheme {scheme!r}; choose one of {', '.join(SCHEMES)}")
        self.task, self.tokenizer = get_task(task), tokenizer
        self.critic = critic_of(critic, self.task, **critic_options)
        self.scheme, self.empty_reward = scheme, empty_reward
        check_new_responses(self.critic)
        self._complete = log_completion(self.critic, self.task)
        self._window, self._batch_size = window, batch_size
        self._queue: CriticQueue | None = None

    def __call__(
        self,
        prompts: Sequence[str],
        token_ids: Sequence[Sequence[int] | str],
        records: Sequence[Record | None] | None = None,
    ) -> list[TokenFeedback]:
        """One :class:`TokenFeedback` per response, in order; the critic is asked once about all of them.

        Args:
            prompts: x of each response.
            token_ids: ids of the responses, as sampled, without padding; texts where there is no tokenizer.
            records: whole records, for critics that use more of them.
        """
        if not len(prompts) == len(token_ids) == len(records or prompts):
            raise InputError(
                f"TokenJudge: {len(prompts)} prompts, {len(token_ids)} responses, {len(records or prompts)} records; "
                "give one of each for every response"
            )
        rows = zip(prompts, token_ids, records or [None] * len(prompts), strict=True)
        asked = [self._question(*row) for row in rows]
        given = ask(self.critic, [question for question, _ in asked], self._complete)
        return [self._result(*about, each) for about, each in zip(asked, given, strict=True)]

    async def one(self, prompt: str, token_ids: Sequence[int] | str, record: Record | None = None) -> TokenFeedback:
        """The same for one response; calls that are awaited together become batches."""
        question, spans = self._question(prompt, token_ids, record)
        if not question.response.strip():
            return self._result(question, spans, None)
        if self._queue is None:
            self._queue = CriticQueue(self.critic, self._window, self._batch_size, complete=self._complete)
        feedback = await asyncio.wrap_future(self._queue.submit(question))
        return self._result(question, spans, feedback)

    def close(self) -> None:
        """End the threads of :meth:`one`; what is asked already is finished."""
        if self._queue is not None:
            self._queue.close()
            self._queue = None

    def _question(
        self, prompt: str, token_ids: Sequence[int] | str, record: Record | None
    ) -> tuple[Question, list[Interval]]:
        """What the critic is asked, and each id's characters in the response."""
        if isinstance(token_ids, str) != (self.tokenizer is None):
            raise InputError("TokenJudge: give the policy's tokenizer for sampled ids, and none for texts")
        if isinstance(token_ids, str):
            response, spans = token_ids, [(at, at + 1) for at in range(len(token_ids))]
        else:
            response, spans = token_spans(token_ids, self.tokenizer)
        return Question(prompt, response, None if record is None else self.task.about(record, response)), spans

    def _result(self, asked: Question, spans: list[Interval], given: Feedback | FeedbackError | None) -> TokenFeedback:
        response = asked.response
        if given is None:
            rewards = [0.0] * (len(spans) - 1) + [self.empty_reward] if spans else []
            return TokenFeedback(rewards, Feedback("The response is empty."), response=response, verdict=-1.0)
        if isinstance(given, FeedbackError):
            return TokenFeedback([0.0] * len(spans), error=str(given) or type(given).__name__, response=response)
        found = rewards_on(response, spans, given, self.task, self.scheme)
        counts = found.matched, found.unmatched, found.conflicts
        return TokenFeedback(found.values, given, "", *counts, response, self.task.verdict(given).value)


def critic_of(critic: Critic | str | Any, task: Task | str, **options: Any) -> Critic:
    """A critic by its spec, or from anything that can be called as one, made with its options."""
    return load_critic(critic, task, **options) if isinstance(critic, str) else as_critic(critic, **options)


def prompt_and_record(row: Mapping[str, Any], task: Task | str) -> tuple[str, Record | None]:
    """x and the record in a row of another trainer's data set.

    A row with the task's own fields is a record. Any other row has its ``prompt``, a text or a chat, whose last
    user's turn is x; the task ``plain`` takes such a row as a record, too.
    """
    task = get_task(task)
    record = dict(row)
    try:
        return task.prompt(record), record
    except InputError:
        x = last_user_turn(row.get("prompt"))
        return x, {**record, "prompt": x} if task.name == "plain" else None


def last_user_turn(prompt: Any) -> str:
    """The text of a chat's last user's turn; a text is passed through."""
    if isinstance(prompt, str):
        return prompt
    for message in reversed(list(prompt) if prompt is not None else []):
        content = message.get("content") if isinstance(message, Mapping) else None
        if content is not None and message.get("role", "user") == "user":
            if isinstance(content, str):
                return content
            return "".join(part.get("text", "") for part in content if isinstance(part, Mapping))
    raise InputError("a prompt is neither a text nor a chat with a user's turn; give one of the two")
