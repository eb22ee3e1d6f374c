"""The shell scripts of stage 3, as they are typed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny_runs import rows


def test_the_launcher_restarts_crashes_but_not_mistakes(tmp_path):
    """A stand-in for train.py that ends with the codes in a file, one per start."""
    (tmp_path / "train.py").write_text(
        "import pathlib, sys\n"
        "codes = pathlib.Path(__file__).with_name('codes')\n"
        "first, *rest = codes.read_text().split()\n"
        "codes.write_text(' '.join(rest))\n"
        "print(*sys.argv[1:])\n"
        "sys.exit(int(first))\n"
    )
    launcher = Path(__file__).parents[2] / "nl_gradient_policy_optimization" / "launch.sh"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

    def launch(codes: str, **settings) -> tuple[int, int]:
        (tmp_path / "codes").write_text(codes)
        variables = {**os.environ, "PATH": path, "PROCESSES": "1", "RESTART_DELAY": "0", **settings}
        command = ["bash", str(launcher), str(tmp_path), "--seed", "3"]
        done = subprocess.run(command, env=variables, text=True, capture_output=True, check=False)
        starts = done.stdout.splitlines()
        assert set(starts) == {f"--config {tmp_path}/config.yaml --seed 3"}
        return done.returncode, len(starts)

    assert launch("0") == (0, 1)
    assert launch("1 137 0") == (0, 3)
    assert launch("2 0") == (2, 1)
    assert launch("1 1 1 1 0") == (1, 4)
    assert launch("1 1 0", MAX_RESTARTS="1") == (1, 2)


@pytest.mark.slow
@pytest.mark.parametrize("zero", [None, 2, 3], ids=["alone", "zero2", "zero3"])
@pytest.mark.parametrize("task", ["slf5k", "kodcode", "ultrafeedback"])
def test_the_tasks_launchers_train_on_real_records(tmp_path, shared_data, task, zero):
    """``train_<task>.sh`` with its own config on SmolLM2, alone and on two DeepSpeed ranks."""
    data = {"slf5k": "posts_with_summaries.json", "kodcode": "*.json", "ultrafeedback": "*.json"}[task]
    stage = Path(__file__).parents[2] / "nl_gradient_policy_optimization"
    ranks = 2 if zero else 1
    settings = {
        "model": "smollm2",
        "data_path": next((shared_data / task).glob(data)),
        "output_dir": tmp_path / "out",
        "critic": "programmatic",
        "max_steps": 2,
        "rollouts_per_device": 2,
        "max_new_tokens": 16,
        "max_prompt_tokens": 350,
        "ppo_epochs": 1,
        "max_critic_failures": 1,
        "report_to": "none",
    }
    if zero:
        settings["deepspeed"] = stage / "deepspeed" / f"zero{zero}_offload.json"
    arguments = [str(part) for name, value in settings.items() for part in (f"--{name}", value)]
    variables = {**os.environ, "PROCESSES": str(ranks), "MAX_RESTARTS": "0", "OMP_NUM_THREADS": "1"}
    variables["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    command = ["bash", str(stage / task / f"train_{task}.sh"), *arguments]
    done = subprocess.run(command, env=variables, text=True, capture_output=True, check=False, timeout=1800)
    assert done.returncode == 0, done.stderr[-3000:]
    assert [row["rollouts"] for row in rows(tmp_path / "out" / "metrics.jsonl")] == [2 * ranks, 4 * ranks]
    assert (tmp_path / "out" / "policy" / "adapter_model.safetensors").is_file()
