"""Draw one rollout as SVG: its tokens, good spans in green, poor ones in red, δ under each token, and the critique.

python docs/draw_response.py runs/quickstart/policy/rollouts.jsonl --row 48 --output docs/response.svg
"""

from __future__ import annotations

import argparse
import json
import textwrap
from html import escape
from pathlib import Path

CHARACTER, LINE, WIDTH, MARGIN = 9.1, 58, 860, 24
FILLS = {1: "#d7f0dd", 0: "#f3f4f6", -1: "#fbd9d7"}
INKS = {1: "#11663a", 0: "#6b7280", -1: "#a3231b"}


def label(delta: float) -> str:
    return "0" if delta == 0 else f"{delta:+g}".replace("-", "−")


def draw(prompt_words: str, tokens: list[str], deltas: list[float], critique: str) -> str:
    """The picture of a response: each token is a box as wide as its text, with its δ below."""
    parts = []
    x, y = MARGIN, 92
    for token, delta in zip(tokens, deltas, strict=True):
        text = token.strip() or "⏎"
        width = max(len(text), len(label(delta))) * CHARACTER + 6
        if x + width > WIDTH - MARGIN:
            x, y = MARGIN, y + LINE
        sign = (delta > 0) - (delta < 0)
        middle = x + width / 2
        parts.append(f'<rect x="{x:.1f}" y="{y - 19}" width="{width:.1f}" height="27" rx="4" fill="{FILLS[sign]}"/>')
        parts.append(f'<text x="{middle:.1f}" y="{y}" class="token">{escape(text)}</text>')
        parts.append(f'<text x="{middle:.1f}" y="{y + 24}" class="delta" fill="{INKS[sign]}">{label(delta)}</text>')
        x += width + 2
    y += LINE
    for line in textwrap.wrap(f"Critique: {critique}", 104):
        parts.append(f'<text x="{MARGIN}" y="{y}" class="note">{escape(line)}</text>')
        y += 22
    title = textwrap.shorten(f"Post: {prompt_words}", 110, placeholder=" …")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 4}" role="img">'
        "<style>.token{font:15px ui-monospace,monospace;text-anchor:middle;fill:#111827}"
        ".delta{font:600 13px ui-monospace,monospace;text-anchor:middle}"
        ".note{font:15px system-ui,sans-serif;fill:#374151}</style>"
        f'<rect width="{WIDTH}" height="{y + 4}" rx="8" fill="#ffffff"/>'
        f'<text x="{MARGIN}" y="34" class="note">{escape(title)}</text>'
        f'<text x="{MARGIN}" y="58" class="note">Response, token by token, and δ:</text>{"".join(parts)}</svg>\n'
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rollouts", type=Path)
    parser.add_argument("--row", type=int, default=0)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    row = json.loads(options.rollouts.read_text(encoding="utf-8").splitlines()[options.row])
    svg = draw(row["prompt"], row["tokens"], row["deltas"], row["critique"])
    options.output.write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
