"""The report's figures for a paper: each as SVG and as PDF, by matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evaluation.reporting.assemble import judge_charts, update_charts
from evaluation.reporting.charts import SLOTS
from evaluation.reporting.page import timing_bars
from evaluation.reporting.story import named
from evaluation.reporting.wording import method_name, wording
from text2grad.plotting import COLOURS, STYLE, save_figure
from text2grad.records import check_writable

PAGE_COLOURS = ("#0b67b2", "#c9500b", "#00805c", "#99478f", "#8a6d00", "#2f8fbd", "#5a5a5a", "#a3304a")
"""Those of the page, whose light and dark backgrounds they suit."""
DASHES = (
    "-",
    (0, (5, 2)),
    (0, (1.5, 2)),
    (0, (6, 2, 1.5, 2)),
    (0, (3, 1.5)),
    (0, (1, 2)),
    (0, (8, 3)),
    (0, (4, 1, 1, 1)),
)
MARKERS = ("o", "s", "^", "D", "o", "s", "^", "D")


def write_figures(report: dict[str, Any], folder: str | Path) -> int:
    """Write every chart of the page to ``folder``; returns how many (each is two files)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    folder = Path(folder)
    check_writable(folder / "figure.svg")
    count = 0
    with pyplot.rc_context(STYLE):
        for section in report["training"]:
            for chart in [*section["charts"], *update_charts(report["updates"], section["task"])]:
                figure, axes = pyplot.subplots(figsize=(3.3, 2.3), layout="constrained")
                _draw_lines(axes, chart)
                count += _save(figure, folder / chart["id"])
        for chart in judge_charts(report):
            figure, axes = pyplot.subplots(figsize=(3.3, 2.3), layout="constrained")
            _draw_lines(axes, chart)
            count += _save(figure, folder / chart["id"])
        for number, table in enumerate(report["tables"]):
            if len(table["systems"]) > 1:
                count += _save(_draw_changes(table), folder / f"{table['task']}-differences-{number}")
        if report["timing"]:
            count += _save(_draw_phases(report), folder / "seconds-by-phase")
    return count


def _draw_lines(axes, chart: dict[str, Any]) -> None:
    for line in chart["lines"]:
        slot = line["slot"] % SLOTS
        colour = PAGE_COLOURS[slot]
        if line["banded"]:
            axes.fill_between(line["steps"], line["low"], line["high"], color=colour, alpha=0.18, linewidth=0)
        if line.get("raw"):
            axes.plot(line["steps"], line["raw"], color=colour, alpha=0.25, linewidth=0.6)
        look = {"linestyle": ":", "alpha": 0.7} if line.get("faint") else {"linestyle": DASHES[slot]}
        axes.plot(line["steps"], line["mean"], color=colour, linewidth=1.3, label=line["label"], **look)
        if not line.get("faint"):
            axes.plot(line["steps"][-1:], line["mean"][-1:], color=colour, marker=MARKERS[slot], markersize=4)
    if chart["style"] == "share":
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
    if chart["style"] in ("share", "count", "seconds"):
        axes.set_ylim(bottom=0)
    axes.set_xlabel("step")
    axes.set_title(chart["title"], loc="left", fontsize=8.5, fontweight="bold")
    if len(chart["lines"]) > 1:
        axes.legend(frameon=False, fontsize=7)


def _draw_changes(table: dict[str, Any]):
    """Each metric's difference to the baseline with its interval, one small axis a metric."""
    from matplotlib import pyplot

    others = [system["name"] for system in table["systems"] if system["name"] != table["baseline"]]
    metrics = [m for m in table["metrics"] if any("change" in table["cells"][s].get(m["key"], {}) for s in others)]
    size = (6.8, 0.5 + max(len(metrics), 1) * (0.22 + 0.2 * len(others)))
    figure, rows = pyplot.subplots(max(len(metrics), 1), 1, figsize=size, layout="constrained", squeeze=False)
    for axes, metric in zip(rows[:, 0], metrics, strict=False):
        for place, system in enumerate(others):
            change = table["cells"][system].get(metric["key"], {}).get("change")
            if change and change["low"] is not None:
                look = {"color": PAGE_COLOURS[place % SLOTS], "linewidth": 1.6}
                axes.plot([change["low"], change["high"]], [place, place], **look)
                axes.plot([change["difference"]], [place], marker=MARKERS[place % SLOTS], markersize=4, **look)
        axes.axvline(0, color="0.4", linewidth=0.7, linestyle=":")
        axes.set_yticks(range(len(others)), [method_name(system) for system in others], fontsize=7)
        if wording(metric["name"]).style == "share":
            axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:g} pp")
        axes.set_ylim(len(others) - 0.5, -0.5)
        axes.set_title(wording(metric["name"]).label, loc="left", fontsize=8, fontweight="bold")
        axes.tick_params(labelsize=7)
    figure.supxlabel(f"difference to {named(table['baseline'])}, 95 % interval", fontsize=8)
    return figure


def _draw_phases(report: dict[str, Any]):
    from matplotlib import pyplot

    rows, parts = timing_bars(report)
    figure, axes = pyplot.subplots(figsize=(6.8, 0.8 + 0.4 * len(rows)), layout="constrained")
    starts = [0.0] * len(rows)
    for shade, (key, label) in enumerate(parts):
        widths = [row["values"].get(key, 0.0) for row in rows]
        colour = COLOURS[(shade + 1) % len(COLOURS)]
        axes.barh(range(len(rows)), widths, left=starts, color=colour, edgecolor="white", label=label, height=0.6)
        starts = [start + width for start, width in zip(starts, widths, strict=True)]
    axes.set_yticks(range(len(rows)), [row["label"] for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel("seconds per step, median")
    axes.legend(frameon=False, ncols=len(parts), loc="lower left", bbox_to_anchor=(0, 1), fontsize=7)
    return figure


def _save(figure, stem: Path) -> int:
    save_figure(figure, stem, (".svg", ".pdf"))
    return 1
