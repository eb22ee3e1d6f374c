"""Line charts as SVG text. ``charts.css`` gives colours for light and dark, in the page and in a saved file alike.

Lines are told apart by colour, by dashes and by the mark at their end, so that none is needed alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from evaluation.reporting.wording import show

DASHES = ("", "7 3", "2 3", "9 3 2 3", "4 2", "1 3", "12 4", "6 2 1 2")
LEFT, RIGHT, TOP, BOTTOM = 46, 52, 12, 26
WIDTH, HEIGHT = 360, 216


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


def is_constant(chart: dict[str, Any]) -> bool:
    """Whether no line of a chart ever moves, and all lie at one value."""
    values = [value for line in chart["lines"] for name in ("low", "high") for value in line[name]]
    return max(values) - min(values) <= 1e-9 * max(1.0, abs(max(values)))


def line_chart(chart: dict[str, Any], standalone: bool = False) -> str:
    """One chart.

    Args:
        chart: ``title``, ``style``, and ``lines``, each with ``label``, ``slot`` (its look), ``steps``, ``mean``,
            ``low`` and ``high`` (see ``training.curve``).
        standalone: as a file with its own colours and, where there are several lines, their names.
    """
    lines, style = chart["lines"], chart["style"]
    low, high = _domain(lines, style)
    steps = [step for line in lines for step in line["steps"]]
    x = Scale(min(steps), max(steps), LEFT, WIDTH - RIGHT)
    y = Scale(low, high, HEIGHT - BOTTOM, TOP)
    parts = [_grid(x, y, style)]
    for line in lines:
        slot = line["slot"] % len(DASHES)
        if line["low"] != line["high"]:
            outline = [*_points(line, "high", x, y), *_points(line, "low", x, y)[::-1]]
            parts.append(f'<path class="band s{slot}" d="M{"L".join(outline)}Z"/>')
        dashes = f' stroke-dasharray="{DASHES[slot]}"' if DASHES[slot] else ""
        parts.append(f'<path class="line s{slot}"{dashes} d="M{"L".join(_points(line, "mean", x, y))}"/>')
    parts.append(_ends(lines, x, y, style))
    height = HEIGHT
    if standalone and len(lines) > 1:
        for line in lines:
            parts.append(f'<g transform="translate({LEFT} {height})">{_key(line["slot"])}')
            parts.append(f'<text class="tick" x="50" y="10">{escape(line["label"])}</text></g>')
            height += 18
    described = "; ".join(
        f"{line['label']}: from {show(line['mean'][0], style)} to {show(line['mean'][-1], style)}" for line in lines
    )
    css = f"<style>{(Path(__file__).parent / 'charts.css').read_text(encoding='utf-8')}</style>" if standalone else ""
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {height}" role="img" xmlns="http://www.w3.org/2000/svg">'
        f"<title>{escape(chart['title'])}</title><desc>{escape(described)}</desc>{css}{''.join(parts)}</svg>"
    )


def _domain(lines: list[dict[str, Any]], style: str) -> tuple[float, float]:
    """What the vertical axis must hold. Amounts start at zero."""
    values = [value for line in lines for key in ("low", "high") for value in line[key]]
    low, high = min(values), max(values)
    if style in ("share", "count", "seconds") or (0 <= low < 0.4 * high):
        low = min(0.0, low)
    if low == high:
        high = low + (abs(low) or 1.0)
    margin = 0.06 * (high - low)
    low = low if low == 0 else low - margin
    return low, min(high + margin, 1.0) if style == "share" and high <= 1 else high + margin


def _points(line: dict[str, Any], name: str, x: Scale, y: Scale) -> list[str]:
    return [f"{x(step):.1f} {y(value):.1f}" for step, value in zip(line["steps"], line[name], strict=True)]


def _grid(x: Scale, y: Scale, style: str) -> str:
    parts = []
    for tick in nice_ticks(y.low, y.high, 5):
        if y.low <= tick <= y.high:
            at, kind = f"{y(tick):.1f}", "zero" if tick == 0 else "grid"
            parts.append(f'<line class="{kind}" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at}" y2="{at}"/>')
            label = f"{100 * tick:g} %" if style == "share" else _tick(tick)
            parts.append(f'<text class="tick" x="{LEFT - 7}" y="{at}" dy="3.5" text-anchor="end">{label}</text>')
    inside = [tick for tick in nice_ticks(x.low, x.high, 4) if x(tick) - x.start > 34 and x.end - x(tick) > 34]
    for tick in sorted({x.low, *inside, x.high}):
        place = f'x="{x(tick):.1f}" y="{HEIGHT - 8}" text-anchor="middle"'
        parts.append(f'<text class="tick" {place}>{tick:,g}</text>')
    parts.append(f'<text class="tick" x="{WIDTH - RIGHT + 16}" y="{HEIGHT - 8}">step</text>')
    return "".join(parts)


def _tick(value: float) -> str:
    if value and (abs(value) >= 1e5 or abs(value) < 1e-3):
        return show(value)
    return f"{value:,g}".replace("-", "−")


def _ends(lines: list[dict[str, Any]], x: Scale, y: Scale, style: str) -> str:
    """The mark and the last value of each line; the values are moved apart where they would overlap."""
    ordered = sorted(lines, key=lambda line: -line["mean"][-1])
    places = [y(line["mean"][-1]) for line in ordered]
    for index in range(1, len(places)):
        places[index] = max(places[index], places[index - 1] + 13)
    overflow = max(0.0, places[-1] - (HEIGHT - BOTTOM - 2))
    parts = []
    for line, place in zip(ordered, places, strict=True):
        slot, at_x = line["slot"] % len(DASHES), x(line["steps"][-1])
        parts.append(_mark(slot, at_x, y(line["mean"][-1])))
        text = show(line["mean"][-1], style)
        parts.append(f'<text class="end s{slot}" x="{at_x + 9:.1f}" y="{place - overflow:.1f}" dy="4">{text}</text>')
    return "".join(parts)


def _mark(slot: int, x: float, y: float) -> str:
    """The shape that goes with a slot: disc, square, triangle, diamond; then the same, hollow."""
    shapes = (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.6"',
        f'<rect x="{x - 3.6:.1f}" y="{y - 3.6:.1f}" width="7.2" height="7.2"',
        f'<path d="M{x:.1f} {y - 4.3:.1f}l4.3 7.6h-8.6z"',
        f'<path d="M{x:.1f} {y - 5:.1f}l5 5 -5 5 -5 -5z"',
    )
    hollow = " hollow" if slot >= len(shapes) else ""
    return f'{shapes[slot % len(shapes)]} class="mark s{slot}{hollow}"/>'


def _key(slot: int) -> str:
    slot %= len(DASHES)
    dashes = f' stroke-dasharray="{DASHES[slot]}"' if DASHES[slot] else ""
    return f'<path class="line s{slot}"{dashes} d="M1 6L34 6"/>{_mark(slot, 37, 6)}'


def key_mark(slot: int) -> str:
    """A short sample of a line, for the key."""
    return f'<svg class="key" viewBox="0 0 44 12" width="44" height="12" aria-hidden="true">{_key(slot)}</svg>'
