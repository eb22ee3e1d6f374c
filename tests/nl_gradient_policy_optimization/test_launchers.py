"""The shell scripts of stage 3, as they are typed."""

import json
import os
import re
import signal
import subprocess
import time

import pytest
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.state import AcceleratorState

from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.devices import check_fsdp
from nl_gradient_policy_optimization.optimize import make_accelerator
from tests.processes import all_said, flags, run_command, running, start_command
from tests.tiny_runs import STAGE, rows, tiny_config, tiny_flags
from text2grad.configs import parse
from text2grad.errors import InputError


def test_the_launcher_restarts_crashes_but_not_mistakes(tmp_path):
    """A stand-in for train.py that ends with the codes in a file, one per start."""
    (tmp_path / "train.py").write_text(
        "import pathlib, sys\ncodes = pathlib.Path(__file__).with_name('codes')\n"
        "first, *rest = codes.read_text().split()\ncodes.write_text(' '.join(rest))\n"
        "print(*sys.argv[1:])\nsys.exit(int(first))\n"
    )
    for codes, restarts, code, starts in (
        ("0", "3", 0, 1), ("1 137 0", "3", 0, 3), ("2 0", "3", 2, 1), ("1 1 1 1 0", "3", 1, 4), ("1 1 0", "1", 1, 2),
    ):  # fmt: skip
        (tmp_path / "codes").write_text(codes)
        launch = ("bash", STAGE / "launch.sh", tmp_path / "train.py", "--seed", 3)
        done = run_command(*launch, code=code, PROCESSES="1", RESTART_DELAY="0", MAX_RESTARTS=restarts)
        assert done.stdout.splitlines() == ["--seed 3"] * starts


def test_a_mistake_ends_a_launch_of_several_processes_at_once(tmp_path):
    """torchrun ends with 1 whatever its processes ended with."""
    (tmp_path / "train.py").write_text(
        "import os\nfrom text2grad.errors import InputError, command\n"
        "@command\ndef main():\n"
        "    with open(__file__ + os.environ['RANK'], 'a') as starts: starts.write('x')\n"
        "    raise InputError('no such file')\nmain()\n"
    )
    run_command("bash", STAGE / "launch.sh", tmp_path / "train.py", code=2, PROCESSES="2", RESTART_DELAY="0")
    # The first process to fail may end the other before it begins.
    assert {starts.read_text() for starts in tmp_path.glob("train.py?")} == {"x"}


@pytest.mark.parametrize(
    ("ended", "code", "starts"),
    [("143 143", 143, 1), ("143", 1, 2), ("143 2", 2, 1), ("138 143", 138, 1), ("", 1, 2), ("143 1", 1, 2)],
)
def test_what_the_processes_of_a_machine_ended_with_decides_of_a_restart(tmp_path, ended, code, starts):
    """torchrun stops the others of one that crashed: they leave 143, and it no line."""
    torchrun = tmp_path / "torchrun"
    torchrun.write_text(f"#!/bin/sh\necho start\nfor e in {ended}; do echo $e; done >> $TEXT2GRAD_EXIT_CODE\nexit 1\n")
    torchrun.chmod(0o755)
    variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "RESTART_DELAY": "0", "MAX_RESTARTS": "1"}
    nodes = {"PROCESSES": "2", "NODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "host"}
    done = run_command("bash", STAGE / "launch.sh", "train.py", code=code, **variables, **nodes)
    assert done.stdout.splitlines() == ["start"] * starts


METHODS = {
    **{name: f"{name}.py --task kodcode --config {{here}}/kodcode/{name}.yaml"
       for name in ("sft", "dpo", "scalar_reward", "reflect")},
    **{name: f"{name}.py --task kodcode" for name in ("pairs", "step_labels")},
    "ppo": "--algorithm scalar", "ppo_delta": "--algorithm scalar --reward_placement last_sum",
    "prm_ppo": "--algorithm steps", "sdpo": "--algorithm sdpo",
    "critique_grpo": "--algorithm second --learn critique_grpo --rollouts_per_prompt 2",
}  # fmt: skip


@pytest.mark.parametrize("task", ["slf5k", "kodcode", "ultrafeedback"])
def test_a_launcher_takes_what_the_stages_before_left_and_an_optimizer_that_goes_with_deepspeed(started, task):
    script = STAGE / task / f"train_{task}.sh"
    words = started(script, "--critic", "mine.py:judge").split()[2:]
    runs = STAGE.parent / "runs" / task
    assert words[:2] == ["--config", f"{STAGE}/{task}/config.yaml"]
    assert words[2:6] == ["--data_path", f"{runs}/annotated.json", "--critic", f"{runs}/reward_model"]
    assert words[6:] == ["--output_dir", f"{runs}/text2grad", "--critic", "mine.py:judge"]
    assert started(script, processes="2").startswith("torchrun --standalone --nproc_per_node 2 ")
    assert started(script, "--deepspeed", "zero2.json").startswith("torchrun --standalone --nproc_per_node 1 ")
    config = parse(PolicyConfig, args=words)
    assert (config.critic, config.optimizer) == ("mine.py:judge", "adamw" if task == "kodcode" else "adafactor")
    assert not config.deepspeed  # sharded, Adafactor would make another update than PPO's
    assert parse(PolicyConfig, args=[*words, "--deepspeed", "zero2.json"]).optimizer == "adamw"
    own = started(script, "--config", "mine.yaml").split()[2:]
    assert own == ["--config", "mine.yaml"]  # the file has what it has
    learns = STAGE.parent / "nl_reward_model" / task / f"deepspeed_train_{task}.sh"
    learnt = started(learns, "--seed", "3")
    assert f"--data_path {runs}/annotated.json --output_dir {runs}/reward_model --seed 3" in learnt
    assert "--data_path" not in started(learns, "--config", "mine.yaml")


REWARD_MODELS = STAGE.parent / "nl_reward_model" / "deepspeed" / "train.sh"


def test_a_reward_models_script_joins_as_a_rank_that_another_launcher_started(started, tmp_path, monkeypatch):
    (tmp_path / "python").write_text("#!/bin/sh\necho $RANK $LOCAL_RANK $MASTER_PORT\n")
    for name, value in {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "host"}.items():
        monkeypatch.setenv(name, value)
    assert started(REWARD_MODELS, "slf5k") == "3 0 29500"
    monkeypatch.setenv("SLURM_LOCALID", "1")
    assert started(REWARD_MODELS, "slf5k") == "3 1 29500"


def test_variables_choose_a_reward_models_gpus_and_zero_stage(started, tmp_path, monkeypatch):
    (tmp_path / "deepspeed").write_text("#!/bin/sh\necho $CUDA_VISIBLE_DEVICES $*\n")
    for accelerator, hosts, said in (
        ("", "", "4,5 --no_local_rank --master_port 29500 /"), ("", "hosts", "4,5,6 .* --hostfile hosts --num_gpus 2 "),
        ("cpu", "", "4,5,6 .* --num_gpus 2 "),
    ):  # fmt: skip
        variables = {"CUDA_VISIBLE_DEVICES": "4,5,6", "RANKS": "2", "DS_ACCELERATOR": accelerator, "HOSTFILE": hosts}
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        assert re.match(said, started(REWARD_MODELS, "slf5k"))
    assert "error: ZERO=1: choose 2 or 3" in run_command("bash", REWARD_MODELS, "slf5k", code=2, ZERO="1").stderr


@pytest.mark.parametrize("method", METHODS)
def test_one_script_starts_every_baseline_with_its_tasks_settings(started, method):
    here = STAGE / "baselines"
    script = here / "run.sh"
    said = METHODS[method]
    if said.startswith("--"):  # an algorithm of the policy's trainer, with its settings
        said = f"../optimize.py --task kodcode --config {{here}}/../kodcode/config.yaml {said}"
    more = ("--reward_model", "rm") if method == "ppo" else ()
    expected = " ".join([f"{here}/{said.format(here=here)}", *more, "--seed 3"])
    assert started(script, method, "kodcode", *more, "--seed", "3") == f"python {expected}"
    alone = method in ("pairs", "reflect", "step_labels")
    begin = "python" if alone else "torchrun --standalone --nproc_per_node 2"
    assert started(script, method, "kodcode", *more, "--seed", "3", processes="2") == f"{begin} {expected}"
    assert started(script, method, "kodcode", *more, "--config", "mine.yaml").count("--config") == 1


def test_the_readmes_commands_suit_a_small_policy_too(started):
    text = (STAGE / "baselines" / "README.md").read_text()
    more = dict(re.findall(r"`(\w+)` also `(.+?)`", text))
    for line in re.findall(r"^\$run ([^#\n]+)", text, re.M):
        method, task, *said = line.split()
        said += ["--config", str(STAGE / "small.yaml"), *more.get(method, "").split()]
        words = started(STAGE / "baselines" / "run.sh", method, task, *said).split()
        if words[1].endswith("optimize.py"):
            parse(PolicyConfig, args=words[4:]).check()


def test_an_unknown_baseline_lists_them():
    for arguments in ([], ["sft"], ["ppo3", "slf5k"]):
        told = run_command("bash", STAGE / "baselines" / "run.sh", *arguments, code=2).stderr
        assert "METHOD  sft, pairs, dpo" in told and "TASK    slf5k" in told, arguments


def test_calls_that_would_do_something_else_are_refused():
    for command, told in (
        (("nl_gradient_policy_optimization/baselines/run.sh", "ppo", "slf5k"), "ppo needs --reward_model"),
        (("recipes/slf5k.sh", "--smoke", "--model", "mine"), "--smoke has a model"),
        (("recipes/slf5k.sh", "--fast"), "unknown option --fast"),
        (("evaluation/win_rate_curve.sh", "--run", "x", "--task", "slf5k", "--data_path", "x"), "--baseline is needed"),
        (("env.sh", "--vlm"), "unknown option --vlm"),
        (("quickstart/run.sh", "--code", "--critic", "reward_model"), "--code trains no reward model"),
    ):
        assert told in run_command("bash", *command, code=2).stderr


def test_the_documented_accelerate_launch_starts_as_many_processes_as_it_says():
    text = (STAGE.parent / "docs" / "devices.md").read_text()
    (line,) = re.findall("^accelerate launch (.+) …$", text.replace("$stage", str(STAGE)).replace("GPUS", "3"), re.M)
    args, *_ = _validate_launch_command(launch_command_parser().parse_args(line.split()))
    assert (args.num_processes, args.multi_gpu) == (3, True)


def test_an_accelerate_config_with_fsdp_is_refused(monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")  # as accelerate launch sets it
    with pytest.raises(InputError, match=r"asks for FSDP.*run without it \(DDP\), or with --deepspeed"):
        check_fsdp()


def test_deepspeed_without_a_launcher_is_one_sentence(tmp_path):
    with pytest.raises(InputError, match="--deepspeed wants a launcher, for one process too"):
        make_accelerator(tiny_config(tmp_path, deepspeed=str(STAGE / "deepspeed" / "zero2.json")))


@pytest.mark.parametrize("name", ["LOCAL_RANK", "ACCELERATE_USE_CPU"])
def test_another_jobs_variable_is_one_sentence(tmp_path, monkeypatch, name):
    monkeypatch.setenv(name, "abc")
    AcceleratorState._reset_state(reset_partial_state=True)
    with pytest.raises(InputError, match=r"abc.*unset"):
        make_accelerator(tiny_config(tmp_path))
    AcceleratorState._reset_state(reset_partial_state=True)


def test_another_jobs_variable_does_not_decide_how_a_run_computes(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "inductor")
    AcceleratorState._reset_state(reset_partial_state=True)
    state = make_accelerator(tiny_config(tmp_path)).state
    assert (state.mixed_precision, state.dynamo_plugin.backend.value) == ("no", "NO")


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
        "model": "smollm2", "data_path": next((shared_data / task).glob(data)), "output_dir": tmp_path / "out",
        "critic": "programmatic", "max_steps": 2, "rollouts_per_device": 2, "max_new_tokens": 16,
        "max_prompt_tokens": 350, "ppo_epochs": 1, "max_critic_failures": 1, "report_to": "none",
    }  # fmt: skip
    if zero:
        settings |= {"deepspeed": STAGE / "deepspeed" / f"zero{zero}_offload.json", "optimizer": "adamw"}
    launch = ("bash", STAGE / task / f"train_{task}.sh", *flags(**settings))
    run_command(*launch, PROCESSES=str(ranks), MAX_RESTARTS="0", OMP_NUM_THREADS="1")
    assert [row["rollouts"] for row in rows(tmp_path / "out" / "metrics.jsonl")] == [2 * ranks, 4 * ranks]
    assert (tmp_path / "out" / "policy" / "adapter_model.safetensors").is_file()


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
@pytest.mark.parametrize("ranks", [1, 2], ids=["alone", "torchrun and ZeRO-2"])
def test_a_signal_to_a_launcher_leaves_a_checkpoint_and_no_process(tmp_path, ranks, number):
    """The same command then goes on from there, to the rollouts of a run that nobody touched."""
    steps = 30 if ranks == 1 else 12  # those of two ranks take long enough for the signal to come between them

    def started(name: str) -> subprocess.Popen:
        sizes = {"max_steps": steps, "save_every": 0, "rollouts_per_device": 2}
        arguments = tiny_flags(tmp_path, output_dir=tmp_path / name, **sizes)
        variables = {"PROCESSES": str(ranks), "OMP_NUM_THREADS": "1", "RESTART_DELAY": "0"}
        return start_command("bash", STAGE / "slf5k" / "train_slf5k.sh", *arguments, **variables)

    all_said(started("whole"))
    process, log = started("run"), tmp_path / "run" / "metrics.jsonl"
    while not (log.exists() and len(rows(log)) >= 3) and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(number)
    all_said(process, 128 + number)
    assert not running(tmp_path / "run")
    (checkpoint,) = (tmp_path / "run").glob("checkpoint-*")
    assert 3 <= int(checkpoint.name.partition("-")[2]) < steps
    assert "going on after step" in all_said(started("run"))
    done = [(tmp_path / name / "rollouts.jsonl").read_bytes() for name in ("whole", "run")]
    assert done[0] == done[1]
