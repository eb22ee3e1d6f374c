"""A rollout, from prompt to advantage, and the log that keeps every one of them readable (``RUN/rollouts.jsonl``)."""

from __future__ import annotations

import json
import math
import os
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from text2grad.models import chat_ids
from text2grad.records import load_json
from text2grad.tasks import Interval, Record, Task
from text2grad.token_text import token_spans


@dataclass
class RolloutFeedback:
    """What a reward source gives for one response.

    Attributes:
        rewards: what is optimised, one per sampled token.
        deltas: δ_t of the critic's spans, before placement and shaping; for metrics and logs (None: no critic spoke).
        error: why there is no feedback; such a rollout moves nothing.
        matched, unmatched, conflicts: quotes found and not found, tokens claimed twice.
        trusted: what the trusted critic says of the same response, where it was asked (``audit.py``).
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
        sampler_logprobs: log π of the engine that sampled, where that is not the policy itself. Like all that follow
            it is a tensor ``[T]``, one entry per response token, None until it is computed.
        old_logprobs, ref_logprobs, new_logprobs: log π of the policy that sampled, of the reference, and of the policy
            after the step's updates.
        entropy, kl, values: of the policy that sampled: its entropy, its KL to the reference, and V(x, y_<t).
        rewards: r_t = δ_t − β·KL_t.
        advantages, returns: A_t, and the value function's target.
        refined: it was sampled after a critique that ``prompt_ids`` does not hold, and is learnt as Critique-GRPO does.
        taught: whether the teacher has read its critique.
        teacher_logprobs: log π_T of the teacher.
        top_ids: the K tokens of the vocabulary that were likeliest at each position, ``[T, K]``.
        teacher_top: the teacher's log-probabilities of them, ``[T, K]``.
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
    old_logprobs: Tensor | None = None
    ref_logprobs: Tensor | None = None
    new_logprobs: Tensor | None = None
    entropy: Tensor | None = None
    kl: Tensor | None = None
    values: Tensor | None = None
    rewards: Tensor | None = None
    advantages: Tensor | None = None
    returns: Tensor | None = None
    refined: bool = False
    taught: bool = False
    teacher_logprobs: Tensor | None = None
    top_ids: Tensor | None = None
    teacher_top: Tensor | None = None

    @property
    def received(self) -> RolloutFeedback:
        """Its feedback, once that has come."""
        assert self.feedback is not None, "the feedback has not come yet"
        return self.feedback

    @property
    def counts(self) -> bool:
        """Whether it has feedback, and so may move the policy."""
        return self.feedback is not None and self.feedback.error is None

    def columns(self) -> dict[str, Tensor]:
        """What has been computed per token, by name."""
        return {name: column for name in COLUMNS if (column := getattr(self, name)) is not None}

    def row(self, step: int) -> dict[str, Any]:
        """Its line in the log."""
        feedback = self.received
        row: dict[str, Any] = {
            "step": step,
            "id": self.id,
            "prompt": self.prompt,
            "response": self.response,
            "critique": feedback.critique,
            "good": feedback.good,
            "poor": feedback.poor,
            "error": feedback.error,
            "matched": feedback.matched,
            "unmatched": feedback.unmatched,
            "conflicts": feedback.conflicts,
            "tokens": self.tokens,
            "spans": [list(span) for span in self.spans],
            "deltas": feedback.deltas and [rounded(float(value)) for value in feedback.deltas],
            "rewards": [rounded(float(value)) for value in feedback.rewards],
            "finished": self.finished,
        }
        for name in ("advantages", "old_logprobs", "new_logprobs", "ref_logprobs", "kl"):
            column = getattr(self, name)
            row[name] = None if column is None else [rounded(value) for value in column.tolist()]
        if self.teacher_logprobs is not None:
            row["teacher_logprobs"] = [rounded(value) for value in self.teacher_logprobs.tolist()]
        if feedback.trusted is not None:
            row["audit"] = {name: getattr(feedback.trusted, name) for name in ("critique", "good", "poor", "error")}
        return row


COLUMNS = tuple(each.name for each in fields(Rollout) if each.type == "Tensor | None")
"""The fields of a rollout with one entry per response token."""


def write_column(rollouts: Sequence[Rollout], name: str, column: Tensor) -> None:
    """Store a padded ``[B, T]`` tensor in the rollouts' field ``name``, each row without its padding."""
    for rollout, row in zip(rollouts, column, strict=True):
        setattr(rollout, name, row[: len(rollout.response_ids)].cpu().clone())


def read_column(rollouts: Sequence[Rollout], name: str, dtype: torch.dtype) -> Tensor:
    """The rollouts' field ``name`` as ``[B, T]`` (or ``[B, T, K]``), 0 on padding."""
    return padded([getattr(rollout, name) for rollout in rollouts], dtype)


def counting_mask(rollouts: Sequence[Rollout], dtype: torch.dtype) -> Tensor:
    """``[B, T]``: 1 on the response tokens that may move the policy."""
    return padded([[float(rollout.counts)] * len(rollout.response_ids) for rollout in rollouts], dtype)


def model_inputs(rollouts: Sequence[Rollout], pad_id: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """``input_ids``, ``attention_mask`` and ``response_mask`` of :class:`~.policy.PolicyScorer`."""
    prompts = padded([rollout.prompt_ids for rollout in rollouts], torch.long, "left", pad_id)
    prompt_mask = padded([[1] * len(rollout.prompt_ids) for rollout in rollouts], torch.long, "left")
    responses = padded([rollout.response_ids for rollout in rollouts], torch.long, "right", pad_id)
    response_mask = padded([[1] * len(rollout.response_ids) for rollout in rollouts], torch.long, "right")
    ids, mask = torch.cat([prompts, responses], 1), torch.cat([prompt_mask, response_mask], 1)
    return ids.to(device), mask.to(device), response_mask.to(device)


def encode_prompt(prompt: str, task: Task, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The policy's input for x: the task's messages in the model's own chat template."""
    return chat_ids(task.messages(prompt), tokenizer)


def make_rollout(
    record_id: str,
    prompt: str,
    record: Record,
    prompt_ids: list[int],
    response_ids: list[int],
    tokenizer: PreTrainedTokenizerBase,
    end_ids: Sequence[int],
) -> Rollout:
    """A rollout of sampled ids, with its text and what each token wrote."""
    text, spans = token_spans(response_ids, tokenizer)
    tokens = [
        text[start:end] if end > start else tokenizer.decode([token])
        for (start, end), token in zip(spans, response_ids, strict=True)
    ]
    finished = response_ids[-1] in end_ids
    return Rollout(record_id, prompt, record, prompt_ids, response_ids, text, spans, tokens, finished)


def given_logprobs(values: Sequence[float | None], dtype: torch.dtype) -> Tensor:
    """``[T]``: an engine's log-probabilities; NaN where it gave none, as TRL says of a NaN of vLLM's."""
    return torch.tensor([math.nan if value is None else value for value in values], dtype=dtype)


def padded(rows: Sequence[Tensor | Sequence], dtype: torch.dtype, side: str = "right", value: float = 0) -> Tensor:
    """Rows of different length as one ``[B, T]`` tensor."""
    tensors = [torch.as_tensor(row, dtype=dtype) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=value, padding_side=side)


def micro_batches(rollouts: Sequence[Rollout], size: int) -> list[list[Rollout]]:
    """``size`` rollouts at a time, neighbours of like length together: little padding."""
    ordered = sorted(rollouts, key=lambda rollout: len(rollout.prompt_ids) + len(rollout.response_ids))
    return [ordered[start : start + size] for start in range(0, len(ordered), size)]


METRICS_FILE, ROLLOUTS_FILE = "metrics.jsonl", "rollouts.jsonl"


class StepLog:
    """A JSONL file with a ``step`` in each row, appended step by step; a resumed run takes back what came later."""

    def __init__(self, path: Path):
        self.path = path

    def rewind(self, step: int, lost: bool = False) -> None:
        """Drop the rows of steps after ``step`` (and a line that a kill cut in two).

        Args:
            lost: there were checkpoints, and none is whole: the rows of a run that starts over go to another file.
        """
        if not self.path.exists():
            return
        if lost and step == 0:
            aside = self.path.with_name(f"{self.path.stem}.before{self.path.suffix}")
            os.replace(self.path, aside)
            print(f"no checkpoint is whole: starting over; the rows so far are in {aside}", file=sys.stderr)
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

    def latest(self, count: int) -> list[dict[str, Any]]:
        """The last rows; no other is parsed."""
        with self.path.open("rb") as file:
            return [json.loads(line) for line in deque(file, maxlen=count)]


def shown(row: dict[str, Any]) -> str:
    """A rollout's row for the eye: response, critique, and what was praised and blamed."""
    lines = [f"step {row['step']}, {row['id']}: {row['response']!r}", f"  critique: {row['critique'] or row['error']}"]
    lines += [f"  + {quote}" for quote in row["good"]] + [f"  − {quote}" for quote in row["poor"]]
    return "\n".join(lines)


def rounded(value: Any) -> Any:
    """A number with seven significant digits, all that float32 holds; anything else as it is."""
    return float(f"{value:.7g}") if isinstance(value, float) else value
