"""Optimise an assistant with natural-language gradients.

python nl_gradient_policy_optimization/ultrafeedback/train.py \
    --config nl_gradient_policy_optimization/ultrafeedback/config.yaml \
    --model smollm2 --data_path PROMPTS.json --critic REWARD_MODEL --output_dir runs/ultrafeedback
"""

from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.optimize import optimize
from text2grad.configs import parse
from text2grad.errors import command


@command
def main() -> None:
    optimize("ultrafeedback", parse(PolicyConfig))


if __name__ == "__main__":
    main()
