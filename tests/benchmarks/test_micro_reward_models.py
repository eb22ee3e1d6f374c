"""The synthetic task's reward models: what they learn from, and a policy that learns of one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.convergence import Study
from benchmarks.micro.methods import Learnt, method_of
from benchmarks.micro.reward_models import annotated_records
from benchmarks.micro.runs import critic_of
from benchmarks.micro.task import PROFILES
from nl_gradient_policy_optimization.baselines.preferences import Pair, load_pairs
from tests.benchmarks.test_convergence import small_study
from text2grad.records import load_json

PROMPT = "Name: Nora\nJob: baker\nHome: Porto"
PAIR = Pair("7", PROMPT, "Nora is a baker by trade. Nora lives in Porto.", "Nora lives in Turin.", 7.0, -3.0, "")


def test_both_responses_of_a_pair_become_judgements():
    chosen, rejected = annotated_records([PAIR])
    assert [chosen["id"], rejected["id"]] == ["7-chosen", "7-rejected"]
    assert PROFILES.prompt(chosen) == PROFILES.prompt(rejected) == PROMPT
    assert chosen["good_spans"] == ["is a baker by trade", "lives in Porto"] and chosen["poor_spans"] == []
    assert rejected["poor_spans"] == ["lives in Turin"] and "scores" not in rejected
    z = PROFILES.render_feedback(PROFILES.feedback(rejected))
    assert json.loads(z) == {
        "textual_feedback": "It gets Nora's home wrong: the notes say Porto. It does not mention Nora's job.",
        "good_spans": [],
        "poor_spans": ["lives in Turin"],
    }


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Study:
    methods = ["text2grad_reward_model-24", "text2grad_reward_model_no_critique-24", "ppo_reward_model-24", "ppo_sum"]
    sizes = {"steps": 1, "held_out": 4, "base_steps": 10, "reward_model_steps": 3}
    return small_study(tmp_path_factory.mktemp("study"), methods=methods, learning_rates=[1e-3], **sizes)


@pytest.mark.slow
def test_both_kinds_learn_from_the_same_pairs(study):
    models = study.materials.reward_models
    assert set(models) == {Learnt("critique", 24), Learnt("spans", 24), Learnt("scalar", 24)}
    pairs = load_pairs(study.folder / "reward_model-24-pairs.json")
    learnt = load_json(study.folder / "nl_reward_model-no_critique-24-annotations.json")
    assert [row["response"] for row in learnt] == [
        text for pair in pairs.values() for text in (pair.chosen, pair.rejected)
    ]
    trained = load_json(Path(models[Learnt("spans", 24)]) / "reward_model.json")
    assert trained["data"]["training"] + trained["data"]["validation"] == len(learnt) and not trained["data"]["dropped"]


@pytest.mark.slow
def test_rewards_are_the_trained_models(study):
    critic = critic_of(method_of("text2grad_reward_model-24"), 1, study.materials, study.protocol)
    assert critic.name.startswith("nl_reward_model-24@")
    curves, _, _ = study.train_all()
    assert all([row["step"] for row in runs[0]] == [0, 1] for runs in curves.values())
    starts = {json.dumps(runs[0][0]) for runs in curves.values()}
    assert len(starts) == 1
