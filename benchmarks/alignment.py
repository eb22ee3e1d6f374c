"""How exactly, and how fast, quotes reach tokens: this project's mapping against matching the quote's words.

python benchmarks/alignment.py --data human_spans/qa_feedback_100.jsonl --output runs/benchmarks/alignment.json

The data are answers whose wrong passages people marked by character offset, so the right tokens are known without any
quote: ``{"response", "spans": [{"start", "end", "quote"}]}`` a line.
"""

from __future__ import annotations

import random
import re
import statistics
import time
from dataclasses import dataclass, field

from text2grad.configs import parse
from text2grad.errors import InputError, command
from text2grad.feedback import Feedback
from text2grad.models import load_tokenizer
from text2grad.records import load_json, save_json
from text2grad.token_rewards import token_rewards
from text2grad.token_text import token_spans


@dataclass
class AlignmentConfig:
    data: str = field(metadata={"help": "answers with marked spans, JSONL"})
    output: str = field(metadata={"help": "where the figures go, JSON"})
    tokenizer: str = field(default="smollm2", metadata={"help": "whose tokens are labelled"})
    split: float = field(
        default=0.1, metadata={"help": "share of tokens replaced by smaller ones, so that ids are not canonical"}
    )
    repeats: int = field(default=5, metadata={"help": "timed passes over the data"})


def by_offsets(ids: list[int], tokenizer, marked: list[tuple[int, int]]) -> list[float]:
    """The right labels: −1 where all visible characters of a token lie inside one marked interval."""
    text, spans = token_spans(ids, tokenizer)
    labels = []
    for start, end in spans:
        visible = [char for char in range(start, end) if not text[char].isspace()] or list(range(start, end))
        inside = any(visible and low <= visible[0] and visible[-1] < high for low, high in marked)
        labels.append(-1.0 if inside else 0.0)
    return labels


def by_words(ids: list[int], tokenizer, quotes: list[str]) -> list[float]:
    """The plain way: decode each token, and label runs of tokens that spell the quote's words, punctuation aside."""
    pieces = [re.sub(r"\W", "", tokenizer.decode([token])).lower() for token in ids]
    labels = [0.0] * len(ids)
    for quote in quotes:
        wanted = "".join(re.findall(r"\w", quote)).lower()
        for first in range(len(ids)):
            spelled, last = "", first
            while last < len(ids) and wanted.startswith(spelled + pieces[last]) and spelled != wanted:
                spelled += pieces[last]
                last += 1
            if spelled == wanted and pieces[first]:
                for token in range(first, last):
                    labels[token] = -1.0 if pieces[token] else 0.0
                break
    return labels


def less_canonical(ids: list[int], tokenizer, share: float, rng: random.Random) -> list[int]:
    """The same text in other ids, as sampling makes them: some tokens spelled out in smaller ones."""

    def encode(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    result = []
    for token in ids:
        piece = tokenizer.decode([token])
        if rng.random() < share and len(piece) > 2 and piece.isascii():
            cut = rng.randrange(1, len(piece))
            halves = [token for half in (piece[:cut], piece[cut:]) for token in encode(half)]
            if tokenizer.decode(halves) == piece:
                result += halves
                continue
        result.append(token)
    return result


def figures(truth: list[list[float]], got: list[list[float]], seconds: list[float]) -> dict[str, float]:
    """Shares over all tokens, over all marked tokens, and over whole responses; the median time of one."""
    pairs = [(t, g) for row in zip(truth, got, strict=True) for t, g in zip(*row, strict=True)]
    marked = [(t, g) for t, g in pairs if t]
    return {
        "tokens right": sum(t == g for t, g in pairs) / len(pairs),
        "marked tokens found": sum(t == g for t, g in marked) / len(marked),
        "responses entirely right": sum(t == g for t, g in zip(truth, got, strict=True)) / len(truth),
        "microseconds per response": statistics.median(seconds) / len(truth) * 1e6,
    }


def timed(label, rows: list, repeats: int) -> tuple[list[list[float]], list[float]]:
    """The labels of all rows, and the seconds of each pass."""
    seconds, labels = [], []
    for _ in range(repeats):
        begun = time.perf_counter()
        labels = [label(*row) for row in rows]
        seconds.append(time.perf_counter() - begun)
    return labels, seconds


@command
def main() -> None:
    config = parse(AlignmentConfig)
    tokenizer, rng = load_tokenizer(config.tokenizer), random.Random(0)
    rows, truth = [], []
    for number, row in enumerate(load_json(config.data)):
        if not isinstance(row, dict) or not {"response", "spans"} <= set(row):
            raise InputError(f"{config.data}: row {number} lacks 'response' or 'spans'")
        ids = tokenizer(row["response"], add_special_tokens=False)["input_ids"]
        ids = less_canonical(ids, tokenizer, config.split, rng)
        rows.append((ids, [span["quote"] for span in row["spans"]]))
        truth.append(by_offsets(ids, tokenizer, [(span["start"], span["end"]) for span in row["spans"]]))
    ours, our_seconds = timed(
        lambda ids, quotes: token_rewards(ids, tokenizer, Feedback("c", poor=quotes), "slf5k").values,
        rows,
        config.repeats,
    )
    words, word_seconds = timed(lambda ids, quotes: by_words(ids, tokenizer, quotes), rows, config.repeats)
    result = {
        "responses": len(rows),
        "tokens": sum(map(len, truth)),
        "text2grad": figures(truth, ours, our_seconds),
        "word matching": figures(truth, words, word_seconds),
    }
    save_json(config.output, result)
    print(f"{result['responses']} responses, {result['tokens']} tokens")
    for name in result["text2grad"]:
        print(f"{name:28}{result['text2grad'][name]:12.4f}  word matching {result['word matching'][name]:12.4f}")
    for index, (right, got) in enumerate(zip(truth, ours, strict=True)):
        if right != got:
            print(f"row {index}: differs in {sum(a != b for a, b in zip(right, got, strict=True))} tokens")


if __name__ == "__main__":
    main()
