"""Train the SLF5K reward model on annotated summaries.

python nl_reward_model/slf5k/train_rm.py --data_path annotated.json --output_dir runs/slf5k/reward_model

The settings are those of slf5k/config.yaml, or of the file that --config names.
"""

from pathlib import Path

from nl_reward_model.config import RewardModelConfig
from nl_reward_model.train_rm import train
from text2grad.configs import parse
from text2grad.errors import command


@command
def main() -> None:
    train("slf5k", parse(RewardModelConfig, default_config=Path(__file__).with_name("config.yaml")))


if __name__ == "__main__":
    main()
