"""What training did: runs grouped into variants (one setting, several seeds), with their curves and ends."""

import re
import statistics
from dataclasses import dataclass
from typing import Any

import numpy as np

from evaluation.reporting.runs import Run, is_number
from evaluation.reporting.wording import known_metrics, method_name
from evaluation.results import grouped
from text2grad.journal.run_folder import FREE

_NOT_THE_METHOD = {*FREE, "seed", "generation_batch_size"}
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

    def key(run: Run) -> tuple:
        return run.task, run.method, *sorted((name, repr(value)) for name, value in _setting(run).items())

    groups = list(grouped(runs, key).values())
    firsts = [members[0] for members in groups]
    result = []
    for members in groups:
        first = members[0]
        rivals = [other for other in firsts if (other.task, other.method) == (first.task, first.method)]
        label = method_name(first.method)
        if len(rivals) > 1:
            differs = [f"{name} {value}" for name, value in _differences(first, rivals).items()]
            label += f" ({', '.join(differs) if len(differs) <= 2 else _folder(first, rivals)})"
        members.sort(key=lambda run: run.seed)
        result.append(Variant(label, first.task, first.method, members))
    tasks = list(dict.fromkeys(variant.task for variant in result))
    return sorted(result, key=lambda variant: (tasks.index(variant.task), variant.method != "text2grad"))


def _folder(run: Run, rivals: list[Run]) -> str:
    """The run's folder, by as many of its last names as no rival's has."""
    own, others = run.path.parts, [rival.path.parts for rival in rivals]
    count = next(last for last in range(1, len(own) + 1) if [parts[-last:] for parts in others].count(own[-last:]) == 1)
    return "/".join(own[-count:])


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
    """The metrics that at least one run logged, known ones first in the order of ``metrics.yaml``."""
    logged = {name for variant in group for run in variant.runs for row in run.metrics for name in row}
    logged.discard("step")
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
        rows = {row["step"]: [row[key] for key in row if key.startswith("seconds/")] for row in run.metrics}
        return {step: sum(parts) for step, parts in rows.items() if parts and all(map(is_number, parts))}
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
    sums, counts = (np.convolve(row, np.ones(window), "same") for row in (values, np.ones(len(values))))
    return sums / counts


def ends(variant: Variant, name: str) -> dict[str, float]:
    """The first and the last tenth of the steps: mean within a run, then mean, lowest and highest over seeds."""
    firsts, lasts = [], []
    for run in variant.runs:
        values = list(series(run, name).values())
        if values:
            tenth = max(1, len(values) // 10)
            firsts.append(statistics.fmean(values[:tenth]))
            lasts.append(statistics.fmean(values[-tenth:]))
    first, last = statistics.fmean(firsts), statistics.fmean(lasts)
    return {"first": first, "last": last, "last_low": min(lasts), "last_high": max(lasts), "change": last - first}
