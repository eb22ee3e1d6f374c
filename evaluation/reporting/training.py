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
_POINTS = 240


@dataclass
class Variant:
    """Runs that differ in nothing but their seed."""

    label: str
    task: str
    method: str
    runs: list[Run]


def variants(runs: list[Run]) -> list[Variant]:
    """Group runs by everything but their seed; the labels say what differs between groups of one method."""
    groups: dict[tuple, list[Run]] = {}
    for run in runs:
        key = (run.task, run.method, *sorted((name, repr(value)) for name, value in _setting(run).items()))
        groups.setdefault(key, []).append(run)
    firsts = [members[0] for members in groups.values()]
    result = []
    for members in groups.values():
        first = members[0]
        rivals = [other for other in firsts if (other.task, other.method) == (first.task, first.method)]
        label = method_name(first.method)
        if len(rivals) > 1:
            differs = [f"{name} {value}" for name, value in _differences(first, rivals).items()]
            label += f" ({', '.join(differs) if len(differs) <= 2 else first.name})"
        members.sort(key=lambda run: run.seed)
        result.append(Variant(label, first.task, first.method, members))
    tasks = list(dict.fromkeys(variant.task for variant in result))
    return sorted(result, key=lambda variant: (tasks.index(variant.task), variant.method != "text2grad"))


def _setting(run: Run) -> dict[str, Any]:
    """All that makes the run what it is, but for its seed, which paths may contain too."""
    setting = {"model": run.model, "critic": run.critic, **run.config}
    return {name: _without_seed(value) for name, value in setting.items() if name not in _NOT_THE_METHOD}


def _without_seed(value: Any) -> Any:
    return re.sub(r"(?i)(seed)[-_=]?\d+", r"\1", value) if isinstance(value, str) else value


def _differences(run: Run, rivals: list[Run]) -> dict[str, Any]:
    settings = [_setting(rival) for rival in rivals]
    names = dict.fromkeys(name for setting in settings for name in setting)
    differing = [name for name in names if any(other.get(name) != settings[0].get(name) for other in settings)]
    return {name: _setting(run).get(name, "not set") for name in differing}


def curve_names(group: list[Variant]) -> list[str]:
    """The metrics that at least one run logged, known ones first in the order of ``metrics.yaml``.

    An audit sees a few responses a step; its figures are pooled over the run (:func:`audit`) instead of drawn.
    """
    logged = {name for variant in group for run in variant.runs for row in run.metrics for name in row}
    logged = {name for name in logged if name != "step" and not name.startswith("audit/")}
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
        parts = [run.series(key) for key in run.metrics[0] if key.startswith("seconds/")]
        return {step: sum(part[step] for part in parts) for step in run.steps if all(step in part for part in parts)}
    return run.series(name)


def curve(variant: Variant, name: str) -> dict[str, Any] | None:
    """One line of a chart, or None where no run logged the metric.

    Each seed's series is smoothed by a centred moving mean (shorter at the ends), over the steps that all seeds have.

    Returns:
        ``steps``, ``mean`` over seeds, ``low`` and ``high`` (lowest and highest seed), ``seeds``, and the ``window``
        of the moving mean: odd, about a thirtieth of the run.
    """
    all_series = [line for run in variant.runs if (line := series(run, name))]
    steps = sorted(set.intersection(*(set(line) for line in all_series))) if all_series else []
    if not steps:
        return None
    values = np.array([[line[step] for step in steps] for line in all_series])
    window = max(1, len(steps) // 30 // 2 * 2 + 1) if len(steps) >= 60 else 1
    smooth = np.array([_moving_mean(row, window) for row in values])
    keep = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), _POINTS)).round().astype(int))
    return {
        "steps": [steps[index] for index in keep],
        "mean": smooth.mean(axis=0)[keep].tolist(),
        "low": smooth.min(axis=0)[keep].tolist(),
        "high": smooth.max(axis=0)[keep].tolist(),
        "seeds": len(values),
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
    first, last = statistics.fmean(firsts), statistics.fmean(lasts)
    return {"first": first, "last": last, "last_low": min(lasts), "last_high": max(lasts), "change": last - first}


def audit(variant: Variant) -> dict[str, float | int] | None:
    """What the trusted critic found over all steps and seeds; None where nothing was audited.

    Returns:
        ``responses`` audited, ``trusted`` and ``own``: mean δ per token of them by the trusted critic and by the one in
        training, ``flip_rate``: of the tokens that both label, the share with opposite signs.
    """
    names = [
        f"audit/{name}" for name in ("delta", "delta_gap", "flip_rate", "rollouts", "tokens", "compared", "signed")
    ]
    rows = []
    for run in variant.runs:
        columns = {name: run.series(name) for name in names}
        for step in run.steps:
            row = {name: column[step] for name, column in columns.items() if step in column}
            if row.get("audit/compared") and "audit/delta" in row:
                rows.append(row)
    if not rows:
        return None

    def pooled(name: str, weight: str) -> float:
        total = sum(row.get(name, 0.0) * row.get(weight, 0.0) for row in rows)
        return total / max(1.0, sum(row.get(weight, 0.0) for row in rows))

    trusted = pooled("audit/delta", "audit/tokens")
    return {
        "responses": int(sum(row.get("audit/rollouts", 0) for row in rows)),
        "trusted": trusted,
        "own": trusted + pooled("audit/delta_gap", "audit/compared"),
        "flip_rate": pooled("audit/flip_rate", "audit/signed"),
    }


def timing(variant: Variant) -> dict[str, Any] | None:
    """Seconds of one step by phase and in total: medians over the steps of all runs; None where none were logged."""
    rows = []
    for run in variant.runs:
        phases = [name for name in run.metrics[0] if name.startswith("seconds/")]
        columns = {name: run.series(name) for name in phases}
        rows += [{name: columns[name].get(step, 0.0) for name in phases} for step in run.steps if phases]
    if not rows:
        return None
    totals = [sum(row.values()) for row in rows]
    extra = sorted({name for row in rows for name in row} - set(PHASES))
    names = [name for name in (*PHASES, *extra) if any(name in row for row in rows)]
    low, middle, high = np.percentile(totals, [25, 50, 75]).tolist()
    rates = [60 * count / spent for run in variant.runs for count, spent in _work(run) if spent]
    return {
        "phases": {name: statistics.median(row.get(name, 0.0) for row in rows) for name in names},
        "total": middle,
        "total_low": low,
        "total_high": high,
        "rollouts_per_minute": statistics.median(rates) if rates else None,
    }


def _work(run: Run) -> Iterator[tuple[float, float]]:
    """(responses, seconds) of each step; the log counts the responses of all steps so far."""
    counts, seconds = run.series("rollouts"), series(run, "seconds/total")
    before: float | None = None if run.steps[0] > 1 else 0
    for step in run.steps:
        if before is not None and step in counts and step in seconds:
            yield counts[step] - before, seconds[step]
        before = counts.get(step)


LABELS = ("poor", "good", "none")


def update_effect(variant: Variant) -> dict[str, Any] | None:
    """What updates did to criticised, praised and unlabelled tokens (the NL-Gradient's own test).

    Over rollouts that were scored again after their update: per label the number of ``tokens`` and the shares whose
    log-probability ``fell`` and ``rose``. None where no rollout was rescored or none has a labelled token.
    """
    counts = np.zeros((3, 3), dtype=int)  # [label, (tokens, fell, rose)]
    for run in variant.runs:
        for rollout in run.rollouts:
            if rollout.feedback is None or not len(rollout.shift) or np.isnan(rollout.shift).all():
                continue
            spans = [(start, end) for start, end in rollout.spans.tolist()]
            label = np.full(len(spans), 2)
            label[tokens_in(rollout.good_at, rollout.response, spans)] = 1
            label[tokens_in(rollout.poor_at, rollout.response, spans)] = 0
            written = (rollout.spans[:, 0] < rollout.spans[:, 1]) & ~np.isnan(rollout.shift)
            for index in range(3):
                shift = rollout.shift[written & (label == index)]
                counts[index] += (len(shift), int((shift < 0).sum()), int((shift > 0).sum()))
    if not counts[:2, 0].any():
        return None
    return {name: _shares(*counts[index].tolist()) for index, name in enumerate(LABELS)}


def _shares(tokens: int, fell: int, rose: int) -> dict[str, Any]:
    return {"tokens": tokens, "fell": fell / tokens if tokens else None, "rose": rose / tokens if tokens else None}
