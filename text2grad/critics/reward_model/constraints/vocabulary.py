"""A tokenizer's vocabulary as a trie of bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from text2grad.errors import InputError
from text2grad.token_text import token_bytes

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Node = tuple[list[int], dict[int, "Node"]]
"""The ids of the tokens that end here, and the nodes one byte further."""

_NEEDED = [*range(0x20, 0x7F), *range(0x80, 0xC0)]


class Vocabulary:
    """Attributes:
    tokens: what each id writes; None for special tokens, which are never written inside z.
    root: the trie.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.tokens = token_bytes(tokenizer)
        self.root: Node = ([], {})
        for token_id, token in enumerate(self.tokens):
            if token:
                node = self.root
                for byte in token:
                    node = node[1].setdefault(byte, ([], {}))
                node[0].append(token_id)
        missing = [byte for byte in _NEEDED if not self.root[1].get(byte, ([],))[0]]
        if missing:
            # Else a token could end in the middle of a character which no other token finishes.
            shown = ", ".join(f"0x{byte:02X}" for byte in missing[:8])
            raise InputError(
                f"{tokenizer.name_or_path or 'the tokenizer'}: has no token for the single bytes {shown}; "
                "constrained decoding needs byte-level BPE or SentencePiece with byte fallback"
            )

    def written(self, token: int) -> bytes:
        """What a token writes that is not special."""
        data = self.tokens[token]
        assert data is not None
        return data
