"""Which characters each sampled token wrote, for any tokenizer and any ids.

The ids need not be the canonical tokenisation of their text. Byte-level BPE and SentencePiece with byte fallback are
followed exactly as their decoders work; the result is held against the tokenizer's own ``decode``. Where that
disagrees, and for other decoders (WordPiece), the characters are found by decoding the ids' prefixes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from os.path import commonprefix
from typing import TYPE_CHECKING

from text2grad.errors import InputError
from text2grad.tasks.base import Interval

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def token_spans(token_ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> tuple[str, list[Interval]]:
    """The text of the ids, and each id's half-open character interval in it.

    Special tokens write nothing: their interval is empty and lies where the next token begins. Tokens that share a
    multi-byte character all cover it. The starts never decrease.
    """
    ids = [int(token_id) for token_id in token_ids]
    decoder = _Decoder.of(tokenizer)
    written = [index for index, token_id in enumerate(ids) if token_id not in decoder.special]
    text = decoded(tokenizer, ids)
    tokens = tokenizer.convert_ids_to_tokens([ids[index] for index in written])
    result = decoder.pieces([token or "" for token in tokens], text) if decoder.pieces else None
    if result is None:
        result = _by_prefixes(tokenizer, [ids[index] for index in written], text)

    of_written = dict(zip(written, result, strict=True))
    spans: list[Interval] = []
    next_start = len(text)
    for index in reversed(range(len(ids))):
        spans.append(of_written.get(index, (next_start, next_start)))
        next_start = spans[-1][0]
    return text, spans[::-1]


def token_bytes(tokenizer: PreTrainedTokenizerBase) -> list[bytes | None]:
    """What each id of the vocabulary writes, as bytes; None for special tokens.

    Raises:
        InputError: a tokenizer whose tokens write something else next to other neighbours (WordPiece), or whose decoder
            is not known here.
    """
    decoder = _Decoder.of(tokenizer)
    if decoder.pieces is None:
        raise InputError(
            f"{tokenizer.name_or_path or 'the tokenizer'}: its tokens are no fixed byte strings; "
            "byte-level BPE and SentencePiece with byte fallback are supported"
        )
    written = _byte_level_bytes if decoder.pieces is _byte_level else _sentencepiece_bytes
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    return [None if token is None or place in decoder.special else written(token) for place, token in enumerate(tokens)]


def decoded(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> str:
    """What ids write, special ones nothing, with white space as it is."""
    return tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


@dataclass(frozen=True)
class _Decoder:
    """What must be known of a tokenizer; reading it takes milliseconds, so it is remembered on the tokenizer."""

    size: int
    special: frozenset[int]
    pieces: Callable[[list[str], str], list[Interval] | None] | None

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> _Decoder:
        known = getattr(tokenizer, "_text2grad_decoder", None)
        if known is None or known.size != len(tokenizer):
            flagged = {token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special}
            special = frozenset(flagged | set(tokenizer.all_special_ids))
            known = tokenizer._text2grad_decoder = cls(len(tokenizer), special, _pieces_of(tokenizer))
        return known


def _pieces_of(tokenizer: PreTrainedTokenizerBase) -> Callable[[list[str], str], list[Interval] | None] | None:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    description = json.dumps(json.loads(backend.to_str()).get("decoder"), ensure_ascii=False) if backend else ""
    if '"ByteLevel"' in description:
        return _byte_level
    if '"Metaspace"' in description or "\u2581" in description:
        return _sentencepiece
    return None


_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
_BYTE_OF_CHAR = {chr(byte): byte for byte in _PRINTABLE} | {chr(0x100 + i): byte for i, byte in enumerate(_OTHERS)}
"""GPT-2's table: printable Latin-1 bytes stand for themselves, the others for characters from U+0100 on."""


def _byte_level_bytes(token: str) -> bytes:
    known = all(char in _BYTE_OF_CHAR for char in token)
    return bytes(_BYTE_OF_CHAR[char] for char in token) if known else token.encode("utf-8")


def _byte_level(tokens: list[str], text: str) -> list[Interval] | None:
    pieces = [_byte_level_bytes(token) for token in tokens]
    decoded, chars = _decode_bytes(b"".join(pieces))
    return _from_units(pieces, chars) if decoded == text else None


def _decode_bytes(data: bytes) -> tuple[str, list[int]]:
    """UTF-8 with U+FFFD for what is not, and for each byte the index of the character it is part of."""
    text: list[str] = []
    chars: list[int] = []
    position = 0
    while position < len(data):
        try:
            piece, invalid = data[position:].decode("utf-8"), 0
        except UnicodeDecodeError as error:
            piece, invalid = data[position : position + error.start].decode("utf-8"), error.end - error.start
        for char in piece:
            chars += [len(text)] * len(char.encode("utf-8"))
            text.append(char)
        if invalid:
            chars += [len(text)] * invalid
            text.append("\N{REPLACEMENT CHARACTER}")
        position = len(chars)
    return "".join(text), chars


def _sentencepiece(tokens: list[str], text: str) -> list[Interval] | None:
    """Pieces with U+2581 for a space; runs of byte tokens that are no UTF-8 become one U+FFFD a byte."""
    pieces: list[bytes] = []
    for are_bytes, run in groupby(tokens, key=lambda token: _BYTE_TOKEN.fullmatch(token) is not None):
        written = [_sentencepiece_bytes(token) for token in run]
        data = b"".join(written)
        if are_bytes and data.decode("utf-8", "ignore").encode() != data:
            written = ["\N{REPLACEMENT CHARACTER}".encode()] * len(written)
        pieces += written
    decoded, chars = _decode_bytes(b"".join(pieces))
    # Most decoders of this family drop the space that the encoder put in front.
    dropped = len(decoded) - len(text)
    if dropped not in (0, 1) or decoded[dropped:] != text or decoded[:dropped].strip():
        return None
    return [(max(0, start - dropped), max(0, end - dropped)) for start, end in _from_units(pieces, chars)]


def _sentencepiece_bytes(token: str) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(byte.group(1), 16)]) if byte else token.replace("\u2581", " ").encode("utf-8")


def _from_units(pieces: list[bytes], chars: list[int]) -> list[Interval]:
    """Each piece's interval, from the character index of each of its bytes."""
    spans, position = [], 0
    for end_byte, piece in zip(accumulate(map(len, pieces)), pieces, strict=True):
        start = chars[end_byte - len(piece)] if piece else position
        position = chars[end_byte - 1] + 1 if piece else position
        spans.append((start, position))
    return spans


def _by_prefixes(tokenizer: PreTrainedTokenizerBase, ids: list[int], text: str) -> list[Interval]:
    """For any decoder: token i wrote what the text of the first i + 1 ids shares with the whole text beyond token i."""
    spans, start = [], 0
    for count in range(1, len(ids) + 1):
        prefix = decoded(tokenizer, ids[:count])
        shared = len(commonprefix([prefix, text]))
        unfinished = shared < len(prefix) and shared < len(text)
        spans.append((start, max(start, shared + unfinished)))
        start = max(start, shared)
    return spans
