"""Small charts of stage 1's reports and stage 2's metrics: what was labelled, and what the reward model reproduces.

Rows are those of ``assemble``'s columns, found by their names, so that every task's spans are shown under its own
words. A chart whose rows no file holds is left out.
"""

from __future__ import annotations

import re
from typing import Any

Column = dict[str, Any]
SHADES = ((4, "none|without"), (3, "both"), (1, "poor|wrong|−1"), (0, r"good|improv|\+1"), (2, ""))
"""The colour of a bar's part, by the words of its label: what criticises is orange, what praises is blue."""
ANNOTATION_BARS = (
    ("Responses, by what was quoted in them", "labels: records (.+)", ""),
    ("Characters of the responses, by label", "labels: characters (.+)", "neither"),
)
ANNOTATION_RANGES = (
    ("Spans per response", "(.+): per record, mean"),
    ("Words per span", "(.+ spans|.+ code): words, mean"),
    ("Words per critique", "(.*critique.*) words, mean"),
)
MODEL_DOTS = (
    (
        "F1 of token labels",
        "tokens: labels: (.+): f1",
        "tokens: chance: shuffled: {}: f1",
        "Ring: the same number of its own spans at random places.",
    ),
    (
        "Precision and recall of token labels",
        "tokens: labels: (.+: (?:precision|recall))",
        "",
        "Of all tokens, by their label.",
    ),
    (
        "Spans",
        "spans: (.+: (?:exact recall|found recall|oui))",
        "",
        "Recall of the annotated spans, and overlap over union (oui).",
    ),
    (
        "Critiques and format",
        "(?:critique: )?(rouge.+|parse rate|unmatched rate)",
        "",
        "ROUGE against the annotated critique. Shares that can be read, and quotes not found.",
    ),
)


def annotation_charts(columns: list[Column]) -> list[dict[str, Any]]:
    """Bars of shares, and the quartiles of counts."""
    drawn = []
    for title, pattern, rest in ANNOTATION_BARS:
        bars = [(column["name"], _shares(column, pattern, rest)) for column in columns]
        drawn.append(_stack(title, "", [(name, parts) for name, parts in bars if parts], len(columns) > 1))
    for title, pattern in ANNOTATION_RANGES:
        says = "From the lower to the upper quartile, with the median."
        drawn.append(_dots(title, says, columns, pattern, "", ("median", "q1", "q3")))
    says = "Not found at first, left out in the end, or kept though the critique does not speak of it."
    drawn.append(_dots("Quotes, by check", says, columns, "spans: (.+) rate", "", ("value", "low", "high")))
    return [chart for chart in drawn if chart["rows"]]


def reward_model_charts(columns: list[Column]) -> list[dict[str, Any]]:
    """Dots with intervals on a scale from 0 to 1, and for each label what was predicted in its place."""
    drawn = []
    for title, pattern, chance, says in MODEL_DOTS:
        chart = _dots(title, says, columns, pattern, chance, ("value", "low", "high"))
        drawn.append({**chart, "high": 1.0})
    for column in columns:
        bars = []
        true = dict.fromkeys(
            match[1] for row in column["rows"] if (match := re.fullmatch("tokens: confusion: (.+): .+", row))
        )
        for label in true:
            parts = _shares(column, f"tokens: confusion: {re.escape(label)}: (.+)", "")
            bars.append((f"truly {label}".replace("-1", "−1"), parts))
        name = f" ({column['name']})" if len(columns) > 1 else ""
        says = "Of the tokens that the annotation gives each label, the share by predicted label."
        drawn.append(_stack(f"Predicted labels{name}", says, [bar for bar in bars if bar[1]], True))
    return [chart for chart in drawn if chart["rows"]]


def _shares(column: Column, pattern: str, rest: str) -> list[dict[str, Any]]:
    """The rows that match, as shares of their sum, or of 1 where the rest has a name."""
    found = {match[1]: row["value"] for name, row in column["rows"].items() if (match := re.fullmatch(pattern, name))}
    values = {name: value for name, value in found.items() if value is not None}
    total = 1.0 if rest else sum(values.values())
    if not values or not total:
        return []
    parts = [{"label": name.replace("-1", "−1"), "share": value / total} for name, value in values.items()]
    return [*parts, {"label": rest, "share": max(0.0, 1.0 - sum(values.values()))}] if rest else parts


def _stack(title: str, says: str, bars: list[tuple[str, list[dict[str, Any]]]], named: bool) -> dict[str, Any]:
    rows = [{"label": name if named else "", "parts": parts} for name, parts in bars]
    labels = dict.fromkeys(part["label"] for _, parts in bars for part in parts)
    keys = {label: next(shade for shade, words in SHADES if re.search(words, label)) for label in labels}
    return {"kind": "stack", "title": title, "says": says, "rows": rows, "keys": keys}


def _dots(
    title: str, says: str, columns: list[Column], pattern: str, chance: str, names: tuple[str, str, str]
) -> dict[str, Any]:
    """One row for each name and file: the middle and both ends."""
    rows = []
    matched = dict.fromkeys(name for column in columns for name in column["rows"] if re.fullmatch(pattern, name))
    for name in matched:
        label = re.fullmatch(pattern, name)[1]  # type: ignore[index]
        for slot, column in enumerate(columns):
            row = column["rows"].get(name, {})
            middle, low, high = (row.get(key) for key in names)
            if middle is None:
                continue
            expected = column["rows"].get(chance.format(label), {}).get("value") if chance else None
            ends = {"low": middle if low is None else low, "high": middle if high is None else high}
            row = {
                "label": label.replace(": ", ", ").replace("-1", "−1"),
                "slot": slot,
                "value": middle,
                **ends,
                "chance": expected,
            }
            rows.append({**row, "style": row_style(names, title)})
    high = max((row["high"] for row in rows), default=1.0)
    return {"kind": "dots", "title": title, "says": says, "rows": rows, "high": high or 1.0}


def row_style(names: tuple[str, str, str], title: str) -> str:
    """How a row's value is printed: shares as per cent, medians as they are."""
    return "count" if names[0] == "median" else "share" if title == "Quotes, by check" else "number"
