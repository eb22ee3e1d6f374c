"""The quickstart as a user runs it, with its tiny model: every step real, and a second run repeats none of them."""

import json
import subprocess

from tests.conftest import ROOT


def quickstart(folder):
    command = ["bash", str(ROOT / "quickstart" / "run.sh"), "--smoke", "--run_dir", str(folder)]
    return subprocess.run(command, text=True, capture_output=True, timeout=900, check=False)


def test_smoke_run_ends_with_a_report_and_a_second_one_repeats_nothing(tmp_path):
    first = quickstart(tmp_path)
    assert first.returncode == 0, first.stderr[-3000:]
    assert f"open {tmp_path}/report.html" in first.stdout

    report = json.loads((tmp_path / "report.json").read_text())
    systems = {json.loads(path.read_text())["system"] for path in tmp_path.glob("*.result.json")}
    assert systems == {"base", "text2grad"}
    assert report["tables"] and "<html" in (tmp_path / "report.html").read_text()[:500]
    rollouts = [json.loads(line) for line in (tmp_path / "policy" / "rollouts.jsonl").read_text().splitlines()]
    assert {row["step"] for row in rollouts} == {1, 2, 3}
    assert all(len(row["rewards"]) == len(row["tokens"]) == len(row["advantages"]) for row in rollouts)

    kept = [
        "answers.json.journal.jsonl",
        "annotated.json.journal.jsonl",
        "policy/rollouts.jsonl",
        "policy/metrics.jsonl",
    ]
    before = {name: (tmp_path / name).read_bytes() for name in kept}
    weights = {path: path.stat().st_mtime_ns for path in (tmp_path / "reward_model").glob("*.safetensors")}
    second = quickstart(tmp_path)
    assert second.returncode == 0, second.stderr[-3000:]
    assert {name: (tmp_path / name).read_bytes() for name in kept} == before
    assert {path: path.stat().st_mtime_ns for path in weights} == weights
    assert weights


def test_unknown_option_is_refused():
    command = ["bash", str(ROOT / "quickstart" / "run.sh"), "--fast"]
    result = subprocess.run(command, text=True, capture_output=True, timeout=60, check=False)
    assert result.returncode == 2
    assert "--fast" in result.stderr
