"""What the tasks' ``train.py`` share."""

from pathlib import Path

from nl_gradient_policy_optimization.config import PolicyConfig
from text2grad.configs import parse
from text2grad.errors import command


@command
def main(task: str) -> None:
    """Train on a task, with the settings of its folder."""
    config = parse(PolicyConfig, default_config=Path(__file__).parent / task / "config.yaml")
    from nl_gradient_policy_optimization.optimize import optimize  # loads torch, which --help need not wait for

    optimize(task, config)
