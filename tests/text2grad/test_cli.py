"""The command ``text2grad``: the stages' programs by name, and what it says where they are not installed."""

import re
import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.processes import ROOT, run_command
from text2grad import __version__, configs
from text2grad.cli import PROGRAMS, help_text, main

pytestmark = pytest.mark.fast


def text2grad(*args: str) -> subprocess.CompletedProcess[str]:
    return run_command(sys.executable, "-m", "text2grad", *args, PYTHONPATH=str(ROOT))


def test_help_fits_on_a_screen_and_names_every_command():
    said = text2grad("--help").stdout
    assert said == help_text() + "\n" == text2grad().stdout
    lines = said.splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) <= 100
    assert all(any(line.startswith(f"  {name} ") for line in lines) for name in PROGRAMS)
    assert text2grad("--version").stdout == f"text2grad {__version__}\n"


@pytest.mark.parametrize(
    ("args", "module"),
    [
        (["--task", "kodcode", "--k", "1"], "evaluation.kodcode.evaluate"),
        (["--k", "1", "--task=kodcode"], "evaluation.kodcode.evaluate"),
        (["--task", "plain", "--k", "1"], "evaluation.evaluate"),
        (["--task", "my_task.py", "--k", "1"], "evaluation.evaluate"),
        (["--k", "1", "--task"], "evaluation.evaluate"),
    ],
)
def test_a_task_with_a_program_of_its_own_gets_it(args, module):
    _, chosen, others = PROGRAMS["evaluate"].chosen(args)
    assert chosen == module
    assert others == (["--k", "1"] if "kodcode" in module else args)


@pytest.mark.parametrize(("absent", "remedy"), [("nl_reward_model", "checkout"), ("datasets", "pip install")])
def test_a_missing_package_is_named_with_its_remedy(absent, remedy, monkeypatch, refused):
    monkeypatch.delitem(sys.modules, "nl_reward_model.train_rm", raising=False)
    monkeypatch.setitem(sys.modules, absent, None)
    error = refused(main, "reward-model", "--task", "slf5k")
    assert absent in error and remedy in error


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_is_there(name):
    for task in ("plain", "slf5k", "kodcode", "ultrafeedback"):
        _, module, _ = PROGRAMS[name].chosen(["--task", task])
        assert re.search(r"^def main\(|^from [\w.]+ import main$", find_spec(module).loader.get_source(module), re.M)


@pytest.mark.parametrize("name", ["annotate", "reward-model"])
def test_a_script_that_lends_the_main_of_all_tasks_is_told_its_task(name, refused, monkeypatch):
    for place, changed in ((configs, "program"), (sys.modules["__main__"], "__doc__")):
        monkeypatch.setattr(place, changed, "")  # restored after what the command writes there
    given = ("--task", "slf5k", "--data_path", "absent.json", "--output_path", "out.json")
    assert "--task" not in refused(main, name, *given)
