"""PPO with one number for each response, on its last token; everything else as in Text2Grad.

The number is the sum or the mean of the critic's δ, the same feedback with its places forgotten; the critic's verdict
on the whole; or the score of a trained scalar reward model (``--reward_model``, see ``baselines/scalar_reward.py``).
"""

from dataclasses import dataclass, replace
from typing import Literal

from nl_gradient_policy_optimization.algorithms.text2grad import Text2Grad
from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.rewards import ChangedRewards, RewardSource
from nl_gradient_policy_optimization.rollouts import RolloutFeedback
from text2grad.configs import setting
from text2grad.errors import InputError
from text2grad.tasks import Task

Placement = Literal["last_sum", "last_mean", "last_verdict"]


@dataclass
class Scalar(Text2Grad):
    """PPO on the scalar that its settings name."""

    name = "scalar"

    reward_placement: Placement = setting(
        "last_sum", "scalar: what lies on the last token: the sum or the mean of the critic's δ, or its verdict"
    )
    reward_model: str = setting("", "scalar: a scalar reward model's folder (scalar_reward.py) in the critic's place")

    @property
    def label(self) -> str:
        return "ppo_scalar" if self.reward_model else f"ppo_{self.reward_placement}"

    def check(self, config: PolicyConfig) -> None:
        if self.reward_model and self.reward_placement != "last_sum":
            raise InputError(
                f"--reward_placement {self.reward_placement}: a --reward_model gives its own number; leave it out"
            )

    def configure(self, config: PolicyConfig) -> None:
        if self.reward_model:
            config.critic = f"scalar:{self.reward_model}"

    def source(self, task: Task, config: PolicyConfig) -> RewardSource | None:
        if not self.reward_model:
            return None
        from nl_gradient_policy_optimization.baselines.scalar_model import ScalarRewards

        return ScalarRewards(self.reward_model, task, config)

    def wrap(self, rewards: RewardSource, task: Task, config: PolicyConfig) -> RewardSource:
        if self.reward_model:
            return rewards
        return ChangedRewards(rewards, config, lambda _, given: on_last_token(given, self.reward_placement))


def on_last_token(given: RolloutFeedback, placement: Placement) -> RolloutFeedback:
    """The δ all on the last token: ``last_sum`` keeps the total reward, ``last_mean`` is the mean δ of a token."""
    deltas = given.labels
    total = sum(deltas)
    if placement == "last_mean":
        total /= max(len(deltas), 1)
    if placement == "last_verdict":
        if given.score is None:
            raise InputError("--reward_placement last_verdict: the rewards come from no critic; choose last_sum")
        total = given.score
    return replace(given, rewards=[0.0] * (len(deltas) - 1) + [total], deltas=deltas)
