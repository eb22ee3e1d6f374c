"""Figures of a study's runs: final F1, steps to another method's final F1, and the intervals of both."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from text2grad.statistics import LEVEL, Estimate, bootstrap, resampled_sums

FINAL = 3
"""Evaluations at a run's end whose mean is its final quality."""

Curve = list[dict[str, float]]


def column(curves: Sequence[Curve], name: str) -> np.ndarray:
    """[seeds, evaluations]"""
    return np.array([[row[name] for row in curve] for curve in curves])


def final(curves: Sequence[Curve], name: str = "f1") -> Estimate:
    """Mean of the last evaluations; the interval is over seeds."""
    return _mean(column(curves, name)[:, -FINAL:].mean(axis=1))


def area(curves: Sequence[Curve], name: str = "f1") -> Estimate:
    """Mean quality over the whole run, by which a learning rate is chosen: fast and good at the end."""
    return _mean(column(curves, name).mean(axis=1))


def _mean(values: np.ndarray) -> Estimate:
    return bootstrap(np.stack([values, np.ones_like(values)], axis=1))


def steps_to(level: float, curve: np.ndarray, steps: np.ndarray) -> float:
    """The step at which a curve first reaches ``level``, between evaluations by a straight line; infinite if never."""
    reached = np.flatnonzero(curve >= level - 1e-9)  # a flat end reaches its own mean, whatever the rounding
    if not len(reached):
        return math.inf
    after = int(reached[0])
    if after == 0:
        return float(steps[0])
    rise = (level - curve[after - 1]) / (curve[after] - curve[after - 1])
    return float(steps[after - 1] + rise * (steps[after] - steps[after - 1]))


@dataclass(frozen=True)
class Speed:
    """Steps until the mean curve reaches the reference's final quality, and their share of the reference's own.

    All may be infinite: never within the run. ``unreached`` is the share of resamples in which it is never reached.
    """

    steps: float
    low: float
    high: float
    share: float
    share_low: float
    share_high: float
    unreached: float


def speed(curves: Sequence[Curve], reference: Sequence[Curve]) -> Speed:
    """How soon a method reaches the reference's final F1; seeds of both are resampled together."""
    steps = np.array([row["step"] for row in reference[0]], dtype=float)
    count = len(steps)
    rows = np.concatenate([column(curves, "f1"), column(reference, "f1"), np.ones((len(curves), 1))], axis=1)

    def both(sums: np.ndarray) -> tuple[float, float]:
        own, other = sums[:count] / sums[-1], sums[count:-1] / sums[-1]
        level = other[-FINAL:].mean()
        return steps_to(level, own, steps), steps_to(level, other, steps)

    def own_steps(sums: np.ndarray) -> np.ndarray:
        return np.apply_along_axis(lambda row: both(row)[0], -1, sums)

    def share(sums: np.ndarray) -> np.ndarray:
        return np.apply_along_axis(lambda row: both(row)[0] / max(both(row)[1], 1e-9), -1, sums)

    (own_value, own_low, own_high), _ = _quantiles(rows, own_steps)
    (share_value, share_low, share_high), values = _quantiles(rows, share)
    unreached = float(np.isinf(values).mean())
    return Speed(own_value, own_low, own_high, share_value, share_low, share_high, unreached)


def _quantiles(rows: np.ndarray, figure: Callable[[np.ndarray], np.ndarray]) -> tuple[list[float], np.ndarray]:
    """Value and percentile interval of a figure that may be infinite, which an ordinary interval would leave out."""
    values = np.sort(figure(resampled_sums(rows)))
    ends = [values[min(int(q * len(values)), len(values) - 1)] for q in ((1 - LEVEL) / 2, (1 + LEVEL) / 2)]
    return [float(figure(rows.sum(axis=0))), *map(float, ends)], values


def shown(value: float, digits: int = 0) -> str:
    return "never" if math.isinf(value) else f"{value:.{digits}f}"


def interval(low: float, high: float, digits: int = 0) -> str:
    ends = ["∞" if math.isinf(end) else f"{end:.{digits}f}" for end in (low, high)]
    return f"[{ends[0]}, {ends[1]}]"
