"""What other methods make of the same feedback: CAPO's votes, the outcome beside the spans, and their launcher."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace

import pytest

from nl_gradient_policy_optimization.algorithms.capo import VotedRewards
from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.optimize import optimize
from nl_gradient_policy_optimization.rewards import CriticRewards
from nl_gradient_policy_optimization.rollouts import RolloutFeedback
from tests.baseline_runs import BASELINES, SLF5K, QuotingCritic, rollout
from tests.tiny import tokenizer
from tests.tiny_runs import tiny_config
from text2grad.errors import InputError
from text2grad.records import load_json

TEXT = "She lost her job, and she wants a new car."


class Votes:
    """The given feedback, one for each rollout."""

    name, remote = "voters", False

    def __init__(self, *given: RolloutFeedback):
        self.given = iter(given)

    def __call__(self, rollouts):
        return [next(self.given) for _ in rollouts]


def vote(*deltas: float, poor: bool = True) -> RolloutFeedback:
    return RolloutFeedback(list(deltas), list(deltas), "c", [], ["q"] if poor else [])


def test_a_token_is_wrong_where_most_votes_blame_it():
    response = rollout(TEXT)
    size = len(response.response_ids)
    ends = [[-1, -1, 1], [-1, 1, 0], [0, -1, 1]]
    ballot = [vote(*first, *[0.0] * (size - 3)) for first in ends] + [RolloutFeedback([0.0] * size, error="no reply")]
    config = PolicyConfig(outcome_coef=0.5, unfinished_reward=0.0)
    found = VotedRewards([Votes(each) for each in ballot], config)([response])[0]
    assert found.deltas == [-1, -1] + [0] * (size - 2)
    assert found.rewards == [-1, -1] + [0] * (size - 3) + [-0.5]  # most found something poor
    lenient = [vote(*[-1.0] * size), vote(*[1.0] * size, poor=False), vote(*[1.0] * size, poor=False)]
    found = VotedRewards([Votes(each) for each in lenient], config)([response])[0]
    assert found.deltas == [0] * size and found.rewards == [0] * (size - 1) + [0.5]
    failed = RolloutFeedback([0.0] * size, error="no reply")
    assert VotedRewards([Votes(failed), Votes(failed)], config)([response])[0].error == "no reply"


@pytest.mark.parametrize(("text", "poor", "outcome"), [(TEXT, ["job"], -2), (TEXT, ["dog"], 2), ("  ", [], -2)])
def test_the_outcome_lies_on_the_last_token(text, poor, outcome):
    plain = tiny = PolicyConfig()
    response = rollout(text)
    both = [
        CriticRewards(QuotingCritic(poor=poor), SLF5K, tokenizer("byte"), config)([response])[0].rewards
        for config in (plain, replace(tiny, outcome_coef=2.0))
    ]
    assert both[1] == [*both[0][:-1], both[0][-1] + outcome]


def test_capo_trains_without_a_value_function(tmp_path):
    config = tiny_config(tmp_path, algorithm="capo", votes=2, rollouts_per_prompt=2, max_steps=1)
    optimize("slf5k", config)
    run = load_json(tmp_path / "run" / "run.json")
    assert (run["method"], run["critic_name"]) == ("capo", "2 votes of programmatic")
    assert run["config"]["advantage"] == "group" and run["config"]["outcome_coef"] == 1
    rewards = [row["rewards"] for row in load_json(tmp_path / "run" / "rollouts.jsonl")]
    assert all(set(row[:-1]) <= {0, -1} and row[-1] != 0 for row in rewards)
    with pytest.raises(InputError, match="--votes"):
        config.changed(votes=0).check()
    with pytest.raises(InputError, match="different algorithms"):
        tiny_config(tmp_path, votes=2, teacher="gate")


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("sdpo", "--algorithm sdpo --seed 1"),
        ("rltf_fm", "--method rltf_fm --algorithm critique --seed 1"),
        ("critique_grpo", "--algorithm second --learn critique_grpo --rollouts_per_prompt 2 --seed 1"),
    ],
)
def test_the_launcher_names_what_a_method_changes(tmp_path, method, expected):
    (tmp_path / "python").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "python").chmod(0o755)
    path = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PROCESSES": "1"}
    command = ["bash", str(BASELINES / "run.sh"), method, "slf5k", "--seed", "1"]
    said = subprocess.run(command, env=path, text=True, capture_output=True, check=True).stdout
    script, rest = said.split(" --task slf5k --config ")
    assert script.endswith("/optimize.py") and (BASELINES / ".." / "slf5k" / "config.yaml").samefile(rest.split()[0])
    assert rest.split(maxsplit=1)[1].strip() == expected
