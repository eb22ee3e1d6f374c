"""Decoding of JSON feedback, greedy or sampled: batched, stopped at the closing brace, and fast.

Since feedback mostly quotes the response and repeats its own format, the next few tokens are guessed from what followed
the last two before, and checked all at once in one forward pass (prompt lookup decoding): a guess that the model would
not have made itself is thrown away. This changes nothing of what is written, but where rounding decides between
tokens: in 16 bits a product of other shape may round otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch

from text2grad.critics.reward_model.reading import RowReader, reader
from text2grad.models import end_token_ids

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from text2grad.models.answering import OwnRandomness


class ObjectEnd:
    """Follows text piece by piece and knows when its first JSON object is complete."""

    def __init__(self) -> None:
        self.depth, self.closed = 0, False
        self._in_string = self._escaped = False

    def feed(self, piece: str) -> bool:
        """Whether the object is closed after ``piece``."""
        for char in piece:
            if self.closed:
                break
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                elif char == "\\":
                    self._escaped = True
                elif char == '"':
                    self._in_string = False
            elif char == '"':
                self._in_string = self.depth > 0
            elif char == "{":
                self.depth += 1
            elif char == "}" and self.depth:
                self.depth -= 1
                self.closed = self.depth == 0
        return self.closed


class Lookahead:
    """Guesses the next tokens of one row: what followed its last two tokens before, or else its last one.

    Args:
        ids: tokens to learn from.
        alike: what tokens are compared by.
        base: where to look for what this row has not seen.
    """

    def __init__(self, ids: Sequence[int], alike: Callable[[int], Hashable], base: Lookahead | None = None):
        self._alike, self._base = alike, base
        self._pairs: dict[tuple, int] = {}
        self._singles: dict[Hashable, int] = {}
        self._last: tuple = (None, None)
        self._seen = 0
        for token in ids:
            self._add(token)

    def _add(self, token: int) -> None:
        self._pairs[self._last] = token
        self._singles[self._last[1]] = token
        self._last = (self._last[1], self._alike(token))

    def learn(self, written: Sequence[int]) -> None:
        """Take in what the row has written since the last call."""
        for token in written[self._seen :]:
            self._add(token)
        self._seen = len(written)

    def guess(self, length: int) -> list[int]:
        """At most ``length`` tokens."""
        guesses: list[int] = []
        last = self._last
        while len(guesses) < length:
            token = self._after(last)
            if token is None:
                break
            guesses.append(token)
            last = (last[1], self._alike(token))
        return guesses

    def _after(self, last: tuple) -> int | None:
        levels = (self, self._base) if self._base is not None else (self,)
        for level in levels:
            if last in level._pairs:
                return level._pairs[last]
        for level in levels:
            if last[1] in level._singles:
                return level._singles[last[1]]
        return None


class Matcher(Protocol):
    """Says which tokens may follow what one row has written; positions are values, so that guesses can be tried."""

    start: Any

    def next(self, position: Any, token: int) -> Any:
        """The position after one more (allowed) token."""

    def forbidden(self, position: Any) -> torch.Tensor:
        """Bool, [vocabulary]; not to be written into."""


class _Row:
    """One response's feedback in the making."""

    def __init__(
        self,
        limit: int,
        guesser: Lookahead | None,
        matcher: Matcher | None,
        draws: OwnRandomness | None = None,
    ):
        self.limit, self.guesser, self.matcher, self.draws = limit, guesser, matcher, draws
        self.written: list[int] = []
        self.guess: list[int] = []
        self.end = ObjectEnd()
        self._positions = [matcher.start] if matcher else []
        self._masks: list[torch.Tensor] = []

    def prepare(self, lookahead: int) -> None:
        """Guess what comes next, as far as it is allowed."""
        self.guess = []
        if self.guesser is not None:
            self.guesser.learn(self.written)
            self.guess = self.guesser.guess(min(lookahead, self.limit - len(self.written) - 1))
        if self.matcher is not None:
            self._positions, self._masks = self._positions[:1], []
            for index, token in enumerate(self.guess):
                self._masks.append(self.matcher.forbidden(self._positions[-1]))
                if self._masks[-1][token]:
                    del self.guess[index:]
                    break
                self._positions.append(self.matcher.next(self._positions[-1], token))

    def masks(self) -> list[torch.Tensor]:
        """What may not be written next, and after each guess; empty where nothing is constrained."""
        if self.matcher is not None:
            self._masks += [self.matcher.forbidden(position) for position in self._positions[len(self._masks) :]]
        return self._masks

    def take(self, choices: Sequence[int]) -> list[int]:
        """The tokens that decoding writes: the guesses that it would have written itself, and one more.

        Args:
            choices: what it would write next, and after each guess.
        """
        taken = 0
        while taken < len(self.guess) and self.guess[taken] == choices[taken]:
            taken += 1
        if self.matcher is not None:
            self._positions, self._masks = [self.matcher.next(self._positions[taken], choices[taken])], []
        return list(choices[: taken + 1])


class FeedbackDecoder:
    """Decoding with one model.

    Args:
        prefix: ids that prompts begin with.
        examples: token ids of typical feedback, which the lookahead learns from.
        lookahead: tokens guessed and checked per forward pass; 0 for one token a pass.
        device: where the model computes, where that is not where its weights are (ZeRO-3 with offload).
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        prefix: Sequence[int] = (),
        examples: Sequence[int] = (),
        lookahead: int = 4,
        device: torch.device | str | None = None,
    ):
        self.tokenizer, self.prefix, self.device = tokenizer, list(prefix), device or model.device
        self._pad = tokenizer.pad_token_id or 0
        self.model = model
        self._reader: RowReader = reader(model, self.prefix, self._pad, self.device)
        self.lookahead = lookahead if self._reader.takes_back else 0
        self.end_ids = end_token_ids(model, tokenizer)
        self._pieces: dict[int, str] = {}
        self._typical = Lookahead(examples, self._alike)
        self.passes = self.tokens = 0
        """Rows times forward passes, and tokens written by them; the ratio is what the lookahead gains."""

    @torch.no_grad()  # not inference_mode: what ZeRO-3 gathers here has to serve training afterwards
    def __call__(
        self,
        prompts: Sequence[Sequence[int]],
        limits: Sequence[int],
        batch_size: int,
        matchers: Sequence[Matcher | None] | None = None,
        draws: Sequence[OwnRandomness] | None = None,
    ) -> list[list[int]]:
        """The ids written after each prompt (the end-of-turn token is not among them).

        Args:
            prompts: token ids; unpadded.
            limits: the most tokens to write after each; at least 1.
            matchers: one per prompt; None where what it may write is not constrained.
            draws: one per prompt, so that no other row changes what is drawn; without them decoding is greedy.
        """
        order = sorted(range(len(prompts)), key=lambda row: -len(prompts[row]))
        written: list[list[int]] = [[] for _ in prompts]
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            batch = [list(prompts[index]) for index in chosen]
            shared = self._shared(batch)
            rows = [
                _Row(
                    limits[index],
                    Lookahead(ids[shared:], self._alike, self._typical) if self.lookahead else None,
                    matchers[index] if matchers else None,
                    draws[index] if draws else None,
                )
                for index, ids in zip(chosen, batch, strict=True)
            ]
            self._decode(batch, shared, rows)
            for index, row in zip(chosen, rows, strict=True):
                written[index] = row.written
        return written

    def _decode(self, prompts: list[list[int]], shared: int, rows: list[_Row]) -> None:
        chosen = self._choose(rows, self._reader.begin(prompts, shared))
        while True:
            alive = [index for index, tokens in enumerate(chosen) if not self._write(tokens, rows[index])]
            if not alive:
                return
            if len(alive) < len(rows):
                self._reader.keep(alive)
                rows = [rows[index] for index in alive]
            for row in rows:
                row.prepare(self.lookahead)
            longest = max(len(row.guess) for row in rows)
            ids = [[row.written[-1], *row.guess, *[self._pad] * (longest - len(row.guess))] for row in rows]
            chosen = self._choose(rows, self._reader.extend(torch.tensor(ids)))
            self._reader.accept([len(tokens) for tokens in chosen])

    def _choose(self, rows: list[_Row], logits: torch.Tensor) -> list[list[int]]:
        """What each row writes. On an accelerator the masks travel in one piece, and the choices come back in one."""
        self.passes += len(rows)
        masks = [row.masks() for row in rows]  # made on the host while the device still computes the logits
        if any(masks):
            forbidden = torch.zeros(logits.shape, dtype=torch.bool)
            for own, row_masks in zip(forbidden, masks, strict=True):
                for place, mask in zip(own, row_masks, strict=False):
                    place[: len(mask)] = mask
                    place[len(mask) :] = True  # embeddings are often padded to a round number
            logits = logits.masked_fill(forbidden.to(logits.device), float("-inf"))
        if any(row.draws for row in rows):
            choices = [self._drawn(row, own) for row, own in zip(rows, logits, strict=True)]
        else:
            choices = logits.max(-1).indices.tolist()  # argmax takes six times as long in bfloat16
        return [row.take(own) for row, own in zip(rows, choices, strict=True)]

    def _drawn(self, row: _Row, logits: torch.Tensor) -> list[int]:
        """The choices of one row; its random draws do not depend on the guesses of other rows."""
        logits = logits[: 1 + len(row.guess)]
        return (row.draws.ids(logits, [0] * len(logits)) if row.draws else logits.argmax(-1)).tolist()

    def _write(self, tokens: list[int], row: _Row) -> bool:
        """Append tokens up to where the feedback ends; whether it has."""
        for token in tokens:
            if token in self.end_ids:
                return True
            row.written.append(token)
            self.tokens += 1
            if row.end.feed(self._piece(token)) or len(row.written) >= row.limit:
                return True
        return False

    def _shared(self, prompts: list[list[int]]) -> int:
        """How many leading ids of all rows are the prefix's; each row has at least one further id."""
        shared = len(self.prefix)
        for ids in prompts:
            shared = min(shared, len(ids) - 1)
            while ids[:shared] != self.prefix[:shared]:
                shared -= 1
        return shared

    def _piece(self, token: int) -> str:
        if token not in self._pieces:
            self._pieces[token] = self.tokenizer.decode([token])
        return self._pieces[token]

    def _alike(self, token: int) -> str:
        """What two tokens have in common that differ only in a space before them."""
        return self._piece(token).strip().lower() or self._piece(token)
