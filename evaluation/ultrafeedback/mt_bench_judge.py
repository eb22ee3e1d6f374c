"""MT-Bench: a judge grades each turn of each answer from 1 to 10; a table by category.

    python evaluation/ultrafeedback/mt_bench_judge.py --questions question.jsonl --answers answers.jsonl \\
        --references gpt-4.jsonl --judge openai:gpt-4 --system base --output_path mt_bench.result.json

Single-answer grading. Questions of maths, coding and reasoning are graded beside FastChat's reference answers. The
grading prompts are the ``mt_bench_turn_*.txt`` beside this file. To compare with published scores give FastChat's
own by ``--judge_prompts``. Killed and run again, nothing is asked twice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass
from typing import Any

from evaluation.results import Figure, ResultConfig, print_failures, print_next_step, save_result
from evaluation.ultrafeedback.mt_bench import (
    CATEGORIES,
    WITH_REFERENCE,
    judge_question,
    load_answers,
    load_judge_prompts,
    load_questions,
    read_rating,
)
from text2grad.configs import parse, setting
from text2grad.endpoints.judging import Judge, JudgeConfig, open_judge
from text2grad.errors import InputError, command
from text2grad.records import fingerprint


@dataclass(kw_only=True)
class MtBenchGradeConfig(ResultConfig):
    """What is graded."""

    questions: str = setting(MISSING, "FastChat's question.jsonl")
    answers: str = setting(MISSING, "the system's answers, of mt_bench_answers.py or FastChat", "--data_path")
    references: str | None = setting(None, "FastChat's reference answers to maths, coding and reasoning: gpt-4.jsonl")
    without_references: bool = setting(False, "grade maths, coding and reasoning without reference answers")
    judge_prompts: str | None = setting(None, "FastChat's judge_prompts.jsonl instead of this folder's prompts")


def grade(judge: Judge, config: MtBenchGradeConfig) -> dict[str, Any]:
    """Have every turn graded, write ``config.output_path``, and return the result."""
    questions, answers = load_questions(config.questions), load_answers(config.answers)
    asked = {key: question for key, question in questions.items() if key in answers}
    if not asked:
        raise InputError(f"{config.answers}: answers none of the questions in {config.questions}")
    references = needed_references(asked, config)
    prompts = load_judge_prompts(config.judge_prompts)
    texts = {
        f"{key}|{turn}": judge_question(prompts, turn, question, answers[key], references.get(key))
        for key, question in asked.items()
        for turn in (1, 2)
    }
    outcome = judge.ask(
        texts,
        read_rating,
        journal=f"{config.output_path}.journal.jsonl",
        settings={"prompts": fingerprint(sorted(prompt.text for prompt in prompts.values()))},
        description=f"{config.system} is graded",
    )
    ratings = {key: graded["rating"] for key, graded in outcome.results.items()}
    result = save_result(
        config,
        f"on {len(asked)} questions",
        task="ultrafeedback",
        benchmark="mt_bench",
        figures=rating_figures({key: question["category"] for key, question in asked.items()}, ratings),
        responses={key: "\n\n--- second turn ---\n\n".join(answers[key]) for key in asked},
        settings=asdict(judge.config),
        extra={
            "judgements": outcome.results,
            "failures": outcome.failures,
            **({"changes": outcome.changes} if outcome.changes else {}),
            "cost_usd": judge.client.budget.spent,
        },
    )
    print_failures(outcome.failures, "grades")
    print_next_step(config.output_path)
    return result


def needed_references(asked: Mapping[str, Mapping[str, Any]], config: MtBenchGradeConfig) -> dict[str, list[str]]:
    """The reference answers by question id, for the categories that are graded beside one."""
    needing = {key: row["category"] for key, row in asked.items() if row["category"] in WITH_REFERENCE}
    named = ", ".join(dict.fromkeys(needing.values()))
    if not needing:
        return {}
    if not config.references and not config.without_references:
        raise InputError(
            f"--references is missing, and {config.questions} has questions of {named}; "
            "give FastChat's gpt-4.jsonl, or --without_references true"
        )
    if not config.references:
        print(f"graded without reference answers, unlike MT-Bench's own way: {named}")
        return {}
    references = load_answers(config.references)
    for key, category in needing.items():
        if key not in references:
            raise InputError(f"{config.references}: has no reference answer to question {key} ({category})")
    return {key: references[key] for key in needing}


def rating_figures(categories: Mapping[str, str], ratings: Mapping[str, float]) -> dict[str, Figure]:
    """The mean over turns, of all and by turn and category.

    Args:
        categories: question id -> category.
        ratings: ``id|turn`` -> rating; a turn without one is left out.
    """

    def figure(keys: Sequence[str], turns: Sequence[int]) -> Figure:
        rows: dict[str, tuple[float, int]] = {}
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


@command
def main() -> None:
    config, judge_config = parse(MtBenchGradeConfig, JudgeConfig)
    with open_judge(judge_config, config.output_path) as judge:
        grade(judge, config)


if __name__ == "__main__":
    main()
