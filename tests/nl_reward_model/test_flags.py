"""Every documented, published or former spelling of a flag of stage 2 parses to one setting; --help lists them."""

from __future__ import annotations

import runpy
import shlex
import sys
from pathlib import Path

import pytest

from nl_reward_model.config import RewardModelConfig
from nl_reward_model.infer import InferConfig
from nl_reward_model.measures.metrics import MetricsConfig
from nl_reward_model.measures.pairwise import CompareFeedbackConfig
from nl_reward_model.merge_lora import MergeConfig
from tests.conftest import ROOT
from text2grad.configs import parse
from text2grad.errors import InputError

NEEDED = {
    RewardModelConfig: {"data_path": "d", "output_dir": "o"},
    InferConfig: {"model": "m", "data_path": "d", "output_path": "o"},
    MetricsConfig: {"data_path": "d", "output_path": "o"},
    MergeConfig: {"model": "m", "output_dir": "o"},
    CompareFeedbackConfig: {"task": "slf5k", "first": "a", "second": "b", "output_path": "o"},
}
ALIASES = [
    (RewardModelConfig, "prompt_max_length", "max_prompt_tokens", 77),
    (RewardModelConfig, "precision", "dtype", "float32"),
    (RewardModelConfig, "judge_records", "feedback_records", 3),
    (RewardModelConfig, "judge_batch_size", "feedback_batch_size", 3),
    (RewardModelConfig, "prompt_file", "prompt", "mine.txt"),
    (RewardModelConfig, "prompt_variant", "prompt", "no_cot"),
    (InferConfig, "model_path", "model", "m"),
    (InferConfig, "dataset_path", "data_path", "d"),
    (InferConfig, "responses", "data_path", "d"),
    (InferConfig, "output_file", "output_path", "o"),
    (InferConfig, "prompt_max_length", "max_prompt_tokens", 77),
    (InferConfig, "max_tokens", "max_new_tokens", 77),
    (InferConfig, "precision", "dtype", "bfloat16"),
    (InferConfig, "prompt_file", "prompt", "mine.txt"),
    (InferConfig, "prompt_variant", "prompt", "cot"),
    (MetricsConfig, "input_file", "feedback_path", "f"),
    (MetricsConfig, "results_path", "feedback_path", "f"),
    (MetricsConfig, "output_file", "output_path", "o"),
    (MergeConfig, "lora_model", "model", "m"),
    (MergeConfig, "model_path", "model", "m"),
    (MergeConfig, "save_dir", "output_dir", "o"),
    (CompareFeedbackConfig, "prompt_file", "prompt", "mine.txt"),
    (CompareFeedbackConfig, "output_file", "output_path", "o"),
]
SCRIPTS = [
    *sorted(ROOT.glob("nl_reward_model/*/train_rm.py")),
    *sorted(ROOT.glob("nl_reward_model/*/evaluation/*.py")),
    ROOT / "nl_reward_model" / "measures" / "pairwise.py",
]


def flags(settings: dict) -> list[str]:
    return [part for name, value in settings.items() for part in (f"--{name}", str(value))]


@pytest.mark.parametrize(("config", "alias", "name", "value"), ALIASES)
def test_a_former_spelling_sets_the_same_setting_on_the_command_line_and_in_yaml(tmp_path, config, alias, name, value):
    others = {key: item for key, item in NEEDED[config].items() if key != name}
    assert getattr(parse(config, args=flags({**others, alias: value})), name) == value
    if config is CompareFeedbackConfig:  # their required settings have to be flags
        return
    (tmp_path / "settings.yaml").write_text(f"{alias}: {value}\n")
    read = parse(config, args=["--config", str(tmp_path / "settings.yaml"), *flags(others)])
    assert getattr(read, name) == value


def test_number_types_and_full_training_have_two_spellings():
    needed = flags(NEEDED[RewardModelConfig])
    for short, long in (("fp32", "float32"), ("auto", "auto")):
        assert parse(RewardModelConfig, args=[*needed, "--precision", short]).dtype == long
    whole = parse(RewardModelConfig, args=[*needed, "--lora", "false"])
    assert (
        (whole.lora, whole.lora_r) == (False, 0) == (parse(RewardModelConfig, args=[*needed, "--lora_r", "0"]).lora, 0)
    )
    assert parse(RewardModelConfig, args=[*needed, "--lora", "true"]).lora_r == 16


def test_the_published_commands_parse():
    merge = "--base_model meta-llama/Llama-3.1-8B-Instruct --lora_model ../ckpt/0_4400 --save_dir ../ckpt/0_4400_merge"
    merged = parse(MergeConfig, args=shlex.split(f"{merge} --merge_and_save True"))
    assert (merged.model, merged.output_dir, merged.merge_and_save) == ("../ckpt/0_4400", "../ckpt/0_4400_merge", True)
    infer = (
        "--model_path ../ckpt/0_4400_merge --dataset_path ../data/kodcode_test.json --output_file results.json "
        '--batch_size 40 --prompt_max_length 1000 --max_length 1600 --max_new_tokens 350 --gpu_ids "0,1" '
        '--gpu_memory "30GiB"'
    )
    read = parse(InferConfig, args=shlex.split(infer))
    assert (read.model, read.data_path, read.output_path) == (
        "../ckpt/0_4400_merge",
        "../data/kodcode_test.json",
        "results.json",
    )
    assert (read.max_prompt_tokens, read.max_length, read.max_new_tokens) == (1000, 1600, 350)
    assert (read.batch_size, read.gpu_ids, read.gpu_memory) == (40, "0,1", "30GiB")
    metrics = parse(MetricsConfig, args=shlex.split("--input_file results.json --output_file figures.json"))
    assert (metrics.feedback_path, metrics.output_path, metrics.data_path) == ("results.json", "figures.json", "")


def test_feedback_and_annotations_may_be_in_one_file_or_in_two():
    one = parse(MetricsConfig, args=flags({"data_path": "both.json", "output_path": "o"}))
    two = parse(MetricsConfig, args=flags({"results_path": "f.json", "data_path": "a.json", "output_path": "o"}))
    assert (one.feedback_path, two.feedback_path, two.data_path) == ("both.json", "f.json", "a.json")


@pytest.mark.parametrize(
    ("config", "wrong"),
    [
        (RewardModelConfig, "dtype"),
        (RewardModelConfig, "shorten"),
        (InferConfig, "constrained"),
        (InferConfig, "split"),
    ],
)
def test_choices_are_refused_with_those_there_are(tmp_path, config, wrong, capsys):
    with pytest.raises(SystemExit):
        parse(config, args=flags({**NEEDED[config], wrong: "other"}))
    assert "invalid choice: 'other'" in capsys.readouterr().err
    (tmp_path / "settings.yaml").write_text(f"{wrong}: other\n")
    with pytest.raises(InputError, match=f"--{wrong} 'other' does not exist; choose one of"):
        parse(config, args=["--config", str(tmp_path / "settings.yaml"), *flags(NEEDED[config])])


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT / "nl_reward_model")))
def test_help_lists_our_own_settings_first(script: Path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [str(script), "--help"])
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(script), run_name="__main__")
    assert left.value.code == 0
    about, _, shown = capsys.readouterr().out.partition("settings:\n")
    assert f"python nl_reward_model/{script.relative_to(ROOT / 'nl_reward_model')}" in about
    own, _, library = shown.partition("settings of trl.SFTConfig")
    assert "--output_" in own or "--answers" in own
    assert ("--logging_steps" in library) == (script.name == "train_rm.py")
    assert "--logging_steps" not in own
