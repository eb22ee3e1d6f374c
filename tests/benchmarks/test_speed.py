"""The comparison of two commits: each phase gives seconds, and what it cannot do is refused."""

from __future__ import annotations

import re

import pytest

from benchmarks.speed import SpeedConfig, measure

SCRIPT = "benchmarks/speed.py"


def test_the_phase_of_programs_counts_the_processes_in_the_sandbox():
    """Starting Python and pytest costs more than 50 ms of processor time on any machine."""
    assert 0.05 < measure("programs", SpeedConfig()) < 60


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(("--phases", "dancing"), "dancing: give some of rollouts"), (("--profile", "programs"), "leave them out")],
)
def test_phases_that_cannot_be_measured_are_refused(run_script, arguments, said):
    done = run_script(SCRIPT, *arguments)
    assert done.returncode == 2 and said in done.stderr


@pytest.mark.slow
def test_generating_and_the_reward_model_are_measured_by_one_command(run_script):
    phases = ["answers", "feedback", "reward_model"]
    done = run_script(SCRIPT, "--rounds", "1", "--phases", *phases, "--new_tokens", "4")
    assert done.returncode == 0, done.stderr
    assert [float(found) > 0 for found in re.findall(r"^\w+: now (\S+) s$", done.stdout, re.M)] == [True] * 3
