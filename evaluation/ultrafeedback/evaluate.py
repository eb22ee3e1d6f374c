"""A system's answers to held-out requests: δ per token by a critic, length, and how many it ended itself.

    python evaluation/ultrafeedback/evaluate.py --data_path answers.json --system base --output_path base.result.json \\
        --critic runs/ultrafeedback/reward_model

``answers.json`` is written by ``evaluation/generate.py --task ultrafeedback``. The benchmarks that people cite are the
other scripts of this folder.
"""

from evaluation.evaluate import main

if __name__ == "__main__":
    main("ultrafeedback")
