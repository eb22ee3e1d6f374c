"""The notebooks run from top to bottom, here with a tiny random model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.tiny import tiny_model

FOLDER = ROOT / "docs" / "notebooks"


def run(name: str, tmp_path: Path) -> dict:
    """What the notebook's programs leave defined, with another model and their files in a folder of ours."""
    cells = json.loads((FOLDER / name).read_text(encoding="utf-8"))["cells"]
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
