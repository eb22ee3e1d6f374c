"""The benchmarks' pictures, each as SVG and PNG."""

from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from textwrap import fill

import matplotlib
import numpy as np

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
            ordered = sorted(points, key=itemgetter(0))
            shares, ends = np.array([share for share, _ in ordered]), [final(runs) for _, runs in ordered]
            values = np.array([end.value for end in ends])
            bars = [values - [end.low for end in ends], [end.high for end in ends] - values]
            colour, nudged = COLOURS[number % len(COLOURS)], shares + 0.002 * number
            axes.errorbar(nudged, values, bars, color=colour, lw=1.2, marker="o", markersize=3, capsize=2, label=label)
        axes.set(xlabel=f"share of spans: {errors}", ylabel="final quality (F1)")
        axes.legend(fontsize=7)
        save_figure(figure, path)
