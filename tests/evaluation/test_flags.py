"""Each documented spelling of a flag of evaluation/ sets the same setting, and each script's --help works."""

from __future__ import annotations

from pathlib import Path

import pytest

from evaluation.credit_assignment import CreditConfig
from evaluation.generate import GenerateConfig
from evaluation.judge import WinRateConfig
from evaluation.kodcode.evalplus_samples import EvalPlusSamplesConfig
from evaluation.kodcode.evalplus_score import EvalPlusScoreConfig
from evaluation.kodcode.evaluate import ProgramEvaluationConfig
from evaluation.kodcode.human_eval_data import HumanEvalDataConfig
from evaluation.slf5k.evaluate import SummaryEvaluationConfig
from evaluation.ultrafeedback.alpaca_outputs import AlpacaOutputsConfig
from evaluation.ultrafeedback.alpaca_score import AlpacaScoreConfig
from evaluation.ultrafeedback.arc_challenge import ArcConfig
from evaluation.ultrafeedback.mt_bench_answers import MtBenchAnswersConfig
from evaluation.ultrafeedback.mt_bench_judge import MtBenchGradeConfig
from text2grad.configs import parse
from text2grad.endpoints.judging import JudgeConfig
from text2grad.errors import InputError
from text2grad.models.answering import AnsweringConfig, SamplingConfig

ROOT = Path(__file__).parents[2]
REQUIRED = {
    AnsweringConfig: ["--model", "m"],
    SamplingConfig: [],
    GenerateConfig: ["--task", "slf5k", "--data_path", "d", "--output_path", "o"],
    WinRateConfig: [
        *("--task", "slf5k", "--data_path", "d", "--system", "s", "--baseline", "b"),
        *("--baseline_system", "b", "--output_path", "o"),
    ],
    SummaryEvaluationConfig: ["--data_path", "d", "--system", "s", "--output_path", "o"],
    ProgramEvaluationConfig: ["--data_path", "d", "--system", "s", "--output_path", "o"],
    CreditConfig: ["--rollouts", "r", "--output_path", "o"],
    EvalPlusSamplesConfig: ["--dataset", "mbpp", "--output_path", "o.jsonl"],
    EvalPlusScoreConfig: ["--dataset", "mbpp", "--samples", "p", "--system", "s", "--output_path", "o"],
    HumanEvalDataConfig: ["--output_path", "o"],
    AlpacaOutputsConfig: ["--system", "s", "--output_path", "o"],
    AlpacaScoreConfig: ["--outputs", "p", "--system", "s", "--output_path", "o", "--judge", "j"],
    ArcConfig: ["--system", "s", "--output_path", "o"],
    MtBenchAnswersConfig: ["--questions", "q", "--system", "s", "--output_path", "o"],
    MtBenchGradeConfig: ["--questions", "q", "--answers", "a", "--system", "s", "--output_path", "o"],
    JudgeConfig: ["--judge", "j"],
}
OUTPUT = ("output_path", "output_file", "output")
ALIASES = [
    (AnsweringConfig, "model", "model_path", "x"),
    (AnsweringConfig, "dtype", "precision", "float16"),
    (SamplingConfig, "max_new_tokens", "max_response_tokens", 7),
    (SamplingConfig, "max_new_tokens", "max_tokens", 7),
    (GenerateConfig, "max_prompt_tokens", "prompt_max_length", 7),
    (WinRateConfig, "judge_prompt", "prompt_file", "x"),
    (SummaryEvaluationConfig, "critic", "annotator", "x"),
    (CreditConfig, "rollouts", "data_path", "x"),
    (EvalPlusSamplesConfig, "data_path", "dataset_path", "x"),
    (EvalPlusScoreConfig, "data_path", "dataset_path", "x"),
    (AlpacaScoreConfig, "outputs", "data_path", "x"),
    (MtBenchAnswersConfig, "questions", "data_path", "x"),
    (MtBenchGradeConfig, "answers", "data_path", "x"),
    (JudgeConfig, "judge_max_new_tokens", "judge_tokens", 7),
    *((kind, "data_path", alias, "x") for kind in (WinRateConfig, SummaryEvaluationConfig, ProgramEvaluationConfig)
      for alias in ("responses", "dataset_path", "input_file")),
    *((kind, "data_path", alias, "x") for kind in (GenerateConfig, ArcConfig)
      for alias in ("dataset_path", "input_file")),
    *((kind, "output_path", alias, "x.jsonl") for kind in REQUIRED if "--output_path" in REQUIRED[kind]
      for alias in ("output_file", "output")),
]  # fmt: skip
SCRIPTS = sorted(
    path.relative_to(ROOT)
    for path in (ROOT / "evaluation").rglob("*.py")
    if path.name != "suite.py" and '__name__ == "__main__"' in path.read_text()
)


@pytest.mark.parametrize(("kind", "name", "alias", "value"), ALIASES)
def test_an_alias_sets_the_same_setting_on_the_command_line_and_in_yaml(tmp_path, kind, name, alias, value):
    flags = REQUIRED[kind]
    at = flags.index(f"--{name}") if f"--{name}" in flags else len(flags)
    others = [*flags[:at], *flags[at + 2 :]]
    assert getattr(parse(kind, args=[*others, f"--{alias}", str(value)]), name) == value
    (tmp_path / "settings.yaml").write_text(f"{alias}: {value}\n")
    assert getattr(parse(kind, args=[*others, "--config", str(tmp_path / "settings.yaml")]), name) == value


@pytest.mark.parametrize(
    ("kind", "flag", "value"),
    [(AnsweringConfig, "dtype", "half"), (EvalPlusScoreConfig, "dataset", "apps"), (WinRateConfig, "orders", "three")],
)
def test_a_value_that_is_no_choice_is_refused(tmp_path, capsys, kind, flag, value):
    flags = [part for part in REQUIRED[kind] if part not in ("--dataset", "mbpp")]
    with pytest.raises(SystemExit) as error:
        parse(kind, args=[*flags, f"--{flag}", value])
    assert error.value.code == 2 and "invalid choice" in capsys.readouterr().err
    (tmp_path / "settings.yaml").write_text(f"{flag}: {value}\n")
    with pytest.raises(InputError, match="does not exist; choose one of"):
        parse(kind, args=[*flags, "--config", str(tmp_path / "settings.yaml")])


def test_every_script_explains_its_own_settings(run_script):
    for script in SCRIPTS:
        done = run_script(script, "--help")
        assert done.returncode == 0, (script, done.stderr)
        assert f"python {script}" in done.stdout, script
        assert "--output_path" in done.stdout, script
