"""Step 2: judge solutions with the reward model.

python 2_infer.py --model_path reward_model_merged --dataset_path kodcode_test.json \\
    --output_file inference_results.json --batch_size 40 --gpu_ids 0,1 --gpu_memory 30GiB
"""

from nl_reward_model.infer import InferConfig, infer
from text2grad.configs import parse
from text2grad.errors import command


@command
def main() -> None:
    infer("kodcode", parse(InferConfig))


if __name__ == "__main__":
    main()
