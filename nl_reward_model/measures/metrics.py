"""What a reward model's judgements are worth, against the annotations of the same responses.

    python nl_reward_model/measures/metrics.py --task my_task.py \\
        --input_file judged.json --output_file metrics.json

This and the entry scripts ``<task>/evaluation/3_metrics.py`` print the table, and write every figure with its 95 %
interval and a plot. ``docs/metrics.md`` defines the figures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nl_reward_model.measures.judgements import judged, load_judgements
from nl_reward_model.measures.span_metrics import compare, span_metrics, unmatched_rate
from nl_reward_model.measures.token_metrics import labels, token_metrics
from text2grad.configs import TaskConfig, parse
from text2grad.errors import InputError, command
from text2grad.models import load_tokenizer
from text2grad.records import check_writable, save_json
from text2grad.statistics import bootstrap
from text2grad.tasks import Record, Task, get_task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_ROUGE = ("rouge1", "rouge2", "rougeL")


@dataclass
class MetricsConfig:
    """The older flags of slf5k (``--results_path``, ``--output_path``, ``--data_path``) are taken for all tasks."""

    input_file: str = field(default="", metadata={"help": "Judgements, as 2_infer.py writes them."})
    output_file: str = field(default="", metadata={"help": "Figures (JSON); the plots go beside it."})
    data_path: str = field(
        default="", metadata={"help": "Annotated records to compare with, where the judgements do not carry them."}
    )
    tokenizer: str = field(
        default="smollm2", metadata={"help": "The policy's: its tokens are labelled. Hub id, folder, or smollm2."}
    )
    results_path: str = field(default="", metadata={"help": "Same as input_file."})
    output_path: str = field(default="", metadata={"help": "Same as output_file."})

    def __post_init__(self) -> None:
        self.input_file = self.input_file or self.results_path
        self.output_file = self.output_file or self.output_path
        for name in ("input_file", "output_file"):
            if not getattr(self, name):
                raise InputError(f"--{name}: names no file; give one")


def run(task: str | Task, config: MetricsConfig) -> dict[str, Any]:
    """Read judgements, write the figures and the plots, print the table."""
    from nl_reward_model.measures.plots import save_plots

    task, output = get_task(task), Path(config.output_file)
    check_writable(output)
    rows = load_judgements(config.input_file, task, config.data_path or None)
    metrics = score(rows, task, load_tokenizer(config.tokenizer))
    save_json(output, {"task": task.name, "tokenizer": config.tokenizer, "input_file": config.input_file, **metrics})
    print(table(metrics), end="")
    print(f"\n{output}; plots: {', '.join(str(path) for path in save_plots(metrics, output))}")
    return metrics


def score(rows: Mapping[str, Record], task: Task, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Every figure, as plain JSON values; those with an interval are ``{"value", "low", "high", "n"}``.

    Args:
        rows: records with the task's feedback fields and ``predicted`` (:mod:`nl_reward_model.measures.judgements`).
        tokenizer: of the policy that is to be trained.
    """
    items = judged(rows, task, tokenizer)
    prompts = [task.prompt(row) for row in rows.values()]
    truths = [labels(item, item.truth, task, tokenizer) for item in items]
    predictions = [labels(item, item.predicted, task, tokenizer) for item in items]
    compared = [compare(item, task, truth) for item, truth in zip(items, truths, strict=True)]
    critiques = [(item.predicted.critique if item.predicted else "", item.truth.critique) for item in items]

    def mean(values: Iterable[float]) -> dict[str, float | int | None]:
        return bootstrap([(value, 1) for value in values], groups=prompts).to_dict()

    return {
        "records": len(items),
        "prompts": len(set(prompts)),
        "parse_rate": mean(item.predicted is not None for item in items),
        "unmatched_rate": unmatched_rate(compared, prompts).to_dict(),
        "tokens": token_metrics(truths, predictions, task, prompts),
        "spans": span_metrics(compared, task, prompts),
        "critique": {name: mean(values) for name, values in rouge(critiques).items()},
        "parse_errors": dict(Counter(item.error for item in items if item.predicted is None).most_common(10)),
    }


def rouge(pairs: Sequence[tuple[str, str]]) -> dict[str, list[float]]:
    """ROUGE F1 of each (written, reference) pair; a critique that is not there scores 0."""
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(list(_ROUGE), use_stemmer=True)
    scores = [scorer.score(reference, written) for written, reference in pairs]
    return {name: [value[name].fmeasure for value in scores] for name in _ROUGE}


def figures(metrics: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """All figures flat, by path (``tokens/labels/+1/f1``); for a training log. Undefined ones are left out."""
    flat: dict[str, float] = {}
    for name, value in metrics.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping):
            flat |= {path: value["value"]} if "value" in value else figures(value, f"{path}/")
        elif isinstance(value, int | float):
            flat[path] = value
    return {path: value for path, value in flat.items() if value is not None}


def table(metrics: Mapping[str, Any]) -> str:
    """The figures as Markdown."""
    tokens = metrics["tokens"]
    lines = [
        f"{metrics['records']} judgements of responses to {metrics['prompts']} prompts; in brackets 95 % intervals "
        "(bootstrap over prompts).",
        "",
        f"parse rate {_shown(metrics['parse_rate'])}, unmatched spans {_shown(metrics['unmatched_rate'])}, "
        f"token accuracy {_shown(tokens['accuracy'])}, macro F1 {_shown(tokens['macro_f1'])}",
        "",
        "| label | precision | recall | F1 | F1 by chance | F1, spans shuffled | above shuffled | true/predicted |",
        "| --- | --- | --- | --- | --- | --- | --- | ---: |",
    ]
    chance = tokens["chance"]
    for label, row in tokens["labels"].items():
        shares = [
            row["precision"],
            row["recall"],
            row["f1"],
            chance["random"][label]["share"],
            chance["shuffled"][label]["f1"],
            chance["f1_above_shuffled"][label],
        ]
        lines.append(f"| {label} | {' | '.join(map(_shown, shares))} | {row['true']}/{row['predicted']} |")
    columns = [name for name in next(iter(metrics["spans"].values())) if name in _SPAN_COLUMNS]
    lines += ["", f"| spans | truth/predicted (exact, partial) | {' | '.join(_SPAN_COLUMNS[c] for c in columns)} |"]
    lines.append("| --- | ---: |" + " --- |" * len(columns))
    for slot, row in metrics["spans"].items():
        counts = f"{row['truth']}/{row['predicted']} ({row['exact']}, {row['partial']})"
        lines.append(f"| {slot} | {counts} | {' | '.join(_shown(row[column]) for column in columns)} |")
    lines += ["", "critique: " + ", ".join(f"{name} {_shown(metrics['critique'][name])}" for name in _ROUGE)]
    return "\n".join(lines) + "\n"


_SPAN_COLUMNS = {
    "exact_recall": "found exactly",
    "found_recall": "found in part",
    "oui": "OUI",
    "exact_match": "predicted, exact",
    "overlap_90": "predicted, ≥ 90 %",
}


def _shown(figure: Mapping[str, Any]) -> str:
    if figure["value"] is None:
        return "–"
    return f"{figure['value']:.3f} [{figure['low']:.3f}, {figure['high']:.3f}]"


@command
def main() -> None:
    chosen, config = parse(TaskConfig, MetricsConfig)
    run(chosen.task, config)


if __name__ == "__main__":
    main()
