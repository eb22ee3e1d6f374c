"""The documentation's site: it builds, no link leads nowhere, and every page of the repository is in it."""

from __future__ import annotations

import re

import pytest

from tests.conftest import ROOT
from tests.test_repository import PAGES
from text2grad import __all__ as public

TEXT = re.compile(r"<[^>]+>")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs", reason="mkdocs is not installed, which env.sh brings")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("site")
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True))  # a warning is an error
    return folder


def test_every_page_is_in_the_site_and_its_navigation(site):
    first = (site / "index.html").read_text()
    for page in PAGES:
        name = page.removesuffix("README.md") + "index.html" if page.endswith("README.md") else f"{page[:-3]}.html"
        assert (site / name).is_file(), page
        assert f'href="{name}"' in first or name == "index.html", f"{page}: is not in the navigation of mkdocs.yml"


def test_made_pages_hold_what_they_are_made_of(site):
    settings = TEXT.sub("", (site / "settings" / "policy.html").read_text())
    assert "--policy_prompt" in settings and "--rtt_alpha" in settings and "--batch_size" in settings
    for name in public:
        assert f"text2grad.{name}." in (site / "reference" / f"{name}.html").read_text(), name
    notebook = (site / "docs" / "notebooks" / "delta_by_hand.ipynb.html").read_text()
    assert "background: #bfe8ca" in notebook and "token_rewards(" in TEXT.sub("", notebook)
    assert "class Task(ABC)" in TEXT.sub("", (site / "text2grad" / "tasks" / "base.py.html").read_text())
