"""One request over HTTP by Python's own client, which needs no other library; and an end to any wait for a server."""

import io
import json
import threading
import urllib.request
from collections.abc import Callable
from concurrent.futures import Future, wait
from http.client import HTTPException
from typing import Any, TypeVar
from urllib.error import HTTPError
from urllib.parse import urlsplit

from text2grad.safety.gate import UnreadableError

_MOST_BYTES = 64 << 20  # of an answer
_MOST_OF_AN_ERROR = 64 << 10  # bytes of an answer that says what went wrong

T = TypeVar("T")


def is_address(url: str) -> bool:
    """Whether a URL is one of HTTP's with a host, and with a number where it names a port."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def send(url: str, body: Any = None, *, token: str | None = None, timeout: float) -> bytes:
    """What the server answers. A redirect is an error: what is sent stays with the host named.

    Args:
        body: sent by POST; None asks by GET.
        token: sent as a bearer token.
        timeout: seconds without a sign of the server; :func:`within` ends a request however busily the server drips.

    Raises:
        HTTPError, URLError, OSError, HTTPException: as ``urllib`` raises them, or the answer has no end.
        UnreadableError: the answer is too long.
    """
    headers = {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    data = None if body is None else json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
    request = urllib.request.Request(url, data, headers)
    try:
        with _OPENER.open(request, timeout=timeout) as response:
            try:
                content = response.read(_MOST_BYTES + 1)
            except (OSError, HTTPException) as error:
                raise HTTPException(f"the answer breaks off: {error or type(error).__name__}") from error
    except HTTPError as error:
        with error:
            said = io.BytesIO(error.read(_MOST_OF_AN_ERROR))
        raise HTTPError(error.url, error.code, error.reason, error.headers, said) from None
    if len(content) > _MOST_BYTES:
        raise UnreadableError(f"the answer is longer than {_MOST_BYTES >> 20} MB")
    if response.length:  # http.client raises only where the answer comes in chunks
        raise HTTPException(f"the answer breaks off {response.length} bytes before its end")
    return content


def within(seconds: float, work: Callable[[], T]) -> T:
    """``work()``, or ``TimeoutError`` after that many seconds; the work is then left to end by itself."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 (raised again below)
            future.set_exception(error)

    threading.Thread(target=run, daemon=True, name="request").start()
    if not wait([future], seconds).done:
        raise TimeoutError(f"no whole answer within {seconds:g} seconds")
    return future.result()


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirects)
