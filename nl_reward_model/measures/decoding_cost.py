"""What feedback costs to write: tokens of z = [critique; spans] against the same critique and a score per word.

A score for every word, ``[["My", 1], ["girlfriend", 0], …]``, says the same as good and poor spans do, and is what the
authors' SLF5K reward model writes. Decoding time grows with the tokens written. ::

    python nl_reward_model/measures/decoding_cost.py --task slf5k --data_path annotated.json \
        --tokenizer smollm2 --limit 500
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

import numpy as np

from text2grad.configs import TASK_HELP, parse, setting
from text2grad.critics.reward_model.examples import load_annotated
from text2grad.errors import InputError, command
from text2grad.feedback import Feedback
from text2grad.models import load_tokenizer
from text2grad.records import check_output, save_json
from text2grad.statistics import bootstrap
from text2grad.tasks import Task, get_task
from text2grad.token_rewards import span_intervals


@dataclass
class DecodingCostConfig:
    """Whose annotations are measured, and with which tokenizer."""

    data_path: str = setting("", "annotated records")
    task: str = setting("slf5k", TASK_HELP)
    tokenizer: str = setting("smollm2", "the reward model's: hub id, folder, or smollm2")
    limit: int = setting(500, "records to measure, the first of the file")
    output_path: str = setting("", "where the figures go as JSON; nowhere by default", "--output_file")


def word_scores(response: str, feedback: Feedback, task: Task) -> list[list]:
    """Every word of the response with its value: −1, 0 or +1; poor wins where both claim it."""
    poor, good = span_intervals(feedback, response, task)

    def value(word: re.Match) -> float:
        for intervals, label in ((poor, task.values.poor), (good, task.values.good)):
            if any(start <= word.start() and word.end() <= end for start, end in intervals):
                return label
        return task.values.default

    return [[word.group(), int(value(word))] for word in re.finditer(r"\S+", response)]


def lengths(response: str, feedback: Feedback, task: Task, tokenizer) -> tuple[int, int, int]:
    """Tokens of z, of the score-per-word form with the same critique, and of the critique alone."""
    per_word = {task.fields.critique: feedback.critique, task.fields.scores: word_scores(response, feedback, task)}

    def tokens(text: str) -> int:
        return len(tokenizer(text, add_special_tokens=False)["input_ids"])

    per_word_text = json.dumps(per_word, ensure_ascii=False)
    return tokens(task.render_feedback(feedback)), tokens(per_word_text), tokens(feedback.critique)


def decoding_cost(config: DecodingCostConfig) -> dict:
    """Mean tokens of each form, their ratio with its interval (bootstrap over prompts), and percentiles."""
    task = get_task(config.task)
    records = list(load_annotated(config.data_path, task).values())[: config.limit]
    tokenizer = load_tokenizer(config.tokenizer)
    annotated = [(item, feedback) for item in records if (feedback := task.feedback(item)) is not None]
    rows = np.array([lengths(task.response(item), feedback, task, tokenizer) for item, feedback in annotated])
    prompts = [task.prompt(item) for item, _ in annotated]

    def mean(column: int) -> dict:
        estimate = bootstrap([(row[column], 1) for row in rows], groups=prompts).to_dict()
        return estimate | {
            "median": float(np.median(rows[:, column])),
            "p95": float(np.quantile(rows[:, column], 0.95)),
        }

    return {
        "records": len(records),
        "prompts": len(set(prompts)),
        "tokenizer": config.tokenizer,
        "spans": mean(0),
        "score_per_word": mean(1),
        "critique": mean(2),
        "ratio": bootstrap(rows[:, [1, 0]], groups=prompts).to_dict(),
        "ratio_without_critique": bootstrap(
            [(row[1] - row[2], row[0] - row[2]) for row in rows], groups=prompts
        ).to_dict(),
    }


@command
def main() -> None:
    config = parse(DecodingCostConfig)
    if not config.data_path:
        raise InputError("--data_path: names no file; give annotated records")
    if config.output_path:
        check_output(config.output_path)
    cost = decoding_cost(config)
    for name, label in (("spans", "critique and spans"), ("score_per_word", "critique and a score per word")):
        print(f"{label:30} {cost[name]['value']:7.1f} tokens, 95th percentile {cost[name]['p95']:.0f}")
    for name, label in (("ratio", "ratio"), ("ratio_without_critique", "ratio, critique aside")):
        print(f"{label:30} {cost[name]['value']:7.2f} [{cost[name]['low']:.2f}, {cost[name]['high']:.2f}]")
    print(f"{cost['records']} records, {cost['prompts']} prompts, tokenizer {cost['tokenizer']}")
    if config.output_path:
        save_json(config.output_path, cost)


if __name__ == "__main__":
    main()
