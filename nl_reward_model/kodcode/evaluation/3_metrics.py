"""Step 3: measure the feedback that 2_infer.py wrote, against the annotations of the same records.

python nl_reward_model/kodcode/evaluation/3_metrics.py --data_path feedback.json --output_path metrics.json
"""

from nl_reward_model.measures.metrics import MetricsConfig, measure_feedback
from text2grad.configs import parse
from text2grad.errors import command


@command
def main() -> None:
    measure_feedback("kodcode", parse(MetricsConfig))


if __name__ == "__main__":
    main()
