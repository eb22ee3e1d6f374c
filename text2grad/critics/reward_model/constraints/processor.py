"""Quote-constrained decoding for ``generate`` and for loops of one's own."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, cast

import torch
from transformers import LogitsProcessor

from text2grad.critics.reward_model.constraints.matcher import Position, QuoteMatcher, Shared
from text2grad.errors import InputError
from text2grad.tasks import Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class QuoteConstraint:
    """Makes a reward model write valid z whose spans are quotes of the response it judges; see the package.

    Args:
        tokenizer: the reward model's.
        max_critique: characters of the critique after which it is closed.
        max_spans: spans per list after which the list is closed.
        eos_token_ids: what may follow the closing brace; the tokenizer's own where None.

    Raises:
        InputError: a tokenizer without an end-of-sequence token, or whose tokens are no fixed byte strings.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        task: Task | str,
        max_critique: int = 4000,
        max_spans: int = 32,
        eos_token_ids: Collection[int] | None = None,
    ):
        eos = [tokenizer.eos_token_id] if eos_token_ids is None else list(eos_token_ids)
        if not eos or None in eos:
            raise InputError(
                f"{tokenizer.name_or_path or 'the tokenizer'}: has no end-of-sequence token; set eos_token"
            )
        self._shared = Shared(tokenizer, task, max_critique, max_spans, eos)

    def matcher(self, response: str, max_new_tokens: int | None = None) -> QuoteMatcher:
        """For decoding loops of one's own: start, next(position, token), forbidden(position)."""
        return QuoteMatcher(self._shared, response, max_new_tokens)

    def processor(
        self, responses: Sequence[str], prompt_length: int, max_new_tokens: int | None = None
    ) -> QuoteLogitsProcessor:
        """For ``model.generate(..., logits_processor=[processor])``.

        Args:
            responses: one for each row of the batch (or for each group of rows, with beams or several samples a row).
            prompt_length: columns of the left-padded prompts; what follows them is z.
            max_new_tokens: what ``generate`` is given; z is then closed in time.
        """
        return QuoteLogitsProcessor([self.matcher(text, max_new_tokens) for text in responses], prompt_length)


class QuoteLogitsProcessor(LogitsProcessor):
    """Sets the scores of what may not follow to −inf."""

    def __init__(self, matchers: Sequence[QuoteMatcher], prompt_length: int):
        self._matchers, self._prompt_length = matchers, prompt_length
        self._ids: torch.Tensor | None = None
        self.positions: list[Position] = []

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """``input_ids`` [rows, length], ``scores`` [rows, vocabulary]; returns new scores."""
        written = input_ids[:, self._prompt_length :]
        group, rest = divmod(len(written), len(self._matchers))
        if rest:
            raise ValueError(f"{len(written)} rows for {len(self._matchers)} responses")
        matchers = [self._matchers[row // group] for row in range(len(written))]
        if self._ids is not None and torch.equal(written[:, :-1], self._ids):
            last = written[:, -1].tolist()
            self.positions = [m.next(p, t) for m, p, t in zip(matchers, self.positions, last, strict=True)]
        else:  # the first call, or beams changed places
            self.positions = [_replayed(m, row) for m, row in zip(matchers, written.tolist(), strict=True)]
        self._ids = written
        masks = torch.stack([m.forbidden(p) for m, p in zip(matchers, self.positions, strict=True)])
        surplus = scores.shape[-1] - masks.shape[-1]  # embeddings are often padded to a round number
        if surplus > 0:
            masks = torch.nn.functional.pad(masks, (0, surplus), value=True)
        forbidden = masks[:, : scores.shape[-1]].to(scores.device)
        return cast("torch.FloatTensor", scores.masked_fill(forbidden, float("-inf")))


def _replayed(matcher: QuoteMatcher, tokens: Sequence[int]) -> Position:
    position = matcher.start
    for token in tokens:
        position = matcher.next(position, token)
    return position
