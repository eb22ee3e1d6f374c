"""The benchmarks' commands: --help explains each setting, former flags still work, and missing data is named."""

from __future__ import annotations

import runpy
import sys

import pytest

from benchmarks.alignment import AlignmentConfig
from benchmarks.convergence import StudyConfig
from benchmarks.instructions.study import InstructionsConfig
from benchmarks.memory import PlanConfig
from benchmarks.real_posts import RealPostsConfig, pooled
from benchmarks.step_cost import StepCostConfig
from tests.conftest import ROOT
from text2grad.configs import parse

CONFIGS = {
    "alignment": AlignmentConfig,
    "convergence": StudyConfig,
    "instructions.study": InstructionsConfig,
    "memory": PlanConfig,
    "real_posts": RealPostsConfig,
    "step_cost": StepCostConfig,
}


@pytest.mark.parametrize("name", CONFIGS)
def test_help_shows_the_command_and_every_setting(name, monkeypatch, capsys):
    script = f"benchmarks/{name.replace('.', '/')}.py"
    monkeypatch.setattr(sys, "argv", [script, "--help"])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(ROOT / script), run_name="__main__")
    printed = capsys.readouterr().out
    assert end.value.code == 0 and f"python {script}" in printed
    for flag in CONFIGS[name].__dataclass_fields__:
        assert f"\n  --{flag} " in printed or f"\n  --{flag}\n" in printed, flag


@pytest.mark.parametrize(
    ("name", "old", "new", "value"),
    [
        ("alignment", "--output", "output_path", "x"),
        ("step_cost", "--output", "output_path", "x"),
        ("step_cost", "--model_path", "model", "x"),
        ("real_posts", "--save_dir", "output_dir", "x"),
        ("convergence", "--judge_steps", "reward_model_steps", 7),
        ("memory", "--model_path", "model", "x"),
    ],
)
def test_former_flags_still_work(name, old, new, value):
    assert getattr(parse(CONFIGS[name], args=[old, str(value)]), new) == value


def test_audits_are_pooled_by_their_tokens():
    rows = [{"audit/flip_rate": 0.5, "audit/signed": 10.0}, {}, {"audit/flip_rate": 0.0, "audit/signed": 30.0}]
    assert pooled(rows, "audit/flip_rate", "audit/signed") == 0.125
    assert pooled([{}], "audit/flip_rate", "audit/signed") is None
