"""Step 1: fold the LoRA adapter into its base.

python nl_reward_model/kodcode/evaluation/1_merge_lora.py --model reward_model --output_dir reward_model_merged
"""

from nl_reward_model.merge_lora import MergeConfig, merge
from text2grad.configs import parse
from text2grad.errors import command


@command
def main() -> None:
    merge(parse(MergeConfig))


if __name__ == "__main__":
    main()
