"""The shell scripts of stage 3, as they are typed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.tiny_runs import rows, tiny_config

HERE = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
"""The environment with this Python first."""
STAGE = Path(__file__).resolve().parents[2] / "nl_gradient_policy_optimization"


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
    launcher = STAGE / "launch.sh"

    def launch(codes: str, **settings) -> tuple[int, int]:
        (tmp_path / "codes").write_text(codes)
        variables = {**HERE, "PROCESSES": "1", "RESTART_DELAY": "0", **settings}
        command = ["bash", str(launcher), str(tmp_path / "train.py"), "--seed", "3"]
        done = subprocess.run(command, env=variables, text=True, capture_output=True, check=False)
        starts = done.stdout.splitlines()
        assert set(starts) == {"--seed 3"}
        return done.returncode, len(starts)

    assert launch("0") == (0, 1)
    assert launch("1 137 0") == (0, 3)
    assert launch("2 0") == (2, 1)
    assert launch("1 1 1 1 0") == (1, 4)
    assert launch("1 1 0", MAX_RESTARTS="1") == (1, 2)


@pytest.mark.promise("bounded_time")
@pytest.mark.parametrize(("error", "code"), [("InputError('no such file')", 2), ("KeyboardInterrupt", 130)])
def test_a_mistake_ends_a_launch_of_several_processes_at_once(tmp_path, error, code):
    """torchrun ends with 1 whatever its processes ended with."""
    (tmp_path / "train.py").write_text(
        "import os, pathlib\n"
        "from text2grad.errors import InputError, command\n"
        "@command\n"
        "def main():\n"
        "    if os.environ['RANK'] == '0':\n"
        "        with pathlib.Path(__file__).with_name('starts').open('a') as starts:\n"
        "            starts.write('x')\n"
        f"    raise {error}\n"
        "main()\n"
    )
    variables = {**HERE, "PROCESSES": "2", "RESTART_DELAY": "0"}
    command = ["bash", str(STAGE / "launch.sh"), str(tmp_path / "train.py")]
    done = subprocess.run(command, env=variables, text=True, capture_output=True, check=False)
    assert (done.returncode, (tmp_path / "starts").read_text()) == (code, "x"), done.stderr


METHODS = {
    "sft": "sft.py --task kodcode --config {here}/kodcode/sft.yaml",
    "pairs": "pairs.py --task kodcode --config {here}/kodcode/pairs.yaml",
    "dpo": "dpo.py --task kodcode --config {here}/kodcode/dpo.yaml",
    "scalar_reward": "scalar_reward.py --task kodcode --config {here}/kodcode/scalar_reward.yaml",
    "ppo": "../optimize.py --task kodcode --config {here}/../kodcode/config.yaml --algorithm scalar",
    "ppo_delta": "../optimize.py --task kodcode --config {here}/../kodcode/config.yaml --algorithm scalar "
    "--reward_placement last_sum",
    "prm_ppo": "../optimize.py --task kodcode --config {here}/../kodcode/config.yaml --algorithm steps",
    "sdpo": "../optimize.py --task kodcode --config {here}/../kodcode/config.yaml --algorithm sdpo",
    "rltf_fm": "../optimize.py --task kodcode --config {here}/../kodcode/config.yaml --method rltf_fm "
    "--algorithm critique",
    "critique_grpo": "../optimize.py --task kodcode --config {here}/../kodcode/config.yaml --algorithm second "
    "--learn critique_grpo --rollouts_per_prompt 2",
    "reflect": "reflect.py --task kodcode --config {here}/kodcode/reflect.yaml",
    "step_labels": "step_labels.py --task kodcode",
}


@pytest.fixture
def started(tmp_path):
    """The command that a script starts, by stand-ins that only say it."""
    for program in ("python", "torchrun"):
        (tmp_path / program).write_text(f"#!/bin/sh\necho {program} $*\n")
        (tmp_path / program).chmod(0o755)

    def run(script: Path, *arguments: str, processes: str = "1") -> str:
        variables = {**HERE, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PROCESSES": processes}
        command = ["bash", str(script), *arguments]
        done = subprocess.run(command, env=variables, text=True, capture_output=True, check=True)
        return done.stdout.strip()

    return run


@pytest.mark.parametrize("task", ["slf5k", "kodcode", "ultrafeedback"])
def test_text2grad_and_ppo_get_the_same_processes_and_settings(started, task):
    """Neither is sharded unless asked: with ZeRO-2 for one of them, Adafactor made another update."""
    own = started(STAGE / task / f"train_{task}.sh", "--seed", "3", processes="2").split()
    ppo = started(STAGE / "baselines" / "run.sh", "ppo", task, "--seed", "3", processes="2").split()
    assert "--deepspeed" not in own and "--deepspeed" not in ppo
    assert [part for part in own[:4] if "/" not in part] == [part for part in ppo[:4] if "/" not in part]
    configs = [Path(words[words.index("--config") + 1]).resolve() for words in (own, ppo)]
    assert configs == [STAGE / task / "config.yaml"] * 2
    assert "deepspeed" not in configs[0].read_text()


@pytest.mark.parametrize("method", METHODS)
def test_one_script_starts_every_baseline_with_its_tasks_settings(started, method):
    here = STAGE / "baselines"
    script = here / "run.sh"
    expected = f"{here}/{METHODS[method].format(here=here)} --seed 3"
    assert started(script, method, "kodcode", "--seed", "3") == f"python {expected}"
    alone = method in ("pairs", "reflect", "step_labels")
    begin = "python" if alone else "torchrun --standalone --nproc_per_node 2"
    assert started(script, method, "kodcode", "--seed", "3", processes="2") == f"{begin} {expected}"
    assert started(script, method, "kodcode", "--config", "mine.yaml").count("--config") == 1


@pytest.mark.parametrize("arguments", [[], ["sft"], ["ppo3", "slf5k"]])
def test_an_unknown_baseline_lists_them(arguments):
    command = ["bash", str(STAGE / "baselines" / "run.sh"), *arguments]
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    assert done.returncode == 2 and "METHOD  sft, pairs, dpo" in done.stderr and "TASK    slf5k" in done.stderr


def test_each_zero_stage_has_one_file():
    files = {path.name: json.loads(path.read_text()) for path in (STAGE / "deepspeed").glob("*.json")}
    assert {name: settings["zero_optimization"]["stage"] for name, settings in files.items()} == {
        "zero1.json": 1, "zero2.json": 2, "zero2_offload.json": 2, "zero3.json": 3, "zero3_offload.json": 3,
    }  # fmt: skip
    for task in ("slf5k", "kodcode", "ultrafeedback"):  # the published name is a link
        assert (STAGE / task / "deepspeed.json").resolve() == STAGE / "deepspeed" / "zero2.json"


@pytest.mark.slow
@pytest.mark.parametrize("zero", [None, 2, 3], ids=["alone", "zero2", "zero3"])
@pytest.mark.parametrize("task", ["slf5k", "kodcode", "ultrafeedback"])
def test_the_tasks_launchers_train_on_real_records(tmp_path, shared_data, task, zero):
    """``train_<task>.sh`` with its own config on SmolLM2, alone and on two DeepSpeed ranks."""
    data = {"slf5k": "posts_with_summaries.json", "kodcode": "*.json", "ultrafeedback": "*.json"}[task]
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
        settings |= {"deepspeed": STAGE / "deepspeed" / f"zero{zero}_offload.json", "optimizer": "adamw"}
    arguments = [str(part) for name, value in settings.items() for part in (f"--{name}", value)]
    variables = {**HERE, "PROCESSES": str(ranks), "MAX_RESTARTS": "0", "OMP_NUM_THREADS": "1"}
    command = ["bash", str(STAGE / task / f"train_{task}.sh"), *arguments]
    done = subprocess.run(command, env=variables, text=True, capture_output=True, check=False, timeout=1800)
    assert done.returncode == 0, done.stderr[-3000:]
    assert [row["rollouts"] for row in rows(tmp_path / "out" / "metrics.jsonl")] == [2 * ranks, 4 * ranks]
    assert (tmp_path / "out" / "policy" / "adapter_model.safetensors").is_file()


@pytest.mark.promise("nothing_lost")
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
@pytest.mark.parametrize("ranks", [1, 2], ids=["alone", "torchrun and ZeRO-2"])
def test_a_signal_to_a_launcher_leaves_a_checkpoint_and_no_process(tmp_path, ranks, number):
    """The same command then goes on from there, to the rollouts of a run that nobody touched."""
    steps = 30 if ranks == 1 else 12  # those of two ranks take long enough for the signal to come between them
    config = tiny_config(tmp_path, max_steps=steps, save_every=0, rollouts_per_device=2)

    def started(name: str) -> subprocess.Popen:
        chosen = {**vars(config), "output_dir": tmp_path / name, "critic": "programmatic"}
        names = ("model", "data_path", "output_dir", "critic", "max_steps", "save_every", "rollouts_per_device",
                 "micro_batch_size", "ppo_epochs", "max_new_tokens", "learning_rate", "dtype")  # fmt: skip
        arguments = [part for each in names for part in (f"--{each}", str(chosen[each]))]
        variables = {**HERE, "PROCESSES": str(ranks), "OMP_NUM_THREADS": "1", "RESTART_DELAY": "0"}
        command = ["bash", str(STAGE / "slf5k" / "train_slf5k.sh"), *arguments, "--report_to", "none"]
        return subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def working(name: str) -> list[str]:
        programs = (path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists())
        return [program.decode(errors="replace") for program in programs if str(tmp_path / name).encode() in program]

    whole = started("whole")
    output, _ = whole.communicate(timeout=1200)
    assert whole.returncode == 0, output[-3000:]
    process, log = started("run"), tmp_path / "run" / "metrics.jsonl"
    while not (log.exists() and len(rows(log)) >= 3) and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(number)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 128 + number, output[-3000:]
    assert not working("run")
    (checkpoint,) = (tmp_path / "run").glob("checkpoint-*")
    assert 3 <= int(checkpoint.name.partition("-")[2]) < steps
    process = started("run")
    output, _ = process.communicate(timeout=1200)
    assert process.returncode == 0 and "going on after step" in output, output[-3000:]
    done = [(tmp_path / name / "rollouts.jsonl").read_bytes() for name in ("whole", "run")]
    assert done[0] == done[1]
