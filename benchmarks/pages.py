"""Tables in Markdown, and the sections of a page that a benchmark writes when ``--page`` names one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from text2grad.configs import setting
from text2grad.errors import InputError
from text2grad.records import save_text


def page_setting(section: str) -> str:
    """The flag ``--page``; nothing is rewritten unless it is given."""
    return setting("", f"a Markdown page: its section between <!-- {section} --> and <!-- /{section} --> is rewritten")


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The first column is text, the others are figures."""
    lines = [f"| {' | '.join(header)} |", "| --- |" + " ---: |" * (len(header) - 1)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def replace_section(page: str, name: str, text: str) -> str:
    """The page with new text between ``<!-- name -->`` and ``<!-- /name -->``."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    if page.count(begin) != 1 or page.count(end) != 1 or page.index(begin) > page.index(end):
        raise InputError(f"the page needs one line {begin} and below it one line {end}; add them")
    head, tail = page.split(begin)[0], page.split(end)[1]
    return f"{head}{begin}\n{text.strip()}\n{end}{tail}"


def check_page(page: str, name: str) -> None:
    """Raise ``InputError``, before a long run, if the section could not be written; an empty ``page`` is fine."""
    if page and not Path(page).is_file():
        raise InputError(f"--page {page}: does not exist; give a Markdown page, or leave --page out")
    if page:
        try:
            replace_section(Path(page).read_text(encoding="utf-8"), name, "")
        except InputError as error:
            raise InputError(f"--page {page}: {error}") from None


def write_section(page: str, name: str, text: str) -> None:
    """Rewrite the section in the file; an empty ``page`` is left alone."""
    if page:
        save_text(page, replace_section(Path(page).read_text(encoding="utf-8"), name, text))
