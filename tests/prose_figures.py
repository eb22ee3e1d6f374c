"""Which figures of an older page occur in none of the new ones? To rewrite a page and lose nothing.

    python tests/prose_figures.py OLD_COMMIT PAGE [PAGE ...]

PAGEs are read as they are in the working tree, and as they were at OLD_COMMIT (those that existed). A figure is a
number with its unit. Minus signs, thousands spaces and names of units are compared in one spelling.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

UNITS = {
    "%": "%",
    "per cent": "%",
    "percent": "%",
    "ms": "ms",
    "s": "s",
    "seconds": "s",
    "second": "s",
    "min": "min",
    "minutes": "min",
    "minute": "min",
    "h": "h",
    "hours": "h",
    "hour": "h",
    "kB": "kB",
    "MB": "MB",
    "MiB": "MiB",
    "GB": "GB",
    "GiB": "GiB",
    "tokens": "tokens",
    "nats": "nats",
    "M": "M",
    "B": "B",
    "k": "k",
    "times": "times",
}
_UNIT = "|".join(sorted(map(re.escape, UNITS), key=len, reverse=True))
_FIGURE = re.compile(
    rf"(?<![\w.])([+-]?(?:\d{{1,3}}(?:[ \u00a0\u202f\u2009]\d{{3}})+(?!\d)|\d+(?::\d\d)+|\d+(?:\.\d+)?(?:e-?\d+)?))"
    rf"(?:[ \u00a0\u202f]?({_UNIT})(?![\w-]))?"
)


@dataclass(frozen=True)
class Figure:
    number: str
    unit: str = ""

    def __str__(self) -> str:
        return f"{self.number} {self.unit}".strip()


def figures(text: str) -> list[Figure]:
    """All numbers of a page in reading order, each with its unit if it has one."""
    text = text.replace("−", "-").replace("**", "").replace("–", " to ")
    found = []
    for number, unit in _FIGURE.findall(text):
        found.append(Figure(re.sub(r"\s", "", number), UNITS.get(unit, "")))
    return found


def lost(old: str, new: Sequence[str]) -> tuple[list[Figure], list[Figure]]:
    """Figures of the old page whose number is in no new one, and those that are there with another unit."""
    there = {figure for page in new for figure in figures(page)}
    numbers = {figure.number for figure in there}
    missing, other_unit = [], []
    for figure in dict.fromkeys(figures(old)):
        if figure.number not in numbers:
            missing.append(figure)
        elif figure.unit and figure not in there:
            other_unit.append(figure)
    return missing, other_unit


def at_commit(commit: str, page: str) -> str:
    """The page's text then; empty where it did not exist."""
    shown = subprocess.run(["git", "show", f"{commit}:{page}"], capture_output=True, text=True, check=False)
    return shown.stdout


def places(figure: Figure, text: str) -> list[str]:
    """Where the figure occurs: line number and line, shortened around it."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if figure in figures(line):
            at = line.replace("−", "-").find(figure.number)
            found.append(f"line {number}: {line[max(0, at - 60) : at + 60] if at >= 0 else line[:120]}")
    return found


def main() -> None:
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    commit, pages = sys.argv[1], sys.argv[2:]
    old = "\n".join(at_commit(commit, page) for page in pages)
    if not old.strip():
        raise SystemExit(f"{commit}: has none of {', '.join(pages)}")
    missing, other_unit = lost(old, [Path(page).read_text(encoding="utf-8") for page in pages if Path(page).is_file()])
    for heading, found in (("gone", missing), ("there with another unit, or none", other_unit)):
        print(f"{len(found)} {heading}")
        for figure in found:
            print(f"  {figure}")
            for place in places(figure, old):
                print(f"      {place}")


if __name__ == "__main__":
    main()
