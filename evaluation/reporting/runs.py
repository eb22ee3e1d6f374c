"""Run folders: ``run.json``, ``metrics.jsonl`` and ``rollouts.jsonl``, read with clear errors, compact in memory.

A run that still goes on is read up to its last whole line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from text2grad.errors import InputError
from text2grad.feedback import Feedback
from text2grad.journal.run_folder import changes_shown
from text2grad.records import load_json
from text2grad.safety.gate import UnreadableError, read_json, shown
from text2grad.tasks import Interval, task_of
from text2grad.token_rewards import span_intervals

_SURROGATES = re.compile("[\ud800-\udfff]")
_PER_TOKEN = ("deltas", "rewards", "advantages", "kl", "old_logprobs", "new_logprobs")


@dataclass(slots=True)
class LoggedRollout:
    """One row of ``rollouts.jsonl``. Arrays have one entry per token, NaN where the run logged none."""

    step: int
    prompt_id: str
    prompt: str
    response: str
    feedback: Feedback | None
    error: str
    matched: int
    unmatched: int
    conflicts: int
    finished: bool
    spans: np.ndarray  # [tokens, 2] characters of the response
    deltas: np.ndarray  # the critic's δ
    rewards: np.ndarray  # of training: δ placed and shaped, with penalties
    advantages: np.ndarray
    kl: np.ndarray
    shift: np.ndarray  # log π_new − log π_old: what the update did to the token
    good_at: list[Interval]  # where the critique's quotes are in the response
    poor_at: list[Interval]

    @property
    def mean_delta(self) -> float | None:
        """Of its tokens; None where no critic gave any δ."""
        return None if not len(self.deltas) or np.isnan(self.deltas).any() else float(self.deltas.mean())

    @property
    def mean_reward(self) -> float:
        return float(self.rewards.mean()) if len(self.rewards) else 0.0


@dataclass
class Run:
    """One training run, up to its last finished step."""

    path: Path
    task: str
    method: str
    seed: int
    critic: str
    model: str
    config: dict[str, Any]
    versions: dict[str, Any]
    metrics: list[dict[str, Any]]
    rollouts: list[LoggedRollout]
    notes: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def steps(self) -> list[int]:
        return [row["step"] for row in self.metrics]

    def series(self, name: str) -> dict[int, float]:
        """step -> value, for the steps that logged one."""
        return {row["step"]: row[name] for row in self.metrics if _is_number(row.get(name))}


def load_run(folder: str | Path) -> Run:
    """A run folder.

    Raises:
        InputError: names the file, the line and the remedy.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; give a run's output folder, which holds run.json")
    about = _storable(load_json(folder / "run.json"))
    missing = {"task", "method", "seed"} - set(about) if isinstance(about, dict) else {"task", "method", "seed"}
    if missing:
        raise InputError(f"{folder / 'run.json'}: lacks {', '.join(sorted(missing))}; give a folder that stage 3 wrote")
    try:
        task_of(about)
    except InputError as error:
        raise InputError(f"{folder / 'run.json'}: {error}") from None
    if type(about["seed"]) is not int:
        raise InputError(f"{folder / 'run.json'}: its seed is {shown(about['seed'])}, no whole number")
    notes: list[str] = []
    metrics = _metrics(folder / "metrics.jsonl", notes)
    path = folder / "rollouts.jsonl"
    rollouts = _rollouts(path, about["task"], notes) if path.exists() else []
    if not rollouts:
        notes.append("logged no rollouts")
    notes += [f"was {line[2:]}" for line in changes_shown(_changes(about, folder)).splitlines()[1:]]
    return Run(
        path=folder.resolve(),
        task=about["task"],
        method=str(about["method"]),
        seed=about["seed"],
        critic=str(about.get("critic") or "none"),
        model=str(about.get("model") or "not named"),
        config=about.get("config") or {},
        versions=about.get("versions") or {},
        metrics=metrics,
        rollouts=rollouts,
        notes=notes,
    )


def _changes(about: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    """The settings that changed while it ran, as ``run.json`` has them."""
    changes = about.get("changes") or []
    try:
        return [{"from_step": int(each["from_step"]), "settings": dict(each["settings"])} for each in changes]
    except (TypeError, ValueError, KeyError):
        raise InputError(f"{folder / 'run.json'}: its changes are not a list of from_step and settings") from None


def load_runs(folders: list[str]) -> list[Run]:
    """Several run folders, each given once."""
    seen: set[Path] = set()
    for folder in folders:
        if Path(folder).resolve() in seen:
            raise InputError(f"{folder}: given twice; name each run folder once")
        seen.add(Path(folder).resolve())
    return [load_run(folder) for folder in folders]


def _metrics(path: Path, notes: list[str]) -> list[dict[str, Any]]:
    by_step: dict[int, dict] = {}
    for number, row in _rows(path, notes):
        if not isinstance(row, dict) or not isinstance(row.get("step"), int):
            raise InputError(f"{path}: line {number} has no whole number 'step'; each line is one step's metrics")
        by_step[row["step"]] = row  # a step that was run again after a kill counts once
    if not by_step:
        raise InputError(f"{path}: holds no finished step yet; wait for the first one")
    return [by_step[step] for step in sorted(by_step)]


def _rollouts(path: Path, task: str, notes: list[str]) -> list[LoggedRollout]:
    prompts: dict[str, str] = {}
    rollouts: list[LoggedRollout] = []
    for number, row in _rows(path, notes):
        try:
            rollout = _rollout(row, task, prompts)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
            what = f"lacks {error}" if isinstance(error, KeyError) else str(error)
            raise InputError(f"{path}: line {number}: {what}; each line is one {task} rollout of stage 3") from None
        if rollouts and rollout.step < rollouts[-1].step:  # resumed after a kill: these steps were run again
            rollouts = [earlier for earlier in rollouts if earlier.step < rollout.step]
        rollouts.append(rollout)
    return rollouts


def _rollout(row: dict, task: str, prompts: dict[str, str]) -> LoggedRollout:
    prompt, response = _text(row["prompt"]), _text(row["response"])
    spans = np.array(row["spans"], dtype=np.int32).reshape(-1, 2)
    count = len(spans)
    if count and (spans.min() < 0 or spans[:, 1].max() > len(response) or (spans[:, 0] > spans[:, 1]).any()):
        raise ValueError("its token spans do not lie in its response")
    arrays = {name: _array(row.get(name), count, name) for name in _PER_TOKEN}
    if np.isnan(arrays["rewards"]).any():
        raise ValueError("its 'rewards' are not one number per token")
    critique, good, poor = _text(row.get("critique") or ""), _texts(row.get("good")), _texts(row.get("poor"))
    feedback = Feedback(critique, good, poor) if critique or good or poor else None
    poor_at, good_at = span_intervals(feedback, response, task) if feedback else ([], [])
    return LoggedRollout(
        step=int(row["step"]),
        prompt_id=_text(str(row.get("id", ""))),
        prompt=prompts.setdefault(prompt, prompt),
        response=response,
        feedback=feedback,
        error=_text(str(row.get("error") or "")),
        matched=int(row.get("matched") or 0),
        unmatched=int(row.get("unmatched") or 0),
        conflicts=int(row.get("conflicts") or 0),
        finished=bool(row.get("finished", True)),
        spans=spans,
        deltas=arrays["deltas"],
        rewards=arrays["rewards"],
        advantages=arrays["advantages"],
        kl=arrays["kl"],
        shift=arrays["new_logprobs"] - arrays["old_logprobs"],
        good_at=good_at,
        poor_at=poor_at,
    )


def _rows(path: Path, notes: list[str]) -> Iterator[tuple[int, Any]]:
    """(line number, value) of a JSONL file; an unfinished last line is noted and left out."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give a folder that stage 3 wrote") from None
    with file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield number, read_json(line)
            except UnreadableError as error:
                if not line.endswith(b"\n"):
                    notes.append(f"the last line of {path.name} is not finished and was left out")
                    return
                what = str(error).removeprefix("it is ").removeprefix("not JSON: ")
                raise InputError(f"{path}: line {number} is not JSON: {what}; repair or remove it") from None


def _array(values: list | None, count: int, name: str) -> np.ndarray:
    if values is None:
        return np.full(count, np.nan, dtype=np.float32)
    array = np.array([math.nan if value is None else value for value in values], dtype=np.float32)
    if array.shape != (count,):
        raise ValueError(f"its {name!r} has {array.size} entries for {count} tokens")
    return array


def _text(value: str) -> str:
    """A text that every file can store: half surrogate pairs become the replacement character."""
    return _SURROGATES.sub("\ufffd", value)


def _storable(value: Any) -> Any:
    """A JSON value with :func:`_text` applied to all its texts."""
    if isinstance(value, dict):
        return {_text(name): _storable(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_storable(item) for item in value]
    return _text(value) if isinstance(value, str) else value


def _texts(values: list[str] | None) -> list[str]:
    return [_text(value) for value in values or []]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
