"""Charts as SVG text for the page: lines with bands, and stacked bars. Colours and fonts come from its style sheet.

The page reads values off these charts and switches between light and dark, which matplotlib's SVG cannot do; for paper
``figures.py`` draws the same data by matplotlib, which writes PDF.

Lines are told apart by colour, by dashes and by the mark at their end, so that none is needed alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from evaluation.reporting.wording import show

DASHES = ("", "7 3", "2 3", "9 3 2 3", "4 2", "1 3", "12 4", "6 2 1 2")
LEFT, RIGHT, TOP, BOTTOM = 46, 52, 12, 26
SLOTS = len(DASHES)


@dataclass(frozen=True)
class Scale:
    """From data to pixels, along one axis."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / ((self.high - self.low) or 1) * (self.end - self.start)


def nice_ticks(low: float, high: float, count: int) -> list[float]:
    """Round numbers from at or below ``low`` to at or above ``high``, about ``count`` of them."""
    span = (high - low) or abs(high) or 1.0
    rough = span / max(count - 1, 1)
    power = 10 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(index * step, 12) for index in range(first, max(last, first + 1) + 1)]


def domain(lines: Sequence[dict[str, Any]], style: str) -> tuple[float, float]:
    """What the vertical axis must hold. Amounts start at zero; a single seed's outliers may be cut off."""
    values = [value for line in lines for key in ("low", "high") for value in line[key]]
    for line in lines:
        if line.get("raw"):
            values += np.percentile(line["raw"], [2, 98]).tolist()
    low, high = min(values), max(values)
    if style in ("share", "count", "seconds") or (0 <= low < 0.4 * high):
        low = min(0.0, low)
    if low == high:
        high = low + (abs(low) or 1.0)
    margin = 0.06 * (high - low)
    low = low if low == 0 else low - margin
    return low, min(high + margin, 1.0) if style == "share" else high + margin


def tick_label(value: float, style: str) -> str:
    if style == "share":
        return f"{100 * value:g} %"
    if value and (abs(value) >= 1e5 or abs(value) < 1e-3):
        return show(value)
    return f"{value:,g}".replace("-", "−")


def line_chart(chart: dict[str, Any], width: int = 360, height: int = 216) -> str:
    """One chart.

    Args:
        chart: ``title``, ``style``, and ``lines``, each with ``label``, ``slot``, ``steps``, ``mean``, ``low``,
            ``high`` and perhaps ``raw`` (see ``training.curve``) and ``faint`` (a line to compare with).
    """
    lines, style = chart["lines"], chart["style"]
    low, high = domain(lines, style)
    ticks = [tick for tick in nice_ticks(low, high, 4 + height // 150) if low <= tick <= high]
    steps = [step for line in lines for step in line["steps"]]
    x = Scale(min(steps), max(steps), LEFT, width - RIGHT)
    y = Scale(low, high, height - BOTTOM, TOP)
    parts = [_grid(ticks, x, y, style, width, height)]
    for line in lines:
        parts.append(_band_and_line(line, x, y))
    parts.append(_end_marks(lines, y, x, style, height))
    title = escape(chart["title"])
    seen = "; ".join(
        f"{line['label']}: from {show(line['mean'][0], style)} to {show(line['mean'][-1], style)}" for line in lines
    )
    scale = f"{x.low} {x.high} {y.low} {y.high} {LEFT} {width - RIGHT} {height - BOTTOM} {TOP}"
    return (
        f'<svg class="chart" viewBox="0 0 {width} {height}" role="img" tabindex="0" data-chart="{escape(chart["id"])}" '
        f'data-scale="{scale}" xmlns="http://www.w3.org/2000/svg"><title>{title}</title><desc>{escape(seen)}</desc>'
        f"{''.join(parts)}</svg>"
    )


def _grid(ticks: list[float], x: Scale, y: Scale, style: str, width: int, height: int) -> str:
    parts = []
    for tick in ticks:
        at = f"{y(tick):.1f}"
        kind = "zero" if tick == 0 else "grid"
        parts.append(f'<line class="{kind}" x1="{LEFT}" x2="{width - RIGHT}" y1="{at}" y2="{at}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 7}" y="{at}" dy="3.5" text-anchor="end">')
        parts.append(f"{tick_label(tick, style)}</text>")
    inside = [tick for tick in nice_ticks(x.low, x.high, 4) if x(tick) - x.start > 34 and x.end - x(tick) > 34]
    for tick in sorted({x.low, *inside, x.high}):
        at = f"{x(tick):.1f}"
        parts.append(f'<text class="tick" x="{at}" y="{height - 8}" text-anchor="middle">{tick:,g}</text>')
    parts.append(f'<text class="tick" x="{width - RIGHT + 16}" y="{height - 8}">step</text>')
    return "".join(parts)


def _band_and_line(line: dict[str, Any], x: Scale, y: Scale) -> str:
    slot = line["slot"] % SLOTS
    faint = " faint" if line.get("faint") else ""
    parts = []
    if line["banded"]:
        upper = [f"{x(step):.1f} {y(value):.1f}" for step, value in zip(line["steps"], line["high"], strict=True)]
        lower = [f"{x(step):.1f} {y(value):.1f}" for step, value in zip(line["steps"], line["low"], strict=True)]
        parts.append(f'<path class="band s{slot}" d="M{"L".join(upper + lower[::-1])}Z"/>')
    if line.get("raw"):
        held = [min(max(value, y.low), y.high) for value in line["raw"]]
        parts.append(f'<path class="raw s{slot}" d="{_path(line["steps"], held, x, y)}"/>')
    dash = "1 4" if faint else DASHES[slot]
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    parts.append(f'<path class="line s{slot}{faint}"{dashes} d="{_path(line["steps"], line["mean"], x, y)}"/>')
    return "".join(parts)


def _path(steps: list[float], values: list[float], x: Scale, y: Scale) -> str:
    return "M" + "L".join(f"{x(step):.1f} {y(value):.1f}" for step, value in zip(steps, values, strict=True))


def _end_marks(lines: list[dict[str, Any]], y: Scale, x: Scale, style: str, height: int) -> str:
    """The mark and the last value of each line; the values are moved apart where they would overlap."""
    marked = sorted((line for line in lines if not line.get("faint")), key=lambda line: -line["mean"][-1])
    places = [y(line["mean"][-1]) for line in marked]
    for index in range(1, len(places)):
        places[index] = max(places[index], places[index - 1] + 13)
    overflow = places[-1] - (height - BOTTOM - 2) if places else 0
    if overflow > 0:
        places = [place - overflow for place in places]
    parts = []
    for line, place in zip(marked, places, strict=True):
        slot = line["slot"] % SLOTS
        at_x, at_y = x(line["steps"][-1]), y(line["mean"][-1])
        parts.append(mark(slot, at_x, at_y))
        text = show(line["mean"][-1], style)
        parts.append(f'<text class="end s{slot}" x="{at_x + 9:.1f}" y="{place:.1f}" dy="4">{text}</text>')
    return "".join(parts)


def mark(slot: int, x: float, y: float, size: float = 3.6) -> str:
    """The shape that goes with a slot: disc, square, triangle, diamond, ring, cross, bar, star of two squares."""
    r = size
    shapes = (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r}"',
        f'<rect x="{x - r:.1f}" y="{y - r:.1f}" width="{2 * r}" height="{2 * r}"',
        f'<path d="M{x:.1f} {y - r * 1.2:.1f}l{r * 1.2:.1f} {r * 2.1:.1f}h{-r * 2.4:.1f}z"',
        f'<path d="M{x:.1f} {y - r * 1.4:.1f}l{r * 1.4:.1f} {r * 1.4:.1f} {-r * 1.4:.1f} {r * 1.4:.1f}'
        f' {-r * 1.4:.1f} {-r * 1.4:.1f}z"',
    )
    hollow = " hollow" if slot >= len(shapes) else ""
    return f'{shapes[slot % len(shapes)]} class="mark s{slot}{hollow}"/>'


def key_mark(slot: int) -> str:
    """A short sample of a line, for the key."""
    slot %= SLOTS
    dashes = f' stroke-dasharray="{DASHES[slot]}"' if DASHES[slot] else ""
    return (
        '<svg class="key" viewBox="0 0 44 12" width="44" height="12" aria-hidden="true">'
        f'<path class="line s{slot}"{dashes} d="M1 6L34 6"/>{mark(slot, 37, 6)}</svg>'
    )


def bar_chart(rows: list[dict[str, Any]], parts: list[tuple[str, str]], width: int = 1000) -> str:
    """Stacked horizontal bars, one row each: seconds of a step by phase.

    Args:
        rows: each with ``label``, ``values`` (part -> seconds) and ``total``.
        parts: (key, label) in the order of the stack.
    """
    row_height, left, right = 50, 0, 64
    height = row_height * len(rows) + 8
    longest = max(sum(row["values"].values()) for row in rows) or 1.0
    x = Scale(0, longest, left, width - right)
    drawn = []
    for index, row in enumerate(rows):
        top = index * row_height + 4
        drawn.append(f'<text class="barlabel" x="{left}" y="{top + 12}">{escape(row["label"])}</text>')
        position = 0.0
        for shade, (key, label) in enumerate(parts):
            seconds = row["values"].get(key, 0.0)
            start, end = x(position), x(position + seconds)
            position += seconds
            shape = f'x="{start:.1f}" y="{top + 18}" width="{max(end - start - 1, 0):.1f}" height="20"'
            tip = f"{label}: {show(seconds, 'seconds')}"
            drawn.append(f'<rect class="phase p{shade}" {shape}><title>{escape(tip)}</title></rect>')
            if end - start > 6.2 * len(label) + 10:
                drawn.append(f'<text class="inbar p{shade}" x="{start + 6:.1f}" y="{top + 32}">{escape(label)}</text>')
        total = show(row["total"], "seconds")
        drawn.append(f'<text class="bartotal" x="{x(position) + 6:.1f}" y="{top + 32}">{total}</text>')
    return (
        f'<svg class="chart bars" viewBox="0 0 {width} {height}" role="img" xmlns="http://www.w3.org/2000/svg">'
        f"<title>Seconds of a step by phase</title>{''.join(drawn)}</svg>"
    )


ROW, VALUE = 24, 54


def row_chart(chart: dict[str, Any], width: int = 340) -> str:
    """A small chart with one row for each name (see ``panels``): dots with their ends, or bars of shares."""
    draw = _dot_row if chart["kind"] == "dots" else _stack_row
    height = ROW * len(chart["rows"]) + 4
    rows = [draw(row, chart, ROW * number + ROW / 2, width) for number, row in enumerate(chart["rows"])]
    return (
        f'<svg class="chart rows" viewBox="0 0 {width} {height}" role="img" xmlns="http://www.w3.org/2000/svg">'
        f"<title>{escape(chart['title'])}</title><desc>{escape(_told(chart))}</desc>{''.join(rows)}</svg>"
    )


def _told(chart: dict[str, Any]) -> str:
    """The chart in words, for those who cannot see it."""
    if chart["kind"] == "dots":
        rows = (f"{row['label']}: {show(row['value'], row['style'])}" for row in chart["rows"])
    else:
        shares = lambda row: ", ".join(f"{part['label']} {show(part['share'], 'share')}" for part in row["parts"])  # noqa: E731
        rows = (f"{row['label'] or 'all'}: {shares(row)}" for row in chart["rows"])
    return "; ".join(rows)


def _dot_row(row: dict[str, Any], chart: dict[str, Any], middle: float, width: int) -> str:
    left = 14 + 6.4 * max(len(row["label"]) for row in chart["rows"])
    x = Scale(0.0, chart["high"], left, width - VALUE)
    slot, y = row["slot"] % SLOTS, f"{middle:.1f}"
    parts = [
        f'<text class="rowlabel" x="0" y="{y}" dy="4">{escape(row["label"])}</text>',
        f'<line class="grid" x1="{left:.1f}" x2="{width - VALUE}" y1="{y}" y2="{y}"/>',
        f'<line class="line s{slot}" x1="{x(row["low"]):.1f}" x2="{x(row["high"]):.1f}" y1="{y}" y2="{y}"/>',
    ]
    if row["chance"] is not None:
        parts.append(f'<circle class="chance" cx="{x(row["chance"]):.1f}" cy="{y}" r="4.5"/>')
    parts.append(mark(slot, x(row["value"]), middle))
    parts.append(f'<text class="rowvalue" x="{width}" y="{y}" dy="4">{show(row["value"], row["style"])}</text>')
    return "".join(parts)


def _stack_row(row: dict[str, Any], chart: dict[str, Any], middle: float, width: int) -> str:
    left = 74 if row["label"] else 0
    x = Scale(0.0, 1.0, left, width)
    parts = [f'<text class="rowlabel" x="0" y="{middle:.1f}" dy="4">{escape(row["label"])}</text>']
    position = 0.0
    for part in row["parts"]:
        start, end = x(position), x(position + part["share"])
        position += part["share"]
        shade, told = chart["keys"][part["label"]], show(part["share"], "share")
        box = f'x="{start:.1f}" y="{middle - 9:.1f}" width="{max(end - start - 1, 0):.1f}" height="18"'
        parts.append(f'<rect class="phase p{shade}" {box}><title>{escape(part["label"])}: {told}</title></rect>')
        if end - start > 46:
            parts.append(f'<text class="inbar p{shade}" x="{start + 6:.1f}" y="{middle:.1f}" dy="4">{told}</text>')
    return "".join(parts)
