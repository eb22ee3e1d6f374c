"""A rollout, from prompt to advantage, and the log that keeps every one of them readable (``RUN/rollouts.jsonl``)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from text2grad.records import load_json
from text2grad.tasks import Interval, Record


@dataclass
class Judgement:
    """What a reward source says of one response.

    Attributes:
        rewards: what is optimised, one per sampled token.
        deltas: δ_t of the critic's spans, before placement and shaping; for the metrics (None: no critic spoke).
        error: why there is no judgement; such a rollout moves nothing.
        matched, unmatched, conflicts: quotes found and not found, tokens claimed twice.
    """

    rewards: list[float]
    deltas: list[float] | None = None
    critique: str = ""
    good: list[str] = field(default_factory=list)
    poor: list[str] = field(default_factory=list)
    error: str | None = None
    matched: int = 0
    unmatched: int = 0
    conflicts: int = 0


@dataclass
class Rollout:
    """One sampled response. ``response_ids`` are the very ids that were sampled, the end token included."""

    id: str
    prompt: str
    record: Record
    prompt_ids: list[int]
    response_ids: list[int]
    response: str
    spans: list[Interval]
    tokens: list[str]
    finished: bool
    judgement: Judgement | None = None
    series: dict[str, Tensor] = field(default_factory=dict)
    """Per token: old_logprobs, ref_logprobs, kl, entropy, values, rewards, advantages, returns, new_logprobs."""

    @property
    def counts(self) -> bool:
        """Whether it was judged, and so may move the policy."""
        return self.judgement is not None and self.judgement.error is None

    def row(self, step: int) -> dict[str, Any]:
        """Its line in the log."""
        judgement = self.judgement
        assert judgement is not None, "a rollout is logged after it was judged"
        row = {
            "step": step,
            "id": self.id,
            "prompt": self.prompt,
            "response": self.response,
            "critique": judgement.critique,
            "good": judgement.good,
            "poor": judgement.poor,
            "error": judgement.error,
            "matched": judgement.matched,
            "unmatched": judgement.unmatched,
            "conflicts": judgement.conflicts,
            "tokens": self.tokens,
            "spans": [list(span) for span in self.spans],
            "rewards": [_short(value) for value in judgement.rewards],
            "finished": self.finished,
        }
        for name in ("advantages", "old_logprobs", "new_logprobs", "ref_logprobs", "kl"):
            row[name] = [_short(value) for value in self.series[name].tolist()] if name in self.series else None
        return row


def padded(rows: Sequence[Tensor | Sequence], dtype: torch.dtype, side: str = "right", value: float = 0) -> Tensor:
    """Rows of different length as one ``[B, T]`` tensor."""
    tensors = [torch.as_tensor(row, dtype=dtype) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=value, padding_side=side)


def micro_batches(rollouts: Sequence[Rollout], size: int) -> list[list[Rollout]]:
    """``size`` rollouts at a time, neighbours of like length together: little padding."""
    ordered = sorted(rollouts, key=lambda rollout: len(rollout.prompt_ids) + len(rollout.response_ids))
    return [ordered[start : start + size] for start in range(0, len(ordered), size)]


class StepLog:
    """A JSONL file with a ``step`` in each row, appended step by step; a resumed run takes back what came later."""

    def __init__(self, path: Path):
        self.path = path

    def rewind(self, step: int) -> None:
        """Drop the rows of steps after ``step`` (and a line that a kill cut in two)."""
        if not self.path.exists():
            return
        lines = self.path.read_bytes().splitlines(keepends=True)
        kept = [line for line in lines if line.endswith(b"\n") and json.loads(line)["step"] <= step]
        if kept != lines:
            temporary = self.path.with_name(f".{self.path.name}.tmp")
            temporary.write_bytes(b"".join(kept))
            os.replace(temporary, self.path)

    def append(self, rows: Iterable[dict[str, Any]]) -> None:
        text = "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)
        with self.path.open("ab") as file:
            file.write(text.encode("utf-8", "surrogatepass"))
            file.flush()
            os.fsync(file.fileno())

    def rows(self) -> list[dict[str, Any]]:
        return load_json(self.path) if self.path.exists() else []


def shown(row: dict[str, Any]) -> str:
    """A rollout's row for the eye: response, critique, and what was praised and blamed."""
    lines = [f"step {row['step']}, {row['id']}: {row['response']!r}", f"  critique: {row['critique'] or row['error']}"]
    lines += [f"  + {quote}" for quote in row["good"]] + [f"  − {quote}" for quote in row["poor"]]
    return "\n".join(lines)


def _short(value: float) -> float:
    """Seven significant digits: all that float32 holds."""
    return float(f"{value:.7g}")
