"""The real SkyRL with the lines that our page gives, in an environment of its own: it pins another transformers."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.conftest import ROOT


@pytest.mark.slow
def test_skyrl_trains_on_the_rewards_of_each_token():
    python = os.environ.get("TEXT2GRAD_SKYRL_PYTHON")
    if not python:
        pytest.skip("set TEXT2GRAD_SKYRL_PYTHON to a Python with SkyRL 0.4.0 (docs/other_trainers.md says how)")
    command = [python, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(ROOT), "--noconftest"]
    command += ["-p", "no:cacheprovider", "tests/inside_skyrl.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
