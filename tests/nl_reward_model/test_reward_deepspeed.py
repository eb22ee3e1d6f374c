"""The shell scripts under DeepSpeed: two CPU ranks, ZeRO-2 and ZeRO-3 with offload, against one process."""

import json
import time
from pathlib import Path
from subprocess import Popen

import pytest
import torch
from safetensors.torch import load_file

from tests.processes import ROOT, all_said, cut_power, flags, free_port, start_command
from tests.reward_records import RECORDS, losses, prompt_file, same_result, write
from tests.tiny import tiny_model
from text2grad.critics.reward_model.critic import RewardModelCritic

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def arguments(folder: Path, task_name: str, output: str, **changes) -> list[str]:
    model = folder / "model"
    values = {
        "data_path": write(folder, RECORDS[task_name]()), "output_dir": folder / output,
        "model": model if model.exists() else tiny_model(model),
        "config": f"{ROOT}/nl_reward_model/{task_name}/config_small.yaml", "prompt": prompt_file(folder),
        "precision": "fp32", "max_steps": 3, "per_device_train_batch_size": 1, "gradient_accumulation_steps": 1,
        "train_sampling_strategy": "random", "logging_steps": 1, "save_strategy": "steps", "save_steps": 2,
        "eval_strategy": "no", "load_best_model_at_end": False, "judge_records": 1, "report_to": "none",
    } | changes  # fmt: skip
    return flags(**values)


def launch(task_name: str, given: list[str], zero: int) -> Popen:
    place = ROOT / "nl_reward_model" / task_name
    variables = {"OMP_NUM_THREADS": "1", "MASTER_PORT": str(free_port()), "RANKS": "2", "ZERO": str(zero)}
    return start_command("bash", f"deepspeed_train_{task_name}.sh", *given, cwd=place, **variables)


@pytest.mark.parametrize("zero", [2, 3])
@pytest.mark.parametrize("task_name", RECORDS)
def test_two_ranks_train_as_one_process_does(tmp_path, run_script, task_name, zero):
    """The same batches: two ranks of one record each, or two records accumulated in one process."""
    all_said(launch(task_name, arguments(tmp_path, task_name, "two"), zero))
    alone = arguments(tmp_path, task_name, "one", gradient_accumulation_steps=2)
    run_script(f"nl_reward_model/{task_name}/train_rm.py", *alone)
    two, one = losses(tmp_path / "two"), losses(tmp_path / "one")
    assert len(two) == 3 and two == pytest.approx(one, abs=1e-4)
    weights = [load_file(tmp_path / name / "adapter_model.safetensors") for name in ("two", "one")]
    assert all(weight.any() for weight in weights[0].values())
    torch.testing.assert_close(*weights, atol=2e-3, rtol=2e-2, check_dtype=False)
    description = json.loads((tmp_path / "two" / "reward_model.json").read_text())
    assert (description["settings"]["ranks"], description["settings"]["zero_stage"]) == (2, zero)
    RewardModelCritic.load(tmp_path / "two", task_name, max_new_tokens=2)


@pytest.mark.parametrize("zero", [2, 3])
def test_killed_ranks_go_on_exactly(tmp_path, zero):
    changes = {"max_steps": 4, "lora_dropout": 0.1, "judge_records": 0}
    all_said(launch("slf5k", arguments(tmp_path, "slf5k", "whole", **changes), zero))
    killed = launch("slf5k", arguments(tmp_path, "slf5k", "killed", **changes), zero)
    deadline = time.monotonic() + 1200
    while not (tmp_path / "killed" / "checkpoint-2" / "reward_model.json").exists():
        assert killed.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    cut_power(killed)
    assert not (tmp_path / "killed" / "reward_model.json").exists()
    all_said(launch("slf5k", arguments(tmp_path, "slf5k", "killed", **changes), zero))
    assert losses(tmp_path / "killed") == losses(tmp_path / "whole")
    assert same_result(tmp_path / "killed", tmp_path / "whole")
