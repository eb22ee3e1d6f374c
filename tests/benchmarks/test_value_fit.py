"""What a value head could know: the regression by hand, and the command on a real run's log."""

from __future__ import annotations

import pytest
import torch

from benchmarks.value_fit import Returns, explained_variance, predicted_share, ridge
from nl_gradient_policy_optimization.optimize import optimize
from tests.tiny_runs import tiny_config


def test_ridge_and_explained_variance_by_hand():
    features, returns = torch.tensor([[1.0], [2.0]]), torch.tensor([2.0, 3.0])
    assert ridge(features, returns, 0.0).item() == pytest.approx(8 / 5)  # (1·2 + 2·3) / (1 + 4)
    assert ridge(features, returns, 3.0).item() == pytest.approx(1.0)
    assert explained_variance(torch.zeros(2), returns) == 0
    assert explained_variance(returns, returns) == 1
    assert explained_variance(-returns, returns) == pytest.approx(-3)


def test_returns_that_are_linear_in_the_states_are_found_and_noise_is_not():
    draw = torch.Generator().manual_seed(1)
    weights = torch.randn(4, generator=draw, dtype=torch.float64)
    features = [torch.randn(50, 4, generator=draw, dtype=torch.float64) for _ in range(4)]
    lawful = {step: Returns(x, x @ weights) for step, x in enumerate(features)}
    noise = {step: Returns(x, torch.randn(50, generator=draw, dtype=torch.float64)) for step, x in enumerate(features)}
    assert min(predicted_share(lawful, [], own=True)[0]) > 0.99
    assert min(predicted_share(lawful, [lawful[0]], own=False)[0]) > 0.99
    assert max(predicted_share(noise, [], own=True)[0]) < 0.2


def test_the_command_reads_logs(tmp_path, run_script):
    for name in ("run", "other"):
        config = tiny_config(tmp_path, output_dir=str(tmp_path / name), max_steps=3, log_rollouts_every=1)
        optimize("slf5k", config)
    done = run_script(
        "benchmarks/value_fit.py", "--task", "slf5k", "--model", config.model, "--run", tmp_path / "run", "--others",
        tmp_path / "other",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [line.partition(" (")[0] for line in done.stdout.splitlines()] == [
        "its own earlier steps", "the other runs", "both",
    ]  # fmt: skip
    assert run_script("benchmarks/value_fit.py", "--task", "slf5k", "--run", tmp_path).returncode == 2
