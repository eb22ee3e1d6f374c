"""Stage 3 with the decoder of this project: the policy's distribution, corrected for rounding, resumed exactly."""

from __future__ import annotations

import pytest
import torch

from nl_gradient_policy_optimization.optimize import prepare
from tests.tiny_runs import ScriptedRewards, tiny_config
from text2grad.errors import InputError
from text2grad.records import load_json


def test_rollouts_come_with_the_log_probabilities_that_the_trainer_scores(tmp_path):
    config = tiny_config(tmp_path, generation="decoder", rollouts_per_device=8, generation_batch_size=3)
    trainer = prepare("slf5k", config, ScriptedRewards())
    for name, parameter in trainer.scorer.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    rollouts = [rollout for batch in trainer.sample([f"post-{index % 5}" for index in range(8)]) for rollout in batch]
    batch = trainer.score(rollouts)
    assert [rollout.id for rollout in rollouts] == [f"post-{index % 5}" for index in range(8)]
    torch.testing.assert_close(batch.sampler_logprobs, batch.old_logprobs, atol=2e-5, rtol=1e-5)


def test_a_run_cut_in_two_equals_a_run_at_one_go(tmp_path):
    whole = tiny_config(tmp_path, generation="decoder", max_steps=4, save_every=2)
    prepare("slf5k", whole, ScriptedRewards()).train()
    parts = tiny_config(tmp_path, generation="decoder", max_steps=4, save_every=2, output_dir=str(tmp_path / "parts"))
    first = prepare("slf5k", parts, ScriptedRewards())
    for step in (1, 2):
        first.step(step)
    first.save()
    prepare("slf5k", parts, ScriptedRewards()).train()
    logs = [load_json(tmp_path / name / "metrics.jsonl") for name in ("run", "parts")]
    kept = [[{k: v for k, v in row.items() if "seconds" not in k} for row in log] for log in logs]
    assert len(kept[0]) == 4
    assert kept[0] == kept[1]


def test_other_models_are_refused(tmp_path):
    with pytest.raises(InputError, match="--generation transformers"):
        prepare("slf5k", tiny_config(tmp_path, "gpt2", generation="decoder"), ScriptedRewards())
