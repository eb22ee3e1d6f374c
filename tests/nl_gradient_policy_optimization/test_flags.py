"""The flags of stage 3's scripts: each explains itself, former and other stages' spellings set the same settings."""

import importlib
import sys
from pathlib import Path

import pytest

from nl_gradient_policy_optimization.algorithms import ALGORITHMS, algorithm_class
from nl_gradient_policy_optimization.config import PolicyConfig
from tests.conftest import ROOT
from tests.tiny import tiny_model
from text2grad.configs import parse
from text2grad.errors import InputError
from text2grad.losses import KLKind
from text2grad.token_rewards import SCHEMES

STAGE = "nl_gradient_policy_optimization"
REQUIRED = ["--model", "m", "--data_path", "d", "--output_dir", "o"]


def test_help_shows_the_choices(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["train.py", "--help"])
    with pytest.raises(SystemExit):
        importlib.import_module(f"{STAGE}.slf5k.train").main("slf5k")
    said = " ".join(capsys.readouterr().out.split())
    for name, choices in (
        ("scheme", SCHEMES), ("kl", KLKind.__args__), ("critic_constrained", ("none", "quotes")),
        ("algorithm", tuple(ALGORITHMS)), ("optimizer", ("auto", "adafactor", "adamw")),
    ):  # fmt: skip
        assert f"--{name} {{{','.join(choices)}}}" in said
    assert f"{STAGE}/slf5k/config.yaml" in said and "by 20 %" in said


def test_a_small_model_gets_its_settings_on_a_task_that_brings_none(monkeypatch, capsys, tmp_path):
    engine, model, seen = importlib.import_module(f"{STAGE}.optimize"), tiny_model(tmp_path / "model"), []
    monkeypatch.setattr(engine, "optimize", lambda task, config: seen.append(config))
    monkeypatch.chdir(ROOT)

    def rate(*args: str) -> tuple[float, str]:
        monkeypatch.setattr(sys, "argv", ["optimize.py", *args])
        engine.main()
        return seen.pop().learning_rate, capsys.readouterr().out

    chosen, said = rate("--task", "plain", "--model", model)
    assert chosen == 4e-4 and f"settings: {STAGE}/small.yaml, because {model} has 0M weights; --config" in said
    assert rate("--task", "plain", f"--model={model}", "--learning_rate", "1e-5")[0] == 1e-5
    assert rate("--task", "slf5k", "--model", model)[0] == 1e-6  # the paper's; the run's first lines say what to add
    assert rate("--task", "plain", "--model", model, "--config", f"{STAGE}/kodcode/config.yaml")[0] == 5e-7
    monkeypatch.setattr(engine, "parameter_count", lambda name: 8 * 10**9)
    assert rate("--task", "plain", "--model", model)[0] == 1e-6


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (["--learning_rte", "1"], "did you mean learning_rate"),
        (["--learning_ra", "1"], "did you mean learning_rate"),
        (["--epsilon", "0.2"], "did you mean clip_range"),
        (["--learning_rate", "-1"], "at least 0"),
        (["--algorithm", "grpo", "--teacher_coef", "0.3"], "--algorithm teacher"),
    ],
)
def test_flags_that_do_not_exist_or_belong_elsewhere_say_what_to_write(flags, word):
    with pytest.raises(InputError, match=word):
        parse(PolicyConfig, args=[*REQUIRED, *flags])


def test_numbers_are_numbers_however_a_file_writes_them():
    config = PolicyConfig.of(algorithm="rtt", rtt_alpha="1e-1", kl_coef=0, learning_rate="1e-6")
    assert (config.algorithm.rtt_alpha, config.learning_rate) == (0.1, 1e-6) and type(config.kl_coef) is float


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_is_made_of_flags_and_kept_in_the_record(name):
    config = parse(PolicyConfig, args=[*REQUIRED, "--algorithm", name])
    assert type(config.algorithm) is algorithm_class(name) and config.algorithm.name == name
    assert config.flat()["algorithm"] == name and PolicyConfig.of(**config.flat()) == config


@pytest.mark.parametrize(
    ("flags", "weight"), [([], 0.5), (["--algorithm", "verdict"], 0.5), (["--algorithm=rtt"], None)]
)
def test_what_a_file_sets_of_its_algorithm_gives_way_to_another_on_the_command_line(tmp_path, flags, weight):
    file = tmp_path / "own.yaml"
    file.write_text(f"extends: {ROOT / STAGE / 'small.yaml'}\noutcome: mean\ntoken_weight: 0.5\n")
    config = parse(PolicyConfig, args=[*REQUIRED, "--config", str(file), *flags])
    assert config.algorithm.name == ("rtt" if weight is None else "verdict") and config.algorithm.outcome == "mean"
    assert getattr(config.algorithm, "token_weight", None) == weight and config.optimizer == "adamw"


def test_there_are_at_most_75_settings_beside_the_algorithms():
    assert len(PolicyConfig.__dataclass_fields__) <= 75


PAPER = {
    "lora_r": 16, "lora_alpha": 32, "lora_dropout": 0.05, "lora_target_modules": ["q_proj", "v_proj"],
    "value_target": "rewards", "value_clip_range": 0.2, "clip_range": 0.2, "kl": "full",
    "gamma": 1.0, "lam": 0.95, "ppo_epochs": 4, "epochs": 4, "seed": 42, "micro_batch_size": 1,
}  # fmt: skip
COLUMNS = (
    "learning_rate", "lr_schedule", "rollouts_per_device", "kl_coef", "kl_target", "optimizer", "max_prompt_tokens",
    "max_new_tokens",
)  # fmt: skip
PAPER_BY_TASK = {
    "slf5k": (1e-6, "linear", 12, 0.2, 6.0, "adafactor", 640, 128),
    "ultrafeedback": (1e-6, "cosine", 8, 0.05, 3.0, "adafactor", 970, 512),
    "kodcode": (5e-7, "cosine", 8, 0.07, 1.0, "adamw", 970, 512),
}


@pytest.mark.parametrize("task", PAPER_BY_TASK)
def test_the_tasks_files_hold_the_papers_settings(task):
    """Its text and appendix D.2; LoRA's layers are the authors' release's, the value target is algorithm 4's."""
    config = parse(
        PolicyConfig, args=["--data_path", "d", "--output_dir", "o"], default_config=ROOT / STAGE / task / "config.yaml"
    )
    config.check()
    assert {name: getattr(config, name) for name in PAPER} == PAPER
    assert tuple(getattr(config, name) for name in COLUMNS) == PAPER_BY_TASK[task]
    assert config.algorithm.name == "text2grad"
    assert Path(ROOT / STAGE / task / "accelerate_config.yaml").is_file()
