"""PPO with one number per response, on its last token; everything else as in Text2Grad, in the same trainer.

    python nl_gradient_policy_optimization/baselines/ppo.py --task slf5k \\
        --data_path posts.json --output_dir runs/ppo \\
        --reward_model runs/scalar_reward

With ``--reward_model`` the number is a trained scalar model's score. Without it, it is the sum or the mean of the
critic's δ (``--reward_placement last_sum``, ``last_mean``): the same feedback as Text2Grad's, its places forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from nl_gradient_policy_optimization.baselines.scalar_model import ScalarRewards
from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.optimize import optimize
from text2grad.configs import TaskConfig, parse, setting
from text2grad.errors import InputError, command
from text2grad.tasks import get_task, settings_of_task


@dataclass
class PPOConfig(TaskConfig):
    """What the task's own settings do not say."""

    reward_model: str = setting("", "a scalar reward model's folder (scalar_reward.py)")


def train(ppo: PPOConfig, config: PolicyConfig) -> None:
    """Optimise the policy on the scalar that the settings name."""
    task = get_task(ppo.task)
    if bool(ppo.reward_model) == (config.reward_placement != "token"):
        raise InputError(
            "PPO needs one scalar: give --reward_model FOLDER, or --reward_placement last_sum (or last_mean) for the "
            "critic's δ; not both"
        )
    if not ppo.reward_model:
        optimize(task, replace(config, method=f"ppo_{config.reward_placement}"))
        return
    if config.teacher != "off" or config.critique_coef or config.outcome_coef:
        raise InputError("--teacher, --critique_coef and --outcome_coef need a critic, and --reward_model is none")
    config = replace(config, method="ppo_scalar", critic=f"scalar:{ppo.reward_model}")
    optimize(task, config, ScalarRewards(ppo.reward_model, task, config))


@command
def main() -> None:
    train(*parse(PPOConfig, PolicyConfig, default_config=settings_of_task("policy_config")))


if __name__ == "__main__":
    main()
