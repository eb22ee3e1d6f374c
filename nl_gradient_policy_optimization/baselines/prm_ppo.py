"""PRM-PPO: rewards at the ends of steps, right or wrong (appendix N); everything else as in Text2Grad.

    python nl_gradient_policy_optimization/baselines/prm_ppo.py --task slf5k \\
        --data_path posts.json --output_dir runs/prm \\
        --critic programmatic

The critic labels the steps (see ``steps.py``). For a process reward model of its own, turn stage 1's annotations into
labels of whole steps (``step_labels.py``), train on them with stage 2, and give that model's folder as ``--critic``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nl_gradient_policy_optimization.baselines.steps import at_step_ends, label_steps, split_steps
from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.optimize import optimize
from nl_gradient_policy_optimization.rewards import RewardSource, shape
from nl_gradient_policy_optimization.rollouts import Rollout, RolloutFeedback
from text2grad.configs import TaskConfig, parse
from text2grad.errors import InputError, command
from text2grad.feedback import Feedback
from text2grad.tasks import Task, get_task, settings_of_task


class StepRewards:
    """A :class:`~nl_gradient_policy_optimization.rewards.RewardSource`: a critic's feedback, by steps.

    Args:
        spans: the critic's own source of rewards; its quotes say which steps are wrong, its δ stay for the metrics.
    """

    def __init__(self, spans: RewardSource, task: Task, config: PolicyConfig):
        self.spans, self.task, self.config = spans, task, config
        self.name, self.remote = f"steps of {spans.name}", spans.remote

    def __call__(self, rollouts: Sequence[Rollout]) -> list[RolloutFeedback]:
        pairs = zip(rollouts, self.spans(rollouts), strict=True)
        return [self._by_step(rollout, given) for rollout, given in pairs]

    def _by_step(self, rollout: Rollout, given: RolloutFeedback) -> RolloutFeedback:
        if given.error is not None or not rollout.response.strip():
            return given
        feedback = Feedback(given.critique, given.good, given.poor)
        steps = split_steps(rollout.response, self.task)
        labels = label_steps(steps, rollout.response, feedback, self.task)
        rewards = at_step_ends(steps, labels, rollout.spans)
        return shape(replace(given, rewards=rewards), rollout, self.config)


@dataclass
class PRMConfig(TaskConfig):
    """What the task's own settings do not say."""


def train(prm: PRMConfig, config: PolicyConfig) -> None:
    """Optimise the policy on the rewards of steps."""
    task = get_task(prm.task)
    split_steps("", task)  # refuses a task without steps
    if config.reward_placement != "token" or config.scheme != "uniform":
        raise InputError("PRM-PPO places rewards at the ends of steps; leave --reward_placement and --scheme alone")
    if config.teacher != "off":
        raise InputError(
            "PRM-PPO rewards the ends of steps, and a teacher changes the labels of quotes; leave --teacher off"
        )
    config = replace(config, method="prm_ppo")
    optimize(task, config, wrap=lambda spans: StepRewards(spans, task, config))


@command
def main() -> None:
    train(*parse(PRMConfig, PolicyConfig, default_config=settings_of_task("policy_config")))


if __name__ == "__main__":
    main()
