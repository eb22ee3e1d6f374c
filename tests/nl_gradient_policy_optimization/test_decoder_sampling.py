"""Stage 3 with the decoder of this project: the policy's distribution, corrected for rounding, resumed exactly."""

from __future__ import annotations

import pytest
import torch

from nl_gradient_policy_optimization.optimize import prepare
from tests.tiny_runs import ScriptedRewards, tiny_config
from text2grad.errors import InputError


def test_rollouts_come_with_the_log_probabilities_that_the_trainer_scores(tmp_path):
    config = tiny_config(tmp_path, generation="decoder", rollouts_per_device=8, generation_batch_size=3)
    trainer = prepare("slf5k", config, ScriptedRewards())
    for name, parameter in trainer.learner.scorer.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    rollouts = [
        rollout for batch in trainer.collector.sample([f"post-{index % 5}" for index in range(8)]) for rollout in batch
    ]
    batch = trainer.collector.score(rollouts)
    assert [rollout.id for rollout in rollouts] == [f"post-{index % 5}" for index in range(8)]
    torch.testing.assert_close(batch.sampler_logprobs, batch.old_logprobs, atol=2e-5, rtol=1e-5)


def test_other_models_are_refused(tmp_path):
    with pytest.raises(InputError, match="--generation transformers"):
        prepare("slf5k", tiny_config(tmp_path, "gpt2", generation="decoder"), ScriptedRewards())
