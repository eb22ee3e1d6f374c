"""The real verl, SkyRL and verifiers with our feedback inside, each in its own environment, for their pins differ."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.conftest import ROOT


@pytest.mark.slow
@pytest.mark.parametrize("name", ["verl", "skyrl", "verifiers"])
def test_it_trains_on_the_rewards_of_each_token(name):
    variable = f"TEXT2GRAD_{name.upper()}_PYTHON"
    python = os.environ.get(variable)
    if not python:
        pytest.skip(
            f"run `bash tests/run.sh --integrations {name}`, or set {variable} to a Python with {name} and pytest"
        )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "VERL_USE_EXTERNAL_MODULES": "text2grad.integrations.verl"}
    command = [python, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(ROOT), "--noconftest"]
    command += ["-p", "no:cacheprovider", f"tests/inside_{name}.py"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
