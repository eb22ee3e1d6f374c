"""Several processes: what they agree on before they begin."""

import os
from pathlib import Path

import pytest
import torch.distributed as dist

from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.devices import PATIENCE, check_shared_folder, process_group
from nl_gradient_policy_optimization.optimize import prepare
from tests import reward_records
from tests.processes import run_ranks
from tests.tiny_runs import deepspeed_file, tiny_config
from text2grad.errors import InputError


def test_ranks_wait_for_each_other_longer_than_a_critic_can_take():
    """A request may be sent seven times, for three times the limit on silence each, with 901 seconds between."""
    patient = PolicyConfig(critic="http://host/v1#m", critic_concurrency=8, rollouts_per_device=12)
    waits = 7 * 3 * 120 + 6 * 901
    assert process_group(patient, False).timeout == PATIENCE + waits * 2 * 2 * PATIENCE.resolution * 1_000_000
    both = patient.changed(audit_critic="openai:gpt-4o", critic_timeout=10.0, critic_retries=0)
    assert (process_group(both, True).timeout - PATIENCE).total_seconds() == 2 * 2 * 2 * 30
    voting = both.changed(critic_votes=3, critic_temperature=0.7)
    assert (process_group(voting, True).timeout - PATIENCE).total_seconds() == 4 * 2 * 2 * 30
    assert process_group(both, True).backend == "gloo"
    assert process_group(PolicyConfig(), False).timeout == PATIENCE


def _look(folder: str, shared: bool) -> None:
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    mine = Path(folder) / "run" if shared else Path(folder) / f"machine{rank}" / "run"
    os.environ["LOCAL_WORLD_SIZE"] = "2"  # no file system to wait for
    told = ""
    try:
        check_shared_folder(mine)
    except InputError as error:
        told = str(error)
    (Path(folder) / f"{rank}.txt").write_text(told)
    dist.destroy_process_group()


@pytest.mark.parametrize("shared", [True, False])
def test_machines_without_a_common_folder_are_named_on_every_rank(tmp_path, shared):
    assert run_ranks(_look, 2, str(tmp_path), shared) == [0, 0]
    told = [(tmp_path / f"{rank}.txt").read_text() for rank in (0, 1)]
    if shared:
        assert told == ["", ""] and not list((tmp_path / "run").iterdir())
    else:
        for rank, text in enumerate(told):
            assert f"machine{rank}" in text and "(rank 1) do not see what rank 0" in text and "share" in text


def _judged_in_process(folder: str, critic: str) -> None:
    config = tiny_config(Path(folder), rollouts_per_device=2, max_steps=1, critic=critic, max_critic_failures=1.0)
    config.deepspeed = deepspeed_file(Path(folder), 3)
    trainer = prepare("slf5k", config)
    trainer.train()
    trainer.accelerator.end_training()


@pytest.mark.slow
def test_a_reward_model_in_the_same_process_is_whole_under_zero_3(tmp_path):
    folder, _ = reward_records.memorised()
    tiny_config(tmp_path)
    deepspeed_file(tmp_path, 3)
    assert run_ranks(_judged_in_process, 2, str(tmp_path), str(folder)) == [0, 0]
