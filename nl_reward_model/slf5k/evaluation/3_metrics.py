"""Step 3: measure the feedback that 2_infer.py wrote, against the annotations of the same records.

python nl_reward_model/slf5k/evaluation/3_metrics.py --data_path feedback.json --output_path metrics.json
"""

from nl_reward_model.measures.metrics import main

if __name__ == "__main__":
    main("slf5k")
