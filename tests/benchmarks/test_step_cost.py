"""The benchmark of a step's cost, on a tiny model: every method does the same amount of work, and figures add up."""

import json

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.step_cost import METHODS, medians_by_method
from benchmarks.utilisation import Machine, least_seconds, needed
from tests.tiny import tiny_model
from text2grad.models import load_model


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


def test_needed_arithmetic_is_what_pytorch_counts(tmp_path):
    """One prompt of 50 tokens, two responses of 30: a forward pass reads 110 tokens and scores 60."""
    model = load_model(tiny_model(tmp_path / "model"), torch.float32)
    work = needed(model, [50], [[30, 30]], passes=3)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.base_model(torch.zeros(1, 110, dtype=torch.long))
        model.lm_head(torch.zeros(60, model.config.hidden_size))
    # The packed pass's attention is not counted: 5150 pairs of a token and one that it sees, two products each.
    config = model.config
    attention = 4 * config.num_hidden_layers * config.hidden_size * 5150
    (reference, _), (update, _) = work["reference"][0], work["update"][0]
    assert reference == pytest.approx(2 * (counter.get_total_flops() + attention), rel=0.01)
    assert update == 3 * reference
    assert needed(model, [50], [[30, 30]], passes=3, kept=True)["update"][0][0] == 2.5 * reference
    rollout, moved = map(sum, zip(*work["rollout"], strict=True))
    assert rollout == pytest.approx(reference / 2)
    weights = sum(each.numel() for each in model.base_model.layers.parameters()) + model.lm_head.weight.numel()
    assert moved == (1 + 30) * 4 * weights


def test_a_part_takes_its_arithmetic_or_its_bytes_whichever_is_longer():
    assert least_seconds([(100, 1), (10, 40)], Machine(10, 2)) == 10 + 20


@pytest.mark.slow
def test_every_method_is_measured(run_script, tmp_path):
    model, output = tiny_model(tmp_path / "model"), tmp_path / "cost.json"
    settings = {"model": model, "steps": 1, "rounds": 1, "rollouts": 4, "response_tokens": 8, "output": output}
    run_script("benchmarks/step_cost.py", **settings)
    figures = json.loads(output.read_text())
    medians = figures["medians"]
    rows = {name: [row for process in runs for row in process["rows"]] for name, runs in figures["processes"].items()}
    part_used = {name: row[0].get("used") for name, row in rows.items()}
    assert set(medians) == {name for name in METHODS if "reward_model" not in name and "served" not in name}
    for name, row in medians.items():
        if name != "grpo":
            assert all(0 < used["used"] < 1.2 for used in part_used[name].values())
            assert sum(row[phase] for phase in ("rollout", "critique", "reference", "update")) <= row["step"]
        assert row["peak_gib"] > 0.1 and row["against_ppo"] > 0
