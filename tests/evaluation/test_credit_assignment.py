"""Credit under the two reward settings, against the appendix's sums written out and against the trainer's GAE."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation.credit import (
    advantage_gaps,
    amplification,
    end_of_sequence_advantages,
    end_of_sequence_advantages_from,
    separation,
    token_level_advantages,
)
from evaluation.credit_assignment import CreditConfig, gaps_by_distance, label_figures, load_rollouts
from text2grad.advantages import gae
from text2grad.errors import InputError
from text2grad.records import save_json

DELTAS = st.lists(st.sampled_from([-1.0, 0.0, 1.0]), min_size=1, max_size=40)
DECAYS = st.floats(0.5, 1.0)


@given(DELTAS, DECAYS)
@settings(deadline=None)
def test_settings_a_and_b_are_the_appendixs_sums_and_the_trainers_gae(rewards, decay):
    """The latter with γ = 1 and λ the decay; rewards where they stand, and their sum at the last token."""
    length = len(rewards)
    a = [sum(decay ** (k - t) * rewards[k] for k in range(t, length)) for t in range(length)]
    b = [decay ** (length - 1 - t) * sum(rewards[t:]) for t in range(length)]
    assert token_level_advantages(np.array(rewards), decay) == pytest.approx(a)
    assert end_of_sequence_advantages_from(np.array(rewards), decay) == pytest.approx(b)
    rows = torch.tensor([rewards, [0.0] * (length - 1) + [sum(rewards)]], dtype=torch.float64)
    trained, _ = gae(rows, torch.zeros_like(rows), torch.ones_like(rows), 1.0, decay)
    assert trained[0].tolist() == pytest.approx(a)
    assert end_of_sequence_advantages(np.array(rewards), decay) == pytest.approx(trained[1].tolist())


def test_a_reward_twenty_tokens_before_the_end_weighs_2_8_times_as_much():
    assert amplification(20, 0.95) == pytest.approx(2.79, abs=0.005)
    alone = np.zeros(30)
    alone[9] = 1.0
    ratio = token_level_advantages(alone, 0.95)[9] / end_of_sequence_advantages(alone, 0.95)[9]
    assert ratio == pytest.approx(amplification(20, 0.95))


@given(DELTAS, DELTAS, DECAYS)
@settings(deadline=None)
def test_gaps_between_trajectories_differ_by_the_appendixs_term(first, second, decay):
    length = max(len(first), len(second))
    difference = np.zeros(length)
    difference[: len(first)] += first
    difference[: len(second)] -= second
    gap_a, gap_b = advantage_gaps(np.array(first), np.array(second), decay)
    weights = lambda t: [decay ** (k - t) - decay ** (length - 1 - t) for k in range(t, length)]  # noqa: E731
    term = [float(np.dot(weights(t), difference[t:])) for t in range(length)]
    assert gap_a - gap_b == pytest.approx(np.array(term), abs=1e-9)


def test_separation_is_the_chance_that_praise_outranks_criticism():
    labels = np.array([1, -1, 0, 1, -1])
    assert separation(np.array([2.0, 1.0, 9.0, 3.0, 0.0]), labels) == 1
    assert separation(np.array([1.0, 1.0, 9.0, 1.0, 1.0]), labels) == 0.5
    assert separation(np.array([0.0, 1.0, 0.0, 0.0, 1.0]), labels) == 0
    assert np.isnan(separation(np.array([1.0, 2.0]), np.array([1, 0])))


def test_end_of_sequence_rewards_do_not_tell_praise_from_criticism_where_token_rewards_do():
    draw = np.random.default_rng(0)
    prompts = {str(i): [draw.choice([-1.0, 0.0, 1.0], p=[0.2, 0.5, 0.3], size=30) for _ in range(4)] for i in range(40)}
    figures = label_figures(prompts, 0.6)
    assert figures["separation_A"].low > 0.9
    assert figures["separation_B"].low < 0.5 < figures["separation_B"].high
    assert figures["right_sign_A"].value > figures["right_sign_B"].value + 0.1
    labelled = [len(r) - 1 - k for rollouts in prompts.values() for r in rollouts for k in np.flatnonzero(r)]
    assert figures["amplification"].value == pytest.approx(np.mean([0.6**-d for d in labelled]))


def test_gaps_compare_the_best_with_the_worst_rollout_of_a_prompt():
    prompts = {"a": [np.array([1.0, 0, 0]), np.array([0.0, 0, 0]), np.array([-1.0, 0, 0])], "b": [np.array([1.0])]}
    rows = gaps_by_distance(prompts, 0.5)
    assert [row["distance"] for row in rows] == [0, 1, 2]
    assert rows[2] == {"distance": 2, "pairs": 1, "gap_A": 2.0, "gap_B": 0.5, "amplification": 4.0}
    assert rows[0]["gap_A"] == rows[0]["gap_B"] == 0


def test_the_command_writes_figures_and_a_plot(run_script, tmp_path):
    draw = np.random.default_rng(1)
    rows = [
        {"step": step, "prompt": f"p{step % 3}", "deltas": draw.choice([-1.0, 0.0, 1.0], size=20).tolist()}
        for step in range(12)
    ]
    save_json(tmp_path / "rollouts.jsonl", [*rows, {"step": 12, "prompt": "p0", "deltas": None}])
    flags = ["--rollouts", tmp_path / "rollouts.jsonl", "--output_path", tmp_path / "c.json"]
    run_script("evaluation/credit_assignment.py", *flags, "--plot", tmp_path / "c.svg")
    written = json.loads((tmp_path / "c.json").read_text())
    assert written["rollouts"] == 12 and written["prompts"] == 3
    expected = label_figures(load_rollouts(str(tmp_path / "rollouts.jsonl")), 0.95)
    assert written["metrics"] == {name: figure.to_dict() for name, figure in expected.items()}
    assert (tmp_path / "c.svg").read_text().startswith("<?xml")


def test_bad_input_is_named(tmp_path):
    save_json(tmp_path / "r.jsonl", [{"step": 1, "prompt": "p"}])
    with pytest.raises(InputError, match="line 1 has no 'deltas'"):
        load_rollouts(str(tmp_path / "r.jsonl"))
    with pytest.raises(InputError, match="must be above 0 and at most 1"):
        CreditConfig(rollouts="x", output_path="y", gamma=1.2)
