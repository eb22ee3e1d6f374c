"""Run folders: ``run.json``, ``metrics.jsonl`` and ``rollouts.jsonl``, compact in memory.

A run that still goes on is read up to its last whole line.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from evaluation import schemas
from text2grad.errors import InputError
from text2grad.feedback import Feedback
from text2grad.journal.run_folder import FREE, LENGTH, STAGE_3, PolicyRun, logged_rows
from text2grad.records import load_json
from text2grad.safety.gate import storable_value
from text2grad.safety.schema import checked
from text2grad.tasks import Interval
from text2grad.token_rewards import span_intervals

LARGEST = 1e30
"""Larger values in ``metrics.jsonl`` are gaps, as NaN is."""


@dataclass(slots=True)
class LoggedRollout:
    """One row of ``rollouts.jsonl``. Arrays have one entry per token, NaN where the run logged none."""

    step: int
    prompt_id: str
    prompt: str
    response: str
    feedback: Feedback | None
    error: str
    quotes: tuple[int, int, int]  # found, not found, tokens both praised and criticised
    finished: bool
    spans: np.ndarray  # [tokens, 2] characters of the response
    deltas: np.ndarray  # the critic's δ
    rewards: np.ndarray  # of training: δ placed and shaped, with penalties
    advantages: np.ndarray
    kl: np.ndarray
    shift: np.ndarray  # log π_new − log π_old: what the update did to the token
    good_at: list[Interval]  # where the critique's quotes are in the response
    poor_at: list[Interval]

    def mean(self, measure: str) -> float | None:
        """Mean over the tokens of "δ" or "reward"; None for an empty response and where no critic gave δ."""
        values = self.deltas if measure == "δ" else self.rewards
        return None if not len(values) or np.isnan(values).any() else float(values.mean())


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
    def measure(self) -> str:
        """ "δ", or "reward" where no critic gave any δ (a scalar reward model)."""
        given = [rollout for rollout in self.rollouts if not rollout.error and len(rollout.deltas)]
        return "δ" if not given or any(not np.isnan(rollout.deltas).any() for rollout in given) else "reward"

    def series(self, name: str) -> dict[int, float]:
        """step -> value, for the steps that logged one. Without a critic's δ there is no series of δ."""
        if name.startswith("delta/") and self.measure != "δ":
            return {}
        return {row["step"]: row[name] for row in self.metrics if is_number(row.get(name))}


def once(paths: list[str]) -> list[str]:
    """The paths; ``InputError`` where one comes twice, which would pass for another seed."""
    seen: set[Path] = set()
    for path in paths:
        if Path(path).resolve() in seen:
            raise InputError(f"{path}: given twice; name it once")
        seen.add(Path(path).resolve())
    return paths


def load_run(folder: str | Path) -> Run:
    """A run folder.

    Raises:
        InputError: names the file, the line and the remedy.
    """
    folder = Path(folder)
    where = folder / "run.json"
    if not where.is_file():
        raise InputError(f"{where}: no such file; give the output folder of a training run")
    about = storable_value(load_json(where))
    checked(PolicyRun, about, where, STAGE_3)
    schemas.check_task(about, where)
    notes: list[str] = []
    metrics = _metrics(folder / "metrics.jsonl", notes)
    path = folder / "rollouts.jsonl"
    rollouts = _rollouts(path, about["task"], notes) if path.exists() else []
    if not rollouts:
        notes.append("logged no rollouts")
    config = dict(about.get("config") or {})
    for change in about.get("changes") or []:
        # How long a run became is one setting of it; any other change makes it another run than one begun so.
        config |= {
            name if name in LENGTH else f"{name} from step {change['from_step']}": value
            for name, value in change["settings"].items()
            if name not in FREE
        }
        settings = ", ".join(f"{name} {value}" for name, value in change["settings"].items())
        notes.append(f"settings changed from step {change['from_step']} on: {settings}")
    return Run(
        path=folder.resolve(),
        task=about["task"],
        method=about["method"],
        seed=about["seed"],
        critic=about.get("critic") or "none",
        model=about.get("model") or "not named",
        config=config,
        versions=about.get("versions") or {},
        metrics=metrics,
        rollouts=rollouts,
        notes=notes,
    )


def _metrics(path: Path, notes: list[str]) -> list[dict[str, Any]]:
    by_step: dict[int, dict] = {}
    for number, value in logged_rows(path, notes):
        row = checked(schemas.METRICS, value, f"{path}: line {number}", "each line is one step's metrics")
        by_step[row["step"]] = row  # a step that was run again after a kill counts once
    if not by_step:
        raise InputError(f"{path}: holds no finished step yet; wait for the first one")
    return [by_step[step] for step in sorted(by_step)]


def _rollouts(path: Path, task: str, notes: list[str]) -> list[LoggedRollout]:
    prompts: dict[str, str] = {}
    rollouts: list[LoggedRollout] = []
    remedy = f"each line is one {task} rollout of stage 3"
    for number, value in logged_rows(path, notes):
        row = checked(schemas.ROLLOUT, value, f"{path}: line {number}", remedy)
        try:
            rollout = _rollout(row, task, prompts)
        except ValueError as error:
            raise InputError(f"{path}: line {number}: {error}; {remedy}") from None
        if rollouts and rollout.step < rollouts[-1].step:  # resumed after a kill: these steps were run again
            rollouts = [earlier for earlier in rollouts if earlier.step < rollout.step]
        rollouts.append(rollout)
    return rollouts


def _rollout(row: dict[str, Any], task: str, prompts: dict[str, str]) -> LoggedRollout:
    response = row["response"]
    spans = np.array(row["spans"], dtype=np.int32).reshape(-1, 2)
    count = len(spans)
    if count and (spans[:, 1].max() > len(response) or (spans[:, 0] > spans[:, 1]).any()):
        raise ValueError("its token spans do not lie in its response")

    def array(name: str) -> np.ndarray:
        values = row.get(name)
        if values is None:
            return np.full(count, np.nan, dtype=np.float32)
        if len(values) != count:
            raise ValueError(f"its {name!r} has {len(values)} entries for {count} tokens")
        return np.array([math.nan if value is None else value for value in values], dtype=np.float32)

    critique, good, poor = row.get("critique") or "", row.get("good") or [], row.get("poor") or []
    given = row.get("verdict") if row.get("verdict_source") == "given" else None
    missing = row.get("missing") or []
    spoken = critique or good or poor or missing
    feedback = Feedback(critique, good, poor, missing=missing, score=given) if spoken else None
    poor_at, good_at = span_intervals(feedback, response, task) if feedback else ([], [])
    return LoggedRollout(
        step=row["step"],
        prompt_id=str(row.get("id") or ""),
        prompt=prompts.setdefault(row["prompt"], row["prompt"]),  # one copy of each
        response=response,
        feedback=feedback,
        error=row.get("error") or "",
        quotes=(row.get("matched") or 0, row.get("unmatched") or 0, row.get("conflicts") or 0),
        finished=row.get("finished") is not False,
        spans=spans,
        deltas=array("deltas"),
        rewards=array("rewards"),
        advantages=array("advantages"),
        kl=array("kl"),
        shift=array("new_logprobs") - array("old_logprobs"),
        good_at=good_at,
        poor_at=poor_at,
    )


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST
