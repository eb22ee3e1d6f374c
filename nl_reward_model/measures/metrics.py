"""How good a reward model's feedback is, measured against the annotations of the same responses.

    python nl_reward_model/measures/metrics.py --task my_task.py --data_path feedback.json --output_path metrics.json

This and the entry scripts ``<task>/evaluation/3_metrics.py`` print the table, and write every figure with its 95 %
interval. ``docs/reward_model_metrics.md`` defines the figures.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tabulate import tabulate

from nl_reward_model.measures.paired_feedback import load_feedback_rows, pair_feedback
from nl_reward_model.measures.span_metrics import match_record, span_metrics, unmatched_rate
from nl_reward_model.measures.token_metrics import correlation, labels, moments, token_metrics
from text2grad.configs import check_given, parse_for, setting
from text2grad.errors import command
from text2grad.feedback import Feedback
from text2grad.models import load_tokenizer
from text2grad.records import check_output, save_json
from text2grad.statistics import bootstrap, interval_text
from text2grad.tasks import Record, Task, get_task
from text2grad.tasks.commands import say_next, stage_command

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_ROUGE = ("rouge1", "rouge2", "rougeL")


@dataclass
class MetricsConfig:
    """What is measured, and where the figures go."""

    data_path: str = setting(
        "",
        "annotated records with the reward model's feedback, as 2_infer.py writes them",
        "--input_file",
        "--results_path",
    )
    output_path: str = setting("", "the figures as JSON", "--output_file")
    tokenizer: str = setting("smollm2", "the policy's, whose tokens are labelled: hub id, folder, or smollm2")

    def __post_init__(self) -> None:
        check_given(self, "data_path", "output_path")


def measure_feedback(task: str | Task, config: MetricsConfig) -> dict[str, Any]:
    """Read the feedback, write the figures, print the table."""
    task, output = get_task(task), Path(config.output_path)
    check_output(output)
    rows = load_feedback_rows(config.data_path, task)
    metrics = reward_model_metrics(rows, task, load_tokenizer(config.tokenizer))
    save_json(output, {"task": task.name, "tokenizer": config.tokenizer, "input_file": config.data_path, **metrics})
    print(metrics_table(metrics), end="")
    print(f"\nfigures: {output}")
    say_next(
        f"train a policy with this critic, {stage_command('policy', task)} --critic REWARD_MODEL "
        "--data_path PROMPTS --output_dir RUN"
    )
    return metrics


def reward_model_metrics(rows: Mapping[str, Record], task: Task, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Every figure, as plain JSON values; those with an interval are ``{"value", "low", "high", "n"}``.

    Args:
        rows: records with the task's feedback fields and ``predicted``, as ``paired_feedback.py`` describes them.
        tokenizer: of the policy that is to be trained.
    """
    items = pair_feedback(rows, task, tokenizer)
    prompts = [task.prompt(row) for row in rows.values()]
    truths = [labels(item, item.truth, task) for item in items]
    predictions = [labels(item, item.predicted, task) for item in items]
    compared = [match_record(item, task, truth) for item, truth in zip(items, truths, strict=True)]
    critiques = [(item.predicted.critique if item.predicted else "", item.truth.critique) for item in items]
    read = [(item.predicted, item.truth) for item in items if item.predicted]
    read_prompts = [prompt for item, prompt in zip(items, prompts, strict=True) if item.predicted]
    written = any(re.search("[a-z0-9]", truth.lower()) for _, truth in critiques) and (  # which is all that ROUGE reads
        any(given.critique for given, _ in read) or not read
    )

    def mean(values: Iterable[float]) -> dict[str, float | int | None]:
        return bootstrap([(value, 1) for value in values], groups=prompts).to_dict()

    return {
        "records": len(items),
        "prompts": len(set(prompts)),
        "parse_rate": mean(item.predicted is not None for item in items),
        "unmatched_rate": unmatched_rate(compared, prompts).to_dict(),
        "tokens": token_metrics(truths, predictions, task, prompts),
        "spans": span_metrics(compared, task, prompts),
        "whole": whole_metrics(read, task, read_prompts),
        "critique": {name: mean(values) for name, values in rouge(critiques).items()} if written else {},
        "parse_errors": dict(Counter(item.error for item in items if item.predicted is None).most_common(10)),
    }


def whole_metrics(pairs: Sequence[tuple[Feedback, Feedback]], task: Task, prompts: Sequence[str]) -> dict[str, Any]:
    """What no span holds, of each feedback that could be read and its annotation: the verdict, and what is missing.

    Nothing where no annotation has either; a verdict that the model does not write is derived from its spans. A model
    that writes neither was not asked for missing things, and gets no figure for them.
    """
    if not any(truth.missing or truth.score is not None for _, truth in pairs):
        return {}
    figures = {}
    judged = [(pair, prompt) for pair, prompt in zip(pairs, prompts, strict=True) if pair[1].score is not None]
    if judged:
        said, true = (np.array([task.verdict(pair[side]).value for pair, _ in judged]) for side in (0, 1))
        groups = [prompt for _, prompt in judged]
        figures["verdict_correlation"] = bootstrap(moments(true, said), correlation, groups).to_dict()
    if any(given.missing or given.score is not None for given, _ in pairs):
        things = [({*given.missing}, {*truth.missing}) for given, truth in pairs]
        named = [(2 * len(found & wanted), len(found) + len(wanted)) for found, wanted in things]
        figures["missing_f1"] = bootstrap(named, groups=prompts).to_dict()
    return figures


def rouge(pairs: Sequence[tuple[str, str]]) -> dict[str, list[float]]:
    """ROUGE F1 of each (written, reference) pair; a critique that is not there scores 0."""
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(list(_ROUGE), use_stemmer=True)
    scores = [scorer.score(reference, written) for written, reference in pairs]
    return {name: [value[name].fmeasure for value in scores] for name in _ROUGE}


def metrics_table(metrics: Mapping[str, Any]) -> str:
    """The figures as Markdown."""
    tokens = metrics["tokens"]
    lines = [
        f"{metrics['records']} responses to {metrics['prompts']} prompts; in brackets 95 % intervals "
        "(bootstrap over prompts).",
        "",
        f"parse rate {interval_text(metrics['parse_rate'])}, "
        f"unmatched spans {interval_text(metrics['unmatched_rate'])}, "
        f"token accuracy {interval_text(tokens['accuracy'])}, macro F1 {interval_text(tokens['macro_f1'])}",
        f"signs flipped {interval_text(tokens['flip_rate'])}, correlation of a response's mean δ "
        f"{interval_text(tokens['mean_delta_correlation'])}",
        *(f"{name.replace('_', ' ')} {interval_text(figure)}" for name, figure in metrics["whole"].items()),
        "",
    ]
    chance, rows = tokens["chance"], []
    for label, row in tokens["labels"].items():
        shares = [row["precision"], row["recall"], row["f1"], chance["random"][label]["share"]]
        shares += [chance["shuffled"][label]["f1"], chance["f1_above_shuffled"][label]]
        rows.append([label, *map(interval_text, shares), f"{row['true']}/{row['predicted']}"])
    header = ["label", "precision", "recall", "F1", "F1 by chance", "F1, spans shuffled", "above shuffled"]
    lines += [_table(rows, [*header, "true/predicted"]), ""]
    confused = [[f"truly {label}", *map(str, row.values())] for label, row in tokens["confusion"].items()]
    predicted = [f"predicted {label}" for label in next(iter(tokens["confusion"].values()))]
    lines += [_table(confused, ["tokens", *predicted]), ""]
    columns = [name for name in next(iter(metrics["spans"].values())) if name in _SPAN_COLUMNS]
    rows = []
    for slot, row in metrics["spans"].items():
        counts = f"{row['truth']}/{row['predicted']} ({row['exact']}, {row['partial']})"
        rows.append([slot, counts, *(interval_text(row[column]) for column in columns)])
    lines.append(
        _table(rows, ["spans", "truth/predicted (exact, partial)", *(_SPAN_COLUMNS[name] for name in columns)])
    )
    if metrics["critique"]:
        lines += ["", "critique: " + ", ".join(f"{name} {interval_text(metrics['critique'][name])}" for name in _ROUGE)]
    return "\n".join(lines) + "\n"


def _table(rows: list[list[str]], header: list[str]) -> str:
    return tabulate(rows, header, tablefmt="github", disable_numparse=True)


_SPAN_COLUMNS = {
    "exact_recall": "found exactly",
    "found_recall": "found in part",
    "oui": "OUI",
    "exact_match": "predicted, exact",
    "overlap_90": "predicted, ≥ 90 %",
}


@command
def main(task: str = "") -> None:
    """For the scripts of a task, or with ``--task`` for any."""
    measure_feedback(*parse_for(task, MetricsConfig))


if __name__ == "__main__":
    main()
