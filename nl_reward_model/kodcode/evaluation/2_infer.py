"""Step 2: write feedback on solutions with the reward model.

python nl_reward_model/kodcode/evaluation/2_infer.py --model reward_model --data_path annotated.json \\
    --split validation --output_path feedback.json
"""

from nl_reward_model.infer import main

if __name__ == "__main__":
    main("kodcode")
