"""Published and former spellings of a flag set one setting each; every script explains its settings."""

from __future__ import annotations

import runpy
import shlex
import sys
from pathlib import Path

import pytest

from benchmarks.alignment import AlignmentConfig
from benchmarks.convergence import StudyConfig
from benchmarks.memory import PlanConfig
from benchmarks.real_posts import RealPostsConfig
from benchmarks.step_cost import StepCostConfig
from evaluation.credit_assignment import CreditConfig
from evaluation.generate import GenerateConfig
from evaluation.judge import WinRateConfig
from evaluation.kodcode.evalplus_samples import EvalPlusSamplesConfig
from evaluation.kodcode.evalplus_score import EvalPlusScoreConfig
from evaluation.kodcode.evaluate import ProgramEvaluationConfig
from evaluation.slf5k.evaluate import SummaryEvaluationConfig
from evaluation.ultrafeedback.alpaca_outputs import AlpacaOutputsConfig
from evaluation.ultrafeedback.alpaca_score import AlpacaScoreConfig
from evaluation.ultrafeedback.arc_challenge import ArcConfig
from evaluation.ultrafeedback.mt_bench_answers import MtBenchAnswersConfig
from evaluation.ultrafeedback.mt_bench_judge import MtBenchGradeConfig
from nl_reward_model.config import RewardModelConfig
from nl_reward_model.infer import InferConfig
from nl_reward_model.measures.metrics import MetricsConfig
from nl_reward_model.measures.pairwise import CompareFeedbackConfig
from nl_reward_model.merge_lora import MergeConfig
from rm_data_anno.annotate import AnnotateConfig
from rm_data_anno.fidelity import FidelityConfig
from rm_data_anno.kodcode.test_case import TestCaseConfig as PreparationConfig
from rm_data_anno.slf5k.variations import SummaryVariationsConfig
from tests.conftest import ROOT
from text2grad.configs import parse
from text2grad.endpoints.judging import JudgeConfig
from text2grad.errors import InputError
from text2grad.models.answering import AnsweringConfig, SamplingConfig

NEEDED = {
    AnnotateConfig: "--data_path d",
    PreparationConfig: "--data_path d",
    FidelityConfig: "--task slf5k --data_path d",
    RewardModelConfig: "--data_path d --output_dir o",
    InferConfig: "--model m --data_path d --output_path o",
    MetricsConfig: "--data_path d --output_path o",
    MergeConfig: "--model m --output_dir o",
    CompareFeedbackConfig: "--task slf5k --first a --second b --output_path o",
    AnsweringConfig: "--model m",
    SamplingConfig: "",
    GenerateConfig: "--task slf5k --data_path d --output_path o",
    WinRateConfig: "--task slf5k --data_path d --system s --baseline b --baseline_system b --output_path o",
    SummaryEvaluationConfig: "--data_path d --system s --output_path o",
    ProgramEvaluationConfig: "--data_path d --system s --output_path o",
    CreditConfig: "--rollouts r --output_path o",
    EvalPlusSamplesConfig: "--dataset mbpp --output_path o.jsonl",
    EvalPlusScoreConfig: "--dataset mbpp --samples p --system s --output_path o",
    AlpacaOutputsConfig: "--system s --output_path o",
    AlpacaScoreConfig: "--outputs p --system s --output_path o --judge j",
    ArcConfig: "--system s --output_path o",
    MtBenchAnswersConfig: "--questions q --system s --output_path o",
    MtBenchGradeConfig: "--questions q --answers a --system s --output_path o",
    JudgeConfig: "--judge j",
    AlignmentConfig: "",
    StudyConfig: "",
    PlanConfig: "",
    RealPostsConfig: "",
    StepCostConfig: "",
}
"""What each program cannot do without."""

FORMER = {
    AnnotateConfig: "critic=annotator data_path=dataset_path,responses output_path=output_file prompt=prompt_file "
    "max_new_tokens=max_tokens",
    PreparationConfig: "data_path=dataset_path output_path=output_file",
    RewardModelConfig: "max_prompt_tokens=prompt_max_length dtype=precision feedback_records=judge_records "
    "feedback_batch_size=judge_batch_size prompt=prompt_file,prompt_variant",
    InferConfig: "model=model_path data_path=dataset_path,responses output_path=output_file "
    "max_prompt_tokens=prompt_max_length max_new_tokens=max_tokens dtype=precision prompt=prompt_file,prompt_variant",
    MetricsConfig: "feedback_path=input_file,results_path output_path=output_file",
    MergeConfig: "model=lora_model,model_path output_dir=save_dir",
    CompareFeedbackConfig: "prompt=prompt_file output_path=output_file",
    AnsweringConfig: "model=model_path dtype=precision",
    SamplingConfig: "max_new_tokens=max_response_tokens,max_tokens",
    GenerateConfig: "max_prompt_tokens=prompt_max_length data_path=dataset_path,input_file "
    "output_path=output_file,output",
    WinRateConfig: "judge_prompt=prompt_file data_path=responses,dataset_path,input_file "
    "output_path=output_file,output",
    SummaryEvaluationConfig: "critic=annotator data_path=responses,dataset_path,input_file "
    "output_path=output_file,output",
    ProgramEvaluationConfig: "data_path=responses,dataset_path,input_file output_path=output_file,output",
    CreditConfig: "rollouts=data_path output_path=output_file,output",
    EvalPlusSamplesConfig: "data_path=dataset_path output_path=output_file,output",
    EvalPlusScoreConfig: "data_path=dataset_path output_path=output_file,output",
    AlpacaOutputsConfig: "output_path=output_file,output",
    AlpacaScoreConfig: "outputs=data_path output_path=output_file,output",
    ArcConfig: "data_path=dataset_path,input_file output_path=output_file,output",
    MtBenchAnswersConfig: "questions=data_path output_path=output_file,output",
    MtBenchGradeConfig: "answers=data_path output_path=output_file,output",
    JudgeConfig: "judge_max_new_tokens=judge_tokens",
    AlignmentConfig: "output_path=output",
    StepCostConfig: "output_path=output model=model_path",
    RealPostsConfig: "output_dir=save_dir",
    StudyConfig: "reward_model_steps=judge_steps",
    PlanConfig: "model=model_path",
}
ALIASES = [
    (config, alias, name)
    for config, line in FORMER.items()
    for name, _, others in (part.partition("=") for part in line.split())
    for alias in others.split(",")
]
VALUES = {"dtype": "float16", "output_path": "x.jsonl", "prompt": "no_cot"}
SCRIPTS = sorted(
    str(path.relative_to(ROOT))
    for stage in ("rm_data_anno", "nl_reward_model", "evaluation", "benchmarks")
    for path in (ROOT / stage).rglob("*.py")
    if path.name != "suite.py" and '__name__ == "__main__"' in path.read_text()
)


def without(config: type, name: str) -> list[str]:
    """What the program needs, but for one setting."""
    flags = NEEDED[config].split()
    at = flags.index(f"--{name}") if f"--{name}" in flags else len(flags)
    return [*flags[:at], *flags[at + 2 :]]


@pytest.mark.parametrize(("config", "alias", "name"), ALIASES)
def test_a_former_spelling_sets_the_same_setting_on_the_command_line_and_in_yaml(tmp_path, config, alias, name):
    kind = config.__dataclass_fields__[name].type
    value = VALUES.get(name, "7" if "int" in str(kind) else "x")
    assert str(getattr(parse(config, args=[*without(config, name), f"--{alias}", value]), name)) == value
    if config is not CompareFeedbackConfig:  # whose required settings have to be flags
        (tmp_path / "settings.yaml").write_text(f"{alias}: {value}\n")
        read = parse(config, args=[*without(config, name), "--config", str(tmp_path / "settings.yaml")])
        assert str(getattr(read, name)) == value


def test_several_files_may_be_named_by_a_former_spelling():
    assert parse(FidelityConfig, args=["--task", "slf5k", "--input_file", "a", "b"]).data_path == ["a", "b"]


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (RewardModelConfig, "dtype"), (RewardModelConfig, "shorten"), (InferConfig, "constrained"),
        (InferConfig, "split"), (AnsweringConfig, "dtype"), (EvalPlusScoreConfig, "dataset"), (WinRateConfig, "orders"),
    ],
)  # fmt: skip
def test_a_value_that_is_no_choice_is_refused(tmp_path, capsys, config, name):
    with pytest.raises(SystemExit):
        parse(config, args=[*without(config, name), f"--{name}", "other"])
    assert "invalid choice: 'other'" in capsys.readouterr().err
    (tmp_path / "settings.yaml").write_text(f"{name}: other\n")
    with pytest.raises(InputError, match=f"--{name} 'other'.*choose one of"):
        parse(config, args=[*without(config, name), "--config", str(tmp_path / "settings.yaml")])


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_gives_the_command_and_the_settings(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [script, "--help"])
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(ROOT / script), run_name="__main__")
    assert left.value.code == 0
    own, _, library = capsys.readouterr().out.partition("settings of trl.SFTConfig")
    assert f"python {script}" in own and "\n  --" in own
    assert ("--logging_steps" in library) == (Path(script).name == "train_rm.py")
    assert "--logging_steps" not in own


def test_the_published_commands_parse():
    assert parse(AnnotateConfig, args=["--data_path", "path/to/data"]).critic_spec == "openai:gpt-4o"
    merge = "--base_model meta-llama/Llama-3.1-8B-Instruct --lora_model ../ckpt/0_4400 --save_dir ../ckpt/0_4400_merge"
    merged = parse(MergeConfig, args=shlex.split(f"{merge} --merge_and_save True"))
    assert (merged.model, merged.output_dir, merged.merge_and_save) == ("../ckpt/0_4400", "../ckpt/0_4400_merge", True)
    infer = (
        "--model_path ../ckpt/0_4400_merge --dataset_path ../data/kodcode_test.json --output_file results.json "
        '--batch_size 40 --prompt_max_length 1000 --max_length 1600 --max_new_tokens 350 --gpu_ids "0,1" '
        '--gpu_memory "30GiB"'
    )
    read = parse(InferConfig, args=shlex.split(infer))
    assert (read.model, read.data_path) == ("../ckpt/0_4400_merge", "../data/kodcode_test.json")
    assert (read.output_path, read.max_prompt_tokens, read.max_length) == ("results.json", 1000, 1600)
    assert (read.max_new_tokens, read.batch_size, read.gpu_ids, read.gpu_memory) == (350, 40, "0,1", "30GiB")
    metrics = parse(MetricsConfig, args=shlex.split("--input_file results.json --output_file figures.json"))
    assert (metrics.feedback_path, metrics.output_path, metrics.data_path) == ("results.json", "figures.json", "")


@pytest.mark.parametrize(
    ("flags", "spec"),
    [
        ("--annotator chat", "openai:gpt-4o"),
        ("--model gpt-4o-mini", "openai:gpt-4o-mini"),
        ("--base_url http://h/v1 --model m", "http://h/v1#m"),
        ("--critic http://h/v1#m", "http://h/v1#m"),
    ],
)
def test_one_flag_or_two_name_the_critic(flags, spec):
    assert parse(AnnotateConfig, args=["--data_path", "d", *flags.split()]).critic_spec == spec
    with pytest.raises(InputError, match="--base_url"):
        parse(AnnotateConfig, args=["--data_path", "d", "--critic", "openai:x", "--model", "y"]).critic_spec  # noqa: B018


def test_number_types_and_full_training_have_two_spellings():
    def given(flags: str) -> RewardModelConfig:
        return parse(RewardModelConfig, args=f"{NEEDED[RewardModelConfig]} {flags}".split())

    assert given("--precision fp32").dtype == "float32"
    assert [(each.lora, each.lora_r) for each in map(given, ("--lora false", "--lora_r 0"))] == [(False, 0)] * 2
    assert given("--lora true").lora_r == 16


def test_feedback_and_annotations_may_be_in_one_file_or_in_two():
    one = parse(MetricsConfig, args=["--data_path", "both.json", "--output_path", "o"])
    two = parse(MetricsConfig, args=["--results_path", "f.json", "--data_path", "a.json", "--output_path", "o"])
    assert (one.feedback_path, two.feedback_path, two.data_path) == ("both.json", "f.json", "a.json")


@pytest.mark.parametrize(("kind", "flag"), [(StudyConfig, "--page"), (SummaryVariationsConfig, "--draws")])
def test_a_removed_flag_says_so(kind, flag):
    with pytest.raises(InputError, match=f"{flag} is no setting any more"):
        parse(kind, args=[flag, "1"])
