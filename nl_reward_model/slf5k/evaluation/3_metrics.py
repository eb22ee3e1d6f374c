"""Step 3: what the judgements of 2_infer.py are worth, against the annotations that they carry.

python 3_metrics.py --input_file inference_results.json --output_file word_level_evaluation_results.json
"""

from nl_reward_model.measures.metrics import MetricsConfig, run
from text2grad.configs import parse
from text2grad.errors import command


@command
def main() -> None:
    run("slf5k", parse(MetricsConfig))


if __name__ == "__main__":
    main()
