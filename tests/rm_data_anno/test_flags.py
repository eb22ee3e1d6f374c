"""Every documented, published or former spelling of a flag of stage 1 parses to one setting; --help lists them."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from rm_data_anno.annotate import AnnotateConfig
from rm_data_anno.fidelity import FidelityConfig
from rm_data_anno.kodcode.test_case import TestCaseConfig as PreparationConfig
from tests.conftest import ROOT
from text2grad.configs import parse
from text2grad.errors import InputError

SCRIPTS = [
    *sorted(ROOT.glob("rm_data_anno/*/dual_feedback_annotation_RM.py")),
    *(ROOT / "rm_data_anno" / name for name in ("annotate.py", "fidelity.py", "kodcode/test_case.py")),
]


@pytest.mark.parametrize(
    ("config", "alias", "name", "value"),
    [
        (AnnotateConfig, "annotator", "critic", "programmatic"),
        (AnnotateConfig, "dataset_path", "data_path", "d"),
        (AnnotateConfig, "responses", "data_path", "d"),
        (AnnotateConfig, "output_file", "output_path", "o.json"),
        (AnnotateConfig, "prompt_file", "prompt", "mine.txt"),
        (AnnotateConfig, "max_tokens", "max_new_tokens", 77),
        (PreparationConfig, "output_file", "output_path", "o.json"),
        (PreparationConfig, "dataset_path", "data_path", "d"),
        (FidelityConfig, "input_file", "data_path", ["d"]),
    ],
)
def test_a_former_spelling_sets_the_same_setting(config, alias, name, value):
    needed = {} if name == "data_path" else {"data_path": "d"}
    needed |= {"task": "slf5k"} if config is FidelityConfig else {}
    given = {**needed, alias: value[0] if isinstance(value, list) else value}
    assert getattr(parse(config, args=[str(part) for key in given for part in (f"--{key}", given[key])]), name) == value


def test_the_published_command_parses():
    assert parse(AnnotateConfig, args=["--data_path", "path/to/data"]).critic_spec == "openai:gpt-4o"


@pytest.mark.parametrize(
    ("flags", "spec"),
    [
        ("--annotator chat", "openai:gpt-4o"),
        ("--model gpt-4o-mini", "openai:gpt-4o-mini"),
        ("--base_url http://h/v1 --model m", "http://h/v1#m"),
        ("--critic http://h/v1#m", "http://h/v1#m"),
        ("--critic my_critic.py:judge", "my_critic.py:judge"),
    ],
)
def test_one_flag_or_two_name_the_critic(flags, spec):
    assert parse(AnnotateConfig, args=["--data_path", "d", *flags.split()]).critic_spec == spec
    with pytest.raises(InputError, match="leave --base_url and --model away"):
        parse(AnnotateConfig, args=["--data_path", "d", "--critic", "openai:x", "--model", "y"]).critic_spec  # noqa: B018


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT / "rm_data_anno")))
def test_help_lists_the_settings(script: Path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [str(script), "--help"])
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(script), run_name="__main__")
    assert left.value.code == 0
    about, _, shown = capsys.readouterr().out.partition("settings:\n")
    assert f"python rm_data_anno/{script.relative_to(ROOT / 'rm_data_anno')}" in about
    assert "--data_path" in shown
