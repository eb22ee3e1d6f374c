"""How sure a figure is: bootstrap intervals over records, paired differences, and agreement between judges.

A figure here is a function of sums over records (a precision is Σ true positives / Σ predictions), so that drawing
records with replacement takes only their rows, and all resamples are one matrix product. Records that belong together
(several responses to one prompt) are drawn together: as if they were independent, intervals would be too narrow.
scipy.stats.bootstrap knows no groups, and it draws whole records where their sums suffice. Fleiss' kappa is a function
here, because statsmodels would be a dependency for one function.
"""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

RESAMPLES = 2000
SEED = 42  # so that figures of the same records are resampled alike
LEVEL = 0.95

Combine = Callable[[np.ndarray], np.ndarray]
"""Sums ``[..., columns]`` to the figure ``[...]``."""
Rows = Sequence[Sequence[float]] | np.ndarray
"""``[records, columns]``: what each record adds to the sums."""


@dataclass(frozen=True)
class Estimate:
    """A figure with its interval; NaN where it is undefined (0 / 0, one record). ``n`` is what was resampled."""

    value: float
    low: float
    high: float
    n: int

    def to_dict(self) -> dict[str, float | int | None]:
        """For JSON, which knows no NaN."""
        return {**{name: finite(getattr(self, name)) for name in ("value", "low", "high")}, "n": self.n}

    def __str__(self) -> str:
        return interval_text(self.to_dict())


def interval_text(figure: Mapping[str, Any]) -> str:
    """An estimate for people, as :meth:`Estimate.to_dict` gives it."""
    if figure["value"] is None:
        return "–"
    interval = "" if figure["low"] is None else f" [{figure['low']:.3f}, {figure['high']:.3f}]"
    return f"{figure['value']:.3f}{interval}"


def finite(value: float) -> float | None:
    """For JSON, which knows no NaN."""
    return value if math.isfinite(value) else None


def ratio(sums: np.ndarray) -> np.ndarray:
    """The first column by the second; NaN for 0 / 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return sums[..., 0] / sums[..., 1]


def mean_interval(values: Sequence[float] | np.ndarray) -> Estimate:
    """The mean of independent runs with Student's t interval; the interval of fewer than two is undefined.

    For seeds, and for differences of paired seeds: of a few values a percentile bootstrap gives intervals that are
    too narrow.
    """
    from scipy.stats import t  # takes half a second to load

    values = np.asarray(values, dtype=float)
    count, mean = len(values), float(values.mean())
    if count < 2:
        return Estimate(mean, math.nan, math.nan, count)
    half = float(t.ppf((1 + LEVEL) / 2, count - 1) * values.std(ddof=1) / math.sqrt(count))
    return Estimate(mean, mean - half, mean + half, count)


def bootstrap(rows: Rows, combine: Combine = ratio, groups: Sequence[Hashable] | None = None) -> Estimate:
    """The figure of all records, and the percentile interval of resampled ones.

    Args:
        rows: [records, columns]; what each record adds to the sums.
        groups: which records belong together; by default each is its own group.
    """
    sums = _grouped(rows, groups)
    value = float(combine(sums.sum(axis=0))) if len(sums) else math.nan
    return Estimate(value, *percentile_interval(combine(resampled_sums(sums))), len(sums))


def paired_difference(
    first: Rows, second: Rows, combine: Combine = ratio, groups: Sequence[Hashable] | None = None
) -> tuple[Estimate, float]:
    """The figure of ``first`` less that of ``second`` on the same records, row by row; both resampled alike.

    With it the two-sided p: twice the smaller share of resamples on either side of zero, but not below what n groups
    that all differ one way could come to by chance, 2^(1 − n): resamples of a few say less than they seem to.
    """
    if len(first) != len(second):
        raise ValueError(f"{len(first)} rows cannot be paired with {len(second)}")
    a, b = _grouped(first, groups), _grouped(second, groups)
    value = float(combine(a.sum(axis=0)) - combine(b.sum(axis=0))) if len(a) else math.nan
    resampled = combine(resampled_sums(a)) - combine(resampled_sums(b))
    defined = resampled[np.isfinite(resampled)]
    tail = min((defined <= 0).sum(), (defined >= 0).sum())
    p = min(1.0, max(2 * (tail + 1) / (len(defined) + 1), 2.0 ** (1 - len(a))))
    return Estimate(value, *percentile_interval(resampled), len(a)), float(p)


def fleiss_kappa(counts: Sequence[Sequence[int]] | np.ndarray) -> float:
    """Agreement of several judges beyond chance (Fleiss 1971); NaN where all labels are one and the same.

    Args:
        counts: [items, labels]; how many judges gave each item each label, the same number of judges for each item.
    """
    counts = np.asarray(counts, dtype=float)
    judges = counts.sum(axis=1)
    if len(counts) == 0 or (judges != judges[0]).any() or judges[0] < 2:
        raise ValueError("Fleiss' kappa needs items that the same number of judges, at least two, have labelled")
    observed = ((counts**2).sum(axis=1) - judges) / (judges * (judges - 1))
    chance = ((counts.sum(axis=0) / counts.sum()) ** 2).sum()
    return math.nan if chance == 1 else float((observed.mean() - chance) / (1 - chance))


def _grouped(rows: Rows, groups: Sequence[Hashable] | None) -> np.ndarray:
    """Rows of one group added up; [groups, columns]."""
    rows = np.asarray(rows, dtype=float)
    if groups is None:
        return rows
    index = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    sums = np.zeros((len(index), *rows.shape[1:]))
    np.add.at(sums, [index[group] for group in groups], rows)
    return sums


def resampled_sums(rows: np.ndarray) -> np.ndarray:
    """[records, columns] -> [RESAMPLES, columns], the same draws at every call; NaN of fewer than two records."""
    count = len(rows)
    if count < 2:
        return np.full((RESAMPLES, rows.shape[1] if rows.ndim > 1 else 2), np.nan)
    draws = np.random.default_rng(SEED).multinomial(count, np.full(count, 1 / count), size=RESAMPLES)
    return draws @ rows


def percentile_interval(values: np.ndarray) -> tuple[float, float]:
    """Percentiles of the resamples in which the figure is defined."""
    values = values[np.isfinite(values)]
    if not len(values):
        return math.nan, math.nan
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
