"""Which tokens may follow what the reward model has written about one response."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from text2grad.critics.reward_model.constraints.automaton import (
    AFTER,
    BETWEEN,
    END,
    LITERAL,
    MISSING,
    OPEN,
    SPAN,
    TEXT,
    Format,
    InText,
    Quotes,
    State,
)
from text2grad.critics.reward_model.constraints.vocabulary import Node, Vocabulary
from text2grad.errors import InputError
from text2grad.tasks import Task, get_task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_LONGEST_MISSING = 120  # characters of one missing thing
_UNFINISHED = 11 + 6
"""Bytes that a span may need before it can close, white space aside: the rest of an escaped surrogate pair, and a
first character other than white space."""


@dataclass(frozen=True)
class Position:
    """How far one response's feedback is written. Immutable, so that a guess can be tried and dropped.

    Attributes:
        tokens: how many were written.
        characters: of the critique, or of the missing thing that is being written.
        spans: in the list that is being written.
        length: characters of the span that is being written.
        quoted: of each span of the list that is closed, where it ends (:class:`Quotes`) and its length.
        limited: whether a limit ever narrowed what could follow (the feedback may have been cut short).
    """

    state: State
    tokens: int = 0
    characters: int = 0
    spans: int = 0
    length: int = 0
    quoted: tuple[tuple[int, int], ...] = ()
    limited: bool = False

    @property
    def done(self) -> bool:
        return self.state.kind == END


class QuoteConstraint:
    """Makes a reward model write valid z whose spans are quotes of the response it judges; see the package.

    It holds what all feedback of one task with one tokenizer have in common; masks are computed once and kept.

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
        self.task = get_task(task)
        self.vocabulary = Vocabulary(tokenizer)
        self.format = Format(self.task, spans=None)
        self.max_critique, self.max_spans = max_critique, max_spans
        self.eos = self.mask(eos)
        self._walks: dict[State, tuple[torch.Tensor, list[int], list[tuple[Node, State]]]] = {}

    def matcher(self, response: str, max_new_tokens: int | None = None) -> QuoteMatcher:
        """What follows the feedback on one response: start, next(position, token), forbidden(position)."""
        return QuoteMatcher(self, response, max_new_tokens)

    def walk(self, state: State) -> tuple[torch.Tensor, list[int], list[tuple[Node, State]]]:
        """What may follow outside of spans: the forbidden tokens as a mask, the allowed ids, and the trie's nodes at
        which a span opens, each with its state."""
        if state not in self._walks:
            ids, opened = walk(self.format, state, self.vocabulary.root)
            self._walks[state] = (self.mask(ids), ids, opened)
        return self._walks[state]

    def mask(self, ids: list[int]) -> torch.Tensor:
        """All tokens but ``ids``; bool, [vocabulary]."""
        forbidden = torch.ones(len(self.vocabulary.tokens), dtype=torch.bool)
        forbidden[ids] = False
        return forbidden

    @cached_property
    def closing_length(self) -> int:
        """Tokens that closing takes at most, from any state outside of spans and of unfinished characters."""
        parts = range(1, len(self.format.literals))
        # Any fixed part may be begun; what is missing and its list begin with the same bracket, which is then written.
        states = [State(TEXT, 0, 2, InText(True, b""))] if self.format.has_text else []
        for part in parts:
            for written in range(part == MISSING, len(self.format.literals[part])):
                states.append(State(LITERAL, part, 2, written))
        return max(map(self._closing_tokens, states))

    def _closing_tokens(self, state: State) -> int:
        count = 0
        while state.kind != END:
            _, ids, _ = self.walk(state)
            for byte in max((self.vocabulary.written(token) for token in ids), key=len):
                state = self.format.walked(state, byte)
            count += 1
        return count


class QuoteMatcher:
    """Which tokens may follow, for feedback on one response.

    Args:
        max_tokens: tokens the feedback may have; it is closed in time. None for no limit.

    Attributes:
        least_tokens: with fewer, no feedback can be sure to close; it is then cut off like any other that is too long.
    """

    def __init__(self, shared: QuoteConstraint, response: str, max_tokens: int | None = None):
        self._shared = shared
        quotes = Quotes(response, shared.task.rewarded(response))
        self._format = Format(shared.task, quotes)
        self._walks: dict[State, list[int]] = {}
        self.start = Position(self._format.start)
        reserve = shared.closing_length + quotes.blank_tokens + _UNFINISHED
        self.least_tokens = reserve + len(self._format.literals[0]) + 1
        self._tight_from = float("inf")
        if max_tokens is not None and max_tokens >= self.least_tokens:
            self._tight_from = max_tokens - reserve

    def next(self, position: Position, token: int) -> Position:
        """The position after one more token.

        Raises:
            ValueError: a token that :meth:`forbidden` forbids.
        """
        if position.done:
            return position
        state, characters, spans = position.state, position.characters, position.spans
        length, quoted, again = position.length, position.quoted, False
        for byte in self._shared.vocabulary.tokens[token] or b"\0":
            after = self._format.step(state, byte)
            if after is None or (again and after.kind == BETWEEN):
                raise ValueError(f"token {token} may not follow at position {position.tokens} of the feedback")
            # Characters count where they are complete: a token may end in the middle of one.
            if after.kind == TEXT == state.kind:
                characters += not after.content.pending
            elif after.kind == OPEN:
                spans, quoted = 0, ()
            elif after.kind == SPAN and state.kind != SPAN:
                spans, length = spans + 1, 0
            elif after.kind == TEXT and after.part == MISSING:
                spans, characters = spans + 1, 0
            elif after.kind == SPAN:
                length += not after.content.pending
            elif after.kind == AFTER and state.kind == SPAN:
                places = state.content.places  # where it ends: the list has it as often as the response, or more often
                again = quoted.count((places, length)) >= places.bit_count()
                quoted = (*quoted, (places, length))
            state = after
        # How much freedom is left: none near the limit of tokens, and none to go on with a text or a list that is full.
        if position.tokens + 1 >= self._tight_from:
            tight = 2
        elif state.kind == TEXT:
            tight = int(characters >= (_LONGEST_MISSING if state.part == MISSING else self._shared.max_critique))
        else:
            tight = int(state.kind in (OPEN, AFTER) and (again or spans >= self._shared.max_spans))
        limited = position.limited or (tight > 0 and state.kind != END)
        return Position(state._replace(tight=tight), position.tokens + 1, characters, spans, length, quoted, limited)

    def _loops(self, position: Position, token: int) -> bool:
        """Whether a token that the format allows goes on behind a quote that the list has too often."""
        try:
            self.next(position, token)
        except ValueError:
            return True
        return False

    def forbidden(self, position: Position) -> torch.Tensor:
        """The tokens that may not follow: bool, [vocabulary]; not to be written into."""
        if position.done:
            return self._shared.eos
        state = position.state
        if state.kind != SPAN:
            mask, ids, opened = self._shared.walk(state)
            if state.tight < 2 and not opened:
                return mask
        ids = self._allowed(state)
        if state.kind == SPAN and position.quoted:
            ids = [token for token in ids if not self._loops(position, token)]
        if state.tight == 2:  # close in few tokens: only those that get furthest
            progress = {token: self._progress(state, self._shared.vocabulary.written(token)) for token in ids}
            most = max(progress.values())
            ids = [token for token in ids if progress[token] == most]
        return self._shared.mask(ids)

    def _progress(self, state: State, token: bytes) -> tuple[int, int]:
        """The characters that a token completes, and its bytes."""
        completed = 0
        for byte in token:
            state = self._format.walked(state, byte)
            completed += not (state.kind in (TEXT, SPAN) and state.content.pending)
        return completed, len(token)

    def _allowed(self, state: State) -> list[int]:
        if state not in self._walks:
            if state.kind == SPAN:
                ids, _ = walk(self._format, state, self._shared.vocabulary.root)
            else:
                _, outside, opened = self._shared.walk(state)
                ids = list(outside)
                for node, behind in opened:
                    span = self._format.open_span(behind.part, behind.tight)
                    if span is not None:
                        ids += node[0] + walk(self._format, span, node)[0]
            self._walks[state] = ids
        return self._walks[state]


def walk(format: Format, state: State, node: Node) -> tuple[list[int], list[tuple[Node, State]]]:
    """The tokens below ``node`` that may follow ``state``; and where spans without content open."""
    ids: list[int] = []
    opened: list[tuple[Node, State]] = []
    todo = [(node, state)]
    while todo:
        (_, children), state = todo.pop()
        candidates = format.candidates(state)
        for byte in children if candidates is None or len(children) < len(candidates) else candidates:
            child = children.get(byte)
            after = None if child is None else format.step(state, byte)
            if child is None or after is None:
                continue
            if after.content is None:  # a span opens: what may be in it is the response's to say
                opened.append((child, after))
                continue
            ids += child[0]
            if child[1]:
                todo.append((child, after))
    return ids, opened
