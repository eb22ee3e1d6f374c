"""What is known about which of two responses is better, and the file of pairs that says so."""

from dataclasses import dataclass
from pathlib import Path

from text2grad.errors import InputError
from text2grad.records import load_json


@dataclass(frozen=True)
class Pair:
    """Two responses to one prompt. ``source`` says who prefers the chosen one, the values by how much."""

    id: str
    prompt: str
    chosen: str
    rejected: str
    chosen_value: float
    rejected_value: float
    source: str


def load_pairs(path: str | Path) -> dict[str, Pair]:
    """The pairs of a file that ``pairs.py`` wrote, by id (or of any list with prompt, chosen and rejected)."""
    rows = load_json(path)
    if not isinstance(rows, list) or not rows:
        raise InputError(f"{path}: holds no list of pairs; make one with pairs.py")
    pairs = {}
    for index, row in enumerate(rows):
        given = [row.get(name) for name in ("prompt", "chosen", "rejected")] if isinstance(row, dict) else []
        texts = [text for text in given if isinstance(text, str) and text.strip()]
        if len(texts) != 3:
            raise InputError(f"{path}: pair {index} lacks a text for prompt, chosen or rejected; make it with pairs.py")
        prompt, chosen, rejected = texts
        if chosen == rejected:
            raise InputError(f"{path}: pair {index}: chosen and rejected are the same text; remove it")
        values = float(row.get("chosen_value", 1.0)), float(row.get("rejected_value", 0.0))
        key = str(row.get("id", index))
        pairs[key] = Pair(key, prompt, chosen, rejected, *values, str(row.get("source", "")))
    return pairs
