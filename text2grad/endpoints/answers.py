"""The body of a server's answer: read whole, within limits of size and time, and decoded behind the gate."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import openai
from openai.resources.chat.completions import Completions

from text2grad.safety.gate import UnreadableError, read_json

_MOST_BYTES = 32 << 20  # of an answer, unpacked

T = TypeVar("T")


class UnreadableReplyError(Exception):
    """The server answered with something that is no chat completion, or never came to an end of it."""


def read_answer(completions: Completions, body: Mapping[str, Any]) -> Any:
    """The decoded JSON of the answer to one request.

    Raises:
        UnreadableReplyError: the body broke off, is too long, or is not JSON.
        openai.APIError: the server refused, or was not reached.
    """
    content = bytearray()
    with completions.with_streaming_response.create(**body) as response:
        try:
            for part in response.iter_bytes():
                content += part
                if len(content) > _MOST_BYTES:
                    raise UnreadableReplyError(f"the server's answer is longer than {_MOST_BYTES >> 20} MB")
        except (openai.APIError, UnreadableReplyError):
            raise
        except Exception as error:  # whatever the HTTP library raises: its classes have been exchanged before
            raise UnreadableReplyError(f"the server's answer broke off: {error or type(error).__name__}") from error
    try:
        return read_json(bytes(content))
    except UnreadableError as error:
        raise UnreadableReplyError(f"the server's answer cannot be read: {error}") from None


def within(seconds: float, work: Callable[[], T]) -> T:
    """``work()``, or ``UnreadableReplyError`` after that many seconds; what it still does then nobody waits for."""
    done: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            done.put((work(), None))
        except BaseException as error:  # noqa: BLE001 (raised again below)
            done.put((None, error))

    threading.Thread(target=run, daemon=True, name="request").start()
    try:
        value, error = done.get(timeout=seconds)
    except queue.Empty:
        raise UnreadableReplyError(f"no whole answer within {seconds:g} seconds") from None
    if error is not None:
        raise error
    return value
