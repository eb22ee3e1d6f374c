"""Secrets kept out of what is stored and shown: credentials in addresses, tokens in query strings, keys.

For settings, names and messages. What a model wrote is never rewritten: a text that holds a key is refused instead.
"""

import os
import re
from typing import Any

MARK = "[redacted]"
SHORTEST_KEY = 16  # characters; shorter keys are dummies for local servers, and occur in ordinary text
_KEY_VARIABLES = re.compile(r"(?:API_?KEY|ACCESS_KEY|TOKEN|SECRET)$", re.I)
_KEY = re.compile(
    r"(?<![\w-])(?:(?:sk-|hf_|gsk_|gh[pousr]_|xai-)[\w-]*?(?=[A-Za-z0-9]{0,40}\d)[A-Za-z0-9]{16,}"
    r"|(?:sk-(?:proj|svcacct|admin|ant)-|github_pat_|AIza)(?=[\w-]*\d)[\w-]{30,})[\w-]*",
    re.A,
)
"""Sixteen letters and digits in a row, some of them digits: hf_llama3_8b_instruct is a name. Keys that may hold - and _
themselves have prefixes that no name has."""
_CREDENTIALS = re.compile(r"(?<=://)[^/?#\s@]+@")
_QUERY = re.compile(r"([?&;][\w.-]*(?:key|token|secret|password|passwd|auth|sig|signature|credential)=)[^&;#\s]+", re.I)
_HEADER = re.compile(r"\b(Bearer|Basic) [\w.~+/=-]{8,}")


def redacted(value: Any) -> Any:
    """A JSON value (a message, settings) without the secrets in its texts."""
    if isinstance(value, str):
        return _without_keys(_without_credentials(value))
    if isinstance(value, dict):
        return {key: redacted(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(redacted, value))
    return value


def holds_key(text: str, key: str) -> bool:
    """Whether a text gives a key away."""
    return len(key) >= SHORTEST_KEY and key in text


def is_misplaced(setting: Any) -> bool:
    """Whether a setting holds a key where none belongs; in an address it belongs, and is redacted there."""
    if isinstance(setting, list | tuple):
        return any(map(is_misplaced, setting))
    return isinstance(setting, str) and _without_keys(rest := _without_credentials(setting)) != rest


def _without_credentials(text: str) -> str:
    text = _CREDENTIALS.sub(f"{MARK}@", text)
    return _HEADER.sub(rf"\1 {MARK}", _QUERY.sub(rf"\1{MARK}", text))


def _without_keys(text: str) -> str:
    for name, key in os.environ.items():
        if holds_key(text, key) and _KEY_VARIABLES.search(name):
            text = text.replace(key, MARK)
    return _KEY.sub(MARK, text)
