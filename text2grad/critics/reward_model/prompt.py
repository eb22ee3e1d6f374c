"""The text a reward model reads before it judges, as token ids: the same in training and in every later use.

A prompt file is plain text with ``${prompt}``, ``${response}`` (and whatever else ``task.prompt_fields`` offers). It
becomes the user's turn of the model's own chat template. Where the result is too long, x is shortened; the response
never is, since it is what feedback quotes from.
"""

from __future__ import annotations

from collections.abc import Mapping
from os.path import commonprefix
from typing import TYPE_CHECKING

from text2grad.errors import InputError
from text2grad.models import chat_ids
from text2grad.prompts import Prompt
from text2grad.tasks import Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SHORTEN = ("tail", "middle", "none")
"""What may be cut from an x that is too long: its end, its middle, nothing."""

_MARK = " […] "
_LEAST_KEPT = 80  # characters of x; a response judged against less than that is judged against nothing


class DoesNotFit(ValueError):
    """Feedback does not fit into the length limits, whatever may be cut."""


class RewardPrompt:
    """A prompt file bound to a task and a tokenizer.

    Args:
        prompt: the prompt file, with ``${prompt}`` and ``${response}``.
        max_length: tokens that a prompt may have.
        shorten: one of ``SHORTEN``.
    """

    def __init__(
        self, prompt: Prompt, task: Task, tokenizer: PreTrainedTokenizerBase, max_length: int, shorten: str = "none"
    ):
        self.prompt, self.task, self.tokenizer, self.max_length = prompt, task, tokenizer, max_length
        if shorten not in SHORTEN:
            raise InputError(f"shorten: {shorten!r} is not one of {', '.join(SHORTEN)}")
        self.shorten = shorten
        samples = [dict.fromkeys(prompt.names, sample) for sample in ("a", "7", "\n")]
        self.prefix: list[int] = list(commonprefix([self.full_ids(fields) for fields in samples]))
        """The ids that all prompts begin with, save a response that merges with the last of them."""

    def ids(self, fields: Mapping[str, str], room: int | None = None) -> list[int]:
        """Token ids of the whole prompt, up to where the reward model begins to write; see :meth:`fit`."""
        return self.full_ids(self.fit(fields, room))

    def fit(self, fields: Mapping[str, str], room: int | None = None) -> dict[str, str]:
        """The fields, with x as short as it must be.

        Args:
            fields: the placeholders' values (``task.prompt_fields(record)``).
            room: tokens available where that is less than ``max_length``.

        Raises:
            DoesNotFit: too long, and not enough of x could be cut.
            InputError: the prompt file names a field that ``fields`` lacks.
        """
        limit = self.max_length if room is None else min(room, self.max_length)
        length = len(self.full_ids(fields))
        if length <= limit:
            return dict(fields)
        x = fields["prompt"]
        best: dict[str, str] | None = None
        low, high = _LEAST_KEPT, len(x) - 1 if self.shorten != "none" else 0
        while low <= high:  # the longest x that fits, by bisection
            kept = (low + high) // 2
            shorter = {**fields, "prompt": cut(x, kept, self.shorten)}
            if len(self.full_ids(shorter)) <= limit:
                best, low = shorter, kept + 1
            else:
                high = kept - 1
        if best is None:
            raise DoesNotFit(f"its prompt has {length} tokens where {max(limit, 0)} fit, and its response is never cut")
        return best

    def message(self, fields: Mapping[str, str]) -> dict[str, str]:
        """The user's turn."""
        return {"role": "user", "content": self.prompt.fill(fields).strip()}

    def full_ids(self, fields: Mapping[str, str]) -> list[int]:
        """Token ids of the prompt with nothing shortened, however long."""
        return chat_ids([self.message(fields)], self.tokenizer)


def cut(text: str, kept: int, where: str) -> str:
    """``text`` with only ``kept`` of its characters: without its end (``tail``) or two thirds and one third of them."""
    if where == "tail":
        return text[:kept].rstrip() + _MARK.rstrip()
    head = kept - kept // 3
    return text[:head].rstrip() + _MARK + text[len(text) - kept // 3 :].lstrip()


def completion_ids(tokenizer: PreTrainedTokenizerBase, z: str) -> list[int]:
    """What the model learns to write after a prompt: z, then the end of its turn.

    An end of turn that z quotes stays text: as the token itself it would end z there.
    """
    ids = tokenizer(z, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    return [*ids, tokenizer.eos_token_id]
