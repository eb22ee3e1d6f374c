"""A server's answer: read whole, within limits of size and time, decoded behind the gate, and taken apart."""

from collections.abc import Mapping
from typing import Any

import openai
from openai.resources.chat.completions import Completions

from text2grad.endpoints.spending import Usage
from text2grad.safety.gate import UnreadableError, read_json, storable

_MOST_BYTES = 32 << 20  # of an answer, unpacked
_MOST_OF_AN_ERROR = 64 << 10  # bytes of an answer that says what went wrong
_MOST_TOKENS = 10**9  # more than that is no count


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


def entry(value: object, name: str) -> Any:
    """What an object of the answer has under a name; None where it is no object or has nothing there."""
    return value.get(name) if isinstance(value, Mapping) else None


def usage_of(counted: object) -> Usage:
    """The server's counts; numbers that cannot be counts are none."""
    tokens = [entry(counted, name) for name in ("prompt_tokens", "completion_tokens")]
    if not all(_is_count(number) for number in tokens):
        return Usage(requests=1, uncounted=1)
    cached = entry(entry(counted, "prompt_tokens_details"), "cached_tokens")
    cached = min(cached, tokens[0]) if _is_count(cached) else 0
    return Usage(requests=1, prompt_tokens=tokens[0], cached_tokens=cached, completion_tokens=tokens[1])


def _is_count(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number <= _MOST_TOKENS


def logprobs_of(choice: object) -> list[dict[str, float]] | None:
    """Log-probabilities by alternative, of each token; None where they are not there or not in that form."""
    content = entry(entry(choice, "logprobs"), "content")
    rows = []
    for token in content if isinstance(content, list) else []:
        items = entry(token, "top_logprobs") or [token]
        if not isinstance(items, list):
            return None
        pairs = [(entry(item, "token"), entry(item, "logprob")) for item in items]
        if not all(isinstance(name, str) and storable(name) and type(value) in (int, float) for name, value in pairs):
            return None
        rows.append(dict(pairs))
    return rows or None
