"""RLTF-SD and Critique-GRPO: losses and advantages by hand, and what a step of each learns from."""

from dataclasses import replace
from math import isfinite, log
from time import sleep

import pytest
import torch

from nl_gradient_policy_optimization.algorithms.second import attempt_advantages
from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.optimize import prepare
from nl_gradient_policy_optimization.rollouts import RolloutFeedback
from tests.tiny_runs import SpokenRewards, tiny_config
from text2grad.errors import InputError
from text2grad.losses.ppo import refinement_loss


def test_advantages_of_two_attempts_by_hand():
    """Two prompts of two attempts each: the first one's rewards are 1 and 3, then 5 and 6 after the critique."""
    scores, counts = torch.tensor([1.0, 3.0, 0.0, 0.0, 5.0, 6.0, -1.0, 0.0]), torch.ones(8)
    y0, y1 = attempt_advantages(scores, counts, 2, "rltf_sd")
    assert y0.tolist() == [0, 0, 0, 0] and y1.tolist() == [3, 4, -1, 0]
    y0, y1 = attempt_advantages(scores, counts, 2, "critique_grpo")
    assert y0.tolist() == [-2.75, -0.75, 0.25, 0.25] and y1.tolist() == [1.25, 2.25, -0.75, 0.25]
    counts[0] = 0
    y0, y1 = attempt_advantages(scores, counts, 2, "rltf_sd")
    assert y1.tolist() == [2, 3, -1, 0]  # a failed critique is nobody's baseline
    counts[1] = 0  # and where all failed, there is none to compare with
    assert attempt_advantages(scores, counts, 2, "rltf_sd")[1].tolist() == [0, 0, -1, 0]


def test_half_a_step_is_counted_where_half_is_learnt():
    small = {"algorithm": "second", "model": "m", "data_path": "d", "output_dir": "o", "rollouts_per_device": 8}
    PolicyConfig.of(**small, micro_batch_size=8, learn="critique_grpo").check()
    with pytest.raises(InputError, match=r"multiple of --minibatches times --micro_batch_size \(8\)"):
        PolicyConfig.of(**small, micro_batch_size=8).check()


def test_the_refinement_loss_by_hand():
    logprobs = torch.tensor([log(0.1), log(0.9)], requires_grad=True)
    loss = refinement_loss(logprobs, torch.tensor([2.0, -1.0]))
    assert loss.tolist() == pytest.approx([-2 * 0.1 / 0.2, 0.9 / 1.0])
    loss.sum().backward()
    assert logprobs.grad.tolist() == pytest.approx([-2 * 0.1 * 0.1 / 0.2**2, 0.1 * 0.9 / 1.0**2])


@pytest.mark.parametrize("learn", ["rltf_sd", "critique_grpo"])
def test_a_step_of_each(tmp_path, monkeypatch, learn):
    """Two prompts with two first and two second attempts each, in one step of eight responses."""
    settings = {"rollouts_per_device": 8, "rollouts_per_prompt": 2, "lora_r": 0, "kl_coef": 0.0}
    config = tiny_config(tmp_path, algorithm="second", learn=learn, **settings)
    rewards = SpokenRewards(silent=["post-2"])
    trainer = prepare("slf5k", config, rewards)
    assert config.algorithm.label == learn
    batches = trainer.collector.sampler.batches

    def slow_batches(prompts):  # of an engine whose log-probabilities are 0.1 too low
        sleep(0.1)
        return ((ids, [[each - 0.1 for each in row] for row in said]) for ids, said in batches(prompts))

    trainer.collector.sampler.batches, judge = slow_batches, SpokenRewards.__call__
    monkeypatch.setattr(SpokenRewards, "__call__", lambda *args: sleep(0.1) or judge(*args))
    learnt, update = [], trainer.learner.update
    trainer.learner.update = lambda batch, *step: learnt.append(batch) or update(batch, *step)
    before = [p.detach().clone() for p in trainer.learner.scorer.parameters()]
    metrics = trainer.step(1)
    first, second = rewards.asked
    assert [r.id for r in second] == [r.id for r in first] and len({r.id for r in first}) == 2
    assert all(a.prompt_ids == b.prompt_ids for a, b in zip(first, second, strict=True))
    assert any(a.response_ids != b.response_ids for a, b in zip(first, second, strict=True))
    assert metrics["ledger/critiques"] <= 8 and metrics["rollouts"] == 8 and metrics["updates"] == config.ppo_epochs
    assert metrics["sampler/difference"] == pytest.approx(0.1, abs=1e-4) and isfinite(metrics["policy/loss"])
    assert metrics["seconds/rollout"] >= 0.2 and metrics["seconds/critique"] >= 0.2
    (batch,) = learnt
    both = learn == "critique_grpo"
    assert list(map(id, batch.rollouts)) == list(map(id, first + second if both else second))
    assert batch.extra["refined"].tolist() == ([False] * 4 + [True] * 4 if both else [False] * 4)
    logged = trainer.rollout_log.rows()
    reward = [sum(row["rewards"]) for row in logged]  # no KL is taken off
    advantages = [row["advantages"] for row in logged[4:6]]
    for index, row in enumerate(advantages):
        baseline = sum(reward[:2] + reward[4:6]) / 4 if both else sum(reward[:2]) / 2
        assert row == pytest.approx([reward[4 + index] - baseline] * len(row))
    assert any(not torch.equal(a, b) for a, b in zip(before, trainer.learner.scorer.parameters(), strict=True))
    assert trainer.learner.value_function is None and trainer.total_steps == config.max_steps


def test_the_second_attempt_reads_the_critique_and_the_answer(tmp_path):
    prompt = tmp_path / "again.txt"
    prompt.write_text("${prompt}\nYou said: ${response}\nBut: ${critique}\nAgain:")
    settings = {"algorithm": "second", "rollouts_per_prompt": 2, "micro_batch_size": 1}
    trainer = prepare("slf5k", tiny_config(tmp_path, teacher_prompt=str(prompt), **settings), SpokenRewards())
    reader = trainer.algorithm.reader
    rollout = next(batch for batch in trainer.collector.sample(trainer.collector.prompts_of(1)))[0]
    feedback = RolloutFeedback([0.0], None, "'barks' is odd.", poor=["barks"])
    rollout = replace(rollout, response="It barks.", feedback=feedback)
    ids = reader.prompt_ids(rollout, 8)
    read = trainer.tokenizer.decode(ids)
    assert "You said: It barks.\nBut: 'barks' is odd.\nAgain:" in read
    silent = replace(rollout, feedback=RolloutFeedback([0.0]))
    asked, batches = [], trainer.collector.sampler.batches
    trainer.collector.sampler.batches = lambda prompts: asked.extend(prompts) or batches(prompts)
    reader.positions = len(ids) + 8  # room for the answer of 8 tokens
    trainer.algorithm.try_again([rollout, silent])
    assert asked == [ids, rollout.prompt_ids]
    reader.positions -= 1
    with pytest.raises(InputError, match="--algorithm second reads critiques, and no rollout of this step has one"):
        trainer.algorithm.try_again([rollout, silent])
