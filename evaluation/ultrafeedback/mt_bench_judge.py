"""MT-Bench: a judge grades each turn of each answer from 1 to 10; a table by category and a radar plot.

    python evaluation/ultrafeedback/mt_bench_judge.py --questions question.jsonl --answers answers.jsonl \\
        --references gpt-4.jsonl --judge openai:gpt-4 --system base --output_path mt_bench.result.json --plot radar.svg

Single-answer grading, with FastChat's reference answers for maths, coding and reasoning. The grading prompts are the
``mt_bench_turn_*.txt`` beside this file; to compare with published scores give FastChat's own by ``--judge_prompts``.
Killed and run again, nothing is asked twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from evaluation.results import Figure, load_result, print_metrics, save_result
from evaluation.ultrafeedback.mt_bench import (
    CATEGORIES,
    WITH_REFERENCE,
    judge_question,
    load_answers,
    load_judge_prompts,
    load_questions,
    read_rating,
)
from text2grad.configs import parse
from text2grad.endpoints.judging import Judge, JudgeConfig, open_judge
from text2grad.errors import InputError, command
from text2grad.records import check_writable, fingerprint


@dataclass
class MtBenchGradeConfig:
    """What is graded."""

    questions: str = field(metadata={"help": "FastChat's question.jsonl."})
    answers: str = field(metadata={"help": "The system's answers, of mt_bench_answers.py or FastChat."})
    system: str = field(metadata={"help": "The system's name in tables."})
    output_path: str = field(metadata={"help": "The result file."})
    references: str | None = field(default=None, metadata={"help": "FastChat's reference_answer/gpt-4.jsonl."})
    without_references: bool = field(
        default=False, metadata={"help": "Grade maths, coding and reasoning without them."}
    )
    judge_prompts: str | None = field(
        default=None, metadata={"help": "FastChat's judge_prompts.jsonl instead of ours."}
    )
    plot: str | None = field(default=None, metadata={"help": "Radar plot by category: .svg, .pdf or .png."})
    plot_with: list[str] = field(
        default_factory=list, metadata={"help": "Result files of other systems to draw in it."}
    )

    def __post_init__(self) -> None:
        if not self.references and not self.without_references:
            raise InputError(
                "--references is missing; maths, coding and reasoning need it, or --without_references true"
            )
        if self.plot and Path(self.plot).suffix not in (".svg", ".pdf", ".png"):
            raise InputError(f"--plot {self.plot}: must end in .svg, .pdf or .png")


def grade(judge: Judge, config: MtBenchGradeConfig) -> dict[str, Any]:
    """Have every turn graded, write ``config.output_path``, and return the result."""
    check_writable(config.output_path)
    questions, answers = load_questions(config.questions), load_answers(config.answers)
    references = load_answers(config.references) if config.references else {}
    prompts = load_judge_prompts(config.judge_prompts)
    asked = {key: question for key, question in questions.items() if key in answers}
    if not asked:
        raise InputError(f"{config.answers}: answers none of the questions in {config.questions}")
    texts = {}
    for key, question in asked.items():
        needed = config.references is not None and question["category"] in WITH_REFERENCE
        if needed and key not in references:
            raise InputError(f"{config.references}: has no reference answer to question {key} ({question['category']})")
        for turn in (1, 2):
            reference = references[key] if needed else None
            texts[f"{key}|{turn}"] = judge_question(prompts, turn, question, answers[key], reference)
    outcome = judge.ask(
        texts,
        read_rating,
        journal=f"{config.output_path}.journal.jsonl",
        settings={"prompts": fingerprint(sorted(prompt.text for prompt in prompts.values()))},
        description=f"{config.system} is graded",
    )
    ratings = {key: graded["rating"] for key, graded in outcome.results.items()}
    result = save_result(
        config.output_path,
        task="ultrafeedback",
        benchmark="mt_bench",
        system=config.system,
        figures=rating_figures({key: question["category"] for key, question in asked.items()}, ratings),
        responses={key: "\n\n--- second turn ---\n\n".join(answers[key]) for key in asked},
        settings={**asdict(judge.config), **asdict(config)},
        extra={
            "judgements": outcome.results,
            "failures": outcome.failures,
            "cost_usd": judge.client.budget.spent,
        },
    )
    print_metrics(result["metrics"], f"{config.system} on {len(asked)} questions -> {config.output_path}")
    if outcome.failures:
        print(f"  {len(outcome.failures)} grades failed, e.g. {next(iter(outcome.failures.values()))}")
        print("  --retry_failed asks for them again")
    if config.plot:
        radar(config.plot, [result, *map(load_result, config.plot_with)])
        print(f"  plot -> {config.plot}")
    return result


def rating_figures(categories: Mapping[str, str], ratings: Mapping[str, float]) -> dict[str, Figure]:
    """The mean over turns, of all and by turn and category.

    Args:
        categories: question id -> category.
        ratings: ``id|turn`` -> rating; a turn without one is left out.
    """

    def figure(keys: Sequence[str], turns: Sequence[int]) -> Figure:
        rows = {}
        for key in keys:
            found = [ratings[f"{key}|{turn}"] for turn in turns if f"{key}|{turn}" in ratings]
            if found:
                rows[key] = (sum(found), len(found))
        return Figure(rows)

    keys = list(categories)
    named = [name for name in CATEGORIES if name in categories.values()]
    named += sorted(set(categories.values()) - set(CATEGORIES))
    return {
        "score": figure(keys, (1, 2)),
        "score_turn_1": figure(keys, (1,)),
        "score_turn_2": figure(keys, (2,)),
        **{f"score_{name}": figure([key for key in keys if categories[key] == name], (1, 2)) for name in named},
        "judge_failures": Figure({key: (sum(f"{key}|{turn}" not in ratings for turn in (1, 2)), 2) for key in keys}),
    }


def radar(path: str, results: Sequence[Mapping[str, Any]]) -> None:
    """Mean rating by category, one line for each system."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Drawing

    names = [f"score_{name}" for name in CATEGORIES]
    names = [name for name in names if all(name in result["metrics"] for result in results)]
    if len(names) < 3:
        raise InputError(f"--plot: a radar plot needs three categories at least, not {len(names)}")
    angles = np.linspace(0, 2 * np.pi, len(names), endpoint=False).tolist()
    drawing = Drawing(figsize=(5.6, 5.2), layout="constrained")
    FigureCanvasAgg(drawing)
    axes = drawing.add_subplot(projection="polar")
    axes.set_theta_offset(np.pi / 2)
    axes.set_theta_direction(-1)
    axes.set_xticks(angles, [name.removeprefix("score_") for name in names])
    axes.set_ylim(0, 10)
    axes.set_yticks([2, 4, 6, 8, 10], ["2", "4", "6", "8", "10"], color="#777777", fontsize=8)
    for result in results:
        values = [result["metrics"][name]["value"] for name in names]
        axes.plot([*angles, angles[0]], [*values, values[0]], label=result["system"], linewidth=1.8)
        axes.fill(angles, values, alpha=0.08)
    drawing.legend(frameon=False, loc="outside lower center", ncols=min(4, len(results)))
    drawing.savefig(path)


@command
def main() -> None:
    judge_config, config = parse(JudgeConfig, MtBenchGradeConfig)
    for path in filter(None, (config.output_path, config.plot)):
        check_writable(path)
    with open_judge(judge_config, config.output_path) as judge:
        grade(judge, config)


if __name__ == "__main__":
    main()
