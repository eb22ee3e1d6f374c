"""Every benchmark: --help explains its own settings, today's flags still work, and no page is written unasked."""

from __future__ import annotations

import importlib
import runpy
import sys

import pytest

from benchmarks.alignment import AlignmentConfig
from benchmarks.constrained_decoding import ConstraintCostConfig
from benchmarks.convergence import StudyConfig
from benchmarks.human_critiques import HumanCritiquesConfig
from benchmarks.pages import write_section
from benchmarks.real_posts import RealPostsConfig, audited_share
from benchmarks.scale import PlanConfig
from benchmarks.step_cost import StepCostConfig
from benchmarks.vocabulary_memory import VocabularyConfig
from benchmarks.weak_scaling import ScalingConfig
from tests.conftest import ROOT
from text2grad.configs import parse
from text2grad.errors import InputError

CONFIGS = {
    "alignment": AlignmentConfig,
    "constrained_decoding": ConstraintCostConfig,
    "convergence": StudyConfig,
    "human_critiques": HumanCritiquesConfig,
    "real_posts": RealPostsConfig,
    "scale": PlanConfig,
    "step_cost": StepCostConfig,
    "vocabulary_memory": VocabularyConfig,
    "weak_scaling": ScalingConfig,
}


@pytest.fixture
def refused(monkeypatch, capsys):
    """Run a script's ``main`` in this process: it must exit with 2; returns what it says."""

    def run(name: str, *flags) -> str:
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, flags)])
        with pytest.raises(SystemExit) as ended:
            importlib.import_module(f"benchmarks.{name}").main()
        assert ended.value.code == 2
        return capsys.readouterr().err

    return run


@pytest.mark.parametrize("name", CONFIGS)
def test_help_shows_the_command_and_every_setting(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "benchmarks" / f"{name}.py"), run_name="__main__")
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert f"python benchmarks/{name}.py" in printed
    for flag in CONFIGS[name].__dataclass_fields__:
        assert f"\n  --{flag} " in printed or f"\n  --{flag}\n" in printed, flag


@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "constrained_decoding"])
def test_no_page_is_rewritten_unless_it_is_named(name):
    assert parse(CONFIGS[name], args=[]).page == ""


def test_an_empty_page_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_section("", "alignment", "text")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["step_cost", "vocabulary_memory", "alignment", "weak_scaling"])
def test_a_page_without_the_section_is_refused_before_anything_is_measured(name, tmp_path, refused):
    page = tmp_path / "page.md"
    page.write_text("no section")
    assert f"<!-- {name} -->" in refused(name, "--page", page) and page.read_text() == "no section"
    assert "does not exist" in refused(name, "--page", tmp_path / "missing.md")


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("alignment", "--output", "output_path"),
        ("constrained_decoding", "--data", "data_path"),
        ("constrained_decoding", "--output", "output_path"),
        ("human_critiques", "--data", "data_path"),
        ("step_cost", "--output", "output_path"),
        ("step_cost", "--model_path", "model"),
        ("vocabulary_memory", "--output", "output_path"),
        ("weak_scaling", "--output_file", "output_path"),
        ("real_posts", "--save_dir", "output_dir"),
    ],
)
def test_former_flags_still_work(name, old, new):
    assert getattr(parse(CONFIGS[name], args=[old, "x"]), new) == "x"


def test_former_flags_with_numbers_still_work():
    assert parse(HumanCritiquesConfig, args=["--prompt_max_length", "7"]).max_prompt_tokens == 7
    assert parse(StudyConfig, args=["--judge_steps", "7"]).reward_model_steps == 7
    assert parse(PlanConfig, args=["--check"]).check and parse(PlanConfig, args=["--gpus", "2"]).gpus == 2


@pytest.mark.parametrize("name", ["constrained_decoding", "human_critiques", "real_posts"])
def test_missing_data_is_named(name, refused):
    assert "--data_path is missing" in refused(name)


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
    assert audited_share(rows, "audit/flip_rate", "audit/signed") == 0.125
    assert audited_share([{}], "audit/flip_rate", "audit/signed") is None


def test_gpus_of_the_calculator_are_those_it_knows(refused):
    assert "a100" in refused("scale", "--gpu", "b200")
