"""The benchmarks' pictures, each as SVG and PNG."""

from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from textwrap import fill

import matplotlib
import numpy as np
from matplotlib.axes import Axes

from benchmarks.micro.results import Curve, column, final
from text2grad.plotting import COLOURS, STYLE, save_figure
from text2grad.statistics import mean_interval

matplotlib.use("Agg")
from matplotlib import pyplot

LABEL_WIDTH = 40
"""Characters in a line of the legend; longer labels wrap."""


def draw_curves(path: Path, curves: Mapping[str, Sequence[Curve]], reference: str) -> None:
    """Quality against steps: the mean of the seeds, and its t interval as a band.

    Args:
        curves: by label.
        reference: the label whose final quality is drawn as a line.
    """
    with pyplot.rc_context(STYLE):
        figure, axes = pyplot.subplots(figsize=(5.6, 3.2), layout="constrained")
        level = final(curves[reference]).value
        axes.axhline(level, color="#999999", linewidth=0.6, linestyle=":")
        for number, (label, runs) in enumerate(curves.items()):
            steps, values = [row["step"] for row in runs[0]], column(runs, "f1")
            colour = COLOURS[number % len(COLOURS)]
            style = ("-", "--", ":")[number // len(COLOURS)]
            shown = fill(label, LABEL_WIDTH)
            axes.plot(steps, values.mean(axis=0), color=colour, linestyle=style, linewidth=1.3, label=shown)
            band = [mean_interval(at_step) for at_step in values.T]
            low, high = [each.low for each in band], [each.high for each in band]
            axes.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.set(xlabel="steps", ylabel="quality (F1 of statements)", xlim=(0, None))
        figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", fontsize=7)
        save_figure(figure, path)


def draw_noise(path: Path, qualities: Mapping[str, Sequence[tuple[float, Sequence[Curve]]]], errors: str) -> None:
    """Final quality against the share of spans that are wrong, a line per method or kind of error.

    Args:
        qualities: for each line's label, its points: the share, and the runs at it.
        errors: what is wrong with these spans.
    """
    with pyplot.rc_context(STYLE):
        figure, axes = pyplot.subplots(figsize=(3.8, 2.6), layout="constrained")
        for number, (label, points) in enumerate(qualities.items()):
            _errorbars(axes, label, sorted(points, key=itemgetter(0)), COLOURS[number % len(COLOURS)], 0.002 * number)
        axes.set(xlabel=f"share of spans: {errors}", ylabel="final quality (F1)")
        axes.legend(fontsize=7)
        save_figure(figure, path)


def _errorbars(
    axes: Axes, label: str, points: Sequence[tuple[float, Sequence[Curve]]], colour: str, nudge: float
) -> None:
    shares, estimates = [share + nudge for share, _ in points], [final(runs) for _, runs in points]
    values = np.array([estimate.value for estimate in estimates])
    errors = [values - [e.low for e in estimates], [e.high for e in estimates] - values]
    axes.errorbar(shares, values, errors, color=colour, linewidth=1.2, marker="o", markersize=3, capsize=2, label=label)
