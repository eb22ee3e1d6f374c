"""Decoding under the task's JSON schema, by xgrammar (an optional package).

The text then has the fields, in order and of the right types; its spans may still be no quotes of the response. Where
those are wanted, ``text2grad.critics.reward_model.constraints`` gives both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from text2grad.errors import InputError
from text2grad.feedback import reply_schema
from text2grad.tasks import Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class JsonConstraint:
    """The compiled schema of one task for one tokenizer.

    Raises:
        InputError: xgrammar is not installed.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, task: Task):
        try:
            import xgrammar
        except ImportError:
            raise InputError(
                "json-constrained decoding needs xgrammar; run `pip install --no-deps xgrammar==0.2.8 "
                "apache-tvm-ffi==0.1.15.post2`, or use quotes, which needs nothing"
            ) from None
        info = xgrammar.TokenizerInfo.from_huggingface(tokenizer)
        compiler = xgrammar.GrammarCompiler(info)
        self._compiled = compiler.compile_json_schema(
            reply_schema(task.fields, task.fields.variant), any_whitespace=False
        )
        self._vocabulary = info.vocab_size

    def matcher(self) -> JsonMatcher:
        """For feedback on one response."""
        return JsonMatcher(self._compiled, self._vocabulary)


class JsonMatcher:
    """Which tokens may follow (a ``decoding.Matcher``); a position is a grammar matcher that is never moved."""

    def __init__(self, compiled, vocabulary: int):
        import xgrammar

        self.start = xgrammar.GrammarMatcher(compiled)
        self._vocabulary = vocabulary

    def next(self, position, token: int):
        """The position after one more token; ``ValueError`` where it is forbidden."""
        after = position.fork()
        if not after.accept_token(token):
            raise ValueError(f"token {token} may not follow here")
        return after

    def forbidden(self, position) -> torch.Tensor:
        """Bool, [vocabulary]."""
        import xgrammar

        words = xgrammar.allocate_token_bitmask(1, self._vocabulary)
        position.fill_next_token_bitmask(words)
        bits = (words[0][:, None] >> torch.arange(32, dtype=torch.int32)) & 1
        return bits.flatten()[: self._vocabulary] == 0
