"""Line charts of training as SVG."""

import io
import re
from typing import Any

from text2grad.plotting import COLOURS, STYLE

DASHES = ("-", "--", ":", "-.")


def is_constant(chart: dict[str, Any]) -> bool:
    """Whether no line of a chart ever moves, and all lie at one value."""
    values = [value for line in chart["lines"] for name in ("low", "high") for value in line[name]]
    return max(values) - min(values) <= 1e-9 * max(1.0, abs(max(values)))


def line_chart(chart: dict[str, Any]) -> str:
    """One chart as an SVG file that is the same for the same lines.

    Args:
        chart: ``title``, ``style``, and ``lines``, each with ``label``, ``slot`` (its look), ``steps``, ``mean``,
            ``low`` and ``high`` (see ``training.curve``).
    """
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    lines = chart["lines"]
    # Labels come from files: a dollar sign in one starts no formula.
    plain = {"font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"], "text.parse_math": False}
    with matplotlib.rc_context({**STYLE, **plain}):
        figure = Figure(figsize=(3.6, 2.3), layout="constrained")
        axes = figure.subplots()
        for line in lines:
            steps, color = line["steps"], COLOURS[line["slot"] % len(COLOURS)]
            style = "o" if len(steps) == 1 else DASHES[line["slot"] % len(DASHES)]
            axes.plot(steps, line["mean"], style, color=color, label=_printable(line["label"]))
            if line["low"] != line["high"]:
                axes.fill_between(steps, line["low"], line["high"], color=color, alpha=0.16, lw=0)
        if len(lines) > 1:
            axes.legend()
        if chart["style"] == "share":
            axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.set_xlabel("step")
        axes.grid(axis="y", linewidth=0.4)
        written = io.StringIO()
        facts = {"Date": None, "Title": _printable(chart["title"])}
        figure.savefig(written, format="svg", metadata=facts, transparent=True)
    return re.sub(r"(?<=>)\s+(?=<)|<metadata>.*?</metadata>", "", written.getvalue(), flags=re.DOTALL)


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else "\ufffd" for character in text)
