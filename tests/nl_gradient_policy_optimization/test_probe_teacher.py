"""The probe tells a model that reads its critiques from one that does not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from nl_gradient_policy_optimization.optimize import prepare
from nl_gradient_policy_optimization.probe_teacher import ProbeConfig, measured, probe, shown, shuffled
from tests.tiny_runs import SpokenRewards, tiny_config
from text2grad.errors import InputError


def test_figures_of_a_teacher_that_knows(tmp_path):
    """Log-probabilities written by hand: Δ is +1 on praised and −1 on blamed tokens, and 0 elsewhere."""
    trainer = prepare("slf5k", tiny_config(tmp_path, teacher="gate", rollouts_per_device=2), SpokenRewards())
    batch = trainer.take_feedback(trainer.collector.collect(1))
    rollouts = batch.rollouts

    def knows(batch):
        batch.extra |= {"taught": torch.ones(len(batch)), "teacher_logprobs": batch.old_logprobs + batch.given}

    trainer.algorithm.read = knows
    found = measured(trainer, batch)
    assert (found["token_auc"], found["span_auc"]) == (1, 1)
    assert (found["token_gap_good"], found["token_gap_poor"]) == pytest.approx((1, -1), abs=1e-5)
    assert found["right_good_kept"] == found["right_poor_kept"] == 1
    assert 0 < found["flipped_good_kept"] < 2 / (1 + 2.7**10)  # 2·σ(−1 / 0.1), less where a span has several tokens
    others = shuffled(batch).rollouts
    assert [r.received.critique for r in others] == [rollouts[1].received.critique, rollouts[0].received.critique]
    assert [r.received.rewards for r in others] == [r.received.rewards for r in rollouts]


def test_a_whole_probe_of_a_model_that_knows_nothing(tmp_path):
    config = tiny_config(tmp_path)
    asked = ProbeConfig("slf5k", config.model, config.data_path, responses=4, micro_batch_size=2, max_new_tokens=8)
    report = probe(asked, rewards=SpokenRewards())
    assert report["responses"] == report["with_feedback"] == report["real"]["read"] == 4
    assert 0.2 < report["real"]["token_auc"] < 0.8
    assert "4 of 4 responses" in shown(report) and "shuffled critiques: AUC" in shown(report)
    with pytest.raises(InputError, match="a multiple of --micro_batch_size"):
        probe(replace(asked, responses=3))
