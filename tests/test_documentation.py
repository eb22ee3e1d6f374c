"""The documentation: its site has every page and no dead link, and its notebooks run, here with a tiny random model."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.test_repository import PAGES
from tests.tiny import tiny_model
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


def run(name: str, tmp_path: Path) -> dict:
    """What the notebook's programs leave defined, with another model and their files in a folder of ours."""
    cells = json.loads((ROOT / "docs" / "notebooks" / name).read_text(encoding="utf-8"))["cells"]
    program = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    assert 'MODEL = "smollm2"' in program
    program = program.replace('MODEL = "smollm2"', f'MODEL = "{tiny_model(tmp_path / "model")}"')
    defined: dict = {"__name__": name}
    exec(compile(program.replace("runs/notebook", str(tmp_path)), name, "exec"), defined)
    return defined


def test_delta_by_hand(tmp_path):
    found = run("delta_by_hand.ipynb", tmp_path)
    assert (found["rewards"].matched, found["rewards"].unmatched) == (3, 1)
    assert found["contradiction"].conflicts > 0
    shown = found["Coloured"](found["rewards"])._repr_html_()
    assert shown.count("#bfe8ca") == found["rewards"].values.count(1.0) > 0 < shown.count("#f6c1bd")


def test_own_critic(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    found = run("own_critic.ipynb", tmp_path)
    assert found["feedback"].good == ["Please", "deposit"] and found["feedback"].poor == ["NOW", "!!!"]
    assert [row["step"] for row in found["rows"]] == [1, 2, 3] and len(found["rollouts"]) == 24


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_reading_a_run(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    found = run("reading_a_run.ipynb", tmp_path)
    assert len(found["steps"]) == 4 and 0 < found["labelled"] <= 1
    assert (found["RUN"] / "report.html").stat().st_size > 100_000
