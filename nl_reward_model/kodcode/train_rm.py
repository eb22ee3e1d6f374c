"""Train the KodCode reward model on annotated solutions.

python nl_reward_model/kodcode/train_rm.py --config nl_reward_model/kodcode/config.yaml \\
    --data_path annotated.json --output_dir runs/kodcode/reward_model
"""

from nl_reward_model.config import RewardModelConfig
from nl_reward_model.train_rm import train
from text2grad.configs import parse
from text2grad.errors import command


@command
def main() -> None:
    train("kodcode", parse(RewardModelConfig))


if __name__ == "__main__":
    main()
