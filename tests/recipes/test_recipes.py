"""The recipes: their commands are ones that the stages take, and the small version of each ends in a report."""

import json
import shlex
from pathlib import Path

import pytest

from nl_gradient_policy_optimization.config import PolicyConfig
from tests.processes import ROOT, run_command
from text2grad.configs import parse

METHODS = {
    "slf5k": {"sft", "text2grad", "ppo", "ppo_delta", "prm_ppo", "dpo", "reflect"},
    "kodcode": {"base", "sft", "text2grad", "ppo", "ppo_delta", "prm_ppo", "dpo", "reflect"},
    "ultrafeedback": {"sft", "text2grad", "ppo", "ppo_delta", "dpo", "reflect"},
}
"""The systems of each task's table; UltraFeedback has no steps, so no PRM-PPO."""


def recipe(task: str, *flags: str, code: int = 0) -> str:
    return run_command("bash", ROOT / "recipes" / f"{task}.sh", *flags, code=code, timeout=3000).stdout


@pytest.mark.parametrize("task", METHODS)
@pytest.mark.parametrize("flags", [(), ("--smoke",)], ids=["full", "smoke"])
def test_each_line_is_a_command_of_its_own(task, flags):
    printed = recipe(task, "--print", *flags).splitlines()
    lines = [shlex.split(line.removeprefix("$ ")) for line in printed if line.startswith("$ ")]
    assert len(lines) > 15
    for line in lines:
        assert line[0] in ("python", "bash") and (ROOT / line[1]).is_file()
        if line[1].endswith("3_metrics.py"):  # tokens are those of the policy that is to be trained
            assert Path(line[line.index("--tokenizer") + 1]).name in ("Llama-3.1-8B-Instruct", "tiny_model")
    policies = [line for line in lines if line[1].endswith(f"train_{task}.sh") and "policy" in line[1]]
    policies += [line for line in lines if line[1].endswith("run.sh") and line[2] in ("ppo", "ppo_delta", "prm_ppo")]
    assert {Path(line[line.index("--output_dir") + 1]).name for line in policies} == METHODS[task] & {
        "text2grad", "ppo", "ppo_delta", "prm_ppo"
    }  # fmt: skip
    for line in policies:
        words = line[4:] if line[1].endswith("run.sh") else line[2:]
        if "--reward_model" in words:
            at = words.index("--reward_model")
            words = words[:at] + words[at + 2 :]
        own = str(ROOT / "nl_gradient_policy_optimization" / task / "config.yaml")
        parse(PolicyConfig, args=["--config", own, *words]).check()
    measured = {line[line.index("--system") + 1] for line in lines if "--system" in line}
    assert measured == METHODS[task]


def test_an_unknown_option_is_refused():
    recipe("slf5k", "--fast", code=2)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("task", METHODS)
def test_the_small_version_measures_every_method_and_repeats_nothing(task, tmp_path):
    """Every method is in the report, side by side, and two processes sampled what policies learnt."""
    recipe(task, "--smoke", "--run_dir", str(tmp_path))
    results = [json.loads(file.read_text()) for file in (tmp_path / "evaluation").rglob("result.json")]
    assert {result["system"] for result in results} == METHODS[task]
    report = json.loads((tmp_path / "report.json").read_text())
    assert {system["name"] for system in report["tables"][0]["systems"]} == METHODS[task]
    assert "<html" in (tmp_path / "report.html").read_text()[:500]
    manifest = json.loads((tmp_path / "data" / "manifest.json").read_text())
    assert bool(manifest["shared"]) == (task == "slf5k")
    for method in {"text2grad", "ppo", "ppo_delta", "prm_ppo"} & METHODS[task]:
        rows = [json.loads(line) for line in (tmp_path / method / "rollouts.jsonl").read_text().splitlines()]
        assert {row["step"] for row in rows} == {1, 2} and len(rows) == 2 * 2 * 2
    assert list(tmp_path.rglob("adapter_model.safetensors"))
    kept = {file: file.read_bytes() for file in tmp_path.rglob("rollouts.jsonl")}
    assert kept
    recipe(task, "--smoke", "--run_dir", str(tmp_path))
    assert {file: file.read_bytes() for file in kept} == kept
