"""CAPO: several critiques vote on which tokens are wrong, and GRPO learns from the outcome and these penalties.

    python nl_gradient_policy_optimization/baselines/capo.py --task kodcode --votes 4 \\
        --data_path prompts.json --critic openai:gpt-4o --output_dir runs/capo --rollouts_per_prompt 4

Source: CAPO (arXiv 2508.02298). A critic that always says the same needs one vote. What is praised counts for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.optimize import optimize
from nl_gradient_policy_optimization.rewards import RewardSource, shape
from nl_gradient_policy_optimization.rollouts import Rollout, RolloutFeedback
from text2grad.configs import TaskConfig, parse, setting
from text2grad.errors import InputError, command
from text2grad.tasks import get_task, settings_of_task


class VotedRewards:
    """A :class:`~nl_gradient_policy_optimization.rewards.RewardSource`: −1 on tokens that most votes blame.

    The outcome, too, is what most votes say: wrong where they find something poor. Votes that failed do not count.
    """

    def __init__(self, voters: Sequence[RewardSource], config: PolicyConfig):
        self.voters, self.config = voters, config
        self.name, self.remote = f"{len(voters)} votes of {voters[0].name}", voters[0].remote

    def __call__(self, rollouts: Sequence[Rollout]) -> list[RolloutFeedback]:
        asked = [voter(rollouts) for voter in self.voters]
        pairs = zip(rollouts, zip(*asked, strict=True), strict=True)
        return [self._voted(rollout, list(ballot)) for rollout, ballot in pairs]

    def _voted(self, rollout: Rollout, ballot: list[RolloutFeedback]) -> RolloutFeedback:
        valid = [given for given in ballot if given.error is None]
        if not valid or not rollout.response.strip():
            return ballot[0]
        ballots = zip(*(given.labels for given in valid), strict=True)
        blamed = [sum(delta < 0 for delta in column) for column in ballots]
        deltas = [-1.0 if 2 * count > len(valid) else 0.0 for count in blamed]
        faulty = 2 * sum(bool(given.poor) for given in valid) > len(valid)
        typical = next(given for given in valid if bool(given.poor) == faulty)
        return shape(replace(typical, rewards=list(deltas), deltas=deltas), rollout, self.config)


@dataclass
class CAPOConfig(TaskConfig):
    """What the task's own settings do not say."""

    votes: int = setting(4, "critiques of each response; a token is wrong where more than half of them blame it")


def train(capo: CAPOConfig, config: PolicyConfig) -> None:
    """Optimise the policy on outcome and penalties, against the other rollouts of each prompt."""
    if capo.votes < 1:
        raise InputError(f"--votes must be at least 1, not {capo.votes}")
    if config.reward_placement != "token" or config.scheme != "uniform" or config.teacher != "off":
        raise InputError("CAPO places its own penalties; leave --reward_placement, --scheme and --teacher alone")
    config = replace(config, method="capo", advantage="group", outcome_coef=config.outcome_coef or 1.0)
    optimize(get_task(capo.task), config, wrap=lambda spans: VotedRewards(spans.voters(capo.votes), config))


@command
def main() -> None:
    train(*parse(CAPOConfig, PolicyConfig, default_config=settings_of_task("policy_config")))


if __name__ == "__main__":
    main()
