"""The figures of one reward model as one picture: F1 against chance, confusion table, label balance, span lengths."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from text2grad.plotting import COLOURS, STYLE, save_figure

_MODEL, _SHUFFLED, _RANDOM = COLOURS[1], COLOURS[2], "#d9d9d9"


def save_plots(metrics: Mapping[str, Any], output: Path) -> list[Path]:
    """``output`` with the suffixes .svg and .png."""
    with plt.rc_context(STYLE | {"font.size": 9}):
        figure, axes = plt.subplots(2, 2, figsize=(9, 6.5), layout="constrained")
        _f1(axes[0, 0], metrics["tokens"])
        _confusion(axes[0, 1], metrics["tokens"]["confusion"])
        _balance(axes[1, 0], metrics["tokens"]["balance"])
        _lengths(axes[1, 1], metrics["spans"])
        return save_figure(figure, output.with_suffix(""))


def _f1(axes: Axes, tokens: Mapping[str, Any]) -> None:
    names = list(tokens["labels"])
    groups = [
        ("reward model", _MODEL, [tokens["labels"][name]["f1"] for name in names]),
        ("its spans, shuffled", _SHUFFLED, [tokens["chance"]["shuffled"][name]["f1"] for name in names]),
        ("random labels", _RANDOM, [tokens["chance"]["random"][name]["share"] for name in names]),
    ]
    for index, (label, colour, values) in enumerate(groups):
        heights, low, high = (np.array([value[key] or 0 for value in values]) for key in ("value", "low", "high"))
        errors = np.clip([heights - low, high - heights], 0, None)
        places = np.arange(len(names)) + (index - 1) * 0.27
        axes.bar(places, heights, 0.25, yerr=errors, color=colour, label=label, capsize=2)
    axes.set(xticks=range(len(names)), xticklabels=names, ylim=(0, 1), xlabel="token label", title="F1 by label")
    axes.legend()


def _confusion(axes: Axes, confusion: Mapping[str, Mapping[str, int]]) -> None:
    counts = np.array([list(row.values()) for row in confusion.values()], dtype=float)
    rows = counts.sum(axis=1, keepdims=True)
    shares = np.divide(counts, rows, out=np.zeros_like(counts), where=rows > 0)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for (row, column), count in np.ndenumerate(counts):
        colour = "white" if shares[row, column] > 0.5 else "black"
        axes.text(column, row, f"{shares[row, column]:.0%}\n{count:.0f}", ha="center", va="center", color=colour)
    axes.set(
        xticks=range(counts.shape[1]),
        xticklabels=next(iter(confusion.values())),
        yticks=range(len(confusion)),
        yticklabels=confusion,
        xlabel="predicted",
        ylabel="true",
        title="Tokens by true and predicted label",
    )


def _balance(axes: Axes, balance: Mapping[str, Mapping[str, float | None]]) -> None:
    names = list(balance["predicted"])
    for offset, (side, colour) in zip((-0.18, 0.18), (("truth", _RANDOM), ("predicted", _MODEL)), strict=True):
        heights = [balance[side].get(name) or 0 for name in names]
        axes.bar(np.arange(len(names)) + offset, heights, 0.34, color=colour, label=side)
    axes.set(xticks=range(len(names)), xticklabels=names, xlabel="token label", ylabel="share", title="Label balance")
    axes.legend()


def _lengths(axes: Axes, spans: Mapping[str, Any]) -> None:
    """Quartiles as thick lines, the median as a dot, the mean as a cross."""
    ticks = []
    for index, (slot, side) in enumerate((slot, side) for slot in spans for side in ("truth", "predicted")):
        ticks.append(slot.replace("_", "\n") + f"\n{side}")
        figures = spans[slot]["tokens_per_span"][side]
        if figures:
            colour = _MODEL if side == "predicted" else "#888888"
            axes.plot([index, index], [figures["q1"], figures["q3"]], color=colour, linewidth=7, solid_capstyle="butt")
            axes.plot(index, figures["q2"], "o", color="white", markersize=4)
            axes.plot(index, figures["mean"], "x", color="black", markersize=5)
    axes.set(
        xticks=range(len(ticks)), xticklabels=ticks, ylabel="tokens per span", title="Span lengths: quartiles, mean ×"
    )
    axes.set_xlim(-0.6, len(ticks) - 0.4)
    axes.set_ylim(bottom=0)
