"""What training did: runs grouped into variants (one setting, several seeds), with curves, ends, phases and updates."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from evaluation.reporting.runs import Run
from evaluation.reporting.wording import PHASES, known_metrics, method_name
from text2grad.token_rewards import tokens_in

_NOT_THE_METHOD = {
    "seed",
    "output_dir",
    "report_to",
    "save_every",
    "save_total_limit",
    "log_rollouts_every",
    "merge",
    "generation_batch_size",
    "head_chunk",
}
_AUDIT_COUNTS = {f"audit/{name}" for name in ("rollouts", "failures", "tokens", "compared", "signed")}
_POINTS = 240
_BINS = 24


@dataclass
class Variant:
    """Runs that differ in nothing but their seed. ``differs``: the settings that tell it from others of its method."""

    label: str
    task: str
    method: str
    runs: list[Run]
    differs: dict[str, Any]

    @property
    def is_scalar(self) -> bool:
        """Whether the reward is one number per response, on its last token."""
        return self.method.startswith("ppo") or str(self.runs[0].config.get("reward_placement")).startswith("last")


def variants(runs: list[Run]) -> list[Variant]:
    """Group runs by everything but their seed; the labels say what differs between groups of one method."""
    groups: dict[tuple, list[Run]] = {}
    for run in runs:
        key = (run.task, run.method, *sorted((name, repr(value)) for name, value in _setting(run).items()))
        groups.setdefault(key, []).append(run)
    result = []
    for members in groups.values():
        first = members[0]
        rivals = [
            other[0] for other in groups.values() if (other[0].task, other[0].method) == (first.task, first.method)
        ]
        differs = _differences(first, rivals)
        label = method_name(first.method)
        if len(rivals) > 1:
            shown = ", ".join(f"{name} {value}" for name, value in differs.items())
            label += f" ({shown if len(differs) <= 2 else first.name})"
        members.sort(key=lambda run: run.seed)
        result.append(Variant(label, first.task, first.method, members, differs))
    tasks = list(dict.fromkeys(variant.task for variant in result))
    return sorted(result, key=lambda variant: (tasks.index(variant.task), variant.method != "text2grad"))


def _setting(run: Run) -> dict[str, Any]:
    """All that makes the run what it is, but for its seed, which paths may contain too."""
    setting = {"model": run.model, "critic": run.critic, **run.config}
    setting = {name: value for name, value in setting.items() if name not in _NOT_THE_METHOD}
    return {name: _without_seed(value) for name, value in setting.items()}


def _without_seed(value: Any) -> Any:
    return re.sub(r"(?i)(seed)[-_=]?\d+", r"\1", value) if isinstance(value, str) else value


def _differences(run: Run, rivals: list[Run]) -> dict[str, Any]:
    settings = [_setting(rival) for rival in rivals]
    names = dict.fromkeys(name for setting in settings for name in setting)
    differing = [name for name in names if any(other.get(name) != settings[0].get(name) for other in settings)]
    return {name: _setting(run).get(name, "not set") for name in differing}


def curve_names(group: list[Variant]) -> list[str]:
    """The metrics that at least one run logged, known ones first in the order of ``metrics.yaml``."""
    logged = {name for variant in group for run in variant.runs for row in run.metrics for name in row}
    logged -= {"step", *_AUDIT_COUNTS}
    if logged >= {"spans/matched", "spans/unmatched"}:
        logged = logged - {"spans/matched", "spans/unmatched"} | {"spans/found"}
    if any(name.startswith("seconds/") for name in logged):
        logged = {name for name in logged if not name.startswith("seconds/")} | {"seconds/total"}
    order = list(known_metrics())
    ranks = {name: order.index(name) for name in logged if name in order}
    before_coefficient = order.index("kl/coef") - 0.5
    return sorted(logged, key=lambda name: (ranks.get(name, before_coefficient if name[:3] == "kl/" else 1e9), name))


def series(run: Run, name: str) -> dict[int, float]:
    """step -> value; ``spans/found`` and ``seconds/total`` are made of what the run logged."""
    if name == "spans/found":
        matched, unmatched = run.series("spans/matched"), run.series("spans/unmatched")
        totals = {step: matched[step] + unmatched[step] for step in matched if step in unmatched}
        return {step: matched[step] / total for step, total in totals.items() if total}
    if name == "seconds/total":
        parts = [key for key in run.metrics[0] if key.startswith("seconds/")]
        return {row["step"]: sum(row[key] for key in parts) for row in run.metrics if all(key in row for key in parts)}
    return run.series(name)


def smoothing_window(steps: int) -> int:
    """Steps in the moving mean of a curve: odd, about a thirtieth of the run."""
    return max(1, steps // 30 // 2 * 2 + 1) if steps >= 60 else 1


def curve(variant: Variant, name: str) -> dict[str, Any] | None:
    """One line of a chart, or None where no run logged the metric.

    Each seed's series is smoothed by a centred moving mean (shorter at the ends), over the steps that all seeds have.

    Returns:
        ``steps``, ``mean`` over seeds, ``low`` and ``high`` (lowest and highest seed), ``raw`` (a single seed's values
        as logged, else None), ``seeds`` and ``window``.
    """
    all_series = [line for run in variant.runs if (line := series(run, name))]
    if not all_series:
        return None
    steps = sorted(set.intersection(*(set(line) for line in all_series)))
    if not steps:
        return None
    values = np.array([[line[step] for step in steps] for line in all_series])
    window = smoothing_window(len(steps))
    smooth = np.array([_moving_mean(row, window) for row in values])
    keep = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), _POINTS)).round().astype(int))
    return {
        "steps": [steps[index] for index in keep],
        "mean": smooth.mean(axis=0)[keep].tolist(),
        "low": smooth.min(axis=0)[keep].tolist(),
        "high": smooth.max(axis=0)[keep].tolist(),
        "raw": values[0][keep].tolist() if len(values) == 1 and window > 1 else None,
        "seeds": len(values),
        "banded": len(values) > 1,
        "window": window,
    }


def _moving_mean(values: np.ndarray, window: int) -> np.ndarray:
    half = window // 2
    sums = np.concatenate([[0.0], np.cumsum(values)])
    index = np.arange(len(values))
    low, high = np.maximum(index - half, 0), np.minimum(index + half + 1, len(values))
    return (sums[high] - sums[low]) / (high - low)


def ends(variant: Variant, name: str) -> dict[str, float] | None:
    """The first and the last tenth of the steps: mean within a run, then mean, lowest and highest over seeds."""
    firsts, lasts = [], []
    for run in variant.runs:
        values = list(series(run, name).values())
        if values:
            tenth = max(1, len(values) // 10)
            firsts.append(statistics.fmean(values[:tenth]))
            lasts.append(statistics.fmean(values[-tenth:]))
    if not firsts:
        return None
    return {
        "first": statistics.fmean(firsts),
        "last": statistics.fmean(lasts),
        "last_low": min(lasts),
        "last_high": max(lasts),
        "change": statistics.fmean(lasts) - statistics.fmean(firsts),
    }


def audit(variant: Variant) -> dict[str, float | int] | None:
    """What the trusted critic found over all steps and seeds; None where nothing was audited.

    Returns:
        ``responses`` audited, ``trusted`` and ``own``: mean δ per token of them by the trusted critic and by the one in
        training, ``flip_rate``: of the tokens that both label, the share with opposite signs.
    """
    rows = [row for run in variant.runs for row in run.metrics if row.get("audit/compared") and "audit/delta" in row]
    if not rows:
        return None

    def pooled(name: str, weight: str) -> float:
        return sum(row.get(name, 0.0) * row[weight] for row in rows) / max(1.0, sum(row[weight] for row in rows))

    trusted = pooled("audit/delta", "audit/tokens")
    return {
        "responses": int(sum(row["audit/rollouts"] for row in rows)),
        "trusted": trusted,
        "own": trusted + pooled("audit/delta_gap", "audit/compared"),
        "flip_rate": pooled("audit/flip_rate", "audit/signed"),
    }


def timing(variant: Variant) -> dict[str, Any] | None:
    """Seconds of one step by phase and in total: medians over the steps of all runs; None where none were logged."""
    rows = [row for run in variant.runs for row in run.metrics if any(key.startswith("seconds/") for key in row)]
    if not rows:
        return None
    phases = [key for key in PHASES if any(key in row for row in rows)]
    phases += sorted({key for row in rows for key in row if key.startswith("seconds/")} - set(PHASES))
    totals = [sum(row.get(key, 0.0) for key in phases) for row in rows]
    quartiles = np.percentile(totals, [25, 50, 75]).tolist()
    rates = [60 * count / spent for run in variant.runs for count, spent in _work(run) if spent]
    return {
        "phases": {key: statistics.median(row.get(key, 0.0) for row in rows) for key in phases},
        "total": quartiles[1],
        "total_low": quartiles[0],
        "total_high": quartiles[2],
        "rollouts_per_minute": statistics.median(rates) if rates else None,
        "steps": len(rows),
    }


def _work(run: Run) -> Iterator[tuple[int, float]]:
    """(responses, seconds) of each step; the log counts the responses of all steps so far."""
    before = None if run.steps[0] > 1 else {"rollouts": 0}
    for row in run.metrics:
        if before is not None and _counted(before) and _counted(row):
            yield row["rollouts"] - before["rollouts"], sum(row[key] for key in row if key.startswith("seconds/"))
        before = row


def _counted(row: dict[str, Any]) -> bool:
    return isinstance(row.get("rollouts"), int)


LABELS = ("poor", "good", "none")


def update_effect(variant: Variant) -> dict[str, Any] | None:
    """What updates did to criticised, praised and unlabelled tokens (the NL-Gradient's own test).

    Over rollouts that were scored again after their update: the share of tokens in poor spans whose log-probability
    fell, of those in good spans whose rose, and both shares for tokens in no span. None where no rollout was rescored
    or none has a labelled token.

    Returns:
        ``overall``: label -> {"tokens", "fell", "rose"}; ``steps``, the middles of bins of steps, and per label the
        same three figures in each bin.
    """
    counts: dict[int, np.ndarray] = {}  # step -> [label, (tokens, fell, rose)]
    for run in variant.runs:
        for rollout in run.rollouts:
            if rollout.feedback is None or not len(rollout.shift) or np.isnan(rollout.shift).all():
                continue
            spans = [(start, end) for start, end in rollout.spans.tolist()]
            label = np.full(len(spans), 2)
            label[tokens_in(rollout.good_at, rollout.response, spans)] = 1
            label[tokens_in(rollout.poor_at, rollout.response, spans)] = 0
            written = (rollout.spans[:, 0] < rollout.spans[:, 1]) & ~np.isnan(rollout.shift)
            at_step = counts.setdefault(rollout.step, np.zeros((3, 3), dtype=int))
            for index in range(3):
                shift = rollout.shift[written & (label == index)]
                at_step[index] += (len(shift), int((shift < 0).sum()), int((shift > 0).sum()))
    overall = sum(counts.values(), np.zeros((3, 3), dtype=int))
    if not overall[:2, 0].any():
        return None
    steps = sorted(counts)
    bins = [part.tolist() for part in np.array_split(steps, min(_BINS, len(steps)))]
    binned = [np.sum([counts[step] for step in part], axis=0) for part in bins]
    return {
        "overall": {name: _shares(overall[index]) for index, name in enumerate(LABELS)},
        "steps": [statistics.fmean(part) for part in bins],
        **{name: [_shares(part[index]) for part in binned] for index, name in enumerate(LABELS)},
    }


def _shares(counts: np.ndarray) -> dict[str, Any]:
    tokens, fell, rose = counts.tolist()
    return {"tokens": tokens, "fell": fell / tokens if tokens else None, "rose": rose / tokens if tokens else None}
