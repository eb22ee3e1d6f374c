"""Step 1: fold the LoRA adapter into its base.

python 1_merge_lora.py --base_model meta-llama/Llama-3.1-8B-Instruct --lora_model reward_model \\
    --save_dir reward_model_merged --merge_and_save True
"""

from nl_reward_model.merge_lora import MergeConfig, merge
from text2grad.configs import parse
from text2grad.errors import command


@command
def main() -> None:
    merge(parse(MergeConfig))


if __name__ == "__main__":
    main()
