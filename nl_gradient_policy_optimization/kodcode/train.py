"""Optimise a programmer with natural-language gradients.

    python nl_gradient_policy_optimization/kodcode/train.py --model smollm2 --data_path questions.json \\
        --critic programmatic --output_dir runs/kodcode/policy

Settings come from this folder's config.yaml, or from the file that --config names. Flags win over both.
"""

from pathlib import Path

from nl_gradient_policy_optimization.config import PolicyConfig
from text2grad.configs import parse
from text2grad.errors import command


@command
def main() -> None:
    config = parse(PolicyConfig, default_config=Path(__file__).with_name("config.yaml"))
    from nl_gradient_policy_optimization.optimize import optimize  # loads torch, which --help need not wait for

    optimize("kodcode", config)


if __name__ == "__main__":
    main()
