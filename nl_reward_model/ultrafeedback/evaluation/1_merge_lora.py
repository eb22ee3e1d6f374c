"""Step 1: fold the LoRA adapter into its base.

python nl_reward_model/ultrafeedback/evaluation/1_merge_lora.py --model reward_model --output_dir reward_model_merged
"""

from nl_reward_model.merge_lora import main

if __name__ == "__main__":
    main()
