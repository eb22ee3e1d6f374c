"""Decoding of JSON feedback, greedy or sampled: batched, stopped at the closing brace, and fast.

Since feedback mostly names and quotes the response's words in order, and repeats its own format between them, the next
few tokens are guessed (:class:`Drafter`) and checked all at once in one forward pass: a guess that the model would not
have made itself is thrown away. This changes nothing of what is written, but where rounding decides between tokens: in
16 bits a product of other shape may round otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cache
from os.path import commonprefix
from typing import TYPE_CHECKING, Any

import torch

from text2grad.critics.reward_model.reading import AnyModel, PackedModel
from text2grad.models import base_model, end_token_ids
from text2grad.models.packed import can_decode

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from text2grad.critics.reward_model.quotes import QuoteMatcher
    from text2grad.models.answering import OwnRandomness


_WORD = re.compile(r" ?\w+|'\w+| ?[^\w\s]+")
_MARKS = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|[{}]', re.DOTALL)  # braces, and strings in which they are none
_NEXT = ("next",)
_ORDER = 3  # so many moves say what comes next
_WORTH_TRYING = 0.2  # the probability from which on a guess is read, too

Spell = Callable[[Sequence[str]], list[tuple[int, ...]]]
State = tuple[int, tuple[int, ...] | None]
"""The word that feedback copied last, and those of its ids that are still to come; None where it copies nothing."""


def closes_object(text: str) -> bool:
    """Whether the first JSON object in a text is complete."""
    depth = 0
    for mark in _MARKS.findall(text, max(text.find("{"), 0)):
        depth += {"{": 1, "}": -1}.get(mark, 0)
        if mark == "}" and depth == 0:
            return True
    return False


class Habits:
    """What feedback did after its last moves, counted, and the words that it passed over; both begin as ``known``."""

    def __init__(self, known: Habits | None = None):
        after = known._after if known else {}
        self._after: dict[tuple, dict[Hashable, int]] = {context: dict(counts) for context, counts in after.items()}
        self.skipped: set[str] = set(known.skipped) if known else set()

    def add(self, context: tuple, move: Hashable) -> None:
        for start in range(len(context)):
            counts = self._after.setdefault(context[start:], {})
            counts[move] = counts.get(move, 0) + 1

    def likely(self, context: tuple) -> Iterator[tuple[Any, float]]:
        """The most frequent move after the whole context, then after shorter ones; each with its probability."""
        known = [counts for start in range(len(context)) if (counts := self._after.get(context[start:]))]
        for counts in known:
            move, probability = max(counts, key=counts.__getitem__), 0.0
            for each in reversed(known):  # what a short context says is worth one observation of the next longer one
                probability = (each.get(move, 0) + probability) / (sum(each.values()) + 1)
            yield move, probability


class Drafter:
    """Guesses the next tokens of the feedback on one response.

    Feedback is a sequence of moves: it copies the response's next word, it resumes at a word further on, or it writes a
    token of its own. Which move comes next is a habit; which word it is, the response says.

    Args:
        x, y: prompt and response.
        spell: the ids of each word.
        piece: a token's text.
    """

    def __init__(self, habits: Habits, x: str, y: str, spell: Spell, piece: Callable[[int], str]):
        self._habits, self._piece = habits, piece
        found, x_words = _WORD.findall(y), {word.strip().lower() for word in _WORD.findall(x)}
        bare = [word.strip() for word in found]
        self._words = [word.lower() for word in bare]
        self._in_x = [word in x_words for word in self._words]
        # each word as the response has it, as it is behind a space, and as it is behind a quotation mark
        self._ids = list(zip(spell(found), spell([f" {word}" for word in bare]), spell(bare), strict=True))
        self._starts: dict[int, list[int]] = {}  # a word's first id -> where the response has it
        for place, spellings in enumerate(self._ids):
            for first in {ids[0] for ids in spellings if self._words[place][0].isalnum()}:
                self._starts.setdefault(first, []).append(place)
        self._notes: dict[int, int] = {}  # a word -> what was written behind it the first time
        self._state: State = (-1, None)
        self._context: tuple = ()
        self._last = self._seen = 0

    def learn(self, written: Sequence[int]) -> None:
        """Take in what the row has written since the last call."""
        for token in written[self._seen :]:
            before, rest = self._state
            move, self._state = self._step(self._state, token)
            place, now = self._state
            if rest == () and now is None:
                self._notes.setdefault(before, token)
            if isinstance(move, tuple) and move != _NEXT and place not in self._notes:
                self._habits.skipped.update(self._words[before + 1 : place])
                self._habits.skipped.discard(self._words[place])
            if move is not None:
                self._habits.add(self._context, move)
                self._context = (*self._context, move)[-_ORDER:]
            self._last = token
        self._seen = len(written)

    def guess(self, length: int) -> list[int]:
        """At most ``length`` tokens, and only as many as are likely to be right."""
        guesses: list[int] = []
        state, context, last, probability = self._state, self._context, self._last, 1.0
        while len(guesses) < length:
            if state[1]:
                last = state[1][0]
            else:
                bare = self._piece(last).endswith('"')
                made = ((self._first(move, state, bare), share) for move, share in self._habits.likely(context))
                token, share = next((each for each in made if each[0] is not None), (None, 0.0))
                probability *= share
                if token is None or probability < _WORTH_TRYING:
                    break
                last = token
            guesses.append(last)
            move, state = self._step(state, last)
            context = context if move is None else (*context, move)[-_ORDER:]
        return guesses

    def _step(self, state: State, token: int) -> tuple[Hashable, State]:
        """The move that writes a token (None inside of a word), and the state behind it."""
        place, rest = state
        if rest and rest[0] == token:
            return None, (place, rest[1:])
        if rest == () and self._first(_NEXT, state) == token:
            return _NEXT, (place + 1, self._ids[place + 1][0][1:])
        if rest is None and token in self._starts:
            place = next((each for each in self._starts[token] if each > place), self._starts[token][0])
            ids = next(ids for ids in self._ids[place] if ids[0] == token)
            return ("resume", self._in_x[place], self._notes.get(place)), (place, ids[1:])
        return token, (-1 if "[" in self._piece(token) else place, None)  # each list begins with the first words

    def _first(self, move: Any, state: State, bare: bool = False) -> int | None:
        """The id with which a move begins; None where it has no word to write."""
        if not isinstance(move, tuple):
            return move
        for place in range(state[0] + 1, len(self._words)):
            if move == _NEXT:
                return self._ids[place][0][0] if state[1] == () else None
            note = self._notes.get(place)
            if note == move[2] and (note is not None or self._words[place] not in self._habits.skipped):
                return self._ids[place][1 + bare][0]
        return None


class _Row:
    """One response's feedback in the making."""

    def __init__(
        self,
        limit: int,
        guesser: Drafter | None,
        matcher: QuoteMatcher | None,
        draws: OwnRandomness | None,
        watched: tuple[Sequence[int], Sequence[int]],
    ):
        self.limit, self.guesser, self.matcher, self.draws = limit, guesser, matcher, draws
        self.watched = watched
        self.sure: list[float] = []  # the probabilities of the watched tokens
        self.written: list[int] = []
        self.guess: list[int] = []
        self.text = ""
        self._masks: list[torch.Tensor] = []  # of a row that is drawn: what each guess was chosen from

    def prepare(self, lookahead: int) -> None:
        """Guess what comes next, as far as it is allowed."""
        self.guess, self._masks = [], []
        if self.guesser is not None:
            self.guesser.learn(self.written)
            self.guess = self.guesser.guess(min(lookahead, self.limit - len(self.written) - 1))
        if self.matcher is not None:
            for index, token in enumerate(self.guess):
                if self.matcher.done or not self.matcher.allows(token):
                    del self.guess[index:]
                    break
                if self.draws:
                    self._masks.append(self.matcher.forbidden())
                self.matcher.write(token)

    def drawn(self, draws: OwnRandomness, logits: torch.Tensor) -> list[int]:
        """A token for each place, whatever is kept: a row's draws do not depend on the guesses of other rows."""
        if self.matcher is not None:
            forbidden = _padded([*self._masks, self.matcher.forbidden()], logits)
            logits = logits.masked_fill(forbidden, float("-inf"))
        return draws.ids(logits, [0] * len(logits)).tolist()

    def take(self, logits: torch.Tensor, choices: Sequence[int]) -> list[int]:
        """The tokens that decoding writes: the guesses that it would have written itself, and one more.

        Args:
            logits: of what follows the last token, and each guess.
            choices: what was drawn there, or is likeliest.
        """
        after, tokens = self.watched
        for place, guess in enumerate([*self.guess, None]):
            if tokens and len(self.written) + place == len(after) and [*self.written, *self.guess[:place]] == after:
                self.sure = logits[place].float().softmax(-1)[tokens].tolist()
            token = choices[place]
            if token != guess:
                token = self._allowed(token, place, logits)
            if token != guess:
                break
        return [*self.guess[:place], token]

    def _allowed(self, token: int, place: int, logits: torch.Tensor) -> int:
        """The token, or the likeliest that may be written in its place; the matcher has taken it in."""
        if self.matcher is None:
            return token
        self.matcher.take_back(len(self.guess) - place)
        if not self.draws and not self.matcher.allows(token):
            forbidden = _padded([self.matcher.forbidden()], logits)[0]
            token = int(logits[place].masked_fill(forbidden, float("-inf")).max(-1).indices)
        for taken in self.guess[place:] if [token] == self.guess[place : place + 1] else [token]:
            if not self.matcher.done:
                self.matcher.write(taken)
        return token


def _padded(masks: Sequence[torch.Tensor], logits: torch.Tensor) -> torch.Tensor:
    """The masks as one, for logits of an embedding that may be padded to a round number, on their device."""
    forbidden = torch.ones(len(masks), logits.shape[-1], dtype=torch.bool)
    for place, mask in zip(forbidden, masks, strict=True):
        place[: len(mask)] = mask
    return forbidden.to(logits.device)


class FeedbackDecoder:
    """Decoding with one model, whose weights stay as they are.

    Args:
        prefix: ids that prompts begin with.
        examples: typical feedback that guesses begin with: its token ids, and prompt and response (or parts of them).
        lookahead: tokens guessed and checked per forward pass; 0 for one token a pass.
        watched: ids that feedback may begin with, and tokens whose probabilities after those are kept in ``sure``.
        device: where the model computes, where that is not where its weights are (ZeRO-3 with offload).
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        prefix: Sequence[int] = (),
        examples: Sequence[tuple[Sequence[int], str, str]] = (),
        lookahead: int = 8,
        device: torch.device | str | None = None,
        watched: tuple[list[int], list[int]] = ([], []),
    ):
        self.watched = watched
        self.sure: list[list[float]] = []
        self.tokenizer, self.prefix, self.device = tokenizer, list(prefix), device or model.device
        self._pad = tokenizer.pad_token_id or 0
        packed = torch.device(self.device).type == base_model(model).device.type and can_decode(base_model(model))
        self._reader: PackedModel | AnyModel
        self._reader = (
            PackedModel(model, 1 + lookahead) if packed else AnyModel(model, self.prefix, self._pad, self.device)
        )
        self.lookahead = lookahead if self._reader.takes_back else 0
        self.end_ids = end_token_ids(model, tokenizer)
        self._piece: Callable[[int], str] = cache(lambda token: tokenizer.decode([token]))
        self._spellings: dict[str, tuple[int, ...]] = {}
        self._typical = Habits()
        for ids, x, y in examples if self.lookahead else ():
            Drafter(self._typical, x, y, self._spell, self._piece).learn(ids)
        self.passes = 0
        """Rows times forward passes: the fewer for the tokens written, the more the lookahead gains."""

    @torch.no_grad()  # not inference_mode: what ZeRO-3 gathers here has to serve training afterwards
    def __call__(
        self,
        prompts: Sequence[Sequence[int]],
        limits: Sequence[int],
        batch_size: int,
        matchers: Sequence[QuoteMatcher | None] | None = None,
        draws: Sequence[OwnRandomness] | None = None,
        sources: Sequence[tuple[str, str]] | None = None,
    ) -> list[list[int]]:
        """The ids written after each prompt (the end-of-turn token is not among them).

        Args:
            prompts: token ids; unpadded.
            limits: the most tokens to write after each; at least 1.
            matchers: one per prompt; None where what it may write is not constrained.
            draws: one per prompt, so that no other row changes what is drawn; without them decoding is greedy.
            sources: what each prompt asks about: prompt and response, whose words are guessed.
        """
        order = sorted(range(len(prompts)), key=lambda row: -len(prompts[row]))
        written: list[list[int]] = [[] for _ in prompts]
        self.sure = [[] for _ in prompts]
        habits = Habits(self._typical)
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            batch = [list(prompts[index]) for index in chosen]
            # how many leading ids of all rows are the prefix's; each row has at least one further id
            shared = min(len(commonprefix([self.prefix, ids[:-1]])) for ids in batch)
            rows = []
            for index in chosen:
                # guesses decide how many draws a pass takes: those of a drawn row learn from that row alone
                own, source = Habits(habits) if draws else habits, sources[index] if sources else ("", "")
                guesser = Drafter(own, *source, self._spell, self._piece) if self.lookahead else None
                matcher, drawn = matchers[index] if matchers else None, draws[index] if draws else None
                rows.append(_Row(limits[index], guesser, matcher, drawn, self.watched))
            self._decode(batch, shared, rows)
            for index, row in zip(chosen, rows, strict=True):
                written[index], self.sure[index] = row.written, row.sure
        return written

    def _decode(self, prompts: list[list[int]], shared: int, rows: list[_Row]) -> None:
        chosen = self._choose(rows, self._reader.begin(prompts, shared, max(row.limit for row in rows)))
        while True:
            alive = [index for index, tokens in enumerate(chosen) if not self._write(tokens, rows[index])]
            if not alive:
                return
            if len(alive) < len(rows):
                self._reader.keep(alive)
                rows = [rows[index] for index in alive]
            for row in rows:
                row.prepare(self.lookahead)
            chosen = self._choose(rows, self._reader.extend([[row.written[-1], *row.guess] for row in rows]))
            self._reader.accept([len(tokens) for tokens in chosen])

    def _choose(self, rows: list[_Row], logits: torch.Tensor) -> list[list[int]]:
        """What each row writes. Of an accelerator the host asks one thing, the likeliest tokens, and seldom more.

        Args:
            logits: of what follows each row's last token and each of its guesses, row after row.
        """
        self.passes += len(rows)
        counts = [1 + len(row.guess) for row in rows]
        parts = logits.split(counts)
        choices = [row.drawn(row.draws, own) for row, own in zip(rows, parts, strict=True) if row.draws]
        if not choices:  # argmax takes six times as long in bfloat16
            choices = [own.tolist() for own in logits.max(-1).indices.cpu().split(counts)]
        return [row.take(*each) for row, *each in zip(rows, parts, choices, strict=True)]

    def _write(self, tokens: list[int], row: _Row) -> bool:
        """Append tokens up to where the feedback ends; whether it has."""
        for token in tokens:
            if token in self.end_ids:
                return True
            row.written.append(token)
            row.text += (piece := self._piece(token))
            if "}" in piece and closes_object(row.text):
                return True
            if len(row.written) >= row.limit:
                row.written += row.matcher.closing() if row.matcher else []
                return True
        return False

    def _spell(self, words: Sequence[str]) -> list[tuple[int, ...]]:
        """The ids of words as they are behind other text; some tokenizers write a first word otherwise."""
        new = [word for word in dict.fromkeys(words) if word not in self._spellings]
        if new:
            texts = [('"' if word[0].isalnum() else "x") + word for word in new]
            ids = self.tokenizer(texts, add_special_tokens=False)["input_ids"]
            self._spellings.update((word, tuple(own[1:]) or (self._pad,)) for word, own in zip(new, ids, strict=True))
        return [self._spellings[word] for word in words]
