"""The body of a server's answer: read whole, within limits of size and time, and decoded behind the gate."""

from collections.abc import Mapping
from typing import Any

import openai
from openai.resources.chat.completions import Completions

from text2grad.safety.gate import UnreadableError, read_json

_MOST_BYTES = 32 << 20  # of an answer, unpacked
_MOST_OF_AN_ERROR = 64 << 10  # bytes of an answer that says what went wrong


def read_answer(completions: Completions, body: Mapping[str, Any]) -> Any:
    """The decoded JSON of the answer to one request.

    Raises:
        UnreadableError: the body broke off, is too long, or is not JSON.
        openai.APIError: the server refused, or was not reached.
    """
    content = bytearray()
    with completions.with_streaming_response.create(**body) as response:
        try:
            for part in response.iter_bytes():
                content += part
                if len(content) > _MOST_BYTES:
                    raise UnreadableError(f"the server's answer is longer than {_MOST_BYTES >> 20} MB")
        except (openai.APIError, UnreadableError):
            raise
        except Exception as error:  # whatever the HTTP library raises: its classes have been exchanged before
            raise UnreadableError(f"the server's answer broke off: {error or type(error).__name__}") from error
    try:
        return read_json(bytes(content))
    except UnreadableError as error:
        raise UnreadableError(f"the server's answer cannot be read: {error}") from None


def limit_error(response: Any) -> None:
    """Hook of the HTTP client: read no more of an error's body than its beginning; the client reads all of it."""
    if response.status_code < 400:
        return
    content = bytearray()
    for part in response.iter_bytes():
        content += part
        if len(content) > _MOST_OF_AN_ERROR:
            break
    response.close()
    response._content = bytes(content[:_MOST_OF_AN_ERROR])
