"""Train the KodCode reward model on annotated solutions.

python nl_reward_model/kodcode/train_rm.py --data_path annotated.json --output_dir runs/kodcode/reward_model

The settings are those of kodcode/config.yaml, or of the file that --config names.
"""

from nl_reward_model.train_rm import main

if __name__ == "__main__":
    main("kodcode")
