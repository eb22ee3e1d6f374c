"""The report: every figure on the page recomputed from the run's files, bad input, hostile text, honest sentences."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path

import numpy as np
import pytest

from evaluation.reporting import story, viewer
from evaluation.reporting.assemble import assemble
from evaluation.reporting.comparing import load_results
from evaluation.reporting.runs import load_runs
from evaluation.reporting.wording import show, show_change, show_interval
from evaluation.results import Figure, compare, figures_of, load_result
from tests import synthetic_runs
from tests.report_files import Figures, rows
from text2grad.feedback import Feedback
from text2grad.token_rewards import span_intervals, tokens_in

STEPS, PER_STEP, SEEDS = 66, 2, (1, 2)
SERVED = ("text2grad", "ppo_scalar")
NAMES = {"text2grad": "Text2Grad", "ppo_scalar": "PPO, scalar reward"}


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
    import subprocess
    import sys

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


@pytest.fixture(scope="module")
def printed(page) -> Figures:
    return Figures(page)


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

    def update(self, label: str, scalar: bool) -> dict[str, list[int]]:
        """label -> [tokens, fell, rose]. Without spread rewards, labels come from δ itself, not from any span."""
        counts = {"poor": [0, 0, 0], "good": [0, 0, 0], "none": [0, 0, 0]}
        for run in self.runs[label]:
            for row in rows(run / "rollouts.jsonl"):
                if row["new_logprobs"] is None or not row["critique"]:
                    continue
                if scalar:
                    feedback = Feedback(row["critique"], row["good"], row["poor"])
                    at = span_intervals(feedback, row["response"], "slf5k")
                    poor, good = (set(tokens_in(spans, row["response"], row["spans"])) for spans in at)
                    labels = [-1 if t in poor else int(t in good) for t in range(len(row["spans"]))]
                else:
                    labels = row["rewards"]
                for t, (start, end) in enumerate(row["spans"]):
                    kind = {-1: "poor", 0: "none", 1: "good"}[int(labels[t])]
                    shift = np.float32(row["new_logprobs"][t]) - np.float32(row["old_logprobs"][t])
                    if start < end:
                        counts[kind][0] += 1
                        counts[kind][1] += bool(shift < 0)
                        counts[kind][2] += bool(shift > 0)
        return counts

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


def expected_figure(path: str, recomputed: Recomputed, report: dict) -> object:
    """The value that a path of the report must have."""
    top, *keys = path.split(story.SEPARATOR)
    if top == "training":
        return recomputed.ends(keys[2], keys[3])[keys[4]]
    if top == "tables":
        system, (_, name), rest = keys[2], keys[3].split("/"), keys[4:]
        figure = recomputed.figures(system)[name]
        if rest[:1] == ["change"]:
            change = compare({name: figure}, recomputed.figures("base"))[name]
            return change[rest[1]] if len(rest) > 1 else change
        return figure.summary() if not rest else figure.value()
    if top == "judges":
        metrics = figures_of(
            load_result(recomputed.folder / f"judge{report['judges'][int(keys[0])]['step']}.result.json")
        )
        summary = metrics[keys[2]].summary()
        return summary[keys[3]] if len(keys) > 3 else summary
    if top == "example":
        return recomputed.example()[int(keys[1])]
    row = report[top][int(keys[0])]
    if top == "updates":
        tokens, fell, rose = recomputed.update(row["label"], scalar=row["label"] != "Text2Grad")[keys[2]]
        return {"tokens": tokens, "fell": fell / tokens, "rose": rose / tokens}[keys[3]]
    assert top == "timing", path
    cycles = [cycle for run in recomputed.runs[row["label"]] for cycle in rows(run / "metrics.jsonl")]
    totals = [sum(value for name, value in cycle.items() if name.startswith("seconds/")) for cycle in cycles]
    if keys[1] == "phases":
        return statistics.median(cycle[keys[2]] for cycle in cycles)
    if keys[1] == "rollouts_per_minute":
        return statistics.median(60 * PER_STEP / total for total in totals)
    if keys[1] == "over_baseline":
        other = [c for run in recomputed.runs["PPO, scalar reward"] for c in rows(run / "metrics.jsonl")]
        scalar = [sum(value for name, value in cycle.items() if name.startswith("seconds/")) for cycle in other]
        return statistics.median(totals) / statistics.median(scalar) - 1
    quarters = statistics.quantiles(totals, n=4, method="inclusive")
    return {"total_low": quarters[0], "total": statistics.median(totals), "total_high": quarters[2]}[keys[1]]


def test_every_figure_on_the_page_is_what_the_files_say(printed, report, recomputed):
    assert len(printed.found) > 150
    known: dict[str, object] = {}
    for path, style, form, text in printed.found:
        if path not in known:
            known[path] = expected_figure(path, recomputed, report)
        expected = known[path]
        value = story.look_up(report, path)
        if form in ("interval", "change_interval"):
            assert (value["low"], value["high"]) == pytest.approx((expected["low"], expected["high"])), path
            assert text == show_interval(expected["low"], expected["high"], style, form == "change_interval"), path
        else:
            assert value == pytest.approx(expected, rel=1e-9), path
            form_of = {
                "value": show,
                "change": show_change,
                "p": lambda p, _: f"p = {p:.3f}" if p >= 1e-3 else "p < 0.001",
            }
            assert text == form_of[form](expected, style), path
    sections = {path.split(story.SEPARATOR)[0] for path in known}
    assert sections == {"training", "tables", "judges", "updates", "timing", "example"}


def test_no_figure_is_printed_outside_the_checked_ones(page):
    """Numbers in sentences and table cells all come from the report; the rest of the text holds only counts."""
    body = re.sub(r"(?s)<(script|style|svg|template|select|details|nav|footer).*?</\1>", " ", page)
    body = re.sub(r'(?s)<span class="value" data-figure.*?</span>', " ", body)
    text = re.sub(r"<[^>]+>", " ", body.split("<body>")[1])
    loose = re.findall(r"\d+\.\d+", text)
    assert loose == []


def test_curves_are_the_metrics_smoothed_and_are_drawn_where_they_belong(printed, report, recomputed):
    section = report["training"][0]
    data = json.loads(printed.scripts["charts"])
    assert {chart["name"] for chart in section["charts"]} >= {"delta/mean", "kl/full", "entropy", "spans/found"}
    drawn = {about["data-chart"]: (about, paths) for about, paths in printed.paths}
    for chart in section["charts"]:
        for line in chart["lines"]:
            expected = recomputed.curve(chart["name"], line["label"])
            assert line["window"] == expected["window"] or len(line["steps"]) < 60
            if line["window"] == 3 and line["steps"] == list(range(1, STEPS + 1)):
                for key in ("mean", "low", "high"):
                    assert line[key] == pytest.approx(expected[key], abs=1e-9), chart["name"]
        about, paths = drawn[chart["id"]]
        x_low, x_high, y_low, y_high, left, right, bottom, top = map(float, about["data-scale"].split())
        lines = [path for path in paths if path["class"].startswith("line")]
        for line, told, path in zip(chart["lines"], data[chart["id"]]["lines"], lines, strict=True):
            assert told["mean"] == pytest.approx(line["mean"], rel=1e-3)
            points = [tuple(map(float, point.split())) for point in path["d"][1:].split("L")]
            for (x, y), step, value in zip(points, line["steps"], line["mean"], strict=True):
                assert x_low + (x - left) / (right - left) * (x_high - x_low) == pytest.approx(step, abs=0.3)
                within = (y - bottom) / (top - bottom) * (y_high - y_low) + y_low
                assert within == pytest.approx(value, abs=(y_high - y_low) / 150)


def test_the_chart_of_updates_holds_the_binned_counts(report, recomputed):
    for update in report["updates"]:
        counts = recomputed.update(update["label"], scalar=update["label"] != "Text2Grad")
        for kind, (tokens, fell, _) in counts.items():
            bins = update[kind]
            assert sum(bin_["tokens"] for bin_ in bins) == tokens
            assert sum(round((bin_["fell"] or 0) * bin_["tokens"]) for bin_ in bins) == fell
    spread = {update["label"]: update["overall"]["poor"]["fell"] for update in report["updates"]}
    assert spread["Text2Grad"] > spread["PPO, scalar reward"]  # so the synthetic runs were made


def test_the_viewer_holds_every_rollout_as_it_was_logged(printed, runs, report):
    packed = {name[5:]: text for name, text in printed.scripts.items() if name.startswith("pack-")}
    texts = [viewer.unpack_texts(packed[name]) for name in packed if name.startswith("text-")]
    packs = {name: viewer.unpack(text) for name, text in packed.items() if not name.startswith("text-")}
    index = packs["index"]
    logged = [
        (run, row) for run, about in enumerate(index["runs"]) for row in rows(runs / about["name"] / "rollouts.jsonl")
    ]
    assert report["viewer"]["shown"] == len(logged) == len(index["columns"]["run"])
    for number, (run, row) in enumerate(logged):
        at, offset = divmod(number, index["pack"])
        at_text, text_offset = divmod(number, index["texts"])
        response, critique, error = texts[at_text][text_offset]
        good, poor, quotes = packs[f"marks-{at}"][offset]
        assert (index["columns"]["run"][number], index["columns"]["step"][number]) == (run, row["step"])
        prompt = index["columns"]["prompt"][number]
        assert (index["prompts"][prompt], packs["prompts"][prompt]) == (row["id"], row["prompt"])
        assert (response, critique, error) == (row["response"], row["critique"], row["error"] or "")
        assert quotes == [row["matched"], row["unmatched"], row["conflicts"]]
        assert {response[s:e] for s, e in poor} == set(row["poor"])
        assert {response[s:e] for s, e in good} == set(row["good"])
        gaps, lengths, deltas, rewards, advantages, shift, kl = packs[f"numbers-{at}"][offset]
        position, spans = 0, []
        for gap, length in zip(gaps, lengths, strict=True):
            spans.append([position + gap, position + gap + length])
            position = spans[-1][1]
        assert spans == row["spans"]
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
    import base64
    import hashlib

    policy = re.search(r"script-src '(sha256-[^']+)'", page).group(1)
    script = re.findall(r"(?s)<script>(.*?)</script>", page)
    assert len(script) == 1
    assert policy == "sha256-" + base64.b64encode(hashlib.sha256(script[0].encode()).digest()).decode()


def test_markdown_says_the_same(built, report):
    text = (built / "report.md").read_text()
    assert text.startswith(f"# {story.text(report, report['headline'])}\n")
    for sentence in report["standfirst"] + report["cautions"]:
        assert story.text(report, sentence) in text
    cell = report["tables"][0]["cells"]["text2grad"]["slf5k/rougeL"]
    assert f"{show(cell['value'])} ({show_interval(cell['low'], cell['high'])})" in text
    table_lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count(" | ") for line in table_lines[:7]}) == 1  # a table whose rows have the same cells
    assert "|\n\n|" not in text


def test_figures_are_written_as_svg_and_pdf(built, report):
    stems = {path.stem for path in (built / "figures").glob("*.svg")}
    assert stems == {path.stem for path in (built / "figures").glob("*.pdf")}
    assert {chart["id"] for chart in report["training"][0]["charts"]} < stems
    assert {"seconds-by-phase", "slf5k-win-rate", "slf5k-update-poor", "slf5k-differences-0"} < stems
    assert (built / "figures" / "seconds-by-phase.pdf").read_bytes().startswith(b"%PDF")
    assert "<svg" in (built / "figures" / "slf5k-delta-mean.svg").read_text()


def test_the_same_input_gives_the_same_page(built, runs, tmp_path, run_script):
    folders = sorted(str(path) for path in runs.iterdir() if path.is_dir())
    results = sorted(map(str, runs.glob("*.result.json")))
    done = run_script("evaluation/report.py", *folders, "--results", *results, "--output", tmp_path / "report.html")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "report.html").read_bytes() == (built / "report.html").read_bytes()


def test_below_a_single_runs_results_stands_what_shows_a_collapse(runs, tmp_path, run_script, recomputed):
    results = [runs / "base.result.json", runs / "text2grad-seed1.result.json"]
    output = tmp_path / "report.html"
    done = run_script("evaluation/report.py", runs / "text2grad-seed1", "--results", *results, "--output", output)
    assert done.returncode == 0, done.stderr
    above = output.read_text().split('id="training"')[0]
    shown = {path: text for path, _, _, text in Figures(above + "</section>").found}
    entropy = recomputed.series(runs / "text2grad-seed1", "entropy")
    path = "training > 0 > ends > entropy > Text2Grad > "
    assert shown[path + "first"] == show(statistics.fmean(entropy[:6]))
    assert shown[path + "last"] == show(statistics.fmean(entropy[-6:]))
    assert {"training > 0 > ends > kl/full > Text2Grad > last"} <= set(shown)


def test_many_rollouts_are_thinned_by_whole_steps(runs):
    _, groups = assemble(load_runs([str(runs / "text2grad-seed1"), str(runs / "ppo_scalar-seed1")]), [])
    packs, about = viewer.packs(groups, [], limit=2 * PER_STEP * 11)
    columns = viewer.unpack(packs["index"])["columns"]
    assert about["rollouts"] == 2 * PER_STEP * STEPS and about["shown"] == 2 * PER_STEP * 11 == len(columns["step"])
    assert {1, STEPS} <= set(columns["step"])
    assert all(columns["step"].count(step) == 2 * PER_STEP for step in set(columns["step"]))


def test_runs_alone_say_that_nothing_was_held_out(runs):
    report, _ = assemble(load_runs([str(runs / "text2grad-seed1")]), [])
    headline = story.text(report, report["headline"])
    assert re.fullmatch(r"Mean δ per token goes from −0\.\d\d to [+−]0\.\d\d in training", headline)
    cautions = [story.text(report, item) for item in report["cautions"]]
    assert "No figure here is measured on held-out prompts." in cautions
    assert "Text2Grad: one seed only. Another seed may give another result." in cautions


def test_the_critic_that_trained_is_named_where_it_also_judges(runs):
    run = load_runs([str(runs / "text2grad-seed1")])
    results = load_results([str(runs / "base.result.json"), str(runs / "text2grad-seed1.result.json")])
    told = lambda report: " ".join(story.text(report, item) for item in report["cautions"])  # noqa: E731
    assert "δ is measured by the critic that trained the policy" in told(assemble(run, results)[0])
    run[0].critic = "runs/seed1/reward_model"
    assert "learnt from the critic reward_model; δ on the evaluation prompts is measured by the programmatic" in told(
        assemble(run, results)[0]
    )
