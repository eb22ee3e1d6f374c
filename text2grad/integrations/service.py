"""What ``text2grad serve`` does, apart from HTTP: the items of a request in, one answer for each out."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import ConfigDict, Field

from text2grad.critics import Critic, check_new_responses
from text2grad.critics.asking import Question
from text2grad.critics.served import FIELDS
from text2grad.critics.unit_test_logs import log_completion
from text2grad.errors import InputError
from text2grad.feedback import Feedback, FeedbackError
from text2grad.integrations.batching import CriticQueue
from text2grad.safety.gate import UnreadableError, as_storable, fault, read_json, shown
from text2grad.safety.redaction import redacted
from text2grad.safety.schema import Form, checked
from text2grad.tasks import Interval, Task
from text2grad.token_rewards import SCHEMES, TokenRewards, rewards_on, span_intervals
from text2grad.token_text import token_spans

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)
_Pair = Annotated[list[int], Field(min_length=2, max_length=2)]


class _Item(Form):
    """One item of a request; ``offsets`` are each token's characters of the response, ``[start, end]``."""

    model_config = ConfigDict(strict=True, extra="forbid")

    prompt: str
    response: str | None = None
    record: dict[str, Any] | None = None
    token_ids: list[int] | None = None
    offsets: list[_Pair] | None = None


class RequestError(ValueError):
    """A whole request that cannot be answered.

    Attributes:
        status: of the HTTP answer.
    """

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status


class ItemError(ValueError):
    """One item that cannot be answered; the message goes to the client."""


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
    """Answers requests with one critic, in batches across clients.

    Args:
        tokenizers: by the name that requests use.
    """

    def __init__(
        self,
        critic: Critic,
        task: Task,
        tokenizers: Mapping[str, PreTrainedTokenizerBase],
        limits: Limits | None = None,
        *,
        window: float = 0.02,
        batch_size: int = 64,
    ):
        check_new_responses(critic)
        self.critic, self.task, self.tokenizers, self.limits = critic, task, dict(tokenizers), limits or Limits()
        self.queue = CriticQueue(critic, window, batch_size, complete=log_completion(critic, task))
        self.waiting = 0
        self._mapping = ThreadPoolExecutor(1, thread_name_prefix="mapping")  # tokens, off the event loop

    def about(self) -> dict[str, Any]:
        """For ``/health``: what is held here, without a path."""
        return {"status": "ok", "critic": _without_folders(self.critic.name), "task": self.task.name}

    async def feedback(self, body: bytes) -> dict[str, Any]:
        """``{"items": [{"prompt", "response", "record"?}]}`` to critiques, quotes and character intervals."""
        items, _ = self._read(body, {"items"})
        return {"items": await self._each(items, self._feedback)}

    async def token_rewards(self, body: bytes) -> dict[str, Any]:
        """``{"items": [{"prompt", "token_ids"} or {"prompt", "response", "offsets"}], "tokenizer"?, "scheme"?}``."""
        items, options = self._read(body, {"items", "tokenizer", "scheme"})
        scheme, name = options.get("scheme", "uniform"), options.get("tokenizer")
        if scheme not in SCHEMES:
            raise RequestError(422, f"there is no scheme {shown(scheme)}; choose one of {', '.join(SCHEMES)}")
        if name is not None and (not isinstance(name, str) or name not in self.tokenizers):
            held = ", ".join(self.tokenizers) or "none; give offsets"
            raise RequestError(422, f"there is no tokenizer {shown(name)}; this server has {held}")

        async def answer(item: _Item) -> dict[str, Any]:
            return await self._token_rewards(item, self.tokenizers.get(name or ""), scheme)

        return {"items": await self._each(items, answer)}

    def close(self) -> None:
        """Finish what was asked, end the threads; a critic that is stuck is left behind."""
        self.queue.close(self.limits.timeout)
        self._mapping.shutdown()

    def _read(self, body: bytes, known: set[str]) -> tuple[list[Any], dict[str, Any]]:
        try:
            value = read_json(body)
        except UnreadableError as error:
            raise RequestError(400, f"the body cannot be read: {as_storable(str(error))}") from None
        items = value.get("items") if isinstance(value, dict) else None
        if not isinstance(items, list) or not items:
            raise RequestError(422, 'the body is no object with a list "items" of at least one item')
        if more := sorted(set(value) - known):
            raise RequestError(422, f"the body may hold {', '.join(sorted(known))}, not {as_storable(shown(more))}")
        if len(items) > self.limits.items:
            raise RequestError(413, f"{len(items)} items; a request may have {self.limits.items}")
        return items, value

    async def _each(self, items: Sequence[Any], answer: Callable[[_Item], Any]) -> list[dict[str, Any]]:
        """Every item's answer, or its error."""
        if self.waiting + len(items) > self.limits.waiting:
            raise RequestError(503, f"{self.waiting} items are waiting already; send it again later")
        self.waiting += len(items)
        try:
            return await asyncio.gather(*(self._guarded(item, answer) for item in items))
        finally:
            self.waiting -= len(items)

    async def _guarded(self, item: Any, answer: Callable[[_Item], Any]) -> dict[str, Any]:
        try:
            return await answer(self._checked(item))
        except (ItemError, FeedbackError) as error:
            return {"error": as_storable(redacted(str(error)))}
        except Exception:  # noqa: BLE001 (a critic may raise anything; the other items get their answers)
            number = logged("item")
            return {"error": f"the critic broke down on this item; the server's log has the reason under {number}"}

    def _checked(self, item: Any) -> _Item:
        if problem := fault(item):
            raise ItemError(f"the item cannot be used: {problem}")
        try:
            found = checked(_Item, item, "the item", "docs/serve.md has its fields")
        except InputError as error:
            raise ItemError(str(error)) from None
        for name, text in (("prompt", found.prompt), ("response", found.response or "")):
            if len(text) > self.limits.characters:
                raise ItemError(f"{name} has {len(text)} characters; {self.limits.characters} are taken")
        return found

    async def _ask(self, prompt: str, response: str, record: dict | None) -> Feedback:
        if not response.strip():
            raise ItemError("the response is empty")
        try:
            about = None if record is None else self.task.about(record, response)
        except InputError as error:
            raise ItemError(f"the record is not of {self.task.name}: {error}") from None
        given = await self._answer_to(Question(prompt, response, about))
        if isinstance(given, FeedbackError):
            raise given
        return given

    async def _answer_to(self, question: Question) -> Feedback | FeedbackError:
        future, asked = asyncio.wrap_future(self.queue.submit(question)), time.monotonic()
        try:
            while True:
                left = max(asked, self.queue.last_answer) + self.limits.timeout - time.monotonic()
                if left <= 0:
                    raise ItemError(f"the critic has answered nothing for {self.limits.timeout:g} seconds")
                if (await asyncio.wait([future], timeout=left))[0]:
                    return future.result()
        finally:
            future.cancel()

    async def _feedback(self, item: _Item) -> dict[str, Any]:
        if item.response is None:
            raise ItemError("the item has no response")
        given = await self._ask(item.prompt, item.response, item.record)
        return {**FIELDS.to_dict(given), "spans": await self._in_thread(_places, given, item.response, self.task)}

    async def _token_rewards(
        self, item: _Item, tokenizer: PreTrainedTokenizerBase | None, scheme: Any
    ) -> dict[str, Any]:
        if item.token_ids is None:
            text, spans = item.response or "", _offsets(item)
        elif tokenizer is None:
            raise ItemError("token_ids need the name of a tokenizer next to items")
        else:
            text, spans = await self._in_thread(_decoded, item.token_ids, tokenizer)
        if len(text) > self.limits.characters:
            raise ItemError(f"the response has {len(text)} characters; {self.limits.characters} are taken")
        given = await self._ask(item.prompt, text, item.record)
        try:
            found: TokenRewards = await self._in_thread(rewards_on, text, spans, given, self.task, scheme)
        except InputError as error:
            raise ItemError(str(error)) from None
        counts = {"matched": found.matched, "unmatched": found.unmatched, "conflicts": found.conflicts}
        return {"rewards": found.values, "response": text, **counts, **FIELDS.to_dict(given)}

    async def _in_thread(self, function: Callable, *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._mapping, function, *arguments)


def logged(what: str) -> str:
    """Log the exception that is being handled, for the operator; returns its number in the log, for the client."""
    number = uuid.uuid4().hex[:8]
    logger.exception("%s %s", what, number)
    return number


def _places(feedback: Feedback, response: str, task: Task) -> list[dict[str, Any]]:
    """Where the quotes are in the response: half-open intervals of code points, in reading order."""
    poor, good = span_intervals(feedback, response, task)
    found = [(start, end, label) for label, places in (("poor", poor), ("good", good)) for start, end in places]
    return [
        {"label": label, "start": start, "end": end, "text": response[start:end]} for start, end, label in sorted(found)
    ]


def _decoded(token_ids: list[int], tokenizer: PreTrainedTokenizerBase) -> tuple[str, list[Interval]]:
    if not all(0 <= each < len(tokenizer) for each in token_ids):
        raise ItemError(f"token_ids holds an id that is not in 0..{len(tokenizer) - 1}")
    return token_spans(token_ids, tokenizer)


def _offsets(item: _Item) -> list[Interval]:
    """Each token's character interval, as the item gives them."""
    if item.offsets is None or item.response is None:
        raise ItemError("the item has neither token_ids nor a response with offsets")
    spans = [(start, end) for start, end in item.offsets]
    for span in spans:
        if not 0 <= span[0] <= span[1] <= len(item.response):
            raise ItemError(f"offsets holds {span}, which is not inside the response's {len(item.response)} characters")
    if spans != sorted(spans, key=lambda span: span[0]):
        raise ItemError("offsets are not in the order of the tokens: their starts decrease")
    return spans


def _without_folders(name: str) -> str:
    """A critic's name for strangers: a file's or a folder's without where it lies."""
    return name if "://" in name else name.rsplit("/", 1)[-1]
