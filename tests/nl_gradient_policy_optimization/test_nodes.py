"""Several processes and machines: what they agree on, two launches with a rank each, and the job file for Slurm."""

import os
import subprocess
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from transformers import TrainingArguments

from nl_gradient_policy_optimization.baselines.scalar_model import ScalarDescription, load_classifier
from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.devices import PATIENCE, check_shared_folder, process_group
from nl_gradient_policy_optimization.optimize import prepare
from tests import reward_records
from tests.processes import cut_power, free_port, run_command, run_ranks, start_command
from tests.tiny_runs import STAGE, rows, tiny_config, tiny_flags, untimed
from text2grad.errors import InputError
from text2grad.journal.checksums import save_checksums
from text2grad.journal.finetuning import begin
from text2grad.models import load_tokenizer


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


def _find_damage(folder: str) -> None:
    os.environ |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}  # a machine for each rank
    args = TrainingArguments(folder, use_cpu=True)
    if args.process_index == 0:
        time.sleep(0.5)
    assert begin(Path(folder) / "run.json", None, {}, "result.json", args)[1], args.process_index
    dist.destroy_process_group()


def test_all_machines_wait_for_what_the_first_rank_sets_aside(tmp_path):
    (tmp_path / "result.json").write_text("{}")
    save_checksums(tmp_path, "result.json")
    (tmp_path / "result.json").write_text("[]")
    assert run_ranks(_find_damage, 2, str(tmp_path)) == [0, 0]


def _judged_in_process(folder: str, judge: dict) -> None:
    settings = {"rollouts_per_device": 2, "max_steps": 1, "max_critic_failures": 1.0, **judge}
    trainer = prepare("slf5k", tiny_config(Path(folder), deepspeed=f"{STAGE}/deepspeed/zero3.json", **settings))
    trainer.train()
    trainer.accelerator.end_training()


@pytest.mark.slow
@pytest.mark.parametrize("scalar", [False, True])
def test_a_reward_model_in_the_same_process_is_whole_under_zero_3(tmp_path, scalar):
    model, judge = tiny_config(tmp_path).model, {"algorithm": "scalar", "reward_model": str(tmp_path / "scalar")}
    if scalar:
        load_classifier(model, torch.float32).save_pretrained(tmp_path / "scalar")
        load_tokenizer(model).save_pretrained(tmp_path / "scalar")
        ScalarDescription("slf5k", "float32", 0.0, 1.0).save(tmp_path / "scalar")
    else:
        judge = {"critic": str(reward_records.memorised()[0])}
    assert run_ranks(_judged_in_process, 2, str(tmp_path), judge) == [0, 0]


STEPS = 16  # enough that a kill which takes a second or two falls in the middle


def test_slurm_starts_one_launcher_on_each_machine(tmp_path):
    """The job file as bash runs it, with stand-ins for Slurm's own commands and for torchrun."""
    stand_ins = {
        "scontrol": "echo worker-3; sleep 0.2; echo worker-4",  # slow: whoever reads one line only breaks its pipe
        "srun": '[ "$1" = --cpus-per-task=32 ] && for node in 0 1; do SLURM_NODEID=$node "${@:2}"; done',
        "torchrun": 'echo "$@"',
        "python": "echo 8",
    }
    (tmp_path / "bin").mkdir()
    for name, body in stand_ins.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    root = tmp_path / "root"
    root.mkdir()
    (root / "env.sh").touch()
    (root / STAGE.name).symlink_to(STAGE)
    variables = {"SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "worker-[3-4]", "SLURM_JOB_ID": "20007"}
    variables |= {"SLURM_CPUS_PER_TASK": "32", "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    done = run_command("bash", STAGE / "cluster" / "slurm.sh", "slf5k", "--seed", 3, cwd=root, **variables)
    started = done.stdout.splitlines()
    assert len(started) == 2
    for node, line in enumerate(started):
        begin = f"--nproc_per_node 8 --nnodes 2 --node_rank {node} --master_addr worker-3 --master_port 20007 "
        assert line.startswith(begin) and line.endswith("--seed 3") and "/slf5k/train.py" in line
    lines = (STAGE / "cluster" / "slurm.sh").read_text().splitlines()
    directives = dict(line[len("#SBATCH --") :].partition("=")[::2] for line in lines if line.startswith("#SBATCH "))
    assert directives["ntasks-per-node"] == "1" and directives["nodes"] == "2" and "requeue" in directives


def launch(folder: Path, nodes: int, rank: int, port: int, sharding: str, **settings: object) -> subprocess.Popen:
    """The task's launcher on machine ``rank`` of ``nodes``; one machine has two processes, each of two has one."""
    chosen = tiny_flags(
        folder.parent, output_dir=folder, deepspeed=sharding and STAGE / "deepspeed" / f"{sharding}.json",
        max_steps=STEPS, save_every=1, rollouts_per_device=2, gradient_checkpointing=False, **settings,
    )  # fmt: skip
    variables = {
        "NODES": str(nodes), "NODE_RANK": str(rank), "PROCESSES": str(2 // nodes), "MAX_RESTARTS": "0",
        "MASTER_ADDR": f"127.0.0.{1 if nodes == 1 else 2}", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    with (folder.parent / f"{folder.name}-{rank}.log").open("a") as log:
        return start_command("bash", STAGE / "slf5k" / "train_slf5k.sh", *chosen, output=log, **variables)


def ended(processes: list[subprocess.Popen], timeout: float = 900) -> list[int]:
    """Exit codes; all are killed where one does not end in time."""
    try:
        return [process.wait(timeout) for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                cut_power(process)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("sharding", ["", "zero2", "zero3"], ids=["ddp", "zero2", "zero3"])
def test_two_machines_equal_one_of_two_processes_also_after_a_kill(tmp_path, sharding):
    """With a shared folder. Machine 1 is killed in the middle: machine 0 ends, and the same two commands go on."""
    tiny_flags(tmp_path)  # writes the model once
    alone, both = tmp_path / "alone", tmp_path / "both"
    assert ended([launch(alone, 1, 0, free_port(), sharding)]) == [0], (tmp_path / "alone-0.log").read_text()

    port = free_port()
    first = [launch(both, 2, rank, port, sharding) for rank in (0, 1)]
    while not (both / "checkpoint-2").is_dir():
        assert all(process.poll() is None for process in first), (tmp_path / "both-0.log").read_text()
        time.sleep(0.02)
    cut_power(first[1])
    codes = ended(first, timeout=300)
    assert codes[0] not in (0, 2) and len(rows(both / "metrics.jsonl")) < STEPS, (tmp_path / "both-0.log").read_text()

    port = free_port()
    again = [launch(both, 2, rank, port, sharding) for rank in (0, 1)]
    assert ended(again) == [0, 0], (tmp_path / "both-0.log").read_text()
    assert "going on after step" in (tmp_path / "both-0.log").read_text()
    assert untimed(both / "metrics.jsonl") == untimed(alone / "metrics.jsonl")
    for name in ("rollouts.jsonl", "policy/adapter_model.safetensors"):
        assert (both / name).read_bytes() == (alone / name).read_bytes(), name
