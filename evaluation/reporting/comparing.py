"""Result files side by side: each system against a baseline by paired bootstrap."""

from operator import itemgetter
from typing import Any

import numpy as np

from evaluation.reporting.runs import once
from evaluation.reporting.wording import known_metrics, wording
from evaluation.results import Figure, check_same_prompts, compare, figures_of, grouped, load_result
from evaluation.schemas import check_task
from evaluation.slf5k.trivial import SHOWN
from text2grad.records import prompt_of

BASELINES = ("base", "before", "start", "sft")
PRIMARY = ("mean_delta", "closeness", "rougeL", "win_rate", "pass@1", "accuracy", "acc", "score")
"""The metrics that a reader sees first, after those that a task of the user's own measures."""


def load_results(paths: list[str]) -> list[dict[str, Any]]:
    """Result files, each with its path; ``InputError`` names the file and the remedy."""
    results = []
    asked: dict[tuple[str, str], dict[str, str]] = {}
    for path in once(paths):
        result = load_result(path)
        check_task(result, path)
        prompts = asked.setdefault((result["task"], result["benchmark"]), {})
        check_same_prompts(prompts, result, path)
        prompts |= result.get("prompts", {})
        results.append({**result, "path": str(path)})
    return results


def tables(results: list[dict[str, Any]], baseline: str | None) -> list[dict[str, Any]]:
    """One table per task: systems × metrics, with intervals, and differences to the baseline.

    Files of one system on one benchmark are its seeds: their sums are pooled record by record. A metric that cannot be
    recomputed from the records' rows (a benchmark of another tool) is shown as the file says, and not compared.

    Args:
        baseline: a system's name; where a table lacks it one of ``BASELINES``, else the first system given.
    """
    return [_table(task, members, baseline) for task, members in grouped(results, itemgetter("task")).items()]


def _table(task: str, results: list[dict[str, Any]], baseline: str | None) -> dict[str, Any]:
    groups = grouped(results, itemgetter("benchmark", "system"))
    systems = list(dict.fromkeys(result["system"] for result in results))
    chosen = next((name for name in (baseline, *BASELINES) if name in systems), systems[0])
    systems.sort(key=lambda system: system != chosen)
    main, metrics = {*PRIMARY, *SHOWN}, dict[str, dict[str, Any]]()
    cells: dict[str, dict[str, Any]] = {system: {} for system in systems}
    for benchmark in dict.fromkeys(result["benchmark"] for result in results):
        pooled = {system: pool(groups[benchmark, system]) for system in systems if (benchmark, system) in groups}
        reference = pooled.get(chosen, {})
        for system, figures in pooled.items():
            stored = groups[benchmark, system]
            differences = compare(figures, reference) if system != chosen else {}
            for name in stored[0]["metrics"]:
                key = f"{benchmark}/{name}"
                own = benchmark == task and not wording(name).better and name not in known_metrics()
                about = {"benchmark": benchmark, "name": name, "own": own, "main": own or name in main}
                metrics.setdefault(key, {"key": key, **about})
                cell = figures[name].summary() if name in figures else _as_stored(stored, name)
                change = differences.get(name)
                if change and change["difference"] is not None:
                    cell["change"] = {**change, "verdict": verdict(change, wording(name).better)}
                cells[system][key] = cell
    listed = sorted(metrics.values(), key=lambda each: (each["benchmark"] != results[0]["benchmark"], _rank(each)))
    shared = _prompts(results, systems[0])
    return {
        "task": task,
        "baseline": chosen,
        "systems": [_about(system, results, shared) for system in systems],
        "metrics": listed,
        "cells": cells,
        "trivial": _trivial(systems, results, cells),
    }


def _trivial(systems: list[str], results: list[dict[str, Any]], cells: dict[str, Any]) -> dict[str, Any] | None:
    """The systems and trivial answers to the same prompts (``evaluation/slf5k/trivial.py``); None where none are."""
    found = next((result for result in results if result.get("trivial")), None)
    if found is None:
        return None
    names, benchmark = [name for name in SHOWN if name in found["metrics"]], found["benchmark"]
    posts = _prompts([found], found["system"])[benchmark]
    rows = [
        {"name": system, "values": {name: cells[system].get(f"{benchmark}/{name}", {}).get("value") for name in names}}
        for system in systems
        if _prompts(results, system).get(benchmark) == posts
    ]
    for label, row in found["trivial"].items():
        rows.append({"name": label, "values": {name: row[name]["value"] for name in names if name in row}})
    return {"metrics": names, "rows": rows}


def primary(table: dict[str, Any]) -> dict[str, Any] | None:
    """The metric that speaks first: the task's own, one of ``PRIMARY``, or the first with a direction."""
    own = [metric for metric in table["metrics"] if metric["own"]]
    ranked = [metric for name in PRIMARY for metric in table["metrics"] if metric["name"] == name]
    directed = [metric for metric in table["metrics"] if wording(metric["name"]).better]
    return next(iter(own + ranked + directed), None)


def best_system(table: dict[str, Any], metric: dict[str, Any]) -> str | None:
    """The system with the best change of a metric; None where nothing was paired with the baseline."""
    key, sign = metric["key"], wording(metric["name"]).better or 1
    gains = {
        system: sign * cells[key]["change"]["difference"]
        for system, cells in table["cells"].items()
        if "change" in cells.get(key, {})
    }
    return max(gains, key=gains.__getitem__, default=None)


def _rank(metric: dict[str, Any]) -> tuple[str, bool, int]:
    """Benchmark by benchmark, a task's own metrics first, the others in the order of ``metrics.yaml``."""
    order = list(known_metrics())
    place = order.index(metric["name"]) if metric["name"] in order else len(order)
    return metric["benchmark"], not metric["own"], place


def _prompts(results: list[dict[str, Any]], system: str) -> dict[str, set[str]]:
    """The prompts that a system answered, by benchmark."""
    answered = grouped((result for result in results if result["system"] == system), itemgetter("benchmark"))
    return {name: {prompt_of(key) for file in files for key in file["records"]} for name, files in answered.items()}


def _about(system: str, results: list[dict[str, Any]], others: dict[str, set[str]]) -> dict[str, Any]:
    """What a table says of a system; ``shared`` counts the prompts that the baseline answered (``others``), too."""
    prompts = _prompts(results, system)
    results = [result for result in results if result["system"] == system]
    by_benchmark = grouped(results, itemgetter("benchmark"))
    return {
        "name": system,
        "seeds": max(len(files) for files in by_benchmark.values()),
        "prompts": {name: len(answered) for name, answered in prompts.items()},
        "shared": {name: len(answered & others[name]) for name, answered in prompts.items() if name in others},
        "answers": {name: sum(len(file["records"]) for file in files) for name, files in by_benchmark.items()},
        "critics": list(
            dict.fromkeys(c for result in results if isinstance(c := result.get("settings", {}).get("critic"), str))
        ),
        "models": list(dict.fromkeys(model for result in results for model in result.get("models", []))),
        "files": [result["path"] for result in results],
    }


def pool(results: list[dict[str, Any]]) -> dict[str, Figure]:
    """One system's figures, by prompt: rows of all its seeds and samples summed, as only prompts are independent."""
    per_file = [figures_of(result) for result in results]
    pooled = {}
    for name, first in per_file[0].items():
        figures = [figures[name].by_prompt().rows for figures in per_file if name in figures]
        if len(figures) != len(results):
            continue
        prompts = [prompt for prompt in figures[0] if all(prompt in rows for rows in figures)]
        if prompts:
            sums = {prompt: np.sum([rows[prompt] for rows in figures], axis=0).tolist() for prompt in prompts}
            pooled[name] = Figure(sums, first.combine)
    return pooled


def _as_stored(results: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """A figure as the files state it: one file's with its interval, several files' mean without one."""
    stored = [result["metrics"][name] for result in results if name in result["metrics"]]
    if len(stored) == 1:
        return {key: stored[0][key] for key in ("value", "low", "high", "n")}
    values = [item["value"] for item in stored if item["value"] is not None]
    return {"value": sum(values) / len(values) if values else None, "low": None, "high": None, "n": results[0].get("n")}


def verdict(change: dict[str, Any], better: int) -> str:
    """``better``, ``worse``, ``higher``, ``lower``; ``unclear`` where it may be chance, ``same`` where all is equal."""
    low, high = change["low"], change["high"]
    if low == high == 0:
        return "same"
    if low is None or high is None or low <= 0 <= high or change["p"] > 0.05:
        return "unclear"
    if better:
        return "better" if (low > 0) == (better > 0) else "worse"
    return "higher" if low > 0 else "lower"


def is_judged(result: dict[str, Any]) -> bool:
    """Whether the file holds pairwise judgements (``evaluation/judge.py``) rather than a system's own metrics."""
    return "verdicts" in result and "baseline" in result


def judgements(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Comparisons by a judge, with the figures pooled over files of the same systems, judge and step (their seeds).

    ``latest`` marks the last step of each comparison; what was judged without a step, no checkpoint, comes last.
    """
    compared = itemgetter("task", "system", "baseline", "judge")

    def about(result: dict[str, Any]) -> tuple:
        settings = {**result, "judge": str(result.get("settings", {}).get("judge"))}
        return *compared(settings), result.get("step")

    found = []
    for (task, system, baseline, judge, step), members in grouped(results, about).items():
        figures = pool(members)
        names = dict.fromkeys(name for member in members for name in member["metrics"])
        metrics = {name: figures[name].summary() if name in figures else _as_stored(members, name) for name in names}
        item = {"task": task, "system": system, "baseline": str(baseline), "step": step, "judge": judge}
        found.append({**item, "metrics": metrics, "files": [member["path"] for member in members]})
    found.sort(key=lambda item: (*compared(item), item["step"] is None, item["step"] or 0))
    for number, item in enumerate(found):
        item["latest"] = compared(item) not in map(compared, found[number + 1 :])
    return found


def pairs(results: list[dict[str, Any]], table: dict[str, Any]) -> list[dict[str, Any]]:
    """200 answers of the baseline and of another system to the same prompts, to read side by side, in file order."""
    found = []
    own = [result for result in results if result["task"] == table["task"] and not is_judged(result)]
    by_system = {key: files[0] for key, files in grouped(own, itemgetter("benchmark", "system")).items()}
    for (benchmark, system), result in by_system.items():
        before = by_system.get((benchmark, table["baseline"]))
        if system == table["baseline"] or before is None:
            continue
        shared = [key for key in result["records"] if key in before["records"]][:200]
        answers = [(before["records"][key].get("response"), result["records"][key].get("response")) for key in shared]
        if any(isinstance(first, str) and isinstance(second, str) for first, second in answers):
            found.append({"benchmark": benchmark, "system": system, "ids": shared, "before": before, "after": result})
    return sorted(found, key=lambda pair: pair["system"] != "text2grad")
