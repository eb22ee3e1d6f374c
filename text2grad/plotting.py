"""One style for all figures, and files that do not change where the figures do not."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from text2grad.records import check_output, save_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#a3304a", "#2d5f8c", "#8fb3c9", "#47705f", "#d9772b", "#5a5a5a", "#7a5195", "#b0a030")
"""One for each line or bar, in this order."""
STYLE = {
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "legend.frameon": False,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "text2grad",
}
"""Matplotlib's settings: ``with pyplot.rc_context(STYLE)``."""


def save_figure(figure: Figure, stem: str | Path) -> None:
    """Write a figure to ``stem``.svg and ``stem``.png, and close it."""
    from matplotlib import pyplot

    for kind, metadata in (("svg", {"Date": None}), ("png", None)):
        path = Path(f"{stem}.{kind}")
        check_output(path)
        drawn = io.BytesIO()
        figure.savefig(drawn, format=kind, dpi=150, metadata=metadata)
        save_bytes(path, drawn.getvalue())
    pyplot.close(figure)
