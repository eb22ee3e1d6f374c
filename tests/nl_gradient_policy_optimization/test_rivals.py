"""What other methods make of the same feedback: CAPO's votes, the outcome beside the spans, and their launcher."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nl_gradient_policy_optimization.algorithms.capo import VotedRewards
from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.optimize import optimize
from nl_gradient_policy_optimization.rewards import CriticRewards
from nl_gradient_policy_optimization.rollouts import RolloutFeedback
from tests.baseline_runs import SLF5K, QuotingCritic, rollout
from tests.tiny import tokenizer
from tests.tiny_runs import tiny_config
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
