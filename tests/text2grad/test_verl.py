"""The real verl with our reward manager inside, in an environment of its own: it pins another transformers."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.conftest import ROOT


@pytest.mark.slow
def test_verl_trains_on_the_rewards_of_each_token():
    python = os.environ.get("TEXT2GRAD_VERL_PYTHON")
    if not python:
        pytest.skip("set TEXT2GRAD_VERL_PYTHON to a Python with `pip install verl==0.9.1 torch pytest`")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "VERL_USE_EXTERNAL_MODULES": "text2grad.integrations.verl"}
    command = [python, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(ROOT), "--noconftest"]
    command += ["-p", "no:cacheprovider", "tests/inside_verl.py"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
