"""Optimise an assistant with natural-language gradients.

    python nl_gradient_policy_optimization/ultrafeedback/train.py --model smollm2 --data_path prompts.json \\
        --critic programmatic --output_dir runs/ultrafeedback/policy

Settings come from this folder's config.yaml, or from the file that --config names. Flags win over both.
"""

from nl_gradient_policy_optimization.entry import main

if __name__ == "__main__":
    main("ultrafeedback")
