"""Annotation through OpenAI's Batch API: half the price, an answer within a day.

A batch fills the reply cache, and the ordinary run then finds all its replies there. What a reply leads to (a second
question, say) becomes the next batch, until nothing is left to ask. Batches carry the run's mark, so that a run that
was killed finds those that it had sent.
"""

import io
import json
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import openai
from openai.types import Batch
from tqdm.auto import tqdm

from text2grad.endpoints.client import AWAY, REFUSALS, ChatClient, ChatError, ChatRequest, Reply, named_parameter
from text2grad.errors import InputError, StopRunError
from text2grad.records import check_same_settings, load_json, save_json
from text2grad.safety.gate import UnreadableError, read_json

_MOST_REQUESTS = 50_000  # limits of one batch file
_MOST_BYTES = 190_000_000
_UNFINISHED = ("validating", "in_progress", "finalizing", "cancelling")
_MARK = "text2grad_run"
_LEFT_OUT = ("temperature", "response_format", "max_tokens", "max_completion_tokens")  # the last two: the other's name

T = TypeVar("T")


class PendingError(Exception):
    """The reply to this request is not there yet."""


class BatchClient(ChatClient):
    """A client that answers from its cache, and puts down everything else for the next batch."""

    batch = True

    def __init__(self, *args: Any, poll_seconds: float = 60.0, **options: Any):
        super().__init__(*args, **options)
        self.poll_seconds = poll_seconds
        self._pending: dict[str, tuple[str, dict[str, Any], float]] = {}  # key: (scope, body, bound)
        self._errors: dict[str, ChatError] = {}
        self._sent: dict[str, list[str]] = {}  # batch id: the keys that this process sent in it

    def open(self, path: Path, settings: dict[str, Any], allow_changed: bool = False) -> None:
        """Use the file that holds this run's mark and the batches that it has collected; made where there is none.

        Raises:
            InputError: a batch that was sent with other settings is not collected yet.
        """
        self._state_path = path
        self._state: dict[str, Any] = {"run": uuid.uuid4().hex, "collected": [], "sent": []}
        if path.exists():
            self._state = load_json(path)
        if _out(self._state) and not allow_changed:
            remedy = "a batch with the former is paid for: run with them, or add --allow_changed true to pay again"
            check_same_settings(path, self._state.get("settings", settings), settings, remedy)
        self._state["settings"] = settings
        save_json(path, self._state)

    def answer(self, request: ChatRequest, key: str) -> Reply:
        """``PendingError`` for a request that no batch has answered yet, ``ChatError`` where one failed at it."""
        if key in self._errors:
            raise self._errors[key]
        self._pending[key] = (request.scope, self.body(request), self.bound(request))
        raise PendingError

    def forget(self, *_: Any) -> None:
        """Nothing yet: a run that is killed while other batches are out must find the reply when it goes on."""

    def run_batches(self) -> None:
        """Collect batches of this run that are still out, or else send one with what is pending and collect that.

        Raises:
            StopRunError: the budget is spent, a batch ended without a result, or nobody waits for it.
            InputError: the key or the address is wrong.
        """
        try:
            collected = self._state["collected"]
            sent = self._api.batches.list(limit=100)
            ours = [batch.id for batch in sent if (batch.metadata or {}).get(_MARK) == self._state["run"]]
            for name in [name for name in ours if name not in collected] or [self._send_batch()]:
                rows = self._rows(self._finished(name))
                collected.append(name)
                self._collect(name, rows)
                save_json(self._state_path, self._state)
        except (openai.AuthenticationError, openai.PermissionDeniedError, openai.NotFoundError) as error:
            raise InputError(f"{self.base_url}: {self._clean(error.message)}; check the key and the address") from None
        except openai.APIError as error:
            raise StopRunError(f"{self.base_url}: {self._clean(error.message)}") from None
        self._pending.clear()

    @property
    def _api(self) -> openai.OpenAI:
        """For requests that cost nothing and may be repeated."""
        return self._openai.with_options(max_retries=self.retries)

    def _send_batch(self) -> str:
        """Send as many pending requests as one file and the budget hold; returns the batch's id."""
        lines: list[bytes] = []
        keys: list[str] = []
        size = bound = 0.0
        for key, (_, body, cost) in self._pending.items():
            row = {"custom_id": key, "method": "POST", "url": "/v1/chat/completions", "body": body}
            line = json.dumps(row, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
            full = len(lines) == _MOST_REQUESTS or size + len(line) > _MOST_BYTES
            if full or (lines and not self.budget.fits(bound + cost)):
                break
            lines.append(line)
            keys.append(key)
            size, bound = size + len(line), bound + cost
        self.budget.reserve(bound)  # nothing else is in flight: it fits, or the run ends here
        try:
            file = self._api.files.create(file=("batch.jsonl", io.BytesIO(b"".join(lines))), purpose="batch")
            batch = self._openai.batches.create(  # once: where its answer is lost, the next run finds the batch
                completion_window="24h",
                endpoint="/v1/chat/completions",
                input_file_id=file.id,
                metadata={_MARK: self._state["run"]},
            )
        finally:
            self.budget.settle(bound)
        self._sent[batch.id] = keys
        self._state["sent"] = [*self._state.get("sent", []), batch.id]
        save_json(self._state_path, self._state)
        tqdm.write(f"batch {batch.id}: {len(lines)} requests sent, at most ${bound:.4f}")
        return batch.id

    def _finished(self, name: str) -> Batch:
        while (batch := self._api.batches.retrieve(name)).status in _UNFINISHED:
            if not self.poll_seconds:
                raise StopRunError(f"batch {name} is {batch.status}; run the same command later to collect it")
            if self._stopped.wait(self.poll_seconds):
                raise StopRunError("stopped")
        tqdm.write(f"batch {name}: {batch.status}")
        return batch

    def _rows(self, batch: Batch) -> list[dict[str, Any]]:
        """What a batch answered, request by request."""
        files = [name for name in (batch.output_file_id, batch.error_file_id) if name]
        texts = []
        for name in files:
            with suppress(openai.NotFoundError):  # deleted, or kept no longer: what it held counts as unanswered
                texts.append(self._api.files.content(name).text)
        rows = [row for text in texts for line in text.split("\n") if (row := _row(line)) is not None]
        if not rows:
            self._state["collected"].append(batch.id)
            save_json(self._state_path, self._state)
            said = "; ".join(error.message or "" for error in (batch.errors.data or [])) if batch.errors else ""
            said = said or ("its files are gone" if files else "")
            raise StopRunError(self._clean(f"batch {batch.id} ended as {batch.status} without any result: {said}"))
        return rows

    def _collect(self, name: str, rows: list[dict[str, Any]]) -> None:
        """Put a batch's replies into the cache, and note what it failed at; a refused parameter is left out next."""
        again, known = set(), set(self._without)
        for row in rows:
            key = row["custom_id"]
            if self.recall(key):  # collected and counted before a kill
                continue
            scope, asked, bound = self._pending.get(key, ("", {}, 0.0))
            response = row.get("response")
            response = response if isinstance(response, dict) else {}
            body = response.get("body")
            try:
                if response.get("status_code") != 200:
                    said = str((body if isinstance(body, dict) else row).get("error"))
                    refused = named_parameter(said, asked) if response.get("status_code") in REFUSALS else None
                    if refused in _LEFT_OUT and refused not in known:
                        if refused not in self._without:
                            tqdm.write(f"batch {name}: {self.model} refuses {refused}; asking without")
                        self._without.add(refused)
                        again.add(key)
                        continue
                    raise ChatError(said)
                reply = self.read(body, self.price, bound)
            except (ChatError, UnreadableError) as error:
                away = response.get("status_code") in (None, 500, *AWAY)
                self._errors[key] = ChatError(self._clean(f"the batch {name} failed at it: {error}"), passing=away)
                continue
            if self.cache:
                self.cache.replied(None, key, scope, asdict(reply))
            self.usage += reply.usage
            self.budget.spent += reply.usage.cost_usd
        for key in self._sent.pop(name, ()):
            if not self.recall(key) and key not in self._errors and key not in again:
                self._errors[key] = ChatError(f"the batch {name} holds no readable answer to it", passing=True)


def _out(state: dict[str, Any]) -> list[str]:
    """Batches that were sent and not collected."""
    return [name for name in state.get("sent", []) if name not in state["collected"]]


def check_none_out(path: Path) -> None:
    """``InputError`` where a batch was sent whose replies are paid for, and not collected yet."""
    state = load_json(path) if path.exists() else {}
    if out := _out(state):
        raise InputError(
            f"{path}: batch {out[0]} is paid for and not collected; add --batch_api true to collect it, or delete the "
            "file to pay for its requests again"
        )


def _row(line: str) -> dict[str, Any] | None:
    """A line of a batch's answers; None where it is none, so that its request counts as unanswered."""
    try:
        row = read_json(line)
    except UnreadableError:
        return None
    return row if isinstance(row, dict) and isinstance(row.get("custom_id"), str) else None


def complete_in_batches(client: BatchClient, questions: Sequence[Callable[[], T]]) -> tuple[list[T | None], str]:
    """Ask everything again and again, sending what has no reply yet as batches, until everything has one.

    Returns:
        The answers, None for questions that are still open; and why the sending ended before, or "".
    """
    answers: list[T | None] = [None] * len(questions)
    while True:
        for place, question in enumerate(questions):
            if answers[place] is None:
                with suppress(PendingError):
                    answers[place] = question()
        if None not in answers:
            return answers, ""
        try:
            client.run_batches()
        except StopRunError as stop:
            return answers, str(stop)
