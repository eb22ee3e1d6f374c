"""The report as a page: one HTML file that needs nothing else."""

import base64
import hashlib
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from evaluation.reporting import charts
from evaluation.reporting.opening import pieces
from evaluation.reporting.wording import method_name, show, show_change, show_interval, show_p, system_name, wording
from text2grad.statistics import RESAMPLES
from text2grad.tasks import get_task

VERDICTS = {
    "better": "▲ better",
    "worse": "▼ worse",
    "higher": "△ higher",
    "lower": "▽ lower",
    "unclear": "unclear",
    "same": "the same",
}
JUDGED = ("win_rate", "win_rate_order_free", "orders_agree", "position_bias", "judge_failures")


def html(report: dict[str, Any], packs: dict[str, str]) -> str:
    """The page. ``packs``: the rollouts for its script, by name (:mod:`evaluation.reporting.packs`)."""
    tasks = [part["task"] for part in (*report["runs"], *report["tables"], *report["judges"])]
    models = [run["model"].rstrip("/").rsplit("/", 1)[-1] for run in report["runs"]]
    script = _asset("viewer.js")
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(_asset("page.html.j2")).render(
        report=report,
        show=show,
        show_change=show_change,
        show_interval=show_interval,
        show_p=show_p,
        wording=wording,
        method_name=method_name,
        system_name=system_name,
        verdicts=VERDICTS,
        gloss=_gloss(tasks),
        kicker=list(dict.fromkeys(tasks + models)),
        smoothing=smoothing,
        judge_metrics=[name for name in JUDGED if any(name in judge["metrics"] for judge in report["judges"])],
        rows_of=lambda columns: list(dict.fromkeys(row for column in columns for row in column["rows"])),
        resamples=f"{RESAMPLES:,}",
        css=Markup(_asset("page.css")),
        script=Markup(script),
        script_hash=digest,
        packs={name: Markup(content) for name, content in packs.items()},
        draw=lambda chart: quote(charts.line_chart(chart), safe=" !$*+,-./:;=?@[]^_{|}~"),  # shorter than base64
        pieces=pieces,
    )


def smoothing(section: dict[str, Any]) -> str:
    """How the lines of a section were made, in words."""
    lines = [line for chart in section["charts"] for line in chart["lines"]]
    seeds, window = max(line["seeds"] for line in lines), max(line["window"] for line in lines)
    smooth = f"moving mean over {window} steps" if window > 1 else "value of each step"
    if seeds > 1:
        return f"Lines are means over seeds ({smooth}), bands run from the lowest to the highest seed."
    return f"Lines are the {smooth}."


def _gloss(tasks: list[str]) -> str:
    """What a newcomer must know to read the first screen."""
    values = {get_task(task).span_words.values: task for task in reversed(tasks)}
    told = "; ".join(f"on {task}, {value}" if len(values) > 1 else value for value, task in reversed(values.items()))
    return (
        f"Text2Grad trains a policy on critiques. A critique gives each token a reward δ: {told}. "
        "KL is the divergence of the policy from its reference model."
    )


def _asset(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")
