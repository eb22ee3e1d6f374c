"""A system's answers to held-out requests: δ per token by a critic, length, and how many it ended itself.

    python evaluation/ultrafeedback/evaluate.py --data_path answers.json --system base --output_path base.result.json \\
        --critic runs/ultrafeedback/reward_model

``answers.json`` is written by ``evaluation/generate.py --task ultrafeedback``. The benchmarks that people cite are the
other scripts of this folder.
"""

from __future__ import annotations

from evaluation.measuring import (
    MeasureConfig,
    compare_and_save,
    critic_figures,
    load_measured_responses,
    share_finished,
)
from evaluation.results import Figure
from text2grad.configs import parse
from text2grad.errors import command
from text2grad.tasks import get_task


def evaluate_open_answers(config: MeasureConfig) -> dict:
    """Measure, write ``config.output_path``, and return the result."""
    task = get_task("ultrafeedback")
    records = load_measured_responses(config, task)
    responses = {key: task.response(record) for key, record in records.items()}
    figures = {
        "words": Figure.mean({key: len(response.split()) for key, response in responses.items()}),
        "finished": share_finished(records),
    }
    judged, extra = critic_figures(config, records, task)
    return compare_and_save(config, task, "ultrafeedback", {**judged, **figures}, responses, extra)


@command
def main() -> None:
    evaluate_open_answers(parse(MeasureConfig))


if __name__ == "__main__":
    main()
