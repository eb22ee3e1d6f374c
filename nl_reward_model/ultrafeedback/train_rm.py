"""Train the UltraFeedback reward model on annotated answers.

python nl_reward_model/ultrafeedback/train_rm.py --data_path annotated.json --output_dir runs/ultrafeedback/reward_model

The settings are those of ultrafeedback/config.yaml, or of the file that --config names.
"""

from nl_reward_model.train_rm import main

if __name__ == "__main__":
    main("ultrafeedback")
