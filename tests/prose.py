"""Counts over the prose of a Markdown page: words, brackets and colons per sentence, and words to avoid.

python tests/prose.py README.md docs/*.md
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MOST_WORDS_ON_AVERAGE = 20.0
MOST_BRACKETS_ON_AVERAGE = 0.35
MOST_COLONS_ON_AVERAGE = 0.35  # semicolons and colons together
MOST_WORDS = 45

AVOID = {
    r"anew": "say again",
    r"mend(s|ed|ing)?": "say fix or correct",
    r"becomes? of (it|them)|became of (it|them)": "say what happens to it",
    r"oftener": "say more often",
    r"meanwhile": "say during what",
    r"elsewhere": "say where",
    r"stands?|stood|standing": "say is, occurs, appears or holds",
    r"(is|are|was|were|be) worth": "say counts, equals or scores",
}

_CODE, _LINK = re.compile(r"`+[^`]+`+"), re.compile(r"!?\[((?:[^\[\]]|\[[^\]]*\])*)\]\([^)]*\)")
_MARKER = re.compile(r"^\s*(?:[-*+]|\d+[.)])\s+(?:\[[ x]\]\s+)?")
_SENTENCE_END = re.compile(r"(?<!\be\.g)(?<!\bi\.e)(?<!\bal)(?<!\bcf)(?<!\bvs)[.!?][\"”’)\]]*\s+")


def pages() -> list[str]:
    """Every Markdown page of the repository, as a path from its root."""
    found = (path.relative_to(ROOT) for path in ROOT.rglob("*.md"))
    return sorted(str(path) for path in found if not any(p.startswith(".") or p == "runs" for p in path.parts))


def blocks(markdown: str) -> list[str]:
    """Paragraphs and list items, a line each; headings, tables, code blocks, comments and pictures are left out."""
    markdown = re.sub(r"<!--.*?-->", "", markdown, flags=re.DOTALL)
    markdown = re.sub(r"^[ \t]*(`{3,}|~{3,}).*?^[ \t]*\1[ \t]*$", "", markdown, flags=re.DOTALL | re.MULTILINE)
    result, is_open = [], False
    for line in markdown.splitlines():
        text = _MARKER.sub("", line.strip().lstrip(">").strip())
        if not text or text.startswith(("|", "#", "![")) or set(text) <= set("-=* "):
            is_open = False
        elif is_open and not _MARKER.match(line):
            result[-1] += " " + plain(text)
        else:
            result.append(plain(text))
            is_open = True
    return result


def plain(text: str) -> str:
    """The words that are read: a piece of code is one word, a link its text."""
    text = _LINK.sub(r"\1", _CODE.sub("CODE", text))
    return re.sub(r"\*\*|__|<[^>]+>|https?://\S+", "", text)


def sentences(markdown: str) -> list[str]:
    """A block's end is the end of a sentence, with or without a stop."""
    parts = [part.strip() for block in blocks(markdown) for part in _SENTENCE_END.split(block)]
    return [part for part in parts if words(part)]


def words(sentence: str) -> int:
    return sum(any(char.isalnum() for char in word) for word in sentence.split())


@dataclass
class Prose:
    """What a page's sentences count on average."""

    sentences: list[str]

    def _average(self, counts: list[int]) -> float:
        return sum(counts) / max(1, len(self.sentences))

    @property
    def words(self) -> float:
        return self._average([words(each) for each in self.sentences])

    @property
    def brackets(self) -> float:
        return self._average([each.count("(") for each in self.sentences])

    @property
    def colons(self) -> float:
        """Semicolons and colons; not those of a time or a ratio (14:24)."""
        return self._average([each.count(";") + len(re.findall(r":(?!\d)", each)) for each in self.sentences])

    def problems(self) -> list[str]:
        """What exceeds the limits, one line each."""
        averages = (
            ("words", self.words, MOST_WORDS_ON_AVERAGE),
            ("brackets", self.brackets, MOST_BRACKETS_ON_AVERAGE),
            ("semicolons and colons", self.colons, MOST_COLONS_ON_AVERAGE),
        )
        found = [f"{value:.2f} {name} a sentence, at most {limit}" for name, value, limit in averages if value > limit]
        for each in self.sentences:
            if words(each) > MOST_WORDS:
                found.append(f"{words(each)} words in one sentence, at most {MOST_WORDS}: {each}")
            for pattern, advice in AVOID.items():
                if match := re.search(rf"\b({pattern})\b", each, re.IGNORECASE):
                    found.append(f"“{match.group()}” ({advice}): {each}")
        return found


def dead_links(page: str) -> list[str]:
    """Links of a page to files or headings that do not exist; addresses on the web are not asked."""
    text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target or target.startswith("mailto:"):
            continue
        name, _, anchor = target.partition("#")
        path = (ROOT / page).parent / name if name else ROOT / page
        if not path.exists() or (anchor and anchor not in anchors(path.read_text(encoding="utf-8"))):
            dead.append(target)
    return dead


def anchors(markdown: str) -> set[str]:
    """The names that links use for the headings of a page."""
    markdown = re.sub(r"^```.*?^```", "", markdown, flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", markdown, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", plain(heading.replace("`", "")).lower()).replace(" ", "-") for heading in headings}


def prose_of(page: str) -> Prose:
    return Prose(sentences((ROOT / page).read_text(encoding="utf-8")))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        prose = prose_of(name)
        print(f"{name}: {prose.words:.1f} words, {prose.brackets:.2f} brackets, {prose.colons:.2f} colons a sentence")
        print("".join(f"  {problem}\n" for problem in prose.problems()), end="")
