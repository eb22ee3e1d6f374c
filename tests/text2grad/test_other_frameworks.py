"""The real verl, SkyRL and verifiers with our feedback inside, each in its own environment, for their pins differ."""

import os

import pytest

from tests.processes import ROOT, run_command


@pytest.mark.slow
@pytest.mark.parametrize("name", ["verl", "skyrl", "verifiers"])
def test_it_trains_on_the_rewards_of_each_token(name):
    variable = f"TEXT2GRAD_{name.upper()}_PYTHON"
    python = os.environ.get(variable)
    if not python:
        pytest.skip(
            f"run `bash tests/run.sh --integrations {name}`, or set {variable} to a Python with {name} and pytest"
        )
    command = [python, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", ROOT, "--noconftest"]
    command += ["-p", "no:cacheprovider", f"tests/inside_{name}.py"]
    run_command(*command, PYTHONPATH=str(ROOT), VERL_USE_EXTERNAL_MODULES="text2grad.integrations.verl")
