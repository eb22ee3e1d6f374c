"""CAPO: several critiques vote on which tokens are wrong, and GRPO learns from the outcome and these penalties.

Source: CAPO (arXiv 2508.02298), R_t = W_whole·[right] − W_process·[t is wrong] on every token, normalised over the
prompt's responses. The weights are 2 (from −1 to +1) and 1. What is praised counts for nothing. ``--critic_votes`` says
how many critiques vote; a critic that always says the same, such as a program, has one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from nl_gradient_policy_optimization.algorithms.text2grad import Text2Grad
from nl_gradient_policy_optimization.batch import Batch
from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.rewards import CriticRewards, RewardSource, shape
from nl_gradient_policy_optimization.rollouts import Rollout, RolloutFeedback
from text2grad.advantages import group_tokens, per_response, response_scores
from text2grad.errors import InputError
from text2grad.tasks import Task


@dataclass
class CAPO(Text2Grad):
    """Outcome and penalties, against the other responses to each prompt."""

    name = "capo"
    uses_values = False
    compares_groups = True

    def check(self, config: PolicyConfig) -> None:
        if config.scheme != "uniform":
            raise InputError(f"--algorithm capo places its own penalties; leave --scheme {config.scheme} out")

    def advantages(self, batch: Batch) -> Tensor:
        """R_t of each token, the outcome on all of them, against those of the prompt's responses.

        Where all are the same this is 0: the deviation would blow their KL penalties up to full size.
        """
        size, outcome = self.run.config.rollouts_per_prompt, response_scores(batch.given - batch.deltas, batch.mask)
        told = batch.deltas + per_response(outcome, batch.mask)
        against = group_tokens(told + batch.rewards - batch.given, batch.mask, size)
        differ = group_tokens(told, batch.mask, size, eps=1.0).abs().amax(1).view(-1, size).amax(1) > 1e-5
        return against * differ.repeat_interleave(size)[:, None]

    def wrap(self, rewards: RewardSource, task: Task, config: PolicyConfig) -> RewardSource:
        return VotedRewards(rewards, config)


class VotedRewards:
    """A :class:`~nl_gradient_policy_optimization.rewards.RewardSource`: −1 on tokens that most votes blame.

    The outcome, too, is what most votes say: wrong where they find something poor. Votes that failed do not count.
    """

    def __init__(self, rewards: RewardSource, config: PolicyConfig):
        self.rewards, self.config = rewards, config
        self.name, self.remote = rewards.name, rewards.remote
        if isinstance(rewards, CriticRewards) and len(rewards.opinions) > 1:
            self.name = f"{len(rewards.opinions)} votes of {self.name}"

    def __call__(self, rollouts: Sequence[Rollout]) -> list[RolloutFeedback]:
        if isinstance(self.rewards, CriticRewards):
            ballots = self.rewards.ballots(rollouts)
        else:
            ballots = [[given] for given in self.rewards(rollouts)]
        return [self._voted(*each) for each in zip(rollouts, ballots, strict=True)]

    def _voted(self, rollout: Rollout, ballot: list[RolloutFeedback]) -> RolloutFeedback:
        valid = [given for given in ballot if given.error is None]
        if not valid:
            return ballot[0]
        ballots = zip(*(given.labels for given in valid), strict=True)
        blamed = [sum(delta < 0 for delta in column) for column in ballots]
        deltas = [-1.0 if 2 * count > len(valid) else 0.0 for count in blamed]
        found = [bool(given.poor) or rollout.blank for given in valid]
        faulty = 2 * sum(found) > len(valid)
        rewards = [*deltas[:-1], deltas[-1] + (-1.0 if faulty else 1.0)]
        return shape(replace(valid[found.index(faulty)], rewards=rewards, deltas=deltas), rollout, self.config)
