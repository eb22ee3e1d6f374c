"""The report as one JSON value: everything that the page, the Markdown and the figures show, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evaluation.reporting import comparing, opening, story, training
from evaluation.reporting.runs import Run
from evaluation.reporting.training import Variant
from evaluation.reporting.wording import is_secondary, method_name, wording
from text2grad.errors import InputError
from text2grad.records import load_json


def assemble(
    runs: list[Run],
    results: list[dict[str, Any]],
    baseline: str | None = None,
    annotations: list[str] | None = None,
    reward_models: list[str] | None = None,
) -> tuple[dict[str, Any], list[Variant]]:
    """The report's figures, and the variants that the runs form.

    Args:
        baseline: a system of the results, a method, or a variant's label, that all others are compared with.

    Raises:
        InputError: nothing to report, or a baseline that nothing is called.
    """
    if not runs and not results:
        raise InputError("nothing to report; give run folders, or result files with --results")
    groups = training.variants(runs)
    _check_baseline(baseline, groups, results)
    slots = {label: slot for slot, label in enumerate(dict.fromkeys(variant.label for variant in groups))}
    report: dict[str, Any] = {
        "runs": [_about_run(run, variant) for variant in groups for run in variant.runs],
        "variants": [_about_variant(variant, slots[variant.label]) for variant in groups],
        "tables": comparing.tables([result for result in results if not comparing.is_judged(result)], baseline),
        "judges": comparing.judgements([result for result in results if comparing.is_judged(result)]),
        "training": [_training(task, groups, slots) for task in dict.fromkeys(variant.task for variant in groups)],
        "updates": _updates(groups, slots),
        "timing": _timing(groups, slots, baseline),
        "ablations": _ablations(groups),
        "annotations": _columns(annotations or []),
        "reward_models": _columns(reward_models or []),
    }
    pairs = [pair for table in report["tables"] for pair in comparing.pairs(results, table)]
    report["example"] = opening.example(pairs, groups)
    report["headline"] = story.headline(report)
    report["standfirst"] = story.standfirst(report)
    report["cautions"] = story.cautions(report, results)
    return report, groups


def _check_baseline(baseline: str | None, groups: list[Variant], results: list[dict[str, Any]]) -> None:
    names = {result["system"] for result in results} | {
        name for group in groups for name in (group.method, group.label)
    }
    if baseline is not None and baseline not in names:
        raise InputError(f"--baseline {baseline!r} is not here; choose one of {', '.join(sorted(names))}")


def _about_run(run: Run, variant: Variant) -> dict[str, Any]:
    return {
        "name": run.name,
        "path": str(run.path),
        "task": run.task,
        "label": variant.label,
        "method": run.method,
        "seed": run.seed,
        "critic": run.critic,
        "model": run.model,
        "steps": len(run.metrics),
        "last_step": run.steps[-1],
        "rollouts": len(run.rollouts),
        "notes": run.notes,
        "config": run.config,
        "versions": run.versions,
    }


def _about_variant(variant: Variant, slot: int) -> dict[str, Any]:
    return {
        "label": variant.label,
        "slot": slot,
        "task": variant.task,
        "method": variant.method,
        "seeds": [run.seed for run in variant.runs],
        "differs": variant.differs,
    }


def _training(task: str, groups: list[Variant], slots: dict[str, int]) -> dict[str, Any]:
    """Curves and ends of one task's variants."""
    members = [variant for variant in groups if variant.task == task]
    charts = []
    ends: dict[str, dict[str, Any]] = {}
    for name in training.curve_names(members):
        lines = []
        for variant in members:
            line = training.curve(variant, name)
            if line:
                lines.append({"label": variant.label, "slot": slots[variant.label], **line})
                ends.setdefault(name, {})[variant.label] = training.ends(variant, name)
        if lines:
            words = wording(name)
            about = {"id": f"{task}-{name}".replace("/", "-"), "name": name, "title": words.label, "says": words.says}
            charts.append({**about, "style": words.style, "secondary": is_secondary(name), "lines": lines})
    audits = {variant.label: found for variant in members if (found := training.audit(variant))}
    labels = [variant.label for variant in members]
    return {"task": task, "variants": labels, "charts": charts, "ends": ends, "audits": audits}


def _updates(groups: list[Variant], slots: dict[str, int]) -> list[dict[str, Any]]:
    found = []
    for variant in groups:
        effect = training.update_effect(variant)
        if effect:
            found.append({"task": variant.task, "label": variant.label, "slot": slots[variant.label], **effect})
    return found


def update_charts(updates: list[dict[str, Any]], task: str) -> list[dict[str, Any]]:
    """Two charts of what updates did: criticised tokens that fell, praised tokens that rose, beside unlabelled ones."""
    charts = []
    says = "The further above the dotted line, the more selective the updates."
    for label, key, title in (
        ("poor", "fell", "Criticised tokens that became less likely"),
        ("good", "rose", "Praised tokens that became more likely"),
    ):
        lines = []
        for update in (update for update in updates if update["task"] == task):
            for source, faint in (("none", True), (label, False)):
                points = [(step, bin_[key]) for step, bin_ in zip(update["steps"], update[source], strict=True)]
                points = [point for point in points if point[1] is not None]
                if points:
                    values = [value for _, value in points]
                    name = f"{update['label']}, unlabelled tokens" if faint else update["label"]
                    line = {"label": name, "slot": update["slot"], "banded": False, "faint": faint, "raw": None}
                    steps = [step for step, _ in points]
                    lines.append({**line, "steps": steps, "mean": values, "low": values, "high": values})
        if any(not line["faint"] for line in lines):
            about = {"id": f"{task}-update-{label}", "name": f"update/{label}", "title": title, "says": says}
            charts.append({**about, "style": "share", "secondary": False, "lines": lines})
    return charts


def _timing(groups: list[Variant], slots: dict[str, int], baseline: str | None) -> list[dict[str, Any]]:
    """Phases of each variant, and its time per step over the baseline's (scalar PPO where none is named)."""
    timed = [(variant, training.timing(variant)) for variant in groups]
    rows = []
    for variant, timing in timed:
        if not timing:
            continue
        rivals = [(other, figures) for other, figures in timed if figures and other.task == variant.task]
        named = [pair for pair in rivals if baseline in (pair[0].method, pair[0].label)]
        scalar = [pair for pair in rivals if pair[0].is_scalar]
        against = next((pair for pair in [*named, *scalar] if pair[0] is not variant), None)
        if variant.is_scalar and not named:
            against = None
        over = timing["total"] / against[1]["total"] - 1 if against and against[1]["total"] else None
        row = {"task": variant.task, "label": variant.label, "slot": slots[variant.label], **timing}
        rows.append({**row, "over_baseline": over, "baseline": against[0].label if against else None})
    return rows


def _ablations(groups: list[Variant]) -> list[dict[str, Any]]:
    """For each method that was run with several settings: what differed, and where training ended."""
    tables = []
    for task, method in dict.fromkeys((variant.task, variant.method) for variant in groups):
        members = [variant for variant in groups if (variant.task, variant.method) == (task, method)]
        if len(members) < 2:
            continue
        names = [name for name in training.curve_names(members) if not is_secondary(name)]
        rows: list[dict[str, Any]] = []
        for variant in members:
            ends = {name: end for name in names if (end := training.ends(variant, name))}
            about = {"label": variant.label, "differs": variant.differs, "seeds": len(variant.runs)}
            rows.append({**about, "ends": ends})
        shown = [name for name in names if all(name in row["ends"] for row in rows)]
        tables.append({"task": task, "method": method, "metrics": shown, "rows": rows})
    return tables


def judge_charts(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Win rates over training, one chart a task, a line for each system that was judged at several steps."""
    slots = {variant["method"]: variant["slot"] for variant in reversed(report["variants"])}
    charts = []
    for task in dict.fromkeys(judge["task"] for judge in report["judges"]):
        curves: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for judge in report["judges"]:
            if judge["task"] == task and judge["step"] is not None:
                curves.setdefault((judge["system"], judge["baseline"]), []).append(judge)
        lines = []
        for (system, baseline), points in curves.items():
            rates = [point["metrics"]["win_rate"] for point in points]
            label = f"{method_name(system)} against {story.named(baseline)}"
            about = {"label": label, "slot": slots.setdefault(system, len(slots)), "banded": True}
            values = {key: [rate[name] for rate in rates] for key, name in _LINE.items()}
            if len(points) > 1:
                lines.append({**about, "steps": [point["step"] for point in points], **values})
        if lines:
            title = "Win rate over training" + (f", {task}" if len(report["training"]) > 1 else "")
            about = {"id": f"{task}-win-rate", "name": "win_rate", "title": title, "style": "share", "task": task}
            charts.append({**about, "says": "Bands are 95 % intervals over prompts.", "lines": lines})
    return charts


_LINE = {"mean": "value", "low": "low", "high": "high"}


_NOT_FIGURES = {
    *("settings", "config", "versions", "data", "failures", "parse_errors", "step"),
    *("prompt_max_length", "max_length", "max_new_tokens"),
}
"""What such files hold beside figures."""


def _columns(paths: list[str]) -> list[dict[str, Any]]:
    """Reports of stages 1 and 2, flattened: file -> {row: a figure, perhaps with its interval or its quartiles}."""
    columns = []
    for path in paths:
        value = load_json(path)
        rows = _flat(value) if isinstance(value, dict) else {}
        if not rows:
            raise InputError(f"{path}: holds no figures; give a report or metrics file (a JSON object) of stage 1 or 2")
        columns.append({"name": Path(path).name, "path": str(path), "rows": rows})
    return columns


def _flat(value: dict[str, Any], prefix: str = "") -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for name, item in value.items():
        label = f"{prefix}{name}".replace("_", " ")
        if name in _NOT_FIGURES:
            continue
        if isinstance(item, dict) and {"value", "low", "high"} <= set(item):
            rows[label] = {key: item[key] for key in ("value", "low", "high")}
        elif isinstance(item, dict) and {"mean", "q1", "median", "q3"} <= set(item):
            quartiles = {key: item[key] for key in ("q1", "median", "q3")}
            rows[f"{label}, mean"] = {"value": item["mean"], **quartiles}
        elif isinstance(item, dict):
            rows |= _flat(item, f"{label}: ")
        elif isinstance(item, int | float) and not isinstance(item, bool):
            rows[label] = {"value": item}
        if label in rows:
            rows[label]["style"] = _style(name)
    return {label: {"style": "plain", **row} for label, row in rows.items()}


def _style(name: str) -> str:
    if name.endswith("_rate") or name.startswith(("characters_", "records_")):
        return "share"
    return "usd" if "usd" in name else "plain"
