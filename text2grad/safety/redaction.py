"""Secrets kept out of what is stored and shown: credentials in addresses, tokens in query strings, keys.

For settings, names and messages. What a model wrote is never rewritten: a text that holds a key is refused instead.
"""

import os
import re
from typing import Any

MARK = "[redacted]"
SHORTEST_KEY = 16  # characters; shorter keys are dummies for local servers, and occur in ordinary text
_KEYS = ("OPENAI_API_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY")
_CREDENTIALS = re.compile(r"(?<=://)[^/?#\s@]+@")
_QUERY = re.compile(r"([?&;][\w.-]*(?:key|token|secret|password|passwd|auth|sig|signature|credential)=)[^&;#\s]+", re.I)
_HEADER = re.compile(r"\b(Bearer|Basic) [\w.~+/=-]{8,}")


def redacted(value: Any) -> Any:
    """A JSON value (a message, settings) without the secrets in its texts."""
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, dict):
        return {key: redacted(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(redacted, value))
    return value


def holds_key(text: str, key: str) -> bool:
    """Whether a text gives a key away."""
    return len(key) >= SHORTEST_KEY and key in text


def _text(text: str) -> str:
    for name in _KEYS:
        key = os.environ.get(name) or ""
        if holds_key(text, key):
            text = text.replace(key, MARK)
    text = _CREDENTIALS.sub(f"{MARK}@", text)
    return _HEADER.sub(rf"\1 {MARK}", _QUERY.sub(rf"\1{MARK}", text))
