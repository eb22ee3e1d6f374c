"""One request over HTTP, with JSON to send, by Python's own client: it loads beside any versions of other libraries."""

from __future__ import annotations

import json
import urllib.request
from http.client import HTTPException
from typing import Any

from text2grad.safety.gate import UnreadableError

_MOST_BYTES = 64 << 20  # of an answer


class CutOffError(HTTPException):
    """The server was there and began an answer, but did not end it."""


def send(url: str, body: Any = None, *, token: str | None = None, timeout: float) -> bytes:
    """What the server answers. A redirect is an error: what is sent stays with the host named.

    Args:
        body: sent by POST; None asks by GET.
        token: sent as a bearer token.
        timeout: seconds without a sign of the server.

    Raises:
        HTTPError, URLError, OSError, HTTPException: as ``urllib`` raises them.
        CutOffError: the answer has no end.
        UnreadableError: the answer is too long.
    """
    headers = {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    data = None if body is None else json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
    with _OPENER.open(urllib.request.Request(url, data, headers), timeout=timeout) as response:
        try:
            content = response.read(_MOST_BYTES + 1)
        except (OSError, HTTPException) as error:
            raise CutOffError(f"the answer breaks off: {error or type(error).__name__}") from error
    if len(content) > _MOST_BYTES:
        raise UnreadableError(f"the answer is longer than {_MOST_BYTES >> 20} MB")
    if response.length:  # http.client raises only where the answer comes in chunks
        raise CutOffError(f"the answer breaks off {response.length} bytes before its end")
    return content


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirects)
