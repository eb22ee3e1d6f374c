"""Reward models and fine-tuned policies: signals, damaged checkpoints, other settings, a second process."""

import json
import os
import signal
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import TrainerCallback

from nl_reward_model import train_rm
from nl_reward_model.train_rm import train
from tests.processes import run_alone
from tests.reward_records import settings, slf5k_records, write
from tests.tiny import tiny_model
from text2grad.critics.reward_model.critic import RewardModelCritic
from text2grad.errors import InputError, command
from text2grad.journal.run_folder import claimed
from text2grad.records import load_json

COMMON = {
    "lora_r": 4, "lora_target_modules": ["q_proj"], "lora_dropout": 0.1, "learning_rate": 1e-2, "max_steps": 5,
    "save_strategy": "steps", "save_steps": 2, "feedback_records": 0,
}  # fmt: skip


class Signal(TrainerCallback):
    """Sends the process a signal in its third update."""

    def __init__(self, number: int):
        self.number = number

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 2:
            os.kill(os.getpid(), self.number)


def _train(folder: Path, name: str, number: int) -> None:
    config = settings(folder, str(folder / "annotated.json"), **COMMON, output_dir=str(folder / name))
    make = train_rm._trainer

    def signalled(*args):
        trainer = make(*args)
        trainer.add_callback(Signal(number))
        return trainer

    if number:
        train_rm._trainer = signalled
    # A file: what this process inherits as its output depends on which test began the server it comes from.
    with (folder / "printed.txt").open("w") as file, redirect_stdout(file):
        command(lambda: train("slf5k", config))()


def same_weights(one: Path, other: Path) -> bool:
    ours, theirs = (load_file(folder / "adapter_model.safetensors") for folder in (one, other))
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.promise("same_after_kill")
def test_signals_and_damage_change_nothing_of_the_result(tmp_path):
    tiny_model(tmp_path / "model")
    write(tmp_path, slf5k_records())
    whole, run = tmp_path / "whole", tmp_path / "run"
    assert run_alone(_train, tmp_path, "whole", 0) == 0
    assert run_alone(_train, tmp_path, "run", signal.SIGTERM) == 143
    assert sorted(path.name for path in run.glob("checkpoint-*")) == ["checkpoint-2", "checkpoint-3"]
    assert not (run / "reward_model.json").exists()
    optimizer = run / "checkpoint-3" / "optimizer.pt"
    content = bytearray(optimizer.read_bytes())
    content[len(content) // 2] ^= 1
    optimizer.write_bytes(content)
    assert run_alone(_train, tmp_path, "run", 0) == 0
    out = (tmp_path / "printed.txt").read_text()
    assert f"skipping {run / 'checkpoint-3'}: its file optimizer.pt is damaged" in out
    assert f"going on from {run / 'checkpoint-2'}" in out
    assert (run / "checkpoint-3.damaged").is_dir()
    assert same_weights(run, whole)

    weights = run / "adapter_model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:2000] + bytes(len(content) - 2000))
    with pytest.raises(InputError, match=r"adapter_model.safetensors is damaged .*whole weights .*checkpoint-5"):
        RewardModelCritic.load(run, "slf5k")
    assert run_alone(_train, tmp_path, "run", 0) == 0
    assert "writing the result again from the newest checkpoint" in (tmp_path / "printed.txt").read_text()
    assert same_weights(run, whole)


@pytest.mark.promise("no_mixed_runs")
def test_changes_are_refused_or_recorded(tmp_path):
    data = write(tmp_path, slf5k_records())
    changed = COMMON | {"max_steps": 3}
    folder = tmp_path / "reward_model"
    train("slf5k", settings(tmp_path, data, **COMMON | {"max_steps": 2}))
    with claimed(folder, "reward_model"), pytest.raises(InputError, match="another run is working there"):
        train("slf5k", settings(tmp_path, data, **changed))
    (folder / "reward_model.json").unlink()  # stopped before its end
    with pytest.raises(InputError, match=r"max_steps: 2 then, 3 now.*--allow_changed true"):
        train("slf5k", settings(tmp_path, data, **changed))
    with pytest.raises(InputError, match=r"learning_rate.*checkpoints"):
        train("slf5k", settings(tmp_path, data, **changed | {"learning_rate": 1e-3}, allow_changed=True))
    train("slf5k", settings(tmp_path, data, **changed, allow_changed=True))
    told = [{"from_step": 3, "settings": {"max_steps": 3}}]
    assert load_json(folder / "run.json")["changes"] == told and load_json(folder / "run.json")["max_steps"] == 2
    assert json.loads((folder / "reward_model.json").read_text())["changes"] == told
    assert "- changed from step 3 on: max_steps 3" in (folder / "README.md").read_text()
    train("slf5k", settings(tmp_path, data, **changed))  # what it was last continued with
    tiny_model(tmp_path / "model", seed=1)
    with pytest.raises(InputError, match="weights: "):
        train("slf5k", settings(tmp_path, data, **changed))
