"""Train the SLF5K reward model on annotated summaries.

python nl_reward_model/slf5k/train_rm.py --config nl_reward_model/slf5k/config.yaml \\
    --data_path annotated.json --output_dir runs/slf5k/reward_model
"""

from nl_reward_model.config import RewardModelConfig
from nl_reward_model.train_rm import train
from text2grad.configs import parse
from text2grad.errors import command


@command
def main() -> None:
    train("slf5k", parse(RewardModelConfig))


if __name__ == "__main__":
    main()
