"""How fast requests may go out, and how long a server asks to wait."""

import math
import threading
import time
from email.utils import parsedate_to_datetime

import openai

from text2grad.errors import StopRunError


class Pacer:
    """Spaces requests evenly so that neither requests nor tokens per minute are exceeded; pauses everyone if asked."""

    def __init__(self, requests_per_minute: float | None, tokens_per_minute: float | None):
        self._per_request = 60 / requests_per_minute if requests_per_minute else 0.0
        self._per_token = 60 / tokens_per_minute if tokens_per_minute else 0.0
        self._next = self._paused_until = time.monotonic()
        self._lock = threading.Lock()

    def wait(self, tokens: int, stopped: threading.Event) -> None:
        """Sleep until a request of that many tokens may go out."""
        with self._lock:
            slot = max(time.monotonic(), self._next)
            self._next = slot + self._step(tokens)
        while (delay := max(slot, self._paused_until) - time.monotonic()) > 0:
            if stopped.wait(min(delay, 1.0)):
                break
        if stopped.is_set():
            raise StopRunError("stopped")

    def correct(self, estimated: int, actual: int) -> None:
        """Give back the time of tokens that a reply did not need."""
        with self._lock:
            self._next -= max(0.0, self._step(estimated) - self._step(actual))

    def _step(self, tokens: int) -> float:
        """Seconds from one request of that many tokens to the next."""
        return max(self._per_request, tokens * self._per_token)

    def pause(self, seconds: float) -> None:
        with self._lock:
            self._paused_until = max(self._paused_until, time.monotonic() + seconds)


def retry_after(error: openai.APIStatusError) -> float | None:
    """Seconds that the server asks to wait, from ``retry-after-ms`` or ``Retry-After`` (seconds or a date)."""
    headers = error.response.headers
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = unit * float(headers.get(name, ""))
        except ValueError:
            continue
        return seconds if 0 <= seconds < math.inf else None
    try:
        until = parsedate_to_datetime(headers.get("retry-after", "")).timestamp()
    except (ValueError, OverflowError):
        return None
    return max(0.0, until - time.time())
