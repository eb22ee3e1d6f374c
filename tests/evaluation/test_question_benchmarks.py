"""ARC-Challenge and AlpacaEval: through their own packages, to the figures that an independent sum gives."""

from __future__ import annotations

import importlib.util
import json
import math
import random
import re

import pytest
import torch

from evaluation.results import figures_of, load_result
from evaluation.ultrafeedback.arc_challenge import ArcConfig, check_questions, model_flags
from tests.fault_server import FaultServer
from tests.tiny import tiny_model
from text2grad.errors import InputError
from text2grad.models.answering import AnsweringConfig
from text2grad.records import load_json, save_json

QUESTIONS = "evaluation/ultrafeedback/sample_arc.jsonl"
needs_lm_eval = pytest.mark.skipif(
    not importlib.util.find_spec("lm_eval"), reason="needs lm-eval of requirements-eval.txt"
)
needs_alpaca = pytest.mark.skipif(
    not importlib.util.find_spec("alpaca_eval"), reason="needs alpaca-eval of requirements-eval.txt"
)


def likelihoods(folder: str, question: dict) -> list[float]:
    """log p(choice | question) under the model, by hand."""
    from text2grad.models import load_model, load_tokenizer

    model, tokenizer = load_model(folder, torch.float32), load_tokenizer(folder)
    context = f"Question: {question['question']}\nAnswer:"
    values = []
    for choice in question["choices"]["text"]:
        start, whole = tokenizer.encode(context), tokenizer.encode(f"{context} {choice}")
        logits = model(input_ids=torch.tensor([whole])).logits[0].log_softmax(-1)
        values.append(sum(logits[t - 1, whole[t]].item() for t in range(len(start), len(whole))))
    return values


@needs_lm_eval
@pytest.mark.slow
def test_arc_through_lm_eval_is_the_likeliest_choice_and_goes_on_from_its_cache(run_script, tmp_path):
    folder = tiny_model(tmp_path / "model")
    flags = ["--model", folder, "--dtype", "float32", "--device", "cpu", "--system", "tiny", "--data_path", QUESTIONS]
    flags += ["--output_path", tmp_path / "r.json"]
    first = run_script("evaluation/ultrafeedback/arc_challenge.py", *flags, "--limit", "5")
    assert first.returncode == 0, first.stderr
    whole = run_script("evaluation/ultrafeedback/arc_challenge.py", *flags)
    assert whole.returncode == 0, whole.stderr
    assert "Cached requests: 20" in whole.stderr
    result, questions = load_result(tmp_path / "r.json"), load_json(QUESTIONS)
    assert list(result["records"]) == [question["id"] for question in questions]
    right = []
    for question in questions:
        values = likelihoods(folder, question)
        choice = question["choices"]["label"][values.index(max(values))]
        right.append(choice == question["answerKey"])
        assert result["records"][question["id"]]["acc"] == right[-1], question["id"]
    assert result["metrics"]["acc"]["value"] == pytest.approx(sum(right) / len(right))
    assert result["metrics"]["acc_norm"]["value"] == pytest.approx(result["lm_eval"]["results"]["acc_norm,none"])


def test_the_sample_questions_are_in_arcs_schema():
    check_questions(QUESTIONS)
    assert len({row["id"] for row in load_json(QUESTIONS)}) == 12


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "Q?", "choices": {"text": ["a"], "label": ["A", "B"]}, "answerKey": "A"}, "line 1 lacks"),
        ({"question": "Q?", "choices": {"text": ["a"], "label": ["A"]}, "answerKey": "B"}, "answerKey 'B'"),
        ({"choices": {"text": ["a"], "label": ["A"]}, "answerKey": "A"}, "line 1 lacks question"),
    ],
)
def test_other_schemas_are_refused(tmp_path, row, message):
    save_json(tmp_path / "q.jsonl", [row])
    with pytest.raises(InputError, match=message):
        check_questions(str(tmp_path / "q.jsonl"))


class LogprobJudge(FaultServer):
    """Prefers the longer output: P(first) = σ(Δcharacters / 5), told by log-probabilities as m and M."""

    def completion(self, body: dict) -> dict:
        value = super().completion(body)
        first, second = re.findall(r'"output": """(.*?)"""', body["messages"][-1]["content"], re.DOTALL)
        value["choices"][0]["logprobs"] = {
            "refusal": None,
            "content": [
                {"token": "m", "logprob": 0.0, "bytes": None, "top_logprobs": self.alternatives(first, second)}
            ],
        }
        return value

    @staticmethod
    def alternatives(first: str, second: str) -> list[dict]:
        lead = (len(first) - len(second)) / 5
        told = {"m": -math.log1p(math.exp(-lead)), "M": -math.log1p(math.exp(lead)), "Both": -9.0}
        return [{"token": token, "logprob": value, "bytes": None} for token, value in told.items()]


@pytest.fixture
def outputs(tmp_path) -> dict[str, str]:
    draw = random.Random(0)
    paths = {}
    for name, longest in (("own", 30), ("reference", 25)):
        rows = [
            {"instruction": f"Say {i}.", "output": name[0] * draw.randint(5, longest), "generator": f"{name}-model"}
            for i in range(30)
        ]
        save_json(tmp_path / f"{name}.json", rows)
        paths[name] = str(tmp_path / f"{name}.json")
    return paths


@needs_alpaca
def test_alpaca_evals_win_rate_is_the_mean_of_the_judges_probabilities(outputs, tmp_path):
    from evaluation.ultrafeedback.alpaca_score import AlpacaScoreConfig, score_with_alpaca_eval

    config = {"outputs": outputs["own"], "reference_path": outputs["reference"], "system": "own"}
    config["output_path"] = str(tmp_path / "r.json")
    with LogprobJudge(lambda body: "m") as server:
        result = score_with_alpaca_eval(AlpacaScoreConfig(judge=f"{server.url}#judge", **config))
        assert len(server.requests) == 30
        score_with_alpaca_eval(AlpacaScoreConfig(judge=f"{server.url}#judge", **config))
        assert len(server.requests) == 30  # nothing is asked twice
    lengths = [[len(row["output"]) for row in load_json(outputs[name])] for name in ("own", "reference")]
    expected = [1 / (1 + math.exp(-(own - other) / 5)) for own, other in zip(*lengths, strict=True)]
    assert result["metrics"]["win_rate"]["value"] == pytest.approx(sum(expected) / 30, abs=1e-6)
    assert result["alpaca_eval"]["win_rate"] == pytest.approx(100 * sum(expected) / 30, abs=1e-4)
    assert [result["records"][str(i)]["win_rate"] for i in range(30)] == pytest.approx(expected, abs=1e-6)
    assert result["baseline"] == "reference-model"
    orders = [text.index("o" * 5) < text.index("r" * 5) for text in _shown(server)]
    assert 5 < sum(orders) < 25  # alpaca_eval draws which output stands first
    for name, figure in figures_of(load_result(tmp_path / "r.json")).items():
        assert figure.value() == pytest.approx(result["metrics"][name]["value"]), name


def _shown(server: FaultServer) -> list[str]:
    return [body["messages"][-1]["content"].split("## Model Outputs")[1] for body in server.requests]


@needs_alpaca
def test_a_judge_without_log_probabilities_is_refused_and_failures_are_counted(outputs, tmp_path):
    from evaluation.ultrafeedback.alpaca_score import AlpacaScoreConfig, score_with_alpaca_eval

    config = {"outputs": outputs["own"], "reference_path": outputs["reference"], "system": "own"}
    with FaultServer(lambda body: "m", refuses=("logprobs",)) as server, pytest.raises(InputError, match="no log-prob"):
        score_with_alpaca_eval(
            AlpacaScoreConfig(judge=f"{server.url}#judge", output_path=str(tmp_path / "a.json"), **config)
        )

    class Mute(LogprobJudge):
        def alternatives(self, first: str, second: str) -> list[dict]:
            told = LogprobJudge.alternatives(first, second)
            return told[2:] if len(first) % 3 == 0 else told  # neither m nor M among its likeliest tokens

    with Mute(lambda body: "m") as server:
        result = score_with_alpaca_eval(
            AlpacaScoreConfig(judge=f"{server.url}#judge", output_path=str(tmp_path / "b.json"), **config)
        )
    failures = result["metrics"]["judge_failures"]["value"]
    assert 0.1 < failures < 0.6
    assert result["metrics"]["win_rate"]["n"] == round(30 * (1 - failures))


def test_a_model_answers_the_instructions_of_the_reference_outputs(run_script, outputs, tmp_path):
    model = tiny_model(tmp_path / "model")
    flags = ["--model", model, "--system", "tiny", "--reference_path", outputs["reference"], "--limit", "3"]
    flags += ["--output_path", tmp_path / "o.json", "--max_new_tokens", "5", "--device", "cpu"]
    result = run_script("evaluation/ultrafeedback/alpaca_outputs.py", *flags)
    assert result.returncode == 0, result.stderr
    rows = json.loads((tmp_path / "o.json").read_text())
    assert [row["instruction"] for row in rows] == ["Say 0.", "Say 1.", "Say 2."]
    assert all(row["generator"] == "tiny" and isinstance(row["output"], str) for row in rows)


def test_a_served_model_is_asked_for_log_likelihoods_with_its_tokenizer():
    policy, config = AnsweringConfig(model="tiny", base_url="http://h/v1/"), ArcConfig(system="s", output_path="r.json")
    with pytest.raises(InputError, match="--tokenizer"):
        model_flags(policy, config)
    config.tokenizer = "folder"
    kind, arguments = model_flags(policy, config)[1::2]
    assert kind == "local-completions"
    assert {"base_url=http://h/v1/completions", "tokenizer=folder", "model=tiny"} <= set(arguments.split(","))
