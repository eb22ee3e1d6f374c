"""A critic that ``text2grad serve`` holds, for any number of processes and machines at once."""

import os
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError

from text2grad.endpoints.http import is_address, send
from text2grad.errors import InputError, StopRunError, when_interrupted
from text2grad.feedback import Feedback, FeedbackError, FeedbackFields
from text2grad.safety.gate import UnreadableError, as_storable, read_json, shown, storable
from text2grad.safety.redaction import redacted
from text2grad.tasks import Record, Task

TOKEN = "TEXT2GRAD_TOKEN"
"""The environment's variable with the bearer token, for the server and for its clients."""
FIELDS = FeedbackFields("critique", "good", "poor")
"""Feedback as the server writes it, whatever the task calls it."""

_PER_REQUEST = 32  # responses
_VERSIONS = ("critic_version", "prompt")  # of critics, as ``version_of`` knows them
_FIRST_NOTICE, _NEXT_NOTICE = 2.0, 30.0  # seconds without an answer after which a line says so
_LONGEST_WAIT = 15.0  # seconds between two attempts
_PASSING = (408, 429, 500, 502, 503, 504)


class ServedCritic:
    """Feedback from ``http://HOST:PORT``.

    A server that is away, restarting or busy is asked again for ``patience`` seconds, so that a restart loses nothing.
    Then the run ends, to be continued later; a signal ends it at once. A server that is there and works is waited for
    without end: it says so every few seconds.

    Args:
        task: must be the server's.
        concurrency: requests in flight.
        timeout: seconds without a sign of life after which a request is repeated.
    """

    remote = True

    def __init__(self, url: str, task: Task, *, concurrency: int = 8, timeout: float = 120.0, patience: float = 300.0):
        if not is_address(url):
            raise InputError(f"served:{redacted(url)}: not an address; write served:http://HOST:PORT")
        self.url, self.concurrency, self.timeout, self.patience = url.rstrip("/"), concurrency, timeout, patience
        self._told, self._stopped = time.monotonic() - _NEXT_NOTICE, threading.Event()
        about = self._send("/health", None)
        if about.get("task") != task.name:
            raise InputError(f"served:{redacted(url)}: serves a critic of {shown(about.get('task'))}, not {task.name}")
        self.name = f"served:{redacted(self.url)}#{as_storable(str(about.get('critic')))[:200]}"
        self.version = {each: as_storable(str(about[each]))[:200] for each in _VERSIONS if each in about}

    def __call__(
        self, prompts: Sequence[str], responses: Sequence[str], records: Sequence[Record] | None = None
    ) -> list[Feedback | FeedbackError]:
        """Feedback in order; see :class:`text2grad.critics.Critic`."""
        about: Sequence[Record | None] = [None] * len(prompts) if records is None else records
        rows = zip(prompts, responses, about, strict=True)
        items = [{"prompt": prompt, "response": response, "record": record} for prompt, response, record in rows]
        parts = [items[start : start + _PER_REQUEST] for start in range(0, len(items), _PER_REQUEST)]
        workers = max(1, min(self.concurrency, len(parts)))
        with when_interrupted(self._stopped.set), ThreadPoolExecutor(workers) as pool:
            return [feedback for part in pool.map(self._ask, parts) for feedback in part]

    def _ask(self, items: Sequence[dict[str, Any]]) -> list[Feedback | FeedbackError]:
        sendable = [item for item in items if storable(item["prompt"]) and storable(item["response"])]
        answer = self._send("/v1/feedback", {"items": sendable}) if sendable else {"items": []}
        given = answer.get("items")
        if not isinstance(given, list) or len(given) != len(sendable):
            raise InputError(f"{redacted(self.url)}: did not answer each item; is this text2grad serve?")
        answers = iter(given)
        half = FeedbackError("it contains a lone surrogate, which cannot be sent")
        return [_feedback(next(answers)) if item in sendable else half for item in items]

    def _send(self, path: str, body: dict | None) -> dict[str, Any]:
        """The answer to a request, after as many attempts as there is patience for."""
        begun, end, attempt = time.monotonic(), 0.0, 0
        while True:
            wait = min(0.25 * 2**attempt, _LONGEST_WAIT)
            try:
                value = read_json(send(self.url + path, body, token=os.environ.get(TOKEN), timeout=self.timeout))
                if not isinstance(value, dict):
                    raise UnreadableError("the answer is no object")
                return value
            except HTTPError as error:
                with error:
                    self._raise_if_hopeless(error)
                    problem = f"HTTP {error.code}"
                    wait = max(wait, _seconds(error.headers.get("Retry-After")))
            except (URLError, HTTPException, OSError, UnreadableError) as error:
                problem = str(getattr(error, "reason", error)) or type(error).__name__
            now = time.monotonic()
            end = end or now + self.patience  # until the first failure it was there, perhaps for hours
            where, why = redacted(self.url), redacted(problem)
            if now + wait > end:
                raise StopRunError(f"{where}: gives no answer ({why}); run again later")
            if now + wait - begun > _FIRST_NOTICE and now - self._told > _NEXT_NOTICE:  # one line for all threads
                self._told = now
                told = f"served:{where}: no answer yet ({why}); waiting up to {self.patience:g} seconds"
                print(told, file=sys.stderr, flush=True)
            if self._stopped.wait(wait):
                raise StopRunError("stopped")
            attempt += 1

    def _raise_if_hopeless(self, error: HTTPError) -> None:
        if error.code in _PASSING:
            return
        token = f"set {TOKEN} to the server's token"
        room = f"start it with --max_items of at least {_PER_REQUEST}, or a larger --max_megabytes"
        remedy = {401: token, 403: token, 413: room}.get(error.code, "is this text2grad serve?")
        raise InputError(f"{redacted(self.url)}: HTTP {error.code} ({error.reason}); {remedy}") from None


def _feedback(item: Any) -> Feedback | FeedbackError:
    if isinstance(item, dict) and isinstance(item.get("error"), str):
        if item.get("stop") is True:
            raise StopRunError(f"the served critic stops: {item['error']}")
        return FeedbackError(item["error"], passing=item.get("passing") is True)
    try:
        return FIELDS.from_dict(item if isinstance(item, dict) else {}, "the served feedback")
    except FeedbackError as error:
        return error


def _seconds(value: str | None) -> float:
    try:
        return min(max(float(value or 0), 0.0), _LONGEST_WAIT)
    except ValueError:
        return 0.0
