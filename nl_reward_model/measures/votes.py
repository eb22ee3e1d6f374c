"""What several opinions of a reward model are worth: a token keeps a label that enough of them agree on.

    python nl_reward_model/infer.py --task slf5k --model RM --data_path annotated.json --opinion 1 \\
        --output_path second.json
    python nl_reward_model/measures/votes.py --task slf5k --opinions first.json second.json --output_path votes.json

The opinions are files of feedback on the same annotated records, made with ``--opinion`` 0, 1, 2 and so on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nl_reward_model.measures.metrics import interval_text
from nl_reward_model.measures.paired_feedback import load_feedback_rows, pair_feedback
from nl_reward_model.measures.token_metrics import NO_LABEL, labels, token_metrics
from text2grad.configs import TaskConfig, check_given, parse, setting
from text2grad.errors import InputError, command
from text2grad.models import load_tokenizer
from text2grad.records import check_output, save_json
from text2grad.tasks import get_task


@dataclass(kw_only=True)
class VotesConfig(TaskConfig):
    opinions: list[str] = setting([], "files of feedback on the same annotated records")
    output_path: str = setting("", "the figures as JSON", "--output_file")
    tokenizer: str = setting("smollm2", "the policy's, whose tokens are labelled: hub id, folder, or smollm2")


def voted(opinions: Sequence[np.ndarray], least: int) -> np.ndarray:
    """The sign of the sum of the labels where it is at least ``least`` from 0, else 0.

    Args:
        opinions: labels of one response's tokens, ``[tokens]`` each; ``NO_LABEL`` counts as 0.
    """
    total = np.sum([np.where(opinion == NO_LABEL, 0, opinion) for opinion in opinions], axis=0)
    return np.where(np.abs(total) >= least, np.sign(total), 0).astype(int)


def vote_metrics(config: VotesConfig) -> dict[int, dict[str, Any]]:
    """``token_metrics`` of the labels that 1, 2, … opinions agree on, net of those against them.

    Raises:
        InputError: fewer than two files, or files of different records.
    """
    task, tokenizer = get_task(config.task), load_tokenizer(config.tokenizer)
    if len(config.opinions) < 2:
        raise InputError("--opinions: give two files or more")
    files = [load_feedback_rows(path, task) for path in config.opinions]
    for path, rows in zip(config.opinions, files, strict=True):
        if list(rows) != list(files[0]):
            raise InputError(f"{path}: holds other records than {config.opinions[0]}")
    paired = [pair_feedback(rows, task, tokenizer) for rows in files]
    prompts = [task.prompt(row) for row in files[0].values()]
    truths = [labels(item, item.truth, task, tokenizer) for item in paired[0]]
    given = [[labels(item, item.predicted, task, tokenizer) for item in items] for items in paired]
    by_response = list(zip(*given, strict=True))
    return {
        least: token_metrics(truths, [voted(opinions, least) for opinions in by_response], task, prompts)
        for least in range(1, len(files) + 1)
    }


def votes_table(metrics: dict[int, dict[str, Any]]) -> str:
    """One row for each number of opinions that have to agree, as Markdown."""
    lines = ["| agree, net | F1 of +1 | F1 of −1 | signs flipped | correlation of mean δ |", "| ---: " * 5 + "|"]
    for least, tokens in metrics.items():
        f1 = {name: tokens["labels"][name]["f1"]["value"] for name in ("+1", "-1")}
        above = tokens["chance"]["f1_above_shuffled"]
        cells = [f"{value:.2f} ({interval_text(above[name])})" for name, value in f1.items()]
        cells += [interval_text(tokens[name]) for name in ("flip_rate", "mean_delta_correlation")]
        lines.append(f"| {least} | {' | '.join(cells)} |")
    return "\n".join(lines)


@command
def main() -> None:
    config = parse(VotesConfig)
    check_given(config, "opinions", "output_path")
    check_output(config.output_path)
    metrics = vote_metrics(config)
    save_json(config.output_path, {"task": config.task, "opinions": config.opinions, "agree": metrics})
    print(f"{len(config.opinions)} opinions; in brackets how far F1 is above shuffled spans\n\n{votes_table(metrics)}")


if __name__ == "__main__":
    main()
