"""The policy's log-probabilities: exact in 16 bits too, and those that rollouts come with."""

import math

import pytest
import torch
from torch import nn

from nl_gradient_policy_optimization import policy, sampling
from nl_gradient_policy_optimization.optimize import prepare
from nl_gradient_policy_optimization.policy import PolicyScorer
from tests.tiny import tiny_model
from tests.tiny_runs import ScriptedRewards, credited, ready_batch, tiny_config
from text2grad.models import load_model


@pytest.mark.parametrize("trained_head", [False, True])
def test_scores_of_a_16_bit_head_are_not_rounded(tmp_path, monkeypatch, trained_head):
    """Against the same hidden states and weights in float64; rounding would show in the second decimal."""
    monkeypatch.setattr(policy, "_rows", lambda weight: 100)  # several blocks
    model = load_model(tiny_model(tmp_path / "tiny"), torch.bfloat16)
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.data * 20, requires_grad=trained_head)
    scorer = PolicyScorer(model, chunk=5)
    ids = torch.randint(3, 500, (2, 20), generator=torch.Generator().manual_seed(0))
    mask, response = torch.ones_like(ids), torch.ones(2, 12, dtype=torch.long)
    logprobs, entropy, hidden, *_ = scorer(ids, mask, response, entropy=True)
    assert "forward" not in vars(model.lm_head) and logprobs.dtype == torch.float32

    exact, weight = hidden.double().requires_grad_(), model.lm_head.weight.detach().double().requires_grad_()
    log_probs = (exact @ weight.T).log_softmax(-1)
    expected = log_probs.gather(-1, ids[:, -12:, None]).squeeze(-1)
    torch.testing.assert_close(logprobs.double(), expected, rtol=0, atol=2e-5)
    torch.testing.assert_close(entropy.double(), -(log_probs.exp() * log_probs).sum(-1), rtol=0, atol=2e-5)
    assert (nn.functional.linear(hidden, model.lm_head.weight).float().log_softmax(-1) - log_probs).abs().max() > 5e-3

    logprobs.sum().backward()
    expected.sum().backward()
    assert any(parameter.grad is not None for name, parameter in model.named_parameters() if "layers" in name)
    if trained_head:
        torch.testing.assert_close(model.lm_head.weight.grad.double(), weight.grad, rtol=0.01, atol=0.05)


def test_a_frozen_head_is_read_once_for_scores_and_their_gradient(tmp_path):
    """Weighted and tempered, in float64: the gradients of one whole log-softmax; 24 positions are five chunks."""
    model = load_model(tiny_model(tmp_path / "tiny"), torch.float64, trainable=True)
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.data.clone(), requires_grad=False)
    read = []
    model.lm_head.register_forward_hook(lambda *_: read.append(1))
    random = torch.Generator().manual_seed(0)
    ids, weights = torch.randint(3, 500, (2, 20), generator=random), torch.randn(2, 12, generator=random)
    mask, response = torch.ones_like(ids), torch.ones(2, 12, dtype=torch.long)
    (PolicyScorer(model, temperature=0.7, chunk=5)(ids, mask, response).logprobs * weights).sum().backward()
    assert len(read) == 5

    learnt = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    log_probs = (model(ids, use_cache=False).logits[:, 7:-1] / 0.7).log_softmax(-1)
    expected = (log_probs.gather(-1, ids[:, 8:, None]).squeeze(-1) * weights).sum()
    for weight, gradient in zip(learnt.values(), torch.autograd.grad(expected, learnt.values()), strict=True):
        torch.testing.assert_close(weight.grad, gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kl", ["full", "k3"])
def test_the_chance_to_end_is_scored_with_the_response(tmp_path, kl):
    trainer = prepare("slf5k", tiny_config(tmp_path, algorithm="verdict", kl=kl, temperature=0.7), ScriptedRewards())
    batch = trainer.collector.score(next(trainer.collector.sample([*trainer.collector.records][:2])))
    ids, attention, mask = batch.inputs()
    with torch.no_grad():
        logits = trainer.learner.scorer.base(ids, attention_mask=attention).logits[:, -mask.shape[1] - 1 : -1] / 0.7
    expected = logits.log_softmax(-1)[..., trainer.collector.end_ids] * mask[..., None]
    torch.testing.assert_close(batch.extra["at"].to(expected), expected, rtol=1e-3, atol=1e-3)


def test_log_probabilities_that_an_engine_does_not_give_weigh_one(tmp_path, monkeypatch):
    """TRL says None for a NaN of vLLM's."""
    monkeypatch.setattr(sampling, "SAMPLER_LIMIT", 99.0)
    trainer = prepare("slf5k", tiny_config(tmp_path), ScriptedRewards())
    trainer.collector.sampler.batches = lambda prompts: iter(
        [([[5, 6, 7]] * len(prompts), [[-1.0, None, -2.0]] * len(prompts))]
    )
    metrics = trainer.step(1)
    assert math.isfinite(metrics["policy/loss"]) and metrics["grad_norm"] > 0


def test_the_value_head_learns_the_rewards_to_come_where_asked(tmp_path):
    """Line 24 of algorithm 4; by default it learns A + V."""
    found = {}
    for target in ("lambda", "rewards"):
        config = tiny_config(tmp_path, value_target=target, gamma=0.5, output_dir=str(tmp_path / target))
        trainer = prepare("slf5k", config, ScriptedRewards())
        batch = ready_batch(trainer, next(trainer.collector.sample(["post-0"])))
        batch.values = torch.full_like(batch.values, 3.0)
        found[target] = credited(trainer, batch).returns[0]
    rewards = batch.rewards[0].tolist()
    expected = [sum(0.5 ** (k - t) * rewards[k] for k in range(t, len(rewards))) for t in range(len(rewards))]
    assert found["rewards"].tolist() == pytest.approx(expected, abs=1e-6)
    assert (found["lambda"] - found["rewards"]).abs().max() > 0.1


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
