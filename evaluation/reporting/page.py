"""The report as a page: one HTML file that needs nothing else, and the same in Markdown."""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from evaluation.reporting import charts, story
from evaluation.reporting.assemble import judge_charts, update_charts
from evaluation.reporting.opening import pieces
from evaluation.reporting.panels import annotation_charts, reward_model_charts
from evaluation.reporting.wording import PHASES, method_name, wording
from text2grad.statistics import RESAMPLES
from text2grad.tasks import get_task

_HERE = Path(__file__).parent
VERDICTS = {
    "better": "▲ better",
    "worse": "▼ worse",
    "higher": "△ higher",
    "lower": "▽ lower",
    "unclear": "unclear",
    "same": "the same",
}
HEALTH = ("entropy", "length/mean", "length/finished", "spans/found")
"""What shows a collapse, besides KL: shown right below the results of a single run."""
JUDGED = ("win_rate", "win_rate_order_free", "orders_agree", "position_bias", "judge_failures")
FEW_METRICS = 5
"""A table with more is folded below one line per group of metrics."""
PANELS = {"annotations": annotation_charts, "reward_models": reward_model_charts}
EXTRAS = (
    ("annotations", "Annotation", "Counts of stage 1: spans, tokens, cost."),
    (
        "reward_models",
        "The reward model",
        "Agreement of the reward model with annotations that it was not trained on.",
    ),
)


def html(report: dict[str, Any], packs: dict[str, str], viewer: dict[str, Any], refresh: float = 0.0) -> str:
    """The page.

    Args:
        refresh: seconds after which it loads itself again, for runs that still train; 0 for never.
    """
    script = "\n".join(_asset(name) for name in ("charts.js", "viewer.js", *(["live.js"] if refresh else [])))
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    return _render(
        "page.html.j2",
        report,
        escape=True,
        css=Markup(_asset("page.css")),
        script=Markup(script),
        script_hash=digest,
        packs={name: Markup(content) for name, content in packs.items()},
        viewer=viewer,
        refresh=refresh,
        chart_data=Markup(_chart_data(report)),
        sections=_sections(report, viewer),
    )


def markdown(report: dict[str, Any], viewer: dict[str, Any]) -> str:
    """The figures without pictures and rollouts, for a repository or a terminal."""
    return _render("page.md.j2", report, escape=False, viewer=viewer).rstrip() + "\n"


def _render(template: str, report: dict[str, Any], escape: bool, **values: Any) -> str:
    environment = Environment(
        autoescape=escape, undefined=StrictUndefined, trim_blocks=not escape, lstrip_blocks=not escape
    )
    timing = report["timing"]
    phases = [name for name in PHASES if any(name in row["phases"] for row in timing)]
    phases += sorted({name for row in timing for name in row["phases"]} - set(PHASES))
    return environment.from_string(_asset(template)).render(
        report=report,
        text=lambda sentence: story.text(report, sentence),
        printed=lambda path, style, form: story.printed(report, {"at": path, "style": style, "form": form}),
        wording=wording,
        method_name=method_name,
        verdicts=VERDICTS,
        two_systems=len(report["tables"]) > 0 and all(len(table["systems"]) <= 2 for table in report["tables"]),
        many_benchmarks=lambda table: len({metric["benchmark"] for metric in table["metrics"]}) > 1,
        forest=forest,
        short=lambda table: len(table["groups"]) < len(table["metrics"]) > FEW_METRICS,
        tally=tally,
        pieces=pieces,
        small_charts=lambda name: PANELS[name](report[name]),
        draw_rows=lambda chart: Markup(charts.row_chart(chart)),
        draw=lambda chart, width=360, height=216: Markup(charts.line_chart(chart, width, height)),
        draw_bars=lambda width: Markup(charts.bar_chart(*timing_bars(report), width)),
        gloss=_gloss(report),
        named=story.named,
        key_mark=lambda slot: Markup(charts.key_mark(slot)),
        update_charts=lambda task: update_charts(report["updates"], task),
        smoothing=smoothing,
        seeds_of=lambda label, task: max(
            len(variant["seeds"])
            for variant in report["variants"]
            if (variant["label"], variant["task"]) == (label, task)
        ),
        judge_metrics=[name for name in JUDGED if any(name in judge["metrics"] for judge in report["judges"])],
        judge_charts=judge_charts(report),
        judge_names=sorted({judge["judge"] for judge in report["judges"]}),
        outcome_bar=outcome_bar,
        phases=phases,
        health=lambda section: [chart for chart in section["charts"] if _is_health(chart["name"])],
        has_overhead=any(row["over_baseline"] is not None for row in timing),
        extras=[(name, report[name], heading, lead) for name, heading, lead in EXTRAS],
        rows_of=lambda columns: list(dict.fromkeys(row for column in columns for row in column["rows"])),
        kicker=_kicker(report),
        cell_text=lambda value: str(value).replace("|", "\\|").replace("\n", " "),
        resamples=f"{RESAMPLES:,}",
        **values,
    )


def tally(group: dict[str, Any], system: str) -> str:
    """How the metrics of a group turned out: ``3 better, 1 unclear``."""
    words = {verdict: text.lstrip("▲▼△▽ ") for verdict, text in VERDICTS.items()}
    return ", ".join(f"{count} {words[verdict]}" for verdict, count in group["verdicts"].get(system, {}).items())


def forest(change: dict[str, Any]) -> Markup:
    """A difference and its interval about zero, as a picture (each drawn to its own scale)."""
    low, high = change["low"], change["high"]
    if low is None or high is None:
        return Markup("")
    x = charts.Scale(-1.0, 1.0, 6, 144)
    reach = 1.05 * max(abs(low), abs(high), abs(change["difference"])) or 1.0
    start, middle, end = (x(value / reach) for value in (low, change["difference"], high))
    return Markup(
        f'<svg class="forest {change["verdict"]}" viewBox="0 0 150 22" role="img" aria-label="interval about zero">'
        f'<line class="axis" x1="75" x2="75" y1="1" y2="21"/>'
        f'<line class="span" x1="{start:.1f}" x2="{end:.1f}" y1="11" y2="11"/>'
        f'<circle class="dot" cx="{middle:.1f}" cy="11" r="4"/></svg>'
    )


def outcome_bar(metrics: dict[str, Any]) -> Markup:
    """Wins, ties and losses as one bar."""
    x = 0.0
    parts = []
    for name in ("wins", "ties", "losses"):
        share = (metrics.get(name) or {}).get("value") or 0.0
        parts.append(f'<rect class="{name}" x="{x:.1f}" y="2" width="{max(200 * share - 1, 0):.1f}" height="14"/>')
        x += 200 * share
    return Markup(
        f'<svg class="outcome" viewBox="0 0 200 18" role="img" aria-label="wins, ties, losses">{"".join(parts)}'
        '<line class="half" x1="100" x2="100" y1="0" y2="18"/></svg>'
    )


def timing_bars(report: dict[str, Any]) -> tuple[list[dict[str, Any]], list[tuple[str, str]]]:
    """The rows and parts of the chart of phases."""
    names = dict.fromkeys([*PHASES, *(name for row in report["timing"] for name in row["phases"])])
    used = [name for name in names if any(name in row["phases"] for row in report["timing"])]
    several = len({row["task"] for row in report["timing"]}) > 1
    rows = [
        {
            "label": f"{row['label']}, {row['task']}" if several else row["label"],
            "values": row["phases"],
            "total": row["total"],
        }
        for row in report["timing"]
    ]
    return rows, [(name, wording(name).label) for name in used]


def smoothing(section: dict[str, Any]) -> str:
    """How the lines of a section were made, in words."""
    lines = [line for chart in section["charts"] for line in chart["lines"]]
    seeds, window = max(line["seeds"] for line in lines), max(line["window"] for line in lines)
    smooth = f"moving mean over {window} steps" if window > 1 else "value of each step"
    if seeds > 1:
        return f"Lines are means over seeds ({smooth}), bands run from the lowest to the highest seed."
    return f"Thick lines are a {smooth}, thin lines the single steps." if window > 1 else f"Lines are the {smooth}."


def _is_health(name: str) -> bool:
    return name in HEALTH or (name.startswith("kl/") and name != "kl/coef")


def _sections(report: dict[str, Any], viewer: dict[str, Any]) -> list[tuple[str, str]]:
    wanted: tuple[tuple[str, str, Any], ...] = (
        ("results", "Results", report["tables"]),
        ("judges", "Judge", report["judges"]),
        ("training", "Training", report["training"]),
        ("updates", "Updates", report["updates"]),
        ("ablations", "Ablations", report["ablations"]),
        ("time", "Time", report["timing"]),
        ("early", "Early and late", viewer["rollouts"]),
        ("answers", "Side by side", viewer["pairs"]),
        ("rollouts", "All responses", viewer["rollouts"]),
        ("annotations", "Annotation", report["annotations"]),
        ("reward_models", "Reward model", report["reward_models"]),
        ("settings", "Settings", report["runs"]),
    )
    return [(target, name) for target, name, there in wanted if there]


def _kicker(report: dict[str, Any]) -> list[str]:
    tasks = [run["task"] for run in report["runs"]] + [table["task"] for table in report["tables"]]
    models = [run["model"].rstrip("/").rsplit("/", 1)[-1] for run in report["runs"]]
    return list(dict.fromkeys(tasks + models))


def _gloss(report: dict[str, Any]) -> str:
    """What a newcomer must know to read the first screen."""
    tasks = [run["task"] for run in report["runs"]] + [table["task"] for table in report["tables"]]
    values = {get_task(task).span_words.values: task for task in reversed(tasks)}
    told = "; ".join(f"on {task}, {value}" if len(values) > 1 else value for value, task in reversed(values.items()))
    return (
        f"Text2Grad trains a policy on critiques. A critique gives each token a reward δ: {told}. "
        "KL is the divergence of the policy from its reference model."
    )


def _chart_data(report: dict[str, Any]) -> str:
    """What the page's script reads values off, with four significant digits; it never holds ``<``."""
    drawn = judge_charts(report)
    for section in report["training"]:
        drawn += [*section["charts"], *update_charts(report["updates"], section["task"])]
    data = {}
    for chart in drawn:
        lines = [
            {
                "label": line["label"],
                "banded": line["banded"],
                "steps": line["steps"],
                **{name: [float(f"{value:.4g}") for value in line[name]] for name in ("mean", "low", "high")},
            }
            for line in chart["lines"]
        ]
        data[chart["id"]] = {"style": chart["style"], "lines": lines}
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@cache
def _asset(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")
