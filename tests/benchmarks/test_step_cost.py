"""The benchmark of a step's cost, on a tiny model: every method does the same amount of work, and figures add up."""

import json

import pytest

from benchmarks.step_cost import METHODS, medians_by_method
from tests.tiny import tiny_model


def test_ratios_are_taken_within_a_round():
    def process(*steps: float) -> dict:
        return {"rows": [{"step": seconds} for seconds in steps], "peak_gib": steps[0]}

    table = medians_by_method(
        {"ppo": [process(1, 1, 4), process(10, 10, 10)], "grpo": [process(2, 2, 2), process(10, 30, 30)]}
    )
    assert table["ppo"]["against_ppo"] == 1
    assert table["grpo"]["against_ppo"] == 2.5
    assert (table["grpo"]["step"], table["grpo"]["peak_gib"]) == (6, 10)
    assert "against_ppo" not in medians_by_method({"grpo": [process(1)]})["grpo"]


@pytest.mark.slow
def test_every_method_is_measured(run_script, tmp_path):
    model, output = tiny_model(tmp_path / "model"), tmp_path / "cost.json"
    settings = {"model": model, "steps": 1, "rounds": 1, "rollouts": 4, "response_tokens": 8, "output": output}
    run_script("benchmarks/step_cost.py", **settings)
    figures = json.loads(output.read_text())
    medians = figures["medians"]
    assert set(medians) == {name for name in METHODS if "reward_model" not in name and "served" not in name}
    for name, row in medians.items():
        if name != "grpo":
            assert sum(row[phase] for phase in ("rollout", "critique", "reference", "update")) <= row["step"]
        assert row["peak_gib"] > 0.1 and row["against_ppo"] > 0
