"""The repository's own files: links of its pages lead somewhere, the index names every page, no file is too long."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.fast

LINK = re.compile(r"\[[^\]]*\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")
LONGEST = 600  # lines; 500 are meant


def files(pattern: str) -> list[str]:
    """The repository's files of a pattern, those that are not committed yet included."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", pattern]
    try:
        found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    except (OSError, subprocess.CalledProcessError):  # no git, or a copy without its folder
        everything = [str(path.relative_to(ROOT)) for path in ROOT.rglob(pattern)]
        found = [name for name in everything if not re.match(r"runs/|(.*/)?\.", name)]
    return sorted(name for name in found if name and (ROOT / name).is_file())


PAGES = files("*.md")


def links(page: Path) -> list[tuple[Path, str]]:
    """``(file, heading)`` of a page's links within the repository."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return [((page.parent / file).resolve() if file else page, heading) for file, heading in LINK.findall(text)]


def anchors(page: Path) -> set[str]:
    """The headings of a page as links name them: lower case, no punctuation, hyphens for spaces."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_of_a_page_lead_somewhere(page):
    broken = [
        f"{file}#{heading}"
        for file, heading in links(ROOT / page)
        if not file.exists() or (heading and file.suffix == ".md" and heading not in anchors(file))
    ]
    assert broken == []


def test_every_page_is_reached_from_the_readme():
    reached, ahead = set(), [ROOT / "README.md"]
    while ahead:
        page = ahead.pop()
        if page not in reached and page.suffix == ".md":
            reached.add(page)
            ahead += [file for file, _ in links(page)]
    assert {ROOT / page for page in PAGES} - reached == set()


def test_no_file_is_too_long():
    lengths = {name: (ROOT / name).read_text(encoding="utf-8").count("\n") for name in files("*.py")}
    assert {name: length for name, length in lengths.items() if length > LONGEST} == {}
