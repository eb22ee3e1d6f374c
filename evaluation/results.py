"""Result files: a system's figures on a benchmark, with intervals over its records, and comparisons between systems.

A figure is a function of sums over records: a mean is Σx/Σ1, a rate per token Σδ/Σtokens, BLEU a function of summed
n-gram counts. :mod:`text2grad.statistics` resamples the records' rows; here figures get names, ids and files. Several
answers to one prompt are drawn together, because they are not independent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from text2grad.configs import setting
from text2grad.errors import InputError
from text2grad.records import each_record, generation_of, load_json, prompt_of, save_json
from text2grad.safety.redaction import redacted
from text2grad.statistics import Combine, bootstrap, finite, paired_difference, ratio
from text2grad.tasks import Record, Task, get_task
from text2grad.tasks.commands import own_task, quoted, say_next
from text2grad.tasks.loading import fault_of_task

T = TypeVar("T")


def _bleu(sums: np.ndarray) -> np.ndarray:
    """sums: [..., 10]: matched and possible 1- to 4-grams, and the two lengths, as sacrebleu counts them."""
    from sacrebleu.metrics import BLEU

    if np.isnan(sums).any():  # one prompt: nothing to resample
        return sums[..., 0]
    flat = sums.reshape(-1, sums.shape[-1]).astype(int).tolist()
    scores = [BLEU.compute_bleu(row[:4], row[4:8], row[8], row[9], smooth_method="exp").score for row in flat]
    return np.array(scores).reshape(sums.shape[:-1])


def _order_free(sums: np.ndarray) -> np.ndarray:
    """sums: [..., 3]: points when shown first, points when shown second, pairs -> win rate without position bias.

    Bradley-Terry with a term for the place: logit w_first = θ + γ, logit w_second = θ − γ, and the win rate is that of
    θ alone. Half a point is added to either side, so that a clean sweep has a finite logit.
    """
    logits = [np.log((sums[..., place] + 0.5) / (sums[..., 2] - sums[..., place] + 0.5)) for place in (0, 1)]
    return 1 / (1 + np.exp(-sum(logits) / 2))


COMBINE: dict[str, Combine] = {
    "ratio": ratio,
    "exp_ratio": lambda sums: np.exp(ratio(sums)),
    "bleu": _bleu,
    "order_free": _order_free,
}


MEASURING = (
    "judge", "critic", "critic_prompt", "tokenizer", "encoder", "logprob_model", "perplexity_model", "bertscore_model",
)  # fmt: skip
"""Settings of a measurement that decide what its figures mean."""


def grouped(items: Iterable[T], key: Callable[[T], Any]) -> dict[Any, list[T]]:
    """The items by their keys, both in the order given."""
    groups: dict[Any, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


@dataclass(kw_only=True)
class ResultConfig:
    """Whose result, and where it goes."""

    system: str = setting(MISSING, "the system's name in tables")
    output_path: str = setting(MISSING, "the result file", "--output_file", "--output")


@dataclass
class Figure:
    """One metric of one system: a row of sums per record, and how the summed rows become the figure.

    Attributes:
        rows: record id -> row. For ``ratio`` and ``exp_ratio`` (numerator, denominator); for ``bleu`` see
            :func:`_bleu`; for ``order_free`` (points shown first, points shown second, 1).
        combine: a name in :data:`COMBINE`.
        each: record id -> the value shown beside that record; by default its own row, combined.
    """

    rows: Mapping[str, Sequence[float]]
    combine: str = "ratio"
    each: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.each and self.rows:
            values = COMBINE[self.combine](np.array(list(self.rows.values()), dtype=float))
            self.each = dict(zip(self.rows, values.tolist(), strict=True))

    @classmethod
    def mean(cls, values: Mapping[str, float]) -> Figure:
        """The mean over records."""
        return cls({key: (float(value), 1.0) for key, value in values.items()})

    def by_prompt(self) -> Figure:
        """The same figure with the rows of all answers to one prompt summed, so that prompts are resampled."""
        of_prompts = grouped(self.rows, prompt_of).items()
        sums = {prompt: np.sum([self.rows[key] for key in keys], axis=0).tolist() for prompt, keys in of_prompts}
        return Figure(sums, self.combine)

    def value(self) -> float:
        return float(COMBINE[self.combine](np.sum(list(self.rows.values()), axis=0)))

    def summary(self) -> dict[str, Any]:
        """The figure with its 95 % percentile bootstrap over prompts; ``n`` is their number."""
        return bootstrap(list(self.by_prompt().rows.values()), COMBINE[self.combine]).to_dict()


def compare(first: Mapping[str, Figure], second: Mapping[str, Figure]) -> dict[str, dict[str, Any]]:
    """Paired bootstrap of ``first`` − ``second`` on the prompts that both answer, metric by metric.

    A prompt counts with all its answers, which the two may have in different numbers.

    Returns:
        metric -> difference, its 95 % interval, two-sided p (twice the smaller share of resamples on either side of
        zero), the number of prompts, and on these the values of ``first`` and ``second``.
    """
    differences = {}
    for name, figure in first.items():
        other = second.get(name)
        if other is None or figure.combine != other.combine:
            continue
        sides = figure.by_prompt().rows, other.by_prompt().rows
        shared = [prompt for prompt in sides[0] if prompt in sides[1]]
        if not shared:
            continue
        own, others = ([rows[prompt] for prompt in shared] for rows in sides)
        combine = COMBINE[figure.combine]
        found, p = paired_difference(own, others, combine)
        row = found.to_dict()
        both = [finite(float(combine(np.sum(rows, axis=0)))) for rows in (own, others)]
        differences[name] = {"difference": row.pop("value"), **row, "p": p, "first": both[0], "second": both[1]}
    return differences


def save_result(
    config: ResultConfig,
    on: str,
    *,
    task: str,
    benchmark: str,
    figures: Mapping[str, Figure],
    responses: Mapping[str, str],
    settings: Mapping[str, Any] | None = None,
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Write one system's result on one benchmark, print its figures, and return it.

    ``records`` holds the response and each metric of it; ``statistics`` the rows of the metrics that are no plain mean
    of those, so that intervals and comparisons can be recomputed from the file alone.

    Args:
        on: what the system was measured on, for the screen.
        settings: those that the result has besides its ``config``.
    """
    records = {
        key: {"response": text, **{name: finite(fig.each[key]) for name, fig in figures.items() if key in fig.each}}
        for key, text in responses.items()
    }
    result = {
        "task": task,
        **({"task_source": source} if (source := get_task(task).source) else {}),
        "benchmark": benchmark,
        "system": config.system,
        "n": len(responses),
        "metrics": {name: figure.summary() for name, figure in figures.items() if figure.rows},
        "settings": redacted({**asdict(config), **(settings or {})}),
        **(extra or {}),
        "records": records,
        "statistics": {
            name: {
                "combine": figure.combine,
                "rows": {key: " ".join(repr(float(x)) for x in row) for key, row in figure.rows.items()},
            }
            for name, figure in figures.items()
            if figure.rows and not _is_plain_mean(figure)
        },
    }
    save_json(config.output_path, result)
    _print_metrics(config, result["metrics"], on)
    return result


def _is_plain_mean(figure: Figure) -> bool:
    """Whether the values beside the records are all that the figure is made of."""
    rows = figure.rows.items()
    return figure.combine == "ratio" and all(tuple(row) == (figure.each.get(key), 1) for key, row in rows)


def load_result(path: str | Path) -> dict[str, Any]:
    """A result file, checked against its schema (:class:`evaluation.schemas.ResultFile`)."""
    from evaluation.schemas import RESULT
    from text2grad.safety.schema import checked

    return checked(RESULT, load_json(path), path, "give a result file of evaluation/<task>/evaluate.py")


def check_same_prompts(prompts: Mapping[str, str], result: Mapping[str, Any], path: str | Path) -> None:
    """``InputError`` where a loaded result file means other prompts by the same ids, so that nothing can be paired."""
    for key, text in result.get("prompts", {}).items():
        if prompts.get(key, text).strip() != text.strip():
            raise InputError(f"{path}: its prompt {key!r} is another one; compare answers to the same prompts")


def instruments(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """What measured the results' figures, where it was not the same for all: no differences can be told from those."""
    settings = [dict(result.get("settings", {})) for result in results]
    for each, result in zip(settings, results, strict=True):
        if "mean_delta" not in result["metrics"]:  # then no figure is counted in tokens
            each.pop("tokenizer", None)
    named = {name: [each[name] or "none" for each in settings if isinstance(each.get(name), str)] for name in MEASURING}
    return [f"{name} {', '.join(dict.fromkeys(used))}" for name, used in named.items() if len(set(used)) > 1]


def figures_of(result: Mapping[str, Any]) -> dict[str, Figure]:
    """The figures of a loaded result file, ready to compare."""
    figures = {}
    for name in result["metrics"]:
        each = {key: record.get(name) for key, record in result["records"].items()}
        if stored := result.get("statistics", {}).get(name):
            rows = {key: [float(x) for x in row.split()] for key, row in stored["rows"].items()}
            figures[name] = Figure(rows, stored["combine"], {key: each[key] for key in each if key in rows})
        else:
            figures[name] = Figure.mean({key: x for key, x in each.items() if isinstance(x, int | float)})
    return figures


def _print_metrics(config: ResultConfig, metrics: Mapping[str, Mapping[str, Any]], on: str) -> None:
    """A small table on the screen."""
    print(f"{config.system} {on} -> {config.output_path}")
    for name, metric in metrics.items():
        if metric["value"] is None:
            print(f"  {name:<24} undefined (no record has what it needs)")
            continue
        spread = f"[{metric['low']:.4f}, {metric['high']:.4f}]" if metric["low"] is not None else ""
        print(f"  {name:<24} {metric['value']:>10.4f}  {spread}  n={metric['n']}")


def print_failures(failures: Mapping[str, str], what: str, remedy: str = "--retry_failed asks again") -> None:
    """How many requests failed, where some did, with one reason."""
    if failures:
        print(f"  {len(failures)} {what} failed, e.g. {next(iter(failures.values()))}; {remedy}")


def print_next_step(*result_paths: str | Path, task: Task | None = None) -> None:
    """The command that shows result files as a page."""
    own = own_task(task) if task else ""
    say_next(f"python evaluation/report.py --results {quoted(*result_paths)}{own} --output_path report.html")


def print_differences(differences: Mapping[str, Mapping[str, Any]], title: str) -> None:
    """Differences between two systems, as :func:`compare` gives them."""
    print(title)
    for name, row in differences.items():
        if row["difference"] is not None and row["low"] is not None:
            spread = f"[{row['low']:+.4f}, {row['high']:+.4f}]"
            print(f"  {name:<24} {row['difference']:>+10.4f}  {spread}  p={row['p']:.3f}")


def load_responses(path: str | Path, task: Task) -> dict[str, Record]:
    """A file of responses by ids that are equal for equal prompts, whatever system answered; empty answers included.

    The ids are those that ``evaluation/generate.py`` gave, else the file's own.

    Raises:
        InputError: names the file, the record and the remedy.
    """
    records: dict[str, Record] = {}
    asked: dict[str, str] = {}
    for where, key, record in each_record(path, task):
        made = record.get("generation") or {}
        kinds = {"finished": bool, "id": str, "prompt_id": str, "model": str}
        if not isinstance(made, dict) or any(
            not isinstance(made.get(name, kind()), kind) for name, kind in kinds.items()
        ):
            raise InputError(f"{where}: its 'generation' is not what evaluation/generate.py writes; remove it")
        try:
            if not (text := task.prompt(record).strip()):
                raise InputError("its prompt is empty")
            task.response(record)
            key = str(made.get("id") or key or task.prompt_id(record))
        except InputError as error:
            raise InputError(f"{where}: {error}; {task.format_help}") from None
        except Exception as error:
            raise InputError(f"{where}: {fault_of_task(error, task)}") from error
        if key in records:
            raise InputError(f"{where}: {key!r} has a response already; give one system's responses to each prompt")
        if asked.setdefault(prompt_of(key), text) != text:
            raise InputError(f"{where}: {key!r} counts as one more answer to a prompt, and asks another; rename it")
        records[key] = record
    if len(models := writers(records)) > 1:
        print(f"{path}: holds responses of {len(models)} models: {', '.join(sorted(models))}")
    return records


def writers(records: Mapping[str, Record]) -> set[str]:
    """The models that wrote the responses, as far as generation noted them."""
    return {str(generation_of(record).get("model") or "") for record in records.values()} - {""}
