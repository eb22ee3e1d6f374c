"""Train the SLF5K reward model on annotated summaries.

python nl_reward_model/slf5k/train_rm.py --data_path annotated.json --output_dir runs/slf5k/reward_model

The settings are those of slf5k/config.yaml, or of the file that --config names.
"""

from nl_reward_model.train_rm import main

if __name__ == "__main__":
    main("slf5k")
