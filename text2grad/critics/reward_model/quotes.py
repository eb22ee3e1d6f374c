"""Decoding in which every span is a quote: what the reward model writes is always z, and its unmatched rate is 0.

A reward model copies spans from memory, and a few of them are nowhere in the response (paper, appendix L: 0.93 to
2.47 % of them). Here tokens that would leave the format, or the text that is judged, are taken out before each step::

    matcher = QuoteConstraint(tokenizer, get_task("slf5k")).matcher(response)
    while not matcher.done:
        logits = logits.masked_fill(matcher.forbidden(), float("-inf"))
        matcher.write(token)

llguidance keeps to the grammar of the response that a server gets, too (:mod:`text2grad.critics.quote_grammar`). Two
things are added that no grammar says: behind a quote that a list has more often than the response, the list ends, so
that nothing is repeated for ever; and what the limit of tokens cuts off is closed (:meth:`QuoteMatcher.closing`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper, grammar_from

from text2grad.critics.quote_grammar import quote_grammar, spelled
from text2grad.errors import InputError
from text2grad.tasks import Task
from text2grad.token_text import token_bytes

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_PARTS = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|[\[\]]', re.DOTALL)
_NEEDED = [*range(0x20, 0x7F), *range(0x80, 0xC0)]


class QuoteConstraint:
    """Makes a reward model write valid z whose spans are quotes of the response that it judges.

    It holds what all feedback of one task with one tokenizer have in common.

    Attributes:
        written: the bytes of each id; none for special tokens, which are never written inside z.
        going_on: the ids that may close a quote and go on with the list.
        ends_string, ends_rest: the ids that close a string, and what is around it.

    Raises:
        InputError: a tokenizer whose tokens are no fixed byte strings, or that cannot write every text.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, task: Task):
        self.task, written = task, token_bytes(tokenizer)
        ids = {token: token_id for token_id, token in enumerate(written)}
        if missing := [byte for byte in _NEEDED if bytes([byte]) not in ids]:
            # Else a token could end in the middle of a character which no other token finishes.
            shown = ", ".join(f"0x{byte:02X}" for byte in missing[:8])
            raise InputError(
                f"{tokenizer.name_or_path or 'the tokenizer'}: has no token for the single bytes {shown}; "
                "constrained decoding needs byte-level BPE or SentencePiece with byte fallback"
            )
        self.written = [token or b"" for token in written]
        self.going_on = {i for i, token in enumerate(self.written) if b'",' in token or token.startswith(b",")}
        self.ends_string, self.ends_rest = [ids[b'"']], [ids[b"]"], ids[b"}"]]
        self.library = LLTokenizer(TokenizerWrapper(_Vocabulary(tokenizer, written)))

    def matcher(self, response: str) -> QuoteMatcher:
        """What follows the feedback on one response."""
        return QuoteMatcher(self, response)


class _Vocabulary:
    """A tokenizer in the words of llguidance, with an end of sequence of its own behind all ids."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, written: list[bytes | None]):
        self._tokenizer = tokenizer
        self.tokens = [b"\xff[%d]" % i if token is None else token for i, token in enumerate([*written, None])]
        self.special_token_ids = [i for i, token in enumerate([*written, None]) if token is None]
        self.bos_token_id, self.eos_token_id = None, len(written)

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer(text, add_special_tokens=False)["input_ids"]


class QuoteMatcher:
    """Which tokens may follow what is written about one response; make one with :meth:`QuoteConstraint.matcher`.

    Attributes:
        done: whether the object is closed; whatever follows is nobody's business.
    """

    def __init__(self, shared: QuoteConstraint, response: str):
        self._shared, task = shared, shared.task
        judged = task.rewarded(response)
        grammar = quote_grammar(task.fields, task.fields.variant, response, judged)
        self._matcher = LLMatcher(shared.library, grammar_from("grammar", grammar))
        if self._matcher.is_error():
            raise InputError(f"the response has no grammar: {self._matcher.get_error()}")
        self._judged = '"'.join(spelled(response[start:end]) for start, end in judged).encode(errors="replace")
        self._tokens: list[int] = []

    @property
    def done(self) -> bool:
        return self._matcher.is_accepting()

    def write(self, token: int) -> None:
        """Take in one more token. ``ValueError`` where the grammar forbids it."""
        if self.done or not self._matcher.consume_token(token):
            raise ValueError(f"token {token} may not follow at position {len(self._tokens)} of the feedback")
        self._tokens.append(token)

    def take_back(self, number: int) -> None:
        """Forget the last tokens."""
        if number:
            self._matcher.rollback(number)
            del self._tokens[-number:]

    def allows(self, token: int) -> bool:
        """Whether a token may follow: much faster than :meth:`forbidden`, and the same."""
        if self.done:
            return True
        if token >= len(self._shared.written) or not self._matcher.validate_tokens([token]):
            return False
        quotes = self._quotes() if token in self._shared.going_on else []
        return len(quotes) < 2 or not self._repeats(quotes, self._shared.written[token])

    def forbidden(self) -> torch.Tensor:
        """The tokens that may not follow: bool, [vocabulary]; none once the object is closed."""
        if self.done:
            return torch.zeros(len(self._shared.written), dtype=torch.bool)
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        mask = torch.from_numpy(np.unpackbits(bits, count=len(self._shared.written), bitorder="little") == 0)
        if len(quotes := self._quotes()) > 1:
            going_on = [token for token in self._shared.going_on if not mask[token]]
            mask[[token for token in going_on if self._repeats(quotes, self._shared.written[token])]] = True
        return mask

    def closing(self) -> list[int]:
        """Write what closes the object, without asking a model."""
        before = len(self._tokens)
        while not self.done:
            inside = b'"' in _STRING.sub(b"", self._text)
            forbidden = self.forbidden()
            wanted = self._shared.ends_string if inside else self._shared.ends_rest
            fitting = [token for token in wanted if not forbidden[token]]
            self.write(fitting[0] if fitting else int(forbidden.int().argmin()))
        return self._tokens[before:]

    @property
    def _text(self) -> bytes:
        return b"".join(self._shared.written[token] for token in self._tokens)

    def _quotes(self) -> list[bytes]:
        """The quotes of the list that is being written, the last one perhaps unfinished."""
        lists, quotes, inside = 0, list[bytes](), False
        for part in _PARTS.findall(self._text):
            if part in (b"[", b"]"):
                inside, quotes = part == b"[", []
                lists += inside
            elif inside:
                quotes.append(part)
        return quotes if lists <= 2 else []  # the third list says what is missing

    def _repeats(self, quotes: list[bytes], token: bytes) -> bool:
        """Whether a token goes on with the list behind a quote that the list has more often than the response."""
        text = quotes[-1] + token
        quote = _STRING.match(text)
        if not quote or text[quote.end() : quote.end() + 1] != b",":
            return False
        found = re.findall(b"(?=%b)" % re.escape(quote[0][1:-1]), self._judged)
        return quotes[:-1].count(quote[0]) >= len(found)
