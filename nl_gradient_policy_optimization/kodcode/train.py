"""Optimise a programmer with natural-language gradients.

python nl_gradient_policy_optimization/kodcode/train.py \
    --config nl_gradient_policy_optimization/kodcode/config.yaml \
    --model smollm2 --data_path QUESTIONS.json --critic programmatic --output_dir runs/kodcode
"""

from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.optimize import optimize
from text2grad.configs import parse
from text2grad.errors import command


@command
def main() -> None:
    optimize("kodcode", parse(PolicyConfig))


if __name__ == "__main__":
    main()
