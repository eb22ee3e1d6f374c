"""ARC-Challenge, AlpacaEval and MT-Bench: through their own packages or ways, to figures that a sum gives."""

import importlib.util
import json
import math
import os
import random
import re
import signal
from types import SimpleNamespace

import pytest
import torch

from evaluation.results import compare, figures_of, load_result
from evaluation.ultrafeedback import alpaca_outputs, alpaca_score, mt_bench, mt_bench_answers
from evaluation.ultrafeedback.arc_challenge import ArcConfig, check_questions, model_flags
from evaluation.ultrafeedback.mt_bench_judge import MtBenchGradeConfig, grade, rating_figures
from tests.fault_server import FaultServer
from tests.tiny import reference_logprobs, tiny_model
from text2grad.endpoints.client import ChatClient
from text2grad.endpoints.judging import JudgeConfig, open_judge
from text2grad.errors import InputError, command
from text2grad.models import load_model, load_tokenizer
from text2grad.models.answering import AnsweringConfig
from text2grad.records import load_json, save_json
from text2grad.tasks.base import content_id

QUESTIONS = "evaluation/ultrafeedback/sample_arc.jsonl"
needs_alpaca = pytest.mark.skipif(
    not importlib.util.find_spec("alpaca_eval"), reason="needs alpaca-eval of requirements-eval.txt"
)


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("lm_eval"), reason="needs lm-eval of requirements-eval.txt")
def test_arc_through_lm_eval_is_the_likeliest_choice_and_goes_on_from_its_cache(run_script, tmp_path):
    folder = tiny_model(tmp_path / "model")
    flags = ["--model", folder, "--dtype", "float32", "--device", "cpu", "--system", "tiny", "--data_path", QUESTIONS]
    flags += ["--output_path", tmp_path / "r.json"]
    run_script("evaluation/ultrafeedback/arc_challenge.py", *flags, "--limit", "5")
    whole = run_script("evaluation/ultrafeedback/arc_challenge.py", *flags)
    assert "Cached requests: 20" in whole.stderr
    result, questions = load_result(tmp_path / "r.json"), load_json(QUESTIONS)
    assert list(result["records"]) == [question["id"] for question in questions]
    model, tokenizer, right = load_model(folder, torch.float32), load_tokenizer(folder), []
    for question in questions:  # log p(choice | question) by hand
        context = f"Question: {question['question']}\nAnswer:"
        start = tokenizer.encode(context)
        wholes = [tokenizer.encode(f"{context} {choice}") for choice in question["choices"]["text"]]
        values = [float(reference_logprobs(model, start, whole[len(start) :]).sum()) for whole in wholes]
        choice = question["choices"]["label"][values.index(max(values))]
        right.append(choice == question["answerKey"])
        assert result["records"][question["id"]]["acc"] == right[-1], question["id"]
    assert result["metrics"]["acc"]["value"] == pytest.approx(sum(right) / len(right))
    assert result["metrics"]["acc_norm"]["value"] == pytest.approx(result["lm_eval"]["results"]["acc_norm,none"])


def test_the_sample_questions_are_in_arcs_schema():
    check_questions(QUESTIONS)
    assert len({row["id"] for row in load_json(QUESTIONS)}) == 12


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"choices": {"text": ["a"], "label": ["A", "B"]}}, "line 2 lacks"),
        ({"answerKey": "B"}, "line 2: answerKey 'B'"),
        ({"question": None}, "line 2 lacks question"),
        ({"id": "q1"}, "line 2: its id 'q1' is an earlier"),
    ],
)
def test_other_schemas_are_refused(tmp_path, changed, message):
    row = {"id": "q1", "question": "Q?", "choices": {"text": ["a"], "label": ["A"]}, "answerKey": "A"}
    save_json(tmp_path / "q.jsonl", [row, row | {"id": "q2"} | changed])
    with pytest.raises(InputError, match=message):
        check_questions(str(tmp_path / "q.jsonl"))


class LogprobJudge(FaultServer):
    """Prefers the longer output: P(first) = σ(Δcharacters / 5), told by log-probabilities as m and M."""

    def completion(self, body: dict) -> dict:
        value = super().completion(body)
        first, second = re.findall(r'"output": """(.*?)"""', body["messages"][-1]["content"], re.DOTALL)
        likeliest = {"token": "m", "logprob": 0.0, "bytes": None, "top_logprobs": self.alternatives(first, second)}
        value["choices"][0]["logprobs"] = {"refusal": None, "content": [likeliest]}
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


def scored_by_alpaca_eval(server: FaultServer, outputs: dict, output_path) -> dict:
    given = {"judge": f"{server.url}#judge", "outputs": outputs["own"], "reference_path": outputs["reference"]}
    config = alpaca_score.AlpacaScoreConfig(**given, system="own", output_path=str(output_path))
    return alpaca_score.score_with_alpaca_eval(config)


def test_a_system_that_lacks_an_answer_is_compared_on_the_others_instructions(tmp_path):
    found = {}
    for system, first in (("all", 0), ("one fewer", 1)):
        own = [{"instruction": f"Say {i}.", "output": f"It says {i}."} for i in range(first, 6)]
        judged = [{"instruction": row["instruction"], "preference": 1.0 + (i % 2)} for i, row in enumerate(own, first)]
        given = {"judge": "http://h/v1#j", "outputs": "o", "output_path": str(tmp_path / f"{system}.json")}
        client = SimpleNamespace(budget=SimpleNamespace(spent=0.0))
        config = alpaca_score.AlpacaScoreConfig(**given, system=system)
        found[system] = figures_of(alpaca_score._result(config, own, judged, {}, "reference", client))
    compared = compare(found["one fewer"], found["all"])["win_rate"]
    assert (compared["difference"], compared["low"], compared["high"], compared["n"]) == (0, 0, 0, 5)


@needs_alpaca
def test_alpaca_evals_win_rate_is_the_mean_of_the_judges_probabilities(outputs, tmp_path):
    with LogprobJudge(lambda body: "m") as server:
        result = scored_by_alpaca_eval(server, outputs, tmp_path / "r.json")
        assert len(server.requests) == 30
        scored_by_alpaca_eval(server, outputs, tmp_path / "r.json")
        assert len(server.requests) == 30  # nothing is asked twice
    lengths = [[len(row["output"]) for row in load_json(outputs[name])] for name in ("own", "reference")]
    expected = [1 / (1 + math.exp(-(own - other) / 5)) for own, other in zip(*lengths, strict=True)]
    assert result["metrics"]["win_rate"]["value"] == pytest.approx(sum(expected) / 30, abs=1e-6)
    assert result["alpaca_eval"]["win_rate"] == pytest.approx(100 * sum(expected) / 30, abs=1e-4)
    keys = [content_id("instruction", f"Say {i}.") for i in range(30)]
    assert [result["records"][key]["win_rate"] for key in keys] == pytest.approx(expected, abs=1e-6)
    assert result["baseline"] == "reference-model"
    shown = [body["messages"][-1]["content"].split("## Model Outputs")[1] for body in server.requests]
    orders = [text.index("o" * 5) < text.index("r" * 5) for text in shown]
    assert 5 < sum(orders) < 25  # alpaca_eval draws which output stands first


@needs_alpaca
def test_a_judge_without_log_probabilities_is_refused_and_failures_are_counted(outputs, tmp_path, capsys):
    with FaultServer(lambda body: "m", refuses=("logprobs",)) as server, pytest.raises(InputError, match="no log-prob"):
        scored_by_alpaca_eval(server, outputs, tmp_path / "a.json")

    class Mute(LogprobJudge):
        def alternatives(self, first: str, second: str) -> list[dict]:
            told = LogprobJudge.alternatives(first, second)
            return told[2:] if len(first) % 3 == 0 else told  # neither m nor M among its likeliest tokens

        def completion(self, body: dict) -> dict:
            value = super().completion(body)
            if "Say 0." in body["messages"][-1]["content"]:  # filtered: no token at all
                value["choices"][0] |= {"finish_reason": "content_filter", "logprobs": {"content": []}}
            return value

    def flagged(body: dict) -> tuple[int, dict, bytes] | None:
        return (400, {}, b'{"error": {"message": "flagged"}}') if "Say 1." in body["messages"][-1]["content"] else None

    with Mute(lambda body: "m", raw=flagged) as server:
        result = scored_by_alpaca_eval(server, outputs, tmp_path / "b.json")
    told = capsys.readouterr().out
    assert "2 judgements failed, e.g. " in told and ("has no log-prob" in told or "flagged" in told)
    assert result["records"][content_id("instruction", "Say 0.")]["judge_failures"] == 1
    failures = result["metrics"]["judge_failures"]["value"]
    assert 0.1 < failures < 0.6
    assert result["metrics"]["win_rate"]["n"] == round(30 * (1 - failures))


@needs_alpaca
def test_nothing_is_asked_again_after_a_signal():
    alpaca_score.import_alpaca_eval()
    limited = {"faults": ["429"], "rate": 1, "on_request": lambda body: os.kill(os.getpid(), signal.SIGTERM)}
    with FaultServer(lambda body: "m", **limited) as server, pytest.raises(SystemExit):
        client = ChatClient.from_spec(f"{server.url}#judge", retries=1)
        command(alpaca_score.completions_by(client, {}))(["<|im_start|>user\nWhich?<|im_end|>"])
    assert len(server.requests) == 1


def test_a_model_answers_the_instructions_of_the_reference_outputs(run_script, refused, outputs, tmp_path):
    model = tiny_model(tmp_path / "model")
    flags = ["--model", model, "--system", "tiny", "--reference_path", outputs["reference"], "--limit", "3"]
    flags += ["--output_path", tmp_path / "o.json", "--max_new_tokens", "5", "--device", "cpu"]
    words = tmp_path / "model" / "policy_prompt.txt"  # which the policy was trained with
    words.write_text("Answer.")
    assert f"{words}: lacks ${{prompt}}" in refused(alpaca_outputs.main, *flags)
    words.unlink()
    run_script("evaluation/ultrafeedback/alpaca_outputs.py", *flags)
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


# MT-Bench


GRADES = {"math": 3, "coding": 5, "writing": 8, "stem": 6}


@pytest.fixture
def files(tmp_path) -> dict[str, str]:
    numbered = list(enumerate(GRADES, start=81))

    def turns(*texts: str) -> list[dict]:
        said = {number: [text.format(name) for text in texts] for number, name in numbered}
        return [{"question_id": number, "choices": [{"turns": each}]} for number, each in said.items()]

    rows = {
        "questions": [
            {"question_id": number, "category": name, "turns": [f"First {name} question?", f"Second {name} question?"]}
            for number, name in numbered
        ],
        "references": turns("Right one of {}.", "Right two of {}."),
        "answers": turns("Answer one, {}.", "Answer two, {}."),
    }
    paths = {name: str(tmp_path / f"{name}.jsonl") for name in rows}
    for name, path in paths.items():
        save_json(path, rows[name])
    return paths


def grades_by_category(body: dict) -> str:
    text = body["messages"][0]["content"]
    grade = GRADES[re.search(r"First (\w+) question", text)[1]] + ("SECOND QUESTION" in text)
    return f"It could be [[1]] or better; all in all:\n[[{grade}]]"


def graded(server: FaultServer, files: dict, output, **options) -> dict:
    config = {"system": "s", "output_path": str(output), "references": files["references"], **options}
    with open_judge(JudgeConfig(judge=f"{server.url}#m"), output) as judge:
        return grade(judge, MtBenchGradeConfig(questions=files["questions"], answers=files["answers"], **config))


def test_grades_by_turn_and_category_with_references_where_mt_bench_has_them(files, tmp_path):
    with FaultServer(grades_by_category) as server:
        result = graded(server, files, tmp_path / "r.json")
        assert len(server.requests) == 2 * len(GRADES)
        graded(server, files, tmp_path / "r.json")
        assert len(server.requests) == 2 * len(GRADES)  # nothing is asked twice
    metrics = {name: metric["value"] for name, metric in result["metrics"].items()}
    mean = sum(GRADES.values()) / len(GRADES)
    assert metrics["score"] == mean + 0.5
    assert metrics["score_turn_1"] == mean and metrics["score_turn_2"] == mean + 1
    assert {name: metrics[f"score_{name}"] - 0.5 for name in GRADES} == GRADES
    assert metrics["judge_failures"] == 0
    for body in server.requests:
        text = body["messages"][0]["content"]
        category, second = re.search(r"First (\w+) question", text)[1], "SECOND QUESTION" in text
        with_reference = category in ("math", "coding")
        assert (f"Right one of {category}." in text) == with_reference
        assert (f"Right two of {category}." in text) == (with_reference and second)
        assert (f"Answer two, {category}." in text) == second
        assert f"Answer one, {category}." in text


def test_a_missing_reference_is_an_error_not_a_different_benchmark(files, tmp_path):
    save_json(files["references"], load_json(files["references"])[1:])
    with FaultServer(grades_by_category) as server:
        with pytest.raises(InputError, match=r"no reference answer to question 81 \(math\)"):
            graded(server, files, tmp_path / "r.json")
        with pytest.raises(InputError, match="--references is missing"):
            graded(server, files, tmp_path / "r.json", references=None)
        result = graded(server, files, tmp_path / "r.json", references=None, without_references=True)
    assert result["metrics"]["score"]["n"] == 4
    assert not any("Right" in body["messages"][0]["content"] for body in server.requests)


def test_replies_without_a_grade_are_counted_and_left_out(files, tmp_path):
    def answer(body: dict) -> str:
        return "No grade." if "SECOND QUESTION" in body["messages"][0]["content"] else grades_by_category(body)

    with FaultServer(answer) as server:
        result = graded(server, files, tmp_path / "r.json")
    assert result["metrics"]["judge_failures"]["value"] == 0.5
    assert result["metrics"]["score"]["value"] == result["metrics"]["score_turn_1"]["value"]
    assert "score_turn_2" not in result["metrics"]


def test_fastchats_own_prompts_can_be_used(files, tmp_path):
    template = "[Q]\n{question}\n[A]\n{answer}\n$5 [[rating]]"
    templates = {
        "single-v1": template,
        "single-math-v1": template + "{ref_answer_1}",
        "single-v1-multi-turn": "{question_1}{answer_1}{question_2}{answer_2}",
        "single-math-v1-multi-turn": "{question_1}{ref_answer_1}{question_2}{ref_answer_2}{answer_1}{answer_2}",
    }
    rows = [{"name": name, "system_prompt": "", "prompt_template": text} for name, text in templates.items()]
    rows[0]["system_prompt"] = "Be fair."
    save_json(tmp_path / "prompts.jsonl", rows)
    prompts = mt_bench.load_judge_prompts(str(tmp_path / "prompts.jsonl"))
    fields = {f"{kind}_{n}": f"{kind}_{n}".upper() for kind in ("question", "answer", "reference") for n in (1, 2)}
    assert prompts[1, False].fill(fields) == "Be fair.\n\n[Q]\nQUESTION_1\n[A]\nANSWER_1\n$5 [[rating]]"
    assert prompts[2, True].fill(fields) == "QUESTION_1REFERENCE_1QUESTION_2REFERENCE_2ANSWER_1ANSWER_2"
    with FaultServer(lambda body: "[[4]]") as server:
        result = graded(server, files, tmp_path / "r.json", judge_prompts=str(tmp_path / "prompts.jsonl"))
    assert result["metrics"]["score"]["value"] == 4
    del rows[1]["prompt_template"]
    save_json(tmp_path / "prompts.jsonl", rows)
    with pytest.raises(InputError, match="lacks the prompt 'single-math-v1'"):
        mt_bench.load_judge_prompts(str(tmp_path / "prompts.jsonl"))


def test_the_last_grade_counts_and_what_is_none_is_refused():
    assert mt_bench.read_rating("[[2]] would be harsh, so [[ 7.5 ]]")["rating"] == 7.5
    for reply in ("", "Seven.", "[[0]]", "[[11]]", "[7"):
        with pytest.raises(ValueError):
            mt_bench.read_rating(reply)


def test_categories_outside_mt_benchs_are_reported_too():
    figures = rating_figures({"1": "math", "2": "cooking"}, {"1|1": 4.0, "1|2": 6.0, "2|1": 9.0})
    assert figures["score_math"].value() == 5 and figures["score_cooking"].value() == 9
    assert figures["score"].value() == pytest.approx(19 / 3)
    assert figures["judge_failures"].value() == 0.25


def test_a_served_policy_answers_the_second_turn_with_the_first_in_view(run_script, refused, files, tmp_path):
    def answer(body: dict) -> str:
        return f"Reply {len(body['messages'])} to {body['messages'][-1]['content']}"

    (tmp_path / "policy_prompt.txt").write_text("Please: ${prompt}")  # which it was trained with
    with FaultServer(answer) as server:
        flags = ["--questions", files["questions"], "--model", tmp_path, "--base_url", server.url, "--system", "s"]
        run_script("evaluation/ultrafeedback/mt_bench_answers.py", *flags, "--output_path", tmp_path / "a.jsonl")
        asked = len(server.requests)
        run_script("evaluation/ultrafeedback/mt_bench_answers.py", *flags, "--output_path", tmp_path / "a.jsonl")
        assert len(server.requests) == asked == 2 * len(GRADES)
    given = [*flags, "--output_path", tmp_path / "b.jsonl", "--temperature", "0"]  # which is MT-Bench's to say
    assert "no setting 'temperature'" in refused(mt_bench_answers.main, *given)
    for row, name in zip(load_json(tmp_path / "a.jsonl"), GRADES, strict=True):
        first, second = f"Please: First {name} question?", f"Second {name} question?"
        assert row["choices"][0]["turns"] == [f"Reply 1 to {first}", f"Reply 3 to {second}"]
        bodies = [body for body in server.requests if body["messages"][0]["content"] == first]
        assert {body["temperature"] for body in bodies} == {mt_bench.TEMPERATURES.get(name, 0.0)}
        assert bodies[1]["messages"][1] == {"role": "assistant", "content": f"Reply 1 to {first}"}


def test_fastchats_question_file_is_read(shared_data):
    questions = mt_bench.load_questions(str(shared_data / "mt_bench" / "question.jsonl"))
    assert len(questions) == 80
    assert {question["category"] for question in questions.values()} == set(mt_bench.CATEGORIES)


def test_other_files_are_refused(tmp_path):
    for row in ({"question_id": 1, "turns": ["one"]}, {"question_id": 1, "category": [], "turns": ["one", "two"]}):
        save_json(tmp_path / "q.jsonl", [row])
        with pytest.raises(InputError, match=r"q\.jsonl: line 1 lacks"):
            mt_bench.load_questions(str(tmp_path / "q.jsonl"))
    save_json(tmp_path / "two.jsonl", [{"question_id": 1, "choices": [{"turns": [a, a]}]} for a in "ab"])
    with pytest.raises(InputError, match=r"two\.jsonl: question 1 comes 2 times"):
        mt_bench.load_answers(str(tmp_path / "two.jsonl"))
