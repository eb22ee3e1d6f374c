"""The quickstart as a user runs it, with its tiny model: every step real, and a second run repeats none of them."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from quickstart.run import arguments
from tests.processes import ROOT, run_command
from text2grad.records import load_json


def test_smoke_run_ends_with_a_report_and_a_second_one_repeats_nothing(tmp_path, run_script):
    run = tmp_path / "run"
    first = run_script("quickstart/run.py", "--smoke", "--run_dir", run)
    assert f"open {run}/report.html" in first.stdout and "next: " not in first.stdout
    assert "mean nothing" in first.stdout

    report = load_json(run / "report.json")
    systems = {load_json(path)["system"] for path in run.glob("*.result.json")}
    assert systems == {"base", "text2grad"}
    assert report["tables"] and "<html" in (run / "report.html").read_text()[:500]
    rollouts = load_json(run / "policy" / "rollouts.jsonl")
    assert {row["step"] for row in rollouts} == {1, 2, 3}
    assert all(len(row["rewards"]) == len(row["tokens"]) == len(row["advantages"]) for row in rollouts)

    kept = [run / f"{name}.json.journal.jsonl" for name in ("answers", "annotated")]
    kept += [run / "policy/rollouts.jsonl", run / "policy/metrics.jsonl"]
    before = {path: path.read_bytes() for path in kept}
    weights = {path: path.stat().st_mtime_ns for path in (run / "reward_model").glob("*.safetensors")}
    run_script("quickstart/run.py", "--smoke", "--run_dir", run)
    assert {path: path.read_bytes() for path in kept} == before
    assert weights and {path: path.stat().st_mtime_ns for path in weights} == weights


def test_the_code_tour_trains_on_unit_tests_and_ends_with_a_report(tmp_path, run_script):
    run = tmp_path / "run"
    told = run_script("quickstart/run.py", "--code", "--smoke", "--run_dir", run)
    assert f"open {run}/report.html" in told.stdout
    rows = load_json(run / "policy" / "rollouts.jsonl")
    assert all(row["critique"].startswith("Wrong. No test can run.") for row in rows)  # noise is no program
    assert all(row["verdict"] == -1 and row["poor"] for row in rows)
    results = [load_json(run / f"held_out.{system}.result.json") for system in ("base", "text2grad")]
    assert [result["metrics"]["pass@1"]["value"] for result in results] == [0, 0]
    assert all(sum(result["errors"].values()) == 2 for result in results)


def test_each_sample_question_has_a_solution_that_its_own_tests_pass():
    """The tests are plain functions: what the sandbox would do is not asked here."""
    train, test = (load_json(ROOT / f"quickstart/data/code_{name}.json") for name in ("train", "test"))
    assert not {record["question_id"] for record in train} & {record["question_id"] for record in test}
    for record in train + test:
        space = {}
        exec(record["solution"], space)
        exec(record["test"].replace("from solution import", "# tests"), space)
        tests = [value for name, value in space.items() if name.startswith("test_")]
        assert len(tests) >= 2
        for test in tests:
            test()


def test_the_shell_script_sets_up_and_hands_its_options_on(tmp_path):
    """An environment with nothing to install: this one. Were there something, its Python would fail."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(shutil.which("false"))
    (tmp_path / "bin" / "activate").write_text(f'PATH="{Path(sys.executable).parent}:$PATH"\n')
    files = "requirements.txt requirements.lock pyproject.toml env.sh text2grad/__init__.py"
    stamp = subprocess.run(f"cat {files} | cksum", shell=True, cwd=ROOT, capture_output=True, text=True, check=True)
    (tmp_path / ".installed").write_text(f"{stamp.stdout}{ROOT}\n")
    told = run_command("bash", "quickstart/run.sh", "--help", VENV=str(tmp_path))
    assert "--smoke" in told.stdout


def test_a_critic_is_named_from_where_the_command_is_given(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").touch()
    (tmp_path / "reward_model").mkdir()
    for given in ("programmatic", "reward_model", "openai:gpt-4o", "http://localhost:8000/v1#m"):
        assert arguments(["--critic", given]).critic == given
    assert arguments(["--critic", "mine.py:judge"]).critic == f"{tmp_path}/mine.py:judge"
    for given in ("nowhere", "nowhere.py:judge"):
        with pytest.raises(SystemExit):
            arguments(["--critic", given])
        assert f"there is no critic '{given}'" in capsys.readouterr().err


@pytest.mark.parametrize("script", ["run.py", "tiny_model.py"])
def test_help_and_an_unknown_option_write_nothing(script, run_script):
    told = run_script(f"quickstart/{script}", "--help")
    assert "usage: " in told.stdout
    refused = run_script(f"quickstart/{script}", "--fast", code=2)
    assert "usage: " in refused.stderr
    assert not (ROOT / "--help").exists()
