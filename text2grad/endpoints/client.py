"""One client for every OpenAI-compatible endpoint: OpenAI, Azure, vLLM, ``transformers serve``, llama.cpp.

Critics and judges share it. It keeps to limits on requests, tokens and money, waits as servers ask, and asks for
structured output only where the server knows it.
"""

from __future__ import annotations

import json
import logging
import os
import random
import re
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import urlsplit

from text2grad.errors import EndpointError, InputError, StopRunError, when_interrupted

try:
    import openai
except ModuleNotFoundError as error:
    raise InputError(f"an endpoint needs the package openai ({error}); run `pip install 'text2grad[judge]'`") from None

from text2grad.configs import check_no_key
from text2grad.endpoints.answers import entry, limit_error, logprobs_of, read_answer, usage_of
from text2grad.endpoints.http import is_address, within
from text2grad.endpoints.pacing import Pacer, retry_after
from text2grad.endpoints.reply_cache import ReplyCache
from text2grad.endpoints.spending import Budget, Price, Usage, load_price
from text2grad.records import fingerprint
from text2grad.safety.gate import UnreadableError, as_storable, storable
from text2grad.safety.redaction import MARK, holds_key, redacted

_LONGEST_BACK_OFF = 60.0
_LONGEST_RETRY_AFTER = 900.0
_BYTES_PER_TOKEN = 4  # of English text, for the pace only; the budget assumes one
_MESSAGE_OVERHEAD = 32  # bytes around each message that the chat template adds, at most
_DEADLINE = 3  # times the limit on silence: what a request may take in all
_FAILURES_OF_AN_OUTAGE = 8  # requests that fail for good one after the other, none in between answered
AWAY = (429, 502, 503, 504)  # what says nothing about the request itself
REFUSALS = (400, 422, 501)  # how servers refuse a parameter that they do not know
_SIGNS = {  # what an error message says about the parameter that it refuses
    "response_format": ("response_format", "json_schema", "schema", "structured", "grammar", "guided"),
    "extra_body": ("structured_outputs", "grammar"),
    "temperature": ("temperature",),
    "logprobs": ("logprobs",),
    "max_completion_tokens": ("max_tokens", "max_completion_tokens"),
    "max_tokens": ("max_tokens", "max_completion_tokens"),
}

_REASONS = ("stop", "length", "content_filter", "refusal", "tool_calls", "function_call")
_LONGEST_MESSAGE = 2000  # characters of an error answer that are kept

logger = logging.getLogger(__name__)
# At DEBUG these log headers, in which a server may echo the key.
for _library in ("openai", "httpx", "httpx2", "httpcore", "httpcore2"):
    logging.getLogger(_library).setLevel(logging.INFO)


class ChatError(RuntimeError):
    """A request that failed for good; the message says why and never holds the key.

    Attributes:
        passing: the server was away, so that nothing is known about the request: a later run asks again.
    """

    def __init__(self, message: str, passing: bool = False):
        super().__init__(message)
        self.passing = passing


class _OutageError(ChatError):
    """A request that failed although it was sent again and again."""


@dataclass(frozen=True)
class Reply:
    """What a model wrote.

    Attributes:
        finish_reason: ``stop``, ``length`` where the token limit cut the text off, ``content_filter``, …
        logprobs: for each token of the text, log-probabilities by alternative; None where the server gives none.
    """

    text: str
    finish_reason: str = "stop"
    usage: Usage = field(default_factory=Usage)
    logprobs: list[dict[str, float]] | None = None


@dataclass(frozen=True)
class ChatRequest:
    """What a model is asked.

    Attributes:
        messages: the chat, ``[{"role", "content"}, …]``.
        schema: JSON schema of the reply; or, as a text, a grammar that vLLM is to decode by.
        logprobs: alternatives per token whose log-probabilities are wanted.
        length: tokens of the reply at most.
        scope: whose request it is (a record's id): the cache keeps equal requests of different scopes apart.
        temperature: of the model's sampling.
    """

    messages: list[Mapping[str, str]]
    schema: Mapping[str, Any] | str | None
    logprobs: int
    length: int
    scope: str
    temperature: float = 0.0


def endpoint_of(spec: str) -> tuple[str | None, str]:
    """``(base_url, model)`` of ``openai:MODEL`` or ``http(s)://HOST:PORT/v1#MODEL``; no URL means OpenAI's own."""
    if spec.startswith("openai:"):
        base_url, model = os.environ.get("OPENAI_BASE_URL") or None, spec.removeprefix("openai:")
    else:
        base_url, _, model = spec.partition("#")
    if not model:
        raise InputError(f"{redacted(spec)}: names no model; write openai:MODEL or http://HOST:PORT/v1#MODEL")
    return base_url, model


def longest_request(timeout: float, retries: int) -> float:
    """Seconds after which a request has its reply or has failed for good, with the longest waits between attempts."""
    return (retries + 1) * _DEADLINE * timeout + retries * (max(_LONGEST_BACK_OFF, _LONGEST_RETRY_AFTER) + 1)


class ChatClient:
    """Thread-safe client of one model behind one endpoint.

    Args:
        base_url: the API's address up to ``/v1``; OpenAI's own where None.
        api_key: ``OPENAI_API_KEY`` by default; local servers need none.
        concurrency: requests in flight at most.
        requests_per_minute, tokens_per_minute: requests are spaced so that neither is exceeded.
        max_cost_usd: a request that might exceed it is not sent (:class:`~text2grad.endpoints.spending.Budget`).
        prices: another price table than ``prices.yaml``.
        timeout: seconds without a byte from the server after which a request counts as lost. Three times as long is
            what it may take in all, however busily the server drips.
        retries: how often a request is sent again after rate limits, server errors and broken connections.
        max_tokens: length of a reply at most.
        cache: replies from it are not asked for again, and all replies go into it.
    """

    batch = False  # whether requests go through the Batch API, at its price

    def __init__(
        self,
        base_url: str | None,
        model: str,
        api_key: str | None = None,
        *,
        concurrency: int = 8,
        requests_per_minute: float | None = None,
        tokens_per_minute: float | None = None,
        max_cost_usd: float | None = None,
        prices: str | None = None,
        timeout: float = 120.0,
        retries: int = 6,
        temperature: float = 0.0,
        max_tokens: int = 1024,
        cache: ReplyCache | None = None,
    ):
        check_no_key("the model's name", model)
        self._key = (api_key or os.environ.get("OPENAI_API_KEY") or "").strip()
        if base_url is not None and not is_address(base_url):
            raise InputError(f"{redacted(base_url)}: not an address; write http://HOST:PORT/v1")
        official = base_url is None or (urlsplit(base_url).hostname or "").endswith("openai.com")
        if official and not self._key:
            raise InputError(
                "no API key: set OPENAI_API_KEY, or name your own server, http://HOST:PORT/v1#MODEL (as a critic, "
                "programmatic needs neither)"
            )
        if not re.fullmatch(r"[!-~]*", self._key):
            raise InputError("the API key has characters that no key has (only ASCII is sent); check OPENAI_API_KEY")
        self.model, self.temperature, self.max_tokens, self.retries = model, temperature, max_tokens, retries
        self.concurrency = concurrency
        self.price = load_price(model, prices, batch=self.batch)
        if max_cost_usd is not None and not self.price.listed:
            raise InputError(f"the price table does not list {model}; add it there, or leave max_cost_usd out")
        self.budget = Budget(max_cost_usd)
        self.cache: ReplyCache | None = None
        if cache:
            self.remember(cache)
        self.usage = Usage()
        self._deadline = _DEADLINE * timeout
        self._openai = openai.OpenAI(
            api_key=self._key or "none needed",
            base_url=base_url,
            timeout=timeout,
            max_retries=0,
            http_client=openai.DefaultHttpxClient(
                follow_redirects=False,  # prompts stay with the host that was named
                event_hooks={"response": [limit_error]},
            ),
        )
        self.base_url = redacted(str(self._openai.base_url))
        self._pacer = Pacer(requests_per_minute, tokens_per_minute)
        self._slots = threading.Semaphore(concurrency)
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._length_name = "max_completion_tokens" if official else "max_tokens"
        self._without: set[str] = set()  # parameters that the server was found to refuse
        self._answered = False
        self._failed_in_a_row = 0

    @classmethod
    def from_spec(cls, spec: str, **options: Any) -> ChatClient:
        """A client for ``openai:MODEL`` or ``http(s)://HOST:PORT/v1#MODEL``."""
        return cls(*endpoint_of(spec), **options)

    def remember(self, cache: ReplyCache) -> None:
        """Answer from ``cache`` what it holds, put all replies into it, and count what it cost in the budget."""
        self.cache = cache
        self.budget = Budget(self.budget.limit, cache.usage.cost_usd, cache.lost_usd)

    def recall(self, key: str) -> Reply | None:
        """The cached reply to a request."""
        value = self.cache.get(key) if self.cache else None
        return Reply(**{**value, "usage": Usage(**value["usage"])}) if value else None

    def complete(
        self,
        messages: Sequence[Mapping[str, str]],
        schema: Mapping[str, Any] | str | None = None,
        *,
        logprobs: int = 0,
        max_tokens: int | None = None,
        scope: str = "",
        temperature: float | None = None,
    ) -> Reply:
        """The model's reply to a :class:`ChatRequest`. A server that refuses a schema is asked without, and remembered.

        A grammar is never left out.

        Raises:
            ChatError: this request failed for good.
            StopRunError: no further request will do: the budget is spent, the server stays away, or ``stop()``.
            InputError: the key, the address or the model is wrong.
        """
        warmth = self.temperature if temperature is None else temperature
        request = ChatRequest(list(messages), schema, logprobs, max_tokens or self.max_tokens, scope, warmth)
        if not all(storable(message["content"]) for message in messages):
            raise ChatError("the question contains a lone surrogate, which cannot be sent")
        key = self.key(request)
        return self.recall(key) or self.answer(request, key)

    def answer(self, request: ChatRequest, key: str) -> Reply:
        """The reply to a request that the cache does not know."""
        try:
            reply = self._persist(request, key)
        except _OutageError as error:
            with self._lock:
                self._failed_in_a_row = failures = self._failed_in_a_row + 1
            if failures >= max(_FAILURES_OF_AN_OUTAGE, self.concurrency):
                raise StopRunError(f"{failures} requests in a row failed ({error}); run again later") from None
            raise
        with self._lock:
            self._answered, self._failed_in_a_row = True, 0
            self.usage += reply.usage
        return reply

    def key(self, request: ChatRequest) -> str:
        """What the cache knows a request by."""
        wanted = [request.messages, request.schema, request.logprobs, request.length]
        return fingerprint([self.base_url, self.model, *wanted, request.temperature, request.scope])

    def forget(self, messages: Sequence[Mapping[str, str]], schema: Mapping[str, Any] | str | None, scope: str) -> None:
        """A reply led nowhere: the same request is to be sent again, in a later run as well."""
        if self.cache:
            request = ChatRequest(list(messages), schema, 0, self.max_tokens, scope, self.temperature)
            self.cache.void(scope, self.key(request))

    def stop(self) -> None:
        """Send nothing more; requests in flight still end."""
        self._stopped.set()

    def close(self) -> None:
        """Send nothing more, wait for what is in flight, and let go of the cache's file."""
        self.stop()
        for _ in range(self.concurrency):
            self._slots.acquire()
        if self.cache:
            self.cache.close()
        self._slots.release(self.concurrency)  # a request that comes late is told so, and waits for no slot

    def interruptible(self) -> AbstractContextManager[None]:
        """Inside, a signal that ends the run lets what is in flight come in, and sends nothing more."""

        def stop() -> None:
            self.stop()
            with suppress(OSError):  # not print: the signal may have come inside a write to the same stream
                os.write(2, b"\nwaiting for requests in flight; Ctrl-C again quits at once\n")

        return when_interrupted(stop)

    def bound(self, request: ChatRequest) -> float:
        """USD that a request can cost at most."""
        schema = len(json.dumps(request.schema)) if request.schema else 0
        return self.price.bound(_size(request.messages) + schema, request.length)

    def body(self, request: ChatRequest, without: set[str] | None = None) -> dict[str, Any]:
        """The request's JSON body.

        Args:
            without: parameters to leave out; those that the server is known to refuse, by default.
        """
        without = self._without if without is None else without
        swapped = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
        name = swapped[self._length_name] if self._length_name in without else self._length_name
        body: dict[str, Any] = {"model": self.model, "messages": request.messages, name: request.length}
        if "temperature" not in without:
            body["temperature"] = request.temperature
        if isinstance(request.schema, str):
            body["extra_body"] = {"structured_outputs": {"grammar": request.schema}}
        elif request.schema and "response_format" not in without:
            schema = {"name": "feedback", "strict": True, "schema": request.schema}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        if request.logprobs and "logprobs" not in without:
            body |= {"logprobs": True, "top_logprobs": request.logprobs}
        return body

    def _persist(self, request: ChatRequest, key: str) -> Reply:
        """Send until there is a reply or no hope."""
        dropped: set[str] = set()
        attempt, reached, away = 0, False, False
        while True:
            body = self.body(request, self._without | dropped)
            try:
                reply = self._send(body, request, key)
            except openai.APIStatusError as error:
                refused = _refused_parameter(error, body)
                if refused == "extra_body":
                    problem = f"{self.base_url} takes no grammar of quotes ({self._clean(_message(error))})"
                    remedy = "serve the model by vLLM (docs/serve.md), or leave --critic_constrained quotes out"
                    raise (ChatError if self._answered else EndpointError)(f"{problem}; {remedy}") from None
                if refused and refused not in dropped:
                    dropped.add(refused)
                    continue
                self._raise_if_hopeless(error)
                problem, asked = f"HTTP {error.status_code}: {self._clean(_message(error))}", retry_after(error)
                reached, away = True, error.status_code in AWAY
            except (openai.APIError, UnreadableError, TimeoutError) as error:
                problem, asked = self._clean(str(error) or type(error).__name__), None
                away = isinstance(error, openai.APIError)
                reached = reached or not away  # something answers there
            else:
                if dropped - self._without:
                    logger.warning("%s refuses %s; asking without from now on", self.base_url, sorted(dropped))
                    self._without |= dropped
                return reply
            attempt += 1
            if attempt > self.retries:
                if not (self._answered or reached):
                    told = f"no server answers there ({problem}); start it or check the URL"
                    raise EndpointError(f"{self.base_url}: {told}")
                raise _OutageError(f"the request failed {attempt} times, at last with: {problem}", passing=away)
            self._back_off(attempt, asked)

    def _send(self, body: dict[str, Any], request: ChatRequest, key: str) -> Reply:
        """One attempt, within pace and budget."""
        estimate = _size(request.messages) // _BYTES_PER_TOKEN + request.length
        bound = self.bound(request)
        with self._slots:
            self._pacer.wait(estimate, self._stopped)
            self.budget.reserve(bound, self._stopped)
            try:
                number = self.cache.sent(bound) if self.cache else 0
            except StopRunError:
                self.budget.settle(bound)
                raise
            try:
                answer = within(self._deadline, lambda: read_answer(self._openai.chat.completions, body))
                reply = self.read(answer, self.price, bound)
            except BaseException as error:
                unbilled = isinstance(error, openai.APIStatusError) or _never_arrived(error)
                self.budget.settle(bound, lost=not unbilled)
                if self.cache and unbilled:
                    self.cache.refused(number)
                raise
            try:
                if self.cache:
                    self.cache.replied(number, key, request.scope, asdict(reply))
            finally:
                self.budget.settle(bound, reply.usage.cost_usd)
        self._pacer.correct(estimate, reply.usage.prompt_tokens + reply.usage.completion_tokens)
        return reply

    def read(self, answer: object, price: Price, bound: float) -> Reply:
        """A decoded completion as a ``Reply``; a priced one without token counts is taken to have cost its ``bound``.

        Raises:
            UnreadableError: it is no chat completion.
            ChatError: it holds the API key.
        """
        choices = entry(answer, "choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        message = entry(choice, "message")
        content, refusal = entry(message, "content"), entry(message, "refusal")
        if not isinstance(message, Mapping) or not isinstance(content, str | None):
            raise UnreadableError("the server's answer is not a chat completion")
        usage = usage_of(entry(answer, "usage"))
        usage.cost_usd = price.of(usage) if not usage.uncounted else bound if price.listed else 0.0
        text = content or (refusal if isinstance(refusal, str) else "") or ""
        if holds_key(text, self._key):
            raise ChatError("the reply holds the API key, and is not kept")
        finish = entry(choice, "finish_reason")
        reason = "other" if finish else "stop"
        reason = "refusal" if refusal and not content else finish if finish in _REASONS else reason
        return Reply(text, reason, usage, logprobs_of(choice))

    def _back_off(self, attempt: int, asked: float | None) -> None:
        """Sleep before the next attempt: jittered exponential back-off, and never less than the server asks for."""
        delay = random.uniform(0.5, 1.0) * min(_LONGEST_BACK_OFF, 2.0 ** (attempt - 1))
        if asked is not None:
            if asked > _LONGEST_RETRY_AFTER:
                raise StopRunError(f"{self.base_url} asks to wait {asked:.0f} seconds; run again after that")
            self._pacer.pause(asked)
            delay = asked + random.uniform(0.0, min(1.0, 0.25 * asked + 0.05))
        if self._stopped.wait(delay):
            raise StopRunError("stopped")

    def _raise_if_hopeless(self, error: openai.APIStatusError) -> None:
        message, status = self._clean(_message(error)), error.status_code
        ending = StopRunError if self._answered else EndpointError  # what was answered before is kept, and written
        if status in (401, 403):
            raise EndpointError(f"{self.base_url} refuses the API key ({message}); check OPENAI_API_KEY") from None
        if status == 404:
            raise ending(f"{self.base_url} knows no model {self.model!r} ({message}); check both names") from None
        if error.code == "insufficient_quota":
            raise ending(f"{self.base_url}: the account's quota is used up ({message}); top it up and go on")
        if 300 <= status < 400:
            target = redacted(as_storable(error.response.headers.get("location") or "nowhere"))
            raise ChatError(f"the server sends requests on to {target[:200]}, which is not followed; name that address")
        if status not in (408, 409, 429) and status < 500:
            raise ChatError(f"the request was refused: HTTP {status}: {message}") from None

    def _clean(self, text: str) -> str:
        """A message from the server as it can be stored and shown: without the key, should it echo it."""
        text = as_storable(text[:_LONGEST_MESSAGE])
        return redacted(text.replace(self._key, MARK) if holds_key(text, self._key) else text)


def _size(messages: Sequence[Mapping[str, str]]) -> int:
    return sum(len(message["content"].encode("utf-8", "replace")) + _MESSAGE_OVERHEAD for message in messages)


def _message(error: openai.APIStatusError) -> str:
    """What the server says, without the client's frame around it."""
    said: Any = error.body
    if isinstance(said, dict):
        said = next((said[name] for name in ("message", "detail", "error") if said.get(name)), None)
    if isinstance(said, str):  # or what is left of JSON, or a page
        return said if said.strip() and said.lstrip()[0] not in "{[<" else error.message
    return f"{error.message}: {json.dumps(said)}" if said else error.message


def _never_arrived(error: BaseException) -> bool:
    """No connection was made. By name, since the HTTP library under the openai client has been exchanged before."""
    return type(error.__cause__).__name__ in ("ConnectError", "ConnectTimeout")


def _refused_parameter(error: openai.APIStatusError, body: Mapping[str, Any]) -> str | None:
    """The optional parameter that the server refuses, as far as its message or else a guess can tell."""
    if error.status_code not in REFUSALS:
        return None
    named = named_parameter(f"{error.param or ''} {_message(error)}", body)
    return named or ("response_format" if "response_format" in body else None)


def named_parameter(text: str, body: Mapping[str, Any]) -> str | None:
    """The optional parameter of a request that a refusal's text names."""
    lower = text.lower()
    return next((name for name, signs in _SIGNS.items() if name in body and any(sign in lower for sign in signs)), None)
