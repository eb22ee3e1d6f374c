"""A system's answers to held-out prompts of any task: δ per token by a critic, length, and how many it ended itself.

    python evaluation/evaluate.py --task my_task.py --data_path answers.json --system base \\
        --critic my_critic.py:judge --output_path base.result.json

``answers.json`` is written by ``evaluation/generate.py``. slf5k and kodcode have more metrics, in their own scripts
(``evaluation/<task>/evaluate.py``).
"""

from typing import Any

from evaluation.measuring import (
    MeasureConfig,
    compare_and_save,
    critic_figures,
    load_measured_responses,
    share_finished,
)
from evaluation.results import Figure
from text2grad.configs import parse_for
from text2grad.errors import command
from text2grad.tasks import Task, get_task


def evaluate(task: str | Task, config: MeasureConfig) -> dict[str, Any]:
    """Measure, write ``config.output_path``, and return the result."""
    task = get_task(task)
    records = load_measured_responses(config, task)
    responses = {key: task.response(record) for key, record in records.items()}
    figures = {
        "words": Figure.mean({key: len(response.split()) for key, response in responses.items()}),
        "finished": share_finished(records),
    }
    by_critic, extra = critic_figures(config, records, task)
    return compare_and_save(config, task, {**by_critic, **figures}, records, extra)


@command
def main(task: str = "") -> None:
    """For the script of a task, or with ``--task`` for any."""
    evaluate(*parse_for(task, MeasureConfig))


if __name__ == "__main__":
    main()
