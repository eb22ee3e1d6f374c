"""The benchmarks' commands: --help explains each setting, former flags still work, and missing data is named."""

from __future__ import annotations

import importlib
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
from text2grad.errors import InputError

CONFIGS = {
    "alignment": AlignmentConfig,
    "convergence": StudyConfig,
    "instructions.study": InstructionsConfig,
    "memory": PlanConfig,
    "real_posts": RealPostsConfig,
    "step_cost": StepCostConfig,
}


@pytest.fixture
def ended(monkeypatch, capsys):
    """Run a script's ``main`` in this process until it exits; returns the code and all that it printed."""

    def run(name: str, *flags: str) -> tuple[object, str]:
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *flags])
        with pytest.raises(SystemExit) as end:
            importlib.import_module(f"benchmarks.{name}").main()
        return end.value.code, "".join(capsys.readouterr())

    return run


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


def test_missing_data_is_named(ended):
    code, said = ended("real_posts")
    assert code == 2 and "--data_path is missing" in said


def test_gpus_of_a_plan_are_those_it_knows(ended):
    code, said = ended("memory", "--gpu", "b200")
    assert code == 2 and "a100" in said


def test_a_run_that_real_posts_does_not_know_is_named():
    good = RealPostsConfig(data_path="posts.json", output_dir="runs")
    good.check()
    assert good.runs()[:2] == ["text2grad:1", "ppo_last_sum:1"] and len(good.runs()) == 6
    with pytest.raises(InputError, match="--only grpo:1"):
        RealPostsConfig(data_path="posts.json", output_dir="runs", only=["grpo:1"]).check()


def test_where_rewards_come_from_on_real_posts():
    given = {"data_path": "posts.json", "output_dir": "runs", "reward_model": "rm", "refresh_data": "old.json"}
    config = RealPostsConfig(**given, scalar_model="scalar")
    config.check()
    assert len(config.runs()) == 3 * 7 and config.feedback("text2grad") == ["--critic", "programmatic"]
    learnt, refreshed = config.feedback("learnt_text2grad"), config.feedback("refreshed_text2grad")
    assert learnt == refreshed[: len(learnt)] and "--refresh_every" in refreshed and "--refresh_every" not in learnt
    assert config.feedback("scalar_ppo")[:1] == ["--reward_model"]
    with pytest.raises(InputError, match="--refresh_data is for --reward_model"):
        RealPostsConfig(data_path="posts.json", output_dir="runs", refresh_data="old.json").check()


def test_audits_are_pooled_by_their_tokens():
    rows = [{"audit/flip_rate": 0.5, "audit/signed": 10.0}, {}, {"audit/flip_rate": 0.0, "audit/signed": 30.0}]
    assert pooled(rows, "audit/flip_rate", "audit/signed") == 0.125
    assert pooled([{}], "audit/flip_rate", "audit/signed") is None
