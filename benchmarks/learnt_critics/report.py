"""Tables and a picture of a study: how good its critics became, and what its policies made of them.

python benchmarks/learnt_critics/report.py --study runs/learnt_critics --page benchmarks/learnt_critics.md

Models whose names differ in ``-seed-N`` alone are of one kind: their figures share a row.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes

from benchmarks.learnt_critics.policies import PROGRAM, RESULT
from benchmarks.micro.results import FINAL, area, final
from benchmarks.pages import check_page, markdown_table, page_setting, write_section
from text2grad.configs import parse, setting
from text2grad.critics.reward_model.critic import DESCRIPTION_FILE
from text2grad.errors import InputError, command
from text2grad.plotting import COLOURS, STYLE, save_figure
from text2grad.records import load_json
from text2grad.statistics import Estimate, bootstrap

matplotlib.use("Agg")
from matplotlib import pyplot

SECTION = "learnt_critics"
EDGE = 10
"""Steps at either end of a run over which flips and gaps are averaged."""

Runs = dict[tuple[str, float], list[dict[str, Any]]]
"""Results by kind and learning rate."""
Curves = dict[str, list[list[dict[str, Any]]]]
"""Examinations of each model of a kind, by kind."""


@dataclass
class ReportConfig:
    """Where the study is, and what is written."""

    study: str = setting("runs/learnt_critics", "the study's folder")
    page: str = page_setting(SECTION)
    figure: str = setting("benchmarks/figures/learnt_critics", "the picture, without its suffix")


def report(study: Path, page: str, figure: Path) -> str:
    """The section, which is also written into the page."""
    curves: Curves = {}
    for path in sorted(study.glob("*/curve.jsonl")):
        curves.setdefault(kind_of(path.parent.name), []).append(_rows(path))
    runs = load_runs(study / "policies")
    if not curves and not runs:
        raise InputError(f"{study}: holds neither critics nor policies; run train_critic.py and policies.py first")
    scalars = {kind: models for kind, models in curves.items() if "correlation" in models[0][0]}
    critics = {kind: models for kind, models in curves.items() if kind not in scalars}
    draw(figure, critics, runs)
    tables = [critics_table(critics)] if critics else []
    tables += [scalars_table(scalars)] if scalars else []
    tables += [policies_table(runs)] if runs else []
    text = "\n\n".join([*tables, f"![{SECTION}](figures/{figure.name}.svg)"])
    write_section(page, SECTION, text)
    return text


def kind_of(name: str) -> str:
    """A model's or a run's name without the model's seed."""
    return re.sub(r"-seed-\d+", "", name)


def load_runs(folder: Path) -> Runs:
    runs: Runs = {}
    for path in sorted(folder.glob(f"*/lr-*/seed-*/{RESULT}")):
        result = load_json(path)
        runs.setdefault((kind_of(path.parts[-4]), result["settings"]["rate"]), []).append(result)
    return runs


def critics_of(results: Sequence[dict[str, Any]]) -> list[str]:
    return [result["settings"]["critic"] for result in results]


def groups_of(results: Sequence[dict[str, Any]]) -> list[str] | None:
    """What an interval is over: critics where there are several, else the runs."""
    critics = critics_of(results)
    return critics if len(set(critics)) > 1 else None


def critics_table(curves: Curves) -> str:
    header = ["critic", "models", "annotated responses seen", "F1 of good tokens", "F1 of poor tokens", "flips"]
    header += ["correlation of mean δ", "seconds for a response"]
    rows = []
    for kind, seen, found in _examined(curves):
        figures = [_spread([row[key] for row in found]) for key in ("f1_good", "f1_poor", "flips", "mean_delta")]
        figures.append(f"{fmean(row['seconds_each'] for row in found):.3f}")
        rows.append([kind, str(len(found)), str(seen), *figures])
    return markdown_table(header, rows)


def scalars_table(curves: Curves) -> str:
    header = ["scalar reward model", "models", "annotated responses seen", "correlation with the true Σδ"]
    rows = [
        [kind, str(len(found)), str(seen), _spread([row["correlation"] for row in found])]
        for kind, seen, found in _examined(curves)
    ]
    return markdown_table(header, rows)


def _examined(curves: Curves) -> list[tuple[str, int, list[dict[str, Any]]]]:
    """Kind, responses seen, and what the models of this kind were worth then."""
    at: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for kind, models in curves.items():
        for row in (row for model in models for row in model):
            at.setdefault((kind, row["seen"]), []).append(row)
    return [(kind, seen, at[kind, seen]) for kind, seen in sorted(at)]


def kept(results: Sequence[dict[str, Any]], perfect: Sequence[dict[str, Any]]) -> Estimate | None:
    """The share of the perfect critic's gain in final F1, of the same seeds, which are resampled together."""
    other = {result["settings"]["seed"]: result["curve"] for result in perfect}
    paired = [result for result in results if result["settings"]["seed"] in other]
    if not paired:
        return None
    gains = [[_gain(result["curve"]), _gain(other[result["settings"]["seed"]])] for result in paired]
    return bootstrap(np.array(gains), groups=groups_of(paired))


def _gain(curve: Sequence[dict[str, float]]) -> float:
    return fmean(row["f1"] for row in curve[-FINAL:]) - curve[0]["f1"]


def best_rate(runs: Runs, name: str) -> float | None:
    """The rate at which a reward's policies end best."""
    rates = {
        rate: final([one["curve"] for one in results]).value for (own, rate), results in runs.items() if own == name
    }
    return max(rates, key=rates.__getitem__) if rates else None


def policies_table(runs: Runs) -> str:
    perfect = runs.get((PROGRAM, best_rate(runs, PROGRAM) or 0.0), [])
    header = ["rewarded by", "learning rate", "models", "policies", "final F1", "of the perfect critic's gain"]
    header += ["best F1", "mean F1 of the run"]
    header += ["flips, first and last steps", "gap of mean δ, first and last steps"]
    rows = []
    for (name, rate), results in runs.items():
        curves = [result["curve"] for result in results]
        best = fmean(max(row["f1"] for row in curve) for curve in curves)
        share = kept(results, perfect)
        groups = groups_of(results)
        figures = [f"{rate:g}", str(len(set(critics_of(results)))), str(len(results))]
        figures += [str(final(curves, groups=groups)), "–" if share is None else str(share)]
        figures += [f"{best:.3f}", str(area(curves, groups=groups))]
        rows.append([name, *figures, *_edges(results)])
    return markdown_table(header, rows)


def _edges(results: Sequence[dict[str, Any]]) -> list[str]:
    """Flips and gaps at the beginning and at the end of the runs; a number gives neither."""
    audits = [result["audit"] for result in results if result["audit"]]
    if not audits:
        return ["–", "–"]
    shown = []
    for figure, form in (("flips", "{:.2f}"), ("gap", "{:+.2f}")):
        ends = []
        for rows in ([audit[:EDGE] for audit in audits], [audit[-EDGE:] for audit in audits]):
            known = [value for part in rows for row in part if (value := _figure(row, figure)) is not None]
            ends.append(form.format(fmean(known)) if known else "–")
        shown.append(", ".join(ends))
    return shown


def _figure(row: dict[str, Any], name: str) -> float | None:
    return row["delta"] - row["true_delta"] if name == "gap" else row[name]


def draw(path: Path, curves: Curves, runs: Runs) -> None:
    """Critics by what they have seen, and policies by step; a panel for each, as far as there are any."""
    with pyplot.rc_context(STYLE):
        panels: list[Callable[[Any], None]] = [lambda axes: _draw_critics(axes, curves)] if curves else []
        panels += [lambda axes: _draw_policies(axes, runs)] if runs else []
        critics = {critic for results in runs.values() for critic in critics_of(results)}
        panels += [lambda axes: _draw_quality(axes, runs)] if any(map(flips_of, critics)) else []
        size = (3.6 * len(panels) + 1.6 * bool(runs), 2.8)  # the policies' names stand beside their panel
        figure, grid = pyplot.subplots(1, len(panels), figsize=size, layout="constrained", squeeze=False)
        for axes, fill in zip(grid[0], panels, strict=True):
            fill(axes)
            beside = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)} if len(axes.lines) > 6 else {}
            axes.legend(fontsize=6, **beside)
        save_figure(figure, path)


def _draw_critics(axes: Axes, curves: Curves) -> None:
    for colour, (kind, models) in zip(COLOURS * 3, curves.items(), strict=False):
        for number, curve in enumerate(models):
            known = [(row["seen"], row["flips"]) for row in curve if row["flips"] is not None]
            if known:
                label = kind if number == 0 else None
                axes.plot(*zip(*known, strict=True), color=colour, marker="o", markersize=3, linewidth=1, label=label)
    axes.set(xlabel="annotated responses seen", ylabel="flips", ylim=(0, None))


def _draw_policies(axes: Axes, runs: Runs) -> None:
    looks = [(colour, style) for style in ("-", "--", ":") for colour in COLOURS]
    for (colour, style), ((name, rate), results) in zip(looks, runs.items(), strict=False):
        steps = [row["step"] for row in results[0]["curve"]]
        means = [fmean(result["curve"][at]["f1"] for result in results) for at in range(len(steps))]
        axes.plot(steps, means, color=colour, linestyle=style, linewidth=1.2, label=f"{name}, {rate:g}")
    axes.set(xlabel="steps", ylabel="quality (F1 of statements)")


def flips_of(critic: str) -> float | None:
    """A critic's flips on held-out responses, as its folder has them."""
    description = Path(critic) / DESCRIPTION_FILE
    return load_json(description)["metrics"].get("flips") if description.is_file() else None


def _draw_quality(axes: Axes, runs: Runs) -> None:
    """What policies end at, by how often their critic errs: a point for each critic, at the best rate of its kind."""
    by_critic: dict[str, list[dict[str, Any]]] = {}
    for kind in sorted({kind for kind, _ in runs}):
        for result in runs[kind, best_rate(runs, kind) or 0.0]:
            by_critic.setdefault(result["settings"]["critic"], []).append(result)
    for colour, (label, own) in zip(COLOURS, (("learnt critics", False), ("the program", True)), strict=False):
        points = []
        for critic, results in by_critic.items():
            flips = 0.0 if own else flips_of(critic)
            if (critic == PROGRAM) == own and flips is not None:
                points.append((flips, final([result["curve"] for result in results])))
        if points:
            middle = [value.value for _, value in points]
            ends = [[v - e.low for v, (_, e) in zip(middle, points, strict=True)]]
            ends += [[e.high - v for v, (_, e) in zip(middle, points, strict=True)]]
            axes.errorbar([x for x, _ in points], middle, ends, fmt="o", markersize=3, color=colour, label=label)
    axes.set(xlabel="flips on held-out responses", ylabel="final F1 of the policy")


def _spread(values: Sequence[float | None]) -> str:
    """The mean of what is known, with the least and the largest where there are several."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return f"{known[0]:.2f}" if known else "–"
    return f"{fmean(known):.2f} ({min(known):.2f} to {max(known):.2f})"


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@command
def main() -> None:
    config = parse(ReportConfig)
    check_page(config.page, SECTION)
    print(report(Path(config.study), config.page, Path(config.figure)))


if __name__ == "__main__":
    main()
