"""Figures of a study's runs: final F1, differences of paired seeds, and steps to another method's final F1."""

import math
from collections.abc import Sequence

import numpy as np

from text2grad.statistics import Estimate, mean_interval

FINAL = 3
"""Evaluations at a run's end whose mean is its final quality."""

Curve = list[dict[str, float]]


def column(curves: Sequence[Curve], name: str) -> np.ndarray:
    """[seeds, evaluations]"""
    return np.array([[row[name] for row in curve] for curve in curves])


def finals(curves: Sequence[Curve], name: str = "f1") -> np.ndarray:
    """[seeds]: the mean of each run's last evaluations."""
    return column(curves, name)[:, -FINAL:].mean(axis=1)


def final(curves: Sequence[Curve], name: str = "f1") -> Estimate:
    """Mean of the last evaluations; the interval is over seeds."""
    return mean_interval(finals(curves, name))


def difference(curves: Sequence[Curve], others: Sequence[Curve]) -> Estimate:
    """By how much a method's runs end above another's with the same seeds."""
    return mean_interval(finals(curves) - finals(others))


def area(curves: Sequence[Curve]) -> Estimate:
    """Mean quality over the whole run, by which a learning rate is chosen: fast and good at the end."""
    return mean_interval(column(curves, "f1").mean(axis=1))


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


def steps_to_reference(curves: Sequence[Curve], reference: Sequence[Curve]) -> list[float]:
    """For each seed, sorted: the step at which the mean of its last evaluations reaches the reference's final F1.

    As many evaluations are averaged as at the end, so that a single lucky one does not count.
    """
    steps = np.array([row["step"] for row in reference[0]], dtype=float)
    level, width = float(final(reference).value), min(FINAL, len(steps))
    smooth = np.lib.stride_tricks.sliding_window_view(column(curves, "f1"), width, axis=1).mean(axis=2)
    return sorted(steps_to(level, curve, steps[width - 1 :]) for curve in smooth)


def shown(steps: Sequence[float]) -> str:
    """The median of sorted numbers of steps, and their range."""
    median, first, last = ("never" if math.isinf(at) else f"{at:.0f}" for at in (np.median(steps), steps[0], steps[-1]))
    return f"{median} ({first} to {last})" if len(steps) > 1 else median
