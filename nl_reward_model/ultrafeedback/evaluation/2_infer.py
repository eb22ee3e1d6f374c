"""Step 2: judge answers with the reward model.

python 2_infer.py --model_path reward_model_merged --dataset_path ultrafeedback_test.json \\
    --output_file inference_results.json --batch_size 40 --gpu_ids 0,1 --gpu_memory 30GiB
"""

from nl_reward_model.infer import InferConfig, infer
from text2grad.configs import parse
from text2grad.errors import command


@command
def main() -> None:
    infer("ultrafeedback", parse(InferConfig))


if __name__ == "__main__":
    main()
