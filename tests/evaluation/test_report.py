"""The report: every figure recomputed from the files, and every response on the page as it was logged."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import statistics
import subprocess
import sys
from itertools import product
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from evaluation.reporting import packs
from evaluation.reporting.assemble import assemble
from evaluation.reporting.comparing import load_results
from evaluation.reporting.runs import load_runs
from evaluation.reporting.wording import show, show_interval
from evaluation.results import Figure, compare, figures_of, load_result
from tests import synthetic_runs
from tests.report_files import pack_of, rows, unpack

STEPS, PER_STEP, SEEDS = 66, 2, (1, 2)
SERVED = ("text2grad", "ppo_scalar")
NAMES = {"text2grad": "Text2Grad", "ppo_scalar": "PPO (scalar reward)"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """Two methods, two seeds each, with results and judgements."""
    folder = tmp_path_factory.mktemp("runs")
    for method, skill in zip(SERVED, (0.85, 0.6), strict=True):
        for seed in SEEDS:
            synthetic_runs.write_run(folder / f"{method}-seed{seed}", method, seed, STEPS, PER_STEP)
            synthetic_runs.write_result(folder / f"{method}-seed{seed}.result.json", method, skill, seed)
    synthetic_runs.write_result(folder / "base.result.json", "base", 0.08)
    for step in (0, 33, 66):
        synthetic_runs.write_judgement(folder / f"judge{step}.result.json", "text2grad", "base", step / 66, step)
    return folder


@pytest.fixture(scope="module")
def built(runs, tmp_path_factory) -> Path:
    """The page, made by the command a user types; returns its folder."""
    out = tmp_path_factory.mktemp("report")
    command = [sys.executable, "evaluation/report.py", *sorted(str(p) for p in runs.iterdir() if p.is_dir())]
    command += ["--results", *sorted(map(str, runs.glob("*.result.json"))), "--output", str(out / "report.html")]
    command += ["--figures", str(out / "figures")]
    done = subprocess.run(command, cwd=synthetic_runs.ROOT, text=True, capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def report(built) -> dict:
    return json.loads((built / "report.json").read_text())


@pytest.fixture(scope="module")
def page(built) -> str:
    return (built / "report.html").read_text()


class Recomputed:
    """The report's figures, worked out again from the files, plainly."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.runs = {NAMES[m]: [folder / f"{m}-seed{seed}" for seed in SEEDS] for m in SERVED}

    def series(self, run: Path, name: str) -> list[float]:
        values = []
        for row in rows(run / "metrics.jsonl"):
            if name == "spans/found":
                total = row["spans/matched"] + row["spans/unmatched"]
                values += [row["spans/matched"] / total] if total else []
            elif name == "seconds/total":
                values.append(sum(value for key, value in row.items() if key.startswith("seconds/")))
            else:
                values.append(row[name])
        return values

    def ends(self, name: str, label: str) -> dict:
        tenth = STEPS // 10
        series = [self.series(run, name) for run in self.runs[label]]
        tenths = [max(1, len(values) // 10) for values in series]
        assert set(tenths) <= {tenth, tenth - 1}
        first = [statistics.fmean(values[:n]) for values, n in zip(series, tenths, strict=True)]
        last = [statistics.fmean(values[-n:]) for values, n in zip(series, tenths, strict=True)]
        means = {"first": statistics.fmean(first), "last": statistics.fmean(last)}
        return {**means, "last_low": min(last), "last_high": max(last), "change": means["last"] - means["first"]}

    def curve(self, name: str, label: str) -> dict:
        window = 3  # 66 steps: the odd number next below a thirtieth and one
        smooth = []
        for run in self.runs[label]:
            values = self.series(run, name)
            smooth.append([statistics.fmean(values[max(0, i - 1) : i + 2]) for i in range(len(values))])
        by_step = list(zip(*smooth, strict=True))
        summaries = {"mean": statistics.fmean, "low": min, "high": max}
        return {"window": window, **{key: [of(values) for values in by_step] for key, of in summaries.items()}}

    def figures(self, system: str) -> dict[str, Figure]:
        """Sums over seeds of each record's rows."""
        paths = [self.folder / f"{system}-seed{seed}.result.json" for seed in SEEDS]
        files = [load_result(p) for p in ([self.folder / "base.result.json"] if system == "base" else paths)]
        pooled = {}
        for name in files[0]["metrics"]:
            each = [figures_of(file)[name].rows for file in files]
            summed = {key: [sum(column) for column in zip(*(r[key] for r in each), strict=True)] for key in each[0]}
            pooled[name] = Figure(summed)
        return pooled

    def example(self) -> list[float]:
        """Mean δ before and after of the prompt whose change is the median, the lower one of two."""
        files = [self.folder / name for name in ("base.result.json", "text2grad-seed1.result.json")]
        means = [{k: a / b for k, (a, b) in figures_of(load_result(file))["mean_delta"].rows.items()} for file in files]
        ranked = sorted(means[0], key=lambda key: means[1][key] - means[0][key])
        return [side[ranked[(len(ranked) - 1) // 2]] for side in means]


@pytest.fixture(scope="module")
def recomputed(runs) -> Recomputed:
    return Recomputed(runs)


def test_results_are_pooled_over_seeds_and_compared_pairwise(report, recomputed):
    (table,) = report["tables"]
    base = recomputed.figures("base")
    for system, key in product(("base", *SERVED), base):
        figure, cell = recomputed.figures(system)[key], table["cells"][system][f"slf5k/{key}"]
        assert {name: cell[name] for name in ("value", "low", "high", "n")} == pytest.approx(figure.summary())
        if system != "base":
            change = {name: value for name, value in cell["change"].items() if name != "verdict"}
            assert change == pytest.approx(compare({key: figure}, {key: base[key]})[key])
    assert report["example"]["of"] == 16
    assert [side["mean"] for side in report["example"]["sides"]] == pytest.approx(recomputed.example())
    for judge in report["judges"]:
        stored = figures_of(load_result(recomputed.folder / f"judge{judge['step']}.result.json"))
        assert judge["metrics"]["win_rate"] == pytest.approx(stored["win_rate"].summary())


def test_training_figures_are_those_of_the_log(report, recomputed):
    (section,) = report["training"]
    assert {chart["name"] for chart in section["charts"]} >= {"delta/mean", "kl/full", "entropy", "spans/found"}
    for chart in section["charts"]:
        for line in chart["lines"]:
            assert section["ends"][chart["name"]][line["label"]] == pytest.approx(
                recomputed.ends(chart["name"], line["label"])
            )
            if line["steps"] == list(range(1, STEPS + 1)):
                assert line["window"] == 3
                for key, values in recomputed.curve(chart["name"], line["label"]).items():
                    assert line[key] == pytest.approx(values, abs=1e-9), chart["name"]


def test_every_chart_is_an_svg_file(built, report):
    for chart in report["training"][0]["charts"] + report["win_rates"]:
        svg = ElementTree.parse(built / "figures" / f"{chart['id']}.svg").getroot()
        assert svg.tag.endswith("svg")
        assert all(line["label"] in "".join(svg.itertext()) for line in chart["lines"] if len(chart["lines"]) > 1)


def test_the_page_holds_the_figures(page, report):
    cell = report["tables"][0]["cells"]["text2grad"]["slf5k/rougeL"]
    assert report["headline"]["title"] in page and report["headline"]["deck"] in page
    assert show(cell["value"]) in page and show_interval(cell["low"], cell["high"]) in page
    assert all(caution in page for caution in report["cautions"])
    assert [chart["title"] for chart in report["training"][0]["charts"] if chart["constant"]] == ["Learning rate"]


def test_the_viewer_holds_every_rollout_as_it_was_logged(page, runs, report):
    index = pack_of(page, "index")
    prompts = pack_of(page, "prompts")
    logged = [
        (run, row) for run, about in enumerate(index["runs"]) for row in rows(runs / about["name"] / "rollouts.jsonl")
    ]
    assert report["viewer"]["shown"] == len(logged) == len(index["columns"]["run"])
    for number, (run, row) in enumerate(logged):
        at, offset = divmod(number, index["pack"])
        if not offset:
            texts, numbers = pack_of(page, f"texts-{at}"), pack_of(page, f"numbers-{at}")
        response, critique, error, good, poor, quotes = texts[offset]
        assert (index["columns"]["run"][number], index["columns"]["step"][number]) == (run, row["step"])
        prompt = index["columns"]["prompt"][number]
        assert (index["prompts"][prompt], prompts[prompt]) == (row["id"], row["prompt"])
        assert (response, critique, error) == (row["response"], row["critique"], row["error"] or "")
        assert quotes == [row["matched"], row["unmatched"], row["conflicts"]]
        assert {response[s:e] for s, e in poor} == set(row["poor"])
        assert {response[s:e] for s, e in good} == set(row["good"])
        gaps, lengths, deltas, rewards, advantages, shift, kl = numbers[offset]
        ends = np.cumsum(np.add(gaps, lengths))
        assert np.stack([ends - lengths, ends], axis=1).tolist() == row["spans"]
        assert (deltas, rewards) == (row["deltas"], row["rewards"])
        assert advantages == pytest.approx(row["advantages"], rel=6e-3, abs=1e-5)
        assert kl == pytest.approx(row["kl"], rel=6e-3, abs=1e-5)
        assert (shift is None) == (row["new_logprobs"] is None)
        if shift:
            moved = [new - old for new, old in zip(row["new_logprobs"], row["old_logprobs"], strict=True)]
            assert shift == pytest.approx(moved, rel=6e-3, abs=2e-6)


def test_the_page_needs_nothing_else_and_lets_nothing_else_run(page):
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", page)
    assert "@import" not in page and "url(" not in page
    policy = re.search(r"script-src '(sha256-[^']+)'", page).group(1)
    (script,) = re.findall(r"(?s)<script>(.*?)</script>", page)
    assert policy == "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def test_the_same_input_gives_the_same_page(built, runs, tmp_path, run_script):
    folders = sorted(str(path) for path in runs.iterdir() if path.is_dir())
    results = sorted(map(str, runs.glob("*.result.json")))
    done = run_script("evaluation/report.py", *folders, "--results", *results, "--output", tmp_path / "report.html")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "report.html").read_bytes() == (built / "report.html").read_bytes()


def test_many_rollouts_are_thinned_by_whole_steps(runs):
    _, groups = assemble(load_runs([str(runs / "text2grad-seed1"), str(runs / "ppo_scalar-seed1")]), [])
    packed, about = packs.packs(groups, [], limit=2 * PER_STEP * 11)
    columns = unpack(packed["index"])["columns"]
    assert about["rollouts"] == 2 * PER_STEP * STEPS and about["shown"] == 2 * PER_STEP * 11 == len(columns["step"])
    assert {1, STEPS} <= set(columns["step"])
    assert all(columns["step"].count(step) == 2 * PER_STEP for step in set(columns["step"]))


def test_the_critic_that_trained_is_named_where_it_also_judges(runs):
    run = load_runs([str(runs / "text2grad-seed1")])
    results = load_results([str(runs / "base.result.json"), str(runs / "text2grad-seed1.result.json")])
    told = " ".join(assemble(run, results)[0]["cautions"])
    assert "by the critic that trained the policy" in told and "one seed" in told
    run[0].critic = "runs/seed1/reward_model"
    told = " ".join(assemble(run, results)[0]["cautions"])
    assert "Trained with runs/seed1/reward_model; δ in evaluation is by programmatic" in told
    assert "held-out" in " ".join(assemble(run, [])[0]["cautions"])
