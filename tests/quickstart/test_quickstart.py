"""The quickstart as a user runs it, with its tiny model: every step real, and a second run repeats none of them."""

import json
import os
import subprocess

import torch

from nl_reward_model.train_rm import train
from tests.conftest import ROOT
from tests.reward_records import settings, slf5k_records, write
from text2grad.critics.reward_model.critic import RewardModelCritic
from text2grad.models import load_model


def quickstart(folder, variables):
    command = ["bash", str(ROOT / "quickstart" / "run.sh"), "--smoke", "--run_dir", str(folder)]
    environment = os.environ | variables
    return subprocess.run(command, env=environment, text=True, capture_output=True, timeout=900, check=False)


def test_smoke_run_ends_with_a_report_and_a_second_one_repeats_nothing(tmp_path, warm):
    first = quickstart(tmp_path, warm.variables)
    assert first.returncode == 0, first.stderr[-3000:]
    assert f"open {tmp_path}/report.html" in first.stdout and "next: " not in first.stdout

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
    second = quickstart(tmp_path, {})  # as a user starts it
    assert second.returncode == 0, second.stderr[-3000:]
    assert {name: (tmp_path / name).read_bytes() for name in kept} == before
    assert {path: path.stat().st_mtime_ns for path in weights} == weights
    assert weights


def test_a_shipped_adapter_is_the_reward_model_in_half_the_size(tmp_path, run_script):
    train("slf5k", settings(tmp_path, write(tmp_path, slf5k_records()), lora_r=4, learning_rate=1e-2))
    made, shipped = tmp_path / "reward_model", tmp_path / "shipped"
    done = run_script("quickstart/ship.py", made, shipped)
    assert done.returncode == 0, done.stderr
    sizes = [(folder / "adapter_model.safetensors").stat().st_size for folder in (made, shipped)]
    assert sizes[1] < 0.7 * sizes[0]
    ids = torch.arange(4, 60)[None]
    with torch.no_grad():
        logits = [load_model(str(folder), "float32")(ids).logits for folder in (made, shipped)]
    torch.testing.assert_close(logits[1], logits[0], atol=2e-2, rtol=0)
    assert RewardModelCritic.load(shipped, "slf5k", max_new_tokens=3)(["a post"], ["A summary."])


def test_unknown_option_is_refused():
    command = ["bash", str(ROOT / "quickstart" / "run.sh"), "--fast"]
    result = subprocess.run(command, text=True, capture_output=True, timeout=60, check=False)
    assert result.returncode == 2
    assert "--fast" in result.stderr
