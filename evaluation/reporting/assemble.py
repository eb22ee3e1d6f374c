"""The report as one JSON value: everything that the page shows, but for the responses."""

from itertools import count
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

from evaluation.reporting import cautions, comparing, opening, training
from evaluation.reporting.charts import is_constant
from evaluation.reporting.runs import Run, is_number
from evaluation.reporting.training import Variant
from evaluation.reporting.wording import method_name, system_name, wording
from evaluation.results import grouped
from text2grad.errors import InputError
from text2grad.records import load_json

_NOT_FIGURES = {
    *("settings", "config", "versions", "data", "failures", "parse_errors", "step", "overlap_by_record"),
    *("prompt_max_length", "max_length", "max_new_tokens"),
}
"""What the files of stages 1 and 2 hold beside figures."""


def assemble(
    runs: list[Run],
    results: list[dict[str, Any]],
    baseline: str | None = None,
    annotations: list[str] | None = None,
    reward_models: list[str] | None = None,
) -> tuple[dict[str, Any], list[Variant], list[dict[str, Any]]]:
    """The report's figures, the variants that the runs form, and the pairs of responses to read side by side.

    Args:
        baseline: a system of the results, a method, or a variant's label, that all others are compared with.

    Raises:
        InputError: nothing to report, or a baseline that nothing is called.
    """
    if not runs and not results:
        raise InputError("nothing to report; give run folders, or result files with --results")
    groups = training.variants(runs)
    names = {result["system"] for result in results} | {
        name for group in groups for name in (group.method, group.label)
    }
    if baseline is not None and baseline not in names:
        raise InputError(f"--baseline {baseline!r} is not here; choose one of {', '.join(sorted(names))}")
    slots = {label: slot for slot, label in enumerate(dict.fromkeys(variant.label for variant in groups))}
    measured = [result for result in results if not comparing.is_judged(result)]
    report: dict[str, Any] = {
        "runs": [_about_run(run, variant) for variant in groups for run in variant.runs],
        "variants": [_about_variant(variant, slots[variant.label]) for variant in groups],
        "tables": comparing.tables(measured, baseline),
        "judges": comparing.judgements([result for result in results if comparing.is_judged(result)]),
        "training": [_training(*of_task, slots) for of_task in grouped(groups, attrgetter("task")).items()],
        "annotations": _columns(annotations or []),
        "reward_models": _columns(reward_models or []),
    }
    report["win_rates"] = _win_rates(report)
    report["cautions"] = cautions.cautions(report, results, groups)
    report["headline"] = opening.headline(report)
    task = report["headline"]["task"]
    pairs = [pair for table in report["tables"] for pair in comparing.pairs(results, table)]
    first = sorted(pairs, key=lambda pair: pair["after"]["task"] != task)  # the example is of the headline's task
    report["example"] = opening.example(first, sorted(groups, key=lambda group: group.task != task))
    return report, groups, pairs


def _about_run(run: Run, variant: Variant) -> dict[str, Any]:
    about = {name: getattr(run, name) for name in ("name", "task", "method", "seed", "critic", "model", "notes")}
    about |= {"path": str(run.path), "label": variant.label, "steps": len(run.metrics), "rollouts": len(run.rollouts)}
    return about | {"config": run.config, "versions": run.versions}


def _about_variant(variant: Variant, slot: int) -> dict[str, Any]:
    seeds = [run.seed for run in variant.runs]
    return {"label": variant.label, "slot": slot, "task": variant.task, "method": variant.method, "seeds": seeds}


def _training(task: str, members: list[Variant], slots: dict[str, int]) -> dict[str, Any]:
    """Curves and ends of one task's variants."""
    charts = []
    ends: dict[str, dict[str, Any]] = {}
    for name in training.curve_names(members):
        lines = []
        for variant in members:
            if line := training.curve(variant, name):
                lines.append({"label": variant.label, "slot": slots[variant.label], **line})
                ends.setdefault(name, {})[variant.label] = training.ends(variant, name)
        if lines:
            words = wording(name)
            about = {"name": name, "title": words.label, "says": words.says}
            chart = {**about, "style": words.style, "main": words.main, "lines": lines}
            charts.append({**chart, "constant": is_constant(chart)})
    return {"task": task, "variants": [variant.label for variant in members], "charts": charts, "ends": ends}


def _win_rates(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Win rates over training, one chart a task, a line for each comparison that was judged at several steps."""
    charts = []
    judges = [judge for judge in report["judges"] if judge["step"] is not None]
    drawn = [judge for judge in judges if judge["metrics"].get("win_rate", {}).get("low") is not None]
    for task, judged in grouped(drawn, itemgetter("task")).items():
        slots = {variant["method"]: variant["slot"] for variant in reversed(report["variants"])}
        free = count(len(report["variants"]))
        curves = grouped(judged, itemgetter("system", "baseline", "judge"))
        lines = []
        several = len({judge for _, _, judge in curves}) > 1
        for (system, baseline, judge), points in curves.items():
            if len(points) > 1:
                rates = [point["metrics"]["win_rate"] for point in points]
                label = f"{method_name(system)} against {system_name(baseline)}{f', by {judge}' if several else ''}"
                line: dict[str, Any] = {"label": label}
                slot = slots.pop(system) if system in slots else next(free)
                line |= {"slot": slot, "steps": [point["step"] for point in points]}
                line |= {"mean": [rate["value"] for rate in rates], "low": [rate["low"] for rate in rates]}
                lines.append({**line, "high": [rate["high"] for rate in rates], "seeds": 1, "window": 1})
        if lines:
            about = {"name": "win_rate", "title": f"Win rate over training, {task}"}
            about |= {"style": "share", "task": task, "says": "Bands are 95 % intervals over prompts."}
            charts.append({**about, "main": True, "lines": lines})
    return charts


def _columns(paths: list[str]) -> list[dict[str, Any]]:
    """Reports of stages 1 and 2, flattened: ``rows`` by label, each with a ``value``, perhaps with its interval."""
    columns = []
    for path in paths:
        value = load_json(path)
        rows = _flat(value) if isinstance(value, dict) else {}
        if not rows:
            raise InputError(f"{path}: holds no figures; give a report or metrics file (a JSON object) of stage 1 or 2")
        columns.append({"name": Path(path).name, "path": str(path), "rows": rows})
    return columns


def _flat(value: dict[str, Any], prefix: str = "", depth: int = 0) -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for name, item in value.items():
        label = f"{prefix}{name}".replace("_", " ")
        if name in _NOT_FIGURES:
            continue
        if isinstance(item, dict) and {"value", "low", "high"} <= set(item):
            rows[label] = {key: item[key] if is_number(item[key]) else None for key in ("value", "low", "high")}
        elif isinstance(item, dict) and depth < 9:
            rows |= _flat(item, f"{label}: ", depth + 1)
        elif is_number(item):
            rows[label] = {"value": item}
    return rows
