"""How many requests a policy answers so that no checker objects: in all, and of some kinds.

    python benchmarks/instructions/evaluate.py --data_path answers.json --system base --output_path base.result.json

``answers.json`` is written by ``evaluation/generate.py``.
"""

from pathlib import Path

from benchmarks.instructions.checks import passes, words_of
from evaluation.measuring import MeasureConfig, compare_and_save, critic_figures, load_measured_responses
from evaluation.results import Figure
from text2grad.configs import parse
from text2grad.errors import command
from text2grad.tasks import Record, get_task

TASK = get_task(f"{Path(__file__).parent / 'task.py'}:TASK")
KINDS = {"few_words": "short", "many_words": "long", "no_commas": "no_commas", "one_sentence": "sentences"}
"""Figures, and the kinds of requests that they are about."""


def figures(records: dict[str, Record]) -> dict[str, Figure]:
    """Pass rates, and words of an answer. An answer that the length limit cut off does not pass."""
    answers = {key: TASK.response(record) for key, record in records.items()}
    right = {
        key: float(record["generation"]["finished"] and passes(answers[key], record["rules"]))
        for key, record in records.items()
    }
    of_kinds = {
        name: Figure.mean({key: value for key, value in right.items() if records[key]["kind"] == kind})
        for name, kind in KINDS.items()
    }
    words = Figure.mean({key: len(words_of(answer)) for key, answer in answers.items()})
    return {"passes": Figure.mean(right), "words": words, **of_kinds}


@command
def main() -> None:
    config = parse(MeasureConfig)
    records = load_measured_responses(config, TASK)
    by_critic, extra = critic_figures(config, records, TASK)
    compare_and_save(config, TASK, {**by_critic, **figures(records)}, records, extra)


if __name__ == "__main__":
    main()
