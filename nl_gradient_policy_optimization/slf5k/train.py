"""Optimise a summariser with natural-language gradients.

python nl_gradient_policy_optimization/slf5k/train.py \
    --config nl_gradient_policy_optimization/slf5k/config.yaml \
    --model smollm2 --data_path POSTS.json --critic programmatic --output_dir runs/slf5k
"""

from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.optimize import optimize
from text2grad.configs import parse
from text2grad.errors import command


@command
def main() -> None:
    optimize("slf5k", parse(PolicyConfig))


if __name__ == "__main__":
    main()
