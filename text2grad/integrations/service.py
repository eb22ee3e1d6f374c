"""What ``text2grad serve`` does, apart from HTTP: the items of a request in, one answer for each out."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from dataclasses import dataclass
from typing import Any

from pydantic import ConfigDict

from text2grad.critics import Critic, check_new_responses, version_of
from text2grad.critics.asking import Question, log_completion
from text2grad.critics.served import FIELDS
from text2grad.errors import EndpointError, InputError, StopRunError
from text2grad.feedback import Feedback, FeedbackError
from text2grad.integrations.batching import CriticQueue
from text2grad.safety.gate import UnreadableError, as_storable, fault, read_json, shown
from text2grad.safety.redaction import redacted
from text2grad.safety.schema import Form, checked
from text2grad.tasks import Task
from text2grad.token_rewards import span_intervals

logger = logging.getLogger(__name__)


class _Item(Form):
    """One item of a request."""

    model_config = ConfigDict(strict=True, extra="forbid")

    prompt: str
    response: str
    record: dict[str, Any] | None = None


class RequestError(ValueError):
    """A whole request that cannot be answered.

    Attributes:
        status: of the HTTP answer.
    """

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Limits:
    """What the server takes on: items of a request, characters of a text, items in flight.

    Attributes:
        timeout: seconds without any answer of the critic, after which it counts as stuck. A critic that keeps answering
            is given the time to answer all who wait.
    """

    items: int = 256
    characters: int = 100_000
    waiting: int = 2048
    timeout: float = 300.0


class CriticService:
    """Answers requests with one critic, in batches across clients."""

    def __init__(
        self, critic: Critic, task: Task, limits: Limits | None = None, *, window: float = 0.02, batch_size: int = 64
    ):
        check_new_responses(critic)
        self.critic, self.task, self.limits = critic, task, limits or Limits()
        self.queue = CriticQueue(critic, window, batch_size, complete=log_completion(critic, task))
        self.waiting = 0

    def about(self) -> dict[str, Any]:
        """For ``/health``: what is held here, without a path, and its version where it has one."""
        name = self.critic.name
        held = name if "://" in name else name.rsplit("/", 1)[-1]  # not where a file or a folder lies
        return {"status": "ok", "critic": held, "task": self.task.name} | version_of(self.critic)

    def feedback(self, body: bytes) -> asyncio.Future[list[dict[str, Any]]]:
        """The answers to come to ``{"items": [{"prompt", "response", "record"?}]}``, one for each item.

        Raises:
            RequestError: the request as a whole cannot be answered.
        """
        items = self._read(body)
        if self.waiting and self.waiting + len(items) > self.limits.waiting:
            raise RequestError(503, f"{self.waiting} items are waiting already; send it again later")
        self.waiting += len(items)
        answers = asyncio.gather(*map(self._guarded, items))
        answers.add_done_callback(lambda _: self._answered(len(items), answers))
        return answers

    def _answered(self, count: int, answers: asyncio.Future[list[dict[str, Any]]]) -> None:
        self.waiting -= count
        if not answers.cancelled():
            answers.exception()  # else asyncio reports an error where the client hung up, and nobody awaits them

    def close(self) -> None:
        """Finish what was asked, end the threads; a critic that is stuck is left behind."""
        self.queue.close(self.limits.timeout)

    def _read(self, body: bytes) -> list[Any]:
        try:
            value = read_json(body)
        except UnreadableError as error:
            raise RequestError(400, f"the body cannot be read: {as_storable(str(error))}") from None
        items = value.get("items") if isinstance(value, dict) else None
        if not isinstance(items, list) or not items:
            raise RequestError(422, 'the body is no object with a list "items" of at least one item')
        if more := sorted(set(value) - {"items"}):
            raise RequestError(422, f"the body may hold items, not {as_storable(shown(more))}")
        if len(items) > self.limits.items:
            raise RequestError(413, f"{len(items)} items; a request may have {self.limits.items}")
        return items

    async def _guarded(self, item: Any) -> dict[str, Any]:
        """An item's answer, or its error."""
        try:
            return await self._feedback(self._checked(item))
        except (FeedbackError, StopRunError, EndpointError) as error:  # its message goes to the client
            kind = "stop" if not isinstance(error, FeedbackError) else "passing" if error.passing else None
            return {"error": as_storable(redacted(str(error)))} | ({kind: True} if kind else {})
        except Exception:  # a critic may raise anything; the other items get their answers
            number = uuid.uuid4().hex[:8]
            logger.exception("item %s", number)
            return {"error": f"the critic broke down on this item; the server's log has the reason under {number}"}

    def _checked(self, item: Any) -> _Item:
        if problem := fault(item):
            raise FeedbackError(f"the item cannot be used: {problem}")
        try:
            found = checked(_Item, item, "the item", "docs/serve.md has its fields")
        except InputError as error:
            raise FeedbackError(str(error)) from None
        for name, text in (("prompt", found.prompt), ("response", found.response)):
            if len(text) > self.limits.characters:
                raise FeedbackError(f"{name} has {len(text)} characters; {self.limits.characters} are taken")
        return found

    async def _feedback(self, item: _Item) -> dict[str, Any]:
        if not item.response.strip():
            raise FeedbackError("the response is empty")
        try:
            about = None if item.record is None else self.task.about(item.record, item.response)
        except InputError as error:
            raise FeedbackError(f"the record is not of {self.task.name}: {error}") from None
        given = await self._answer_to(Question(item.prompt, item.response, about))
        if isinstance(given, FeedbackError):
            raise given
        places = await asyncio.to_thread(_places, given, item.response, self.task)
        return {**FIELDS.to_dict(given), "spans": places}

    async def _answer_to(self, question: Question) -> Feedback | FeedbackError:
        future, asked = asyncio.wrap_future(self.queue.submit(question)), time.monotonic()
        try:
            while True:
                left = max(asked, self.queue.last_answer) + self.limits.timeout - time.monotonic()
                if left <= 0:
                    told = f"the critic has answered nothing for {self.limits.timeout:g} seconds"
                    raise FeedbackError(told, passing=True)
                if (await asyncio.wait([future], timeout=left))[0]:
                    return future.result()
        finally:
            future.cancel()


def _places(feedback: Feedback, response: str, task: Task) -> list[dict[str, Any]]:
    """Where the quotes are in the response: half-open intervals of code points, in reading order."""
    poor, good = span_intervals(feedback, response, task)
    found = [(start, end, label) for label, places in (("poor", poor), ("good", good)) for start, end in places]
    return [
        {"label": label, "start": start, "end": end, "text": response[start:end]} for start, end, label in sorted(found)
    ]
