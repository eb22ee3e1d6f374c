"""A rollout and its feedback, and the log that keeps every one of them readable (``RUN/rollouts.jsonl``)."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from textwrap import shorten
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from text2grad.errors import InputError
from text2grad.models import chat_ids
from text2grad.records import load_json, save_bytes
from text2grad.safety.gate import UnreadableError, read_json
from text2grad.safety.gate import shown as quoted
from text2grad.tasks import Interval, Record, Task


@dataclass
class RolloutFeedback:
    """What a reward source gives for one response.

    Attributes:
        rewards: what is optimised, one per sampled token.
        deltas: δ_t of the critic's spans, before placement and shaping; for metrics and logs (None: no critic spoke).
        error: why there is no feedback; such a rollout moves nothing.
        matched, unmatched, conflicts: quotes found and not found, tokens claimed twice.
        missing: what the critic says the response lacks; no token can be quoted for it.
        score: the verdict on the whole response, −1..1; None: no critic spoke.
        score_source: whether the critic gave the verdict or it was derived from the spans.
        trusted: what the trusted critic says of the same response, where it was asked (``observers/audit.py``).
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
    missing: list[str] = field(default_factory=list)
    score: float | None = None
    score_source: Literal["given", "derived", ""] = ""
    trusted: RolloutFeedback | None = None

    @property
    def labels(self) -> list[float]:
        """δ_t where a critic gave it, else what is optimised."""
        return self.rewards if self.deltas is None else self.deltas


@dataclass
class Rollout:
    """One sampled response. ``response_ids`` are the very ids that were sampled, the end token included.

    Attributes:
        feedback: None until it has come.
        sampler_logprobs: ``[T]``, log π of the engine that sampled, where that is not the policy itself.
    """

    id: str
    prompt: str
    record: Record
    prompt_ids: list[int]
    response_ids: list[int]
    response: str
    spans: list[Interval]
    tokens: list[str]
    finished: bool
    feedback: RolloutFeedback | None = None
    sampler_logprobs: Tensor | None = None

    @property
    def blank(self) -> bool:
        """Whether it is without text; no critic is asked about it."""
        return not self.response.strip()

    @property
    def received(self) -> RolloutFeedback:
        """Its feedback, once that has come."""
        assert self.feedback is not None, "the feedback has not come yet"
        return self.feedback

    @property
    def counts(self) -> bool:
        """Whether it has feedback, and so may move the policy."""
        return self.feedback is not None and self.feedback.error is None

    def row(self, step: int) -> dict[str, Any]:
        """Its line in the log, without what is computed for each token."""
        feedback = self.received
        return {
            "step": step,
            "id": self.id,
            "prompt": self.prompt,
            "response": self.response,
            **{name: getattr(feedback, name) for name in ("critique", "good", "poor", "missing")},
            "verdict": rounded(feedback.score),
            "verdict_source": feedback.score_source,
            **{name: getattr(feedback, name) for name in ("error", "matched", "unmatched", "conflicts")},
            "tokens": self.tokens,
            "spans": [list(span) for span in self.spans],
            "deltas": feedback.deltas and [rounded(float(value)) for value in feedback.deltas],
            "rewards": [rounded(float(value)) for value in feedback.rewards],
            "finished": self.finished,
        }

    def audit(self) -> dict[str, Any]:
        """What the trusted critic said, as a part of its line; empty where it was not asked."""
        trusted = self.received.trusted
        if trusted is None:
            return {}
        given = {name: getattr(trusted, name) for name in ("critique", "good", "poor", "missing", "error")}
        return {"audit": {**given, "verdict": trusted.score if trusted.score_source == "given" else None}}


def encode_prompt(prompt: str, task: Task, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The policy's input for x: the task's messages in the model's own chat template."""
    return chat_ids(task.messages(prompt), tokenizer)


def padded(rows: Sequence[Tensor | Sequence], dtype: torch.dtype, side: str = "right", value: float = 0) -> Tensor:
    """Rows of different length as one ``[B, T]`` tensor."""
    tensors = [torch.as_tensor(row, dtype=dtype) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=value, padding_side=side)


METRICS_FILE, ROLLOUTS_FILE = "metrics.jsonl", "rollouts.jsonl"


class StepLog:
    """A JSONL file with a ``step`` in each row, appended step by step; a resumed run takes back what came later."""

    def __init__(self, path: Path):
        self.path, self.count = path, 0

    def rewind(self, step: int, lost: bool = False, rows: int | None = None) -> None:
        """Drop the rows of steps after ``step`` (and a line that a kill cut in two).

        Args:
            lost: there were checkpoints, and none is whole: the rows of a run that starts over go to another file.
            rows: how many there were when that step's checkpoint was written, where it says.

        Raises:
            InputError: some are missing; nothing was changed.
        """
        if lost and step == 0 and self.path.exists():
            names = (self.path.with_name(f"{self.path.stem}.before{n or ''}{self.path.suffix}") for n in count())
            aside = next(name for name in names if not name.exists())
            os.replace(self.path, aside)
            print(f"no checkpoint is whole: starting over; the rows so far are in {aside}", file=sys.stderr)
            return
        lines = self.path.read_bytes().splitlines(keepends=True) if self.path.exists() else []
        kept = [line for line in lines if line.endswith(b"\n") and _step_of(line) <= step]
        if rows is not None and len(kept) != rows:
            raise InputError(
                f"{self.path}: holds {len(kept)} rows up to step {step}, and {rows} were written; put the file back, "
                "or add --allow_changed true to go on without them"
            )
        self.count = len(kept)
        if kept != lines:
            save_bytes(self.path, b"".join(kept))

    def append(self, rows: Iterable[dict[str, Any]]) -> None:
        lines = [json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows]
        self.count += len(lines)
        with self.path.open("ab") as file:
            file.write("".join(lines).encode("utf-8", "surrogatepass"))
            file.flush()
            os.fsync(file.fileno())

    def rows(self) -> list[dict[str, Any]]:
        return load_json(self.path) if self.path.exists() else []


def _step_of(line: bytes) -> float:
    """The step of a row; beyond all steps where the line cannot be read."""
    try:
        return float(read_json(line)["step"])
    except (UnreadableError, KeyError, TypeError, ValueError):
        return math.inf


def shown(row: dict[str, Any]) -> str:
    """A rollout's row for the eye: response, critique, and what was praised and blamed. Long texts are cut."""
    lines = [f"step {row['step']}, {row['id']}: {quoted(row['response'], 600)}"]
    said = {"critique: ": [row["critique"] or row["error"] or ""], "+ ": row["good"], "− ": row["poor"]}
    lines += [f"  {sign}{shorten(text, 600, placeholder=' …')}" for sign, texts in said.items() for text in texts]
    return "\n".join(lines)


def rounded(value: Any) -> Any:
    """A number with seven significant digits, all that float32 holds; anything else as it is."""
    return float(f"{value:.7g}") if isinstance(value, float) else value
