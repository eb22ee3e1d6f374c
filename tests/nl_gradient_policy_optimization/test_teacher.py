"""The critique as a teacher in the trainer: what it reads, what it changes, what refuses it, and that runs resume."""

from dataclasses import replace

import pytest
import torch

from nl_gradient_policy_optimization.algorithms.teacher import encode_teacher_prompt, gaps, load_teacher_prompt
from nl_gradient_policy_optimization.optimize import optimize, prepare
from nl_gradient_policy_optimization.probe_teacher import ProbeConfig, measured, probe, shown, shuffled
from nl_gradient_policy_optimization.rollouts import Rollout, RolloutFeedback
from tests.tiny import tokenizer
from tests.tiny_runs import (
    SpokenRewards,
    check_same_weights,
    cut_after_one_step,
    encoded_prompts,
    ready_batch,
    rows,
    tiny_config,
    untimed,
)
from text2grad.errors import InputError
from text2grad.feedback import without_quotes
from text2grad.losses.teacher import gated, span_sums, weighted
from text2grad.tasks import PlainTask, get_task


def test_a_critique_without_the_policys_own_words():
    said = 'It calls "the  ticket" a fine, but the post says  ticket; the end is right.'
    left = 'It calls "…" …, but the post says  ticket; the end is right.'
    assert without_quotes(said, ["the ticket", "a fine", "end", "pos"]) == left
    assert without_quotes("tickets and ticket.", ["ticket"]) == "tickets and …."


def test_the_request_is_the_policys_own_and_the_critique_takes_part_in_its_last_message():
    class WithSystem(PlainTask):
        def messages(self, prompt):
            return [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"Summarise: {prompt}"}]

    feedback = RolloutFeedback([], critique="Costs $5? It repeats all night.", poor=["all night"])
    rollout = Rollout("a", "a dog", {}, [], [], "", [], [], True, feedback)
    prompt = load_teacher_prompt(get_task("slf5k"))
    text = tokenizer("byte").decode(encode_teacher_prompt(rollout, prompt, WithSystem("own"), tokenizer("byte")))
    assert text.startswith("Be brief.\n\nSummarise: a dog\n\nA careful reader")
    assert "Costs $5? It repeats …." in text and "all night" not in text
    for name in ("slf5k", "kodcode", "ultrafeedback", "plain"):
        assert load_teacher_prompt(get_task(name)).names == {"prompt", "critique"}


@pytest.mark.parametrize("kind", ["weight", "gate"])
def test_the_labels_of_a_run_are_those_of_the_formula(tmp_path, kind):
    config = tiny_config(tmp_path, algorithm="teacher", teacher=kind, kl_coef=0.0, kl_target=None, max_steps=1)
    trainer = prepare("slf5k", config, SpokenRewards(silent=("post-1",), fail=("post-2",)))
    trainer.algorithm.scale, seen = 0.01, []
    update = trainer.learner.update
    trainer.learner.update = lambda batch, *step: seen.append(batch) or update(batch, *step)
    metrics = trainer.step(1)
    (batch,) = seen
    taught = batch.extra["taught"]
    assert taught.tolist() == [float(each.id not in ("post-1", "post-2")) for each in batch.rollouts]
    assert gaps(batch)[taught == 0].abs().max() == 0
    changed = 0
    for row, rollout in enumerate(batch.rollouts):
        size = len(rollout.response_ids)
        labels, gap = torch.tensor([rollout.received.rewards]), gaps(batch)[row : row + 1, :size]
        expected = weighted(labels, gap, 0.2) if kind == "weight" else gated(labels, span_sums(labels, gap), 0.01)
        torch.testing.assert_close(batch.rewards[row : row + 1, :size], expected)
        changed += int((expected != labels).sum())
    assert changed > 0 and metrics["teacher/unread"] == int((taught == 0).sum())
    assert metrics["seconds/teacher"] > 0


def test_a_verdict_and_a_teacher_are_added(tmp_path):
    """The advantages are those of ``verdict``, the loss has the teacher's on top."""
    found = {}
    for name in ("verdict", "verdict_teacher"):
        teacher = {"teacher": "distill"} if name == "verdict_teacher" else {}
        config = tiny_config(tmp_path, algorithm=name, max_steps=1, output_dir=str(tmp_path / name), **teacher)
        trainer = prepare("slf5k", config, SpokenRewards())
        batch = ready_batch(trainer, trainer.collector.collect(1).rollouts)
        found[name] = batch.advantages, trainer.learner.update_on(batch)
    (expected, _), (advantages, update) = found.values()
    assert torch.equal(advantages, expected) and advantages.abs().max() > 0
    assert update["teacher/loss"] > 0


def test_distillation_draws_the_policy_to_the_teacher(tmp_path):
    """Updates on the same rollouts bring the loss down; ``distill`` counts poor tokens alone, ``all`` every one."""
    first = {}
    for kind in ("distill", "all"):
        taught = {"algorithm": "teacher", "teacher": kind, "teacher_coef": 20.0, "learning_rate": 3e-3}
        config = tiny_config(tmp_path, output_dir=str(tmp_path / kind), **taught)
        trainer = prepare("slf5k", config, SpokenRewards())
        rollouts = trainer.collector.collect(1).rollouts
        with torch.no_grad():  # a random teacher hardly differs from the policy: make it another one
            for name, parameter in trainer.learner.scorer.named_parameters():
                if "lora_B" in name:
                    parameter.normal_(0, 0.2, generator=torch.Generator().manual_seed(len(name)))
        batch = ready_batch(trainer, rollouts)
        if kind == "distill":
            batch.advantages = torch.zeros_like(batch.advantages)
        losses = [trainer.learner.update_on(batch)["teacher/loss"] for _ in range(12)]
        assert losses[-1] < 0.6 * losses[0]
        first[kind] = losses[0]
    assert 0 < first["distill"] < first["all"]


def test_a_resumed_run_has_the_same_teacher(tmp_path):
    taught = {"teacher": "gate+distill", "teacher_weights": "average", "teacher_rate": 0.5}
    config = tiny_config(tmp_path, algorithm="verdict_teacher", save_every=1, **taught)
    whole = optimize("slf5k", config, SpokenRewards())
    config.output_dir = str(tmp_path / "again")
    again = cut_after_one_step(config, SpokenRewards())
    check_same_weights(whole, again)
    average = whole.algorithm.average
    torch.testing.assert_close(again.algorithm.average, average, rtol=0, atol=0)
    learnt = {name: weight for name, weight in whole.learner.scorer.named_parameters() if weight.requires_grad}
    assert any(not torch.equal(weight, average[name]) for name, weight in learnt.items())  # it lags behind
    first, second = (untimed(tmp_path / run / "metrics.jsonl")[1] for run in ("run", "again"))
    assert first == second
    # what is sampled is scored by policy and reference, read by the teacher, and learnt from in two passes
    rollouts = rows(tmp_path / "run" / "rollouts.jsonl")
    assert first["ledger/critiques"] == sum(bool(row["response"].strip()) for row in rollouts)
    encoded = {key: len(ids) for key, ids in zip(whole.collector.ids, encoded_prompts(whole), strict=True)}
    tokens = sum(encoded[row["id"]] + len(row["tokens"]) for row in rollouts)
    assert first["ledger/backward_tokens"] == 2 * tokens
    assert first["ledger/forward_tokens"] > 6 * tokens  # the teacher's prompt is longer than the policy's


def test_an_average_that_begins_later_begins_with_the_policy(tmp_path):
    config = tiny_config(tmp_path, algorithm="teacher", teacher="gate", max_steps=1)
    trained = optimize("slf5k", config, SpokenRewards()).learner.scorer
    config = tiny_config(tmp_path, algorithm="teacher", teacher="gate", teacher_weights="average", allow_changed=True)
    going_on = prepare("slf5k", config, SpokenRewards())
    going_on.resume()
    expected = {name: weight for name, weight in trained.named_parameters() if weight.requires_grad}
    assert going_on.algorithm.average.keys() == expected.keys()
    assert all(torch.equal(own, expected[name]) for name, own in going_on.algorithm.average.items())
    going_on.step(2)


def test_figures_of_a_teacher_that_knows(tmp_path):
    """Log-probabilities written by hand: Δ is +1 on praised and −1 on blamed tokens, and 0 elsewhere."""
    config = tiny_config(tmp_path, algorithm="teacher", teacher="gate", rollouts_per_device=4)
    trainer = prepare("slf5k", config, SpokenRewards())
    batch = trainer.take_feedback(trainer.collector.collect(1))
    rollouts = batch.rollouts

    def knows(batch):
        batch.extra |= {"taught": torch.ones(len(batch)), "teacher_logprobs": batch.old_logprobs + batch.given}

    trainer.algorithm.read = knows
    found = measured(trainer, batch)
    assert (found["token_auc"], found["span_auc"]) == (1, 1)
    assert (found["token_gap_good"], found["token_gap_poor"]) == pytest.approx((1, -1), abs=1e-5)
    batch.extra["taught"] = torch.tensor([1.0, 1.0, 1.0, 0.0])  # one critique was empty: its Δ of 0 says nothing
    trainer.algorithm.read = lambda batch: None
    fewer = measured(trainer, batch)
    assert fewer["tokens"] < found["tokens"] and fewer["token_gap_good"] == pytest.approx(1, abs=1e-5)
    others, following = shuffled(batch).rollouts, [*rollouts[1:], rollouts[0]]
    for part in ("critique", "poor"):  # its quotes, too, are taken out of it
        assert [getattr(r.received, part) for r in others] == [getattr(r.received, part) for r in following]
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
