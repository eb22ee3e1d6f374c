"""Published and former spellings of a flag set one setting each; every script explains its settings."""

import importlib
import json
import re
import runpy
import shlex
import sys
from dataclasses import MISSING, Field, fields
from itertools import cycle, product
from pathlib import Path

import pytest
import torch

from nl_gradient_policy_optimization.baselines.sft import SFTSettings
from nl_reward_model.config import RewardModelConfig
from nl_reward_model.infer import InferConfig
from nl_reward_model.merge_lora import MergeConfig
from rm_data_anno.annotate import AnnotateConfig
from tests.conftest import ROOT
from text2grad.configs import TaskConfig, parse
from text2grad.errors import InputError

DATA, OUTPUT = "data_path=dataset_path,input_file,responses", "output_path=output_file,output"
TRAINED = f"{DATA} max_new_tokens=max_response_tokens,max_tokens output_dir=save_dir model=model_path"
TRAINED += " max_prompt_tokens=prompt_max_length"
BASELINES = "nl_gradient_policy_optimization.baselines"
FORMER = {
    "rm_data_anno.annotate:AnnotateConfig": "critic=annotator data_path=dataset_path,responses output_path=output_file "
    "prompt=prompt_file max_new_tokens=max_tokens",
    "rm_data_anno.fidelity:FidelityConfig": "data_path=input_file",
    "rm_data_anno.kodcode.test_case:TestCaseConfig": "data_path=dataset_path output_path=output_file",
    "nl_reward_model.config:RewardModelConfig": "max_prompt_tokens=prompt_max_length dtype=precision "
    "feedback_records=judge_records feedback_batch_size=judge_batch_size prompt=prompt_file,prompt_variant",
    "nl_reward_model.infer:InferConfig": "model=model_path data_path=dataset_path,responses output_path=output_file "
    "max_prompt_tokens=prompt_max_length max_new_tokens=max_tokens dtype=precision prompt=prompt_file,prompt_variant",
    "nl_reward_model.measures.metrics:MetricsConfig": "data_path=input_file,results_path output_path=output_file",
    "nl_reward_model.merge_lora:MergeConfig": "model=lora_model,model_path output_dir=save_dir",
    "nl_gradient_policy_optimization.config:PolicyConfig": f"{TRAINED} critic=annotator save_every=save_steps "
    "learning_rate=lr rollouts_per_device=batch_size epochs=num_train_epochs kl_coef=beta dtype=precision",
    f"{BASELINES}.sft:SFTSettings": TRAINED,
    f"{BASELINES}.dpo:DPOSettings": TRAINED,
    f"{BASELINES}.scalar_reward:ScalarRewardSettings": TRAINED,
    f"{BASELINES}.pairs:PairsConfig": f"{DATA} {OUTPUT} critic=annotator",
    f"{BASELINES}.reflect:ReflectConfig": f"{DATA} {OUTPUT} max_new_tokens=max_response_tokens,max_tokens "
    "critic=annotator model=model_path prompt=prompt_file",
    f"{BASELINES}.step_labels:StepLabelsConfig": f"{DATA} {OUTPUT}",
    "text2grad.models.answering:AnsweringConfig": "model=model_path dtype=precision",
    "text2grad.models.answering:SamplingConfig": "max_new_tokens=max_response_tokens,max_tokens",
    "text2grad.endpoints.judging:JudgeConfig": "judge_max_new_tokens=judge_tokens",
    "evaluation.generate:GenerateConfig": "max_prompt_tokens=prompt_max_length data_path=dataset_path,input_file "
    f"{OUTPUT}",
    "evaluation.judge:WinRateConfig": f"judge_prompt=prompt_file {DATA} {OUTPUT}",
    "evaluation.slf5k.evaluate:SummaryEvaluationConfig": f"critic=annotator {DATA} {OUTPUT}",
    "evaluation.kodcode.evaluate:ProgramEvaluationConfig": f"{DATA} {OUTPUT}",
    "evaluation.kodcode.evalplus_samples:EvalPlusSamplesConfig": f"data_path=dataset_path {OUTPUT}",
    "evaluation.kodcode.evalplus_score:EvalPlusScoreConfig": f"data_path=dataset_path {OUTPUT}",
    "evaluation.ultrafeedback.alpaca_outputs:AlpacaOutputsConfig": OUTPUT,
    "evaluation.ultrafeedback.alpaca_score:AlpacaScoreConfig": f"outputs=data_path {OUTPUT}",
    "evaluation.ultrafeedback.arc_challenge:ArcConfig": f"data_path=dataset_path,input_file {OUTPUT}",
    "evaluation.ultrafeedback.mt_bench_answers:MtBenchAnswersConfig": f"questions=data_path {OUTPUT} "
    "max_new_tokens=max_response_tokens,max_tokens",
    "evaluation.ultrafeedback.mt_bench_judge:MtBenchGradeConfig": f"answers=data_path {OUTPUT}",
    "benchmarks.step_cost:StepCostConfig": "output_path=output model=model_path",
}
KEYS = [
    "a-key-of-a-form-that-no-one-knows", "openai:sk-proj-0123456789abcdefghijABCD", "hf_0123456789abcdefghijABCD",
    "sk-ant-ab_0123-cd_4567-ef_89ab-cdefgh_01", "AIzaSy_0123456789-bcdefg_hijkl-mnopqrst",
]  # fmt: skip
VALUES = {"dtype": "float16", "output_path": "x.jsonl", "prompt": "no_cot"}
SCRIPTS = sorted(
    str(path.relative_to(ROOT))
    for stage in ("rm_data_anno", "nl_reward_model", "nl_gradient_policy_optimization", "evaluation", "benchmarks")
    for path in (ROOT / stage).rglob("*.py")
    if path.name != "suite.py" and '__name__ == "__main__"' in path.read_text()
)


def config_of(place: str) -> type:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def settings_of(config: type) -> dict[str, Field]:
    return {each.name: each for each in fields(getattr(config, "flags", lambda: config)())}


def without(config: type, name: str) -> list[str]:
    """What the program needs, but for one setting."""
    values = {"task": "slf5k", "dataset": "mbpp", "output_path": "o.jsonl"}
    needed = [
        key
        for key, each in settings_of(config).items()
        if key in ("task", "data_path", "output_dir", "output_path", "model")
        or each.default is each.default_factory is MISSING
    ]
    return [f"--{key}={values.get(key, key)}" for key in needed if key != name]


@pytest.mark.parametrize("place", FORMER)
def test_a_former_spelling_sets_the_same_setting_on_the_command_line_and_in_yaml(tmp_path, place):
    config, file = config_of(place), tmp_path / "settings.yaml"
    for name, _, others in (part.partition("=") for part in FORMER[place].split()):
        kind = str(settings_of(config)[name].type)
        value = VALUES.get(name, "7" if "int" in kind or "float" in kind else "x")
        expected = str([value]) if "list" in kind else value
        for alias in others.split(","):
            found = getattr(parse(config, args=[*without(config, name), f"--{alias}", value]), name)
            assert str(found).removesuffix(".0") == expected, alias
            file.write_text(f"{alias}: {value}\n")
            read = getattr(parse(config, args=[*without(config, name), "--config", str(file)]), name)
            assert str(read).removesuffix(".0") in (expected, value), alias


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("nl_reward_model.config:RewardModelConfig", "dtype"), ("nl_reward_model.infer:InferConfig", "constrained"),
        ("text2grad.models.answering:AnsweringConfig", "dtype"), ("evaluation.judge:WinRateConfig", "orders"),
        ("evaluation.kodcode.evalplus_score:EvalPlusScoreConfig", "dataset"),
    ],
)  # fmt: skip
def test_a_value_that_is_no_choice_is_refused(tmp_path, capsys, place, name):
    config = config_of(place)
    with pytest.raises(SystemExit):
        parse(config, args=[*without(config, name), f"--{name}", "other"])
    assert "invalid choice: 'other'" in capsys.readouterr().err
    (tmp_path / "settings.yaml").write_text(f"{name}: other\n")
    with pytest.raises(InputError, match=f"--{name} 'other'.*choose one of"):
        parse(config, args=[*without(config, name), "--config", str(tmp_path / "settings.yaml")])


@pytest.mark.parametrize("place", FORMER)
def test_a_key_in_any_setting_is_refused_and_not_repeated(tmp_path, monkeypatch, place):
    config, file = config_of(place), tmp_path / "settings.yaml"
    monkeypatch.setenv("SOME_API_KEY", "a-key-of-a-form-that-no-one-knows")
    texts = [name for name, each in settings_of(config).items() if each.type in ("str", str) and name != "task"]
    for name, (key, by_file) in zip(texts, cycle(product(KEYS, (False, True))), strict=False):
        file.write_text(json.dumps({name: key}))
        given = ["--config", str(file)] if by_file else [f"--{name}", key]
        with pytest.raises(InputError, match="environment") as refused:
            parse(config, args=[*without(config, name), *given])
        assert key.rpartition(":")[2] not in str(refused.value), name


def test_the_baselines_files_name_their_command_and_settings_that_exist():
    folder = ROOT / BASELINES.replace(".", "/")
    for path in sorted(folder.glob("*/*.yaml")):
        first = path.read_text().splitlines()[0]
        launcher, method, task = re.search(r"bash (\S+\.sh) (\w+) (\w+)", first).groups()
        assert (ROOT / launcher).is_file() and (method, task) == (path.stem, path.parent.name), first
        assert ("extends: " in path.read_text()) == (folder / path.name).is_file(), path
        (config,) = (config_of(place) for place in FORMER if place.startswith(f"{BASELINES}.{method}:"))
        parse(config, args=without(config, ""), default_config=path)


@pytest.mark.parametrize(
    "value",
    ["http://host/v1?api_key=sk-0123456789abcdefghij#m", "runs/sk-learn-2024-sweep", "hf_llama3_8b_instruct"],
)
def test_an_address_may_hold_a_key_and_a_name_may_look_like_one_from_afar(value):
    assert parse(TaskConfig, args=["--task", value]).task == value


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_gives_the_command_and_the_settings(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [script, "--help"])
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(ROOT / script), run_name="__main__")
    assert left.value.code == 0
    own, _, library = capsys.readouterr().out.partition("settings of trl.")
    assert f"{script}" in own and "\n  --" in own and "--data_path" not in library
    assert ("--logging_steps" in library) == (Path(script).stem in ("train_rm", "sft", "dpo", "scalar_reward"))
    assert "--logging_steps" not in own


def test_other_libraries_names_lead_to_ours_and_dashes_are_underscores():
    needed = ["--model", "m", "--data_path", "d", "--output_dir", "o"]
    for name, ours in (("lr", "learning_rate"), ("batch_size", "per_device_train_batch_size"), ("use_peft", "lora_r")):
        with pytest.raises(InputError, match=f"no setting '{name}'; did you mean {ours}"):
            parse(RewardModelConfig, args=[*needed, f"--{name}", "1"])
    assert parse(RewardModelConfig, args=[*needed, "--learning-rate", "0.5"]).learning_rate == 0.5


def test_the_published_commands_parse():
    assert parse(AnnotateConfig, args=["--data_path", "path/to/data"]).critic_spec == "openai:gpt-4o"
    merge = "--base_model meta-llama/Llama-3.1-8B-Instruct --lora_model ../ckpt/0_4400 --save_dir ../ckpt/0_4400_merge"
    assert parse(MergeConfig, args=shlex.split(f"{merge} --merge_and_save True")).merge_and_save
    infer = (
        "--model_path ../ckpt/0_4400_merge --dataset_path ../data/kodcode_test.json --output_file results.json "
        '--batch_size 40 --prompt_max_length 1000 --max_length 1600 --max_new_tokens 350 --gpu_ids "0,1" '
        '--gpu_memory "30GiB"'
    )
    read = parse(InferConfig, args=shlex.split(infer))
    assert (read.max_length, read.batch_size, read.gpu_ids, read.gpu_memory) == (1600, 40, "0,1", "30GiB")
    assert read.max_new_tokens == 350


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


@pytest.mark.parametrize("kind", [RewardModelConfig, SFTSettings])
def test_number_types_and_full_training_have_two_spellings(kind):
    def given(flags: str) -> RewardModelConfig | SFTSettings:
        return parse(kind, args=[*without(kind, ""), *flags.split()])

    types = [given(f"{flag} {name}") for flag in ("--dtype", "--precision") for name in ("fp32", "float32")]
    assert [each.compute_dtype for each in types] == [torch.float32] * 4
    full = [given(flags) for flags in ("--lora false", "--lora_r 0")]
    assert [(each.lora, each.lora_r, each.weights_dtype) for each in full] == [(False, 0, torch.float32)] * 2
    assert (given("--lora true").lora_r, given("--lora_r 8").lora_r) == (16, 8)
