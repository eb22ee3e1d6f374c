"""The report: every figure on the page recomputed from the run's files, bad input, hostile text, honest sentences."""

from __future__ import annotations

import json
import re
import statistics
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from evaluation.reporting import charts, story, training, viewer
from evaluation.reporting.assemble import assemble
from evaluation.reporting.comparing import load_results
from evaluation.reporting.runs import load_run, load_runs
from evaluation.reporting.wording import show, show_change, show_interval
from evaluation.results import Figure, compare, figures_of, load_result, save_result
from tests import synthetic_runs
from text2grad.errors import InputError
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


class Figures(HTMLParser):
    """What the page prints: (path, style, form) -> text, and the texts of elements by id."""

    def __init__(self, html: str):
        super().__init__()
        self.found: list[tuple[str, str, str, str]] = []
        self.scripts: dict[str, str] = {}
        self.paths: list[tuple[dict, list[dict]]] = []
        self._figure: dict | None = None
        self._script: str | None = None
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if "data-figure" in attributes:
            self._figure, self._text = attributes, ""
        if tag == "script" and "id" in attributes:
            self._script = attributes["id"]
        if tag == "svg" and "data-chart" in attributes:
            self.paths.append((attributes, []))
        if tag == "path" and "d" in attributes and self.paths:
            self.paths[-1][1].append(attributes)

    def handle_data(self, data):
        if self._figure is not None:
            self._text += data
        if self._script is not None:
            self.scripts[self._script] = self.scripts.get(self._script, "") + data

    def handle_endtag(self, tag):
        if tag == "span" and self._figure is not None:
            about, self._figure = self._figure, None
            self.found.append((about["data-figure"], about["data-style"], about["data-form"], self._text))
        if tag == "script":
            self._script = None


@pytest.fixture(scope="module")
def printed(page) -> Figures:
    return Figures(page)


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


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
        window = 3  # 66 cycles: the odd number next below a thirtieth and one
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
    assert sections == {"training", "tables", "judges", "updates", "timing"}


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
    packs = {name[5:]: viewer.unpack(text) for name, text in printed.scripts.items() if name.startswith("pack-")}
    index = packs["index"]
    logged = [
        (run, row) for run, about in enumerate(index["runs"]) for row in rows(runs / about["name"] / "rollouts.jsonl")
    ]
    assert report["viewer"]["shown"] == len(logged) == len(index["columns"]["run"])
    for number, (run, row) in enumerate(logged):
        at, offset = divmod(number, index["pack"])
        response, critique, error, good, poor, quotes = packs[f"text-{at}"][offset]
        assert (index["columns"]["run"][number], index["columns"]["step"][number]) == (run, row["step"])
        prompt = index["columns"]["prompt"][number]
        assert (index["prompts"][prompt], packs["prompts"][prompt]) == (row["id"], row["prompt"])
        assert (response, critique, error) == (row["response"], row["critique"], row["error"] or "")
        assert quotes == [row["matched"], row["unmatched"], row["conflicts"]]
        assert {response[s:e] for s, e in poor} == set(row["poor"])
        assert {response[s:e] for s, e in good} == set(row["good"])
        gaps, lengths, rewards, advantages, shift, kl = packs[f"numbers-{at}"][offset]
        position, spans = 0, []
        for gap, length in zip(gaps, lengths, strict=True):
            spans.append([position + gap, position + gap + length])
            position = spans[-1][1]
        assert spans == row["spans"]
        assert rewards == row["rewards"]
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


# Sentences


def result_file(path: Path, system: str, values: dict[str, dict[str, float]], settings: dict | None = None) -> str:
    names = list(next(iter(values.values())))
    figures = {name: Figure.mean({key: value[name] for key, value in values.items()}) for name in names}
    save_result(
        path,
        task="slf5k",
        benchmark="held out",
        system=system,
        figures=figures,
        responses=dict.fromkeys(values, "An answer."),
        settings=settings or {},
    )
    return str(path)


def headline_for(tmp_path, before: list[float], after: list[float], name: str = "mean_delta") -> tuple[str, dict]:
    files = []
    for system, values in (("base", before), ("text2grad", after)):
        told = {str(number): {name: value} for number, value in enumerate(values)}
        files.append(result_file(tmp_path / f"{system}.json", system, told))
    report, _ = assemble([], load_results(files))
    return story.text(report, report["headline"]), report


def test_a_clear_gain_is_told_with_its_figures(tmp_path):
    headline, report = headline_for(tmp_path, [-0.5, -0.4, -0.6, -0.5], [0.2, 0.3, 0.2, 0.3])
    assert headline == "Mean δ per token rises from −0.50 to +0.25"
    told = story.text(report, report["standfirst"][0])
    assert told.startswith("On 4 prompts, Text2Grad against the base model: mean δ per token −0.50 → +0.25 (")
    assert "Only 4 evaluation prompts" in " ".join(story.text(report, item) for item in report["cautions"])


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


def test_noise_is_not_told_as_a_gain(tmp_path):
    headline, report = headline_for(tmp_path, [-0.5, 0.4, -0.6, 0.5], [0.4, -0.5, 0.6, -0.4])
    assert headline == "No clear change in mean δ per token: −0.05 before, +0.02 after"
    assert report["tables"][0]["cells"]["text2grad"]["held out/mean_delta"]["change"]["verdict"] == "unclear"


def test_a_loss_is_told_as_a_loss_and_once_more_among_the_cautions(tmp_path):
    headline, report = headline_for(tmp_path, [0.5, 0.4, 0.6, 0.5], [0.1, 0.2, 0.1, 0.2])
    assert headline == "Mean δ per token falls from +0.50 to +0.15"
    cautions = [story.text(report, item) for item in report["cautions"]]
    assert any(item.startswith("Text2Grad is worse in Mean δ per token: −0.35 (") for item in cautions)


def test_lower_is_better_where_it_is(tmp_path):
    headline, report = headline_for(tmp_path, [0.5, 0.4, 0.6, 0.5], [0.1, 0.2, 0.1, 0.2], "poor_tokens")
    assert headline == "Poor tokens falls from 50.0 % to 15.0 %"
    assert report["tables"][0]["cells"]["text2grad"]["held out/poor_tokens"]["change"]["verdict"] == "better"


def test_a_metric_that_the_records_do_not_confirm_is_shown_but_not_compared(tmp_path):
    first = result_file(tmp_path / "a.json", "base", {"1": {"acc": 0.0}, "2": {"acc": 1.0}})
    second = result_file(tmp_path / "b.json", "tuned", {"1": {"acc": 1.0}, "2": {"acc": 1.0}})
    value = json.loads(Path(second).read_text())
    value["metrics"]["acc"]["value"] = 0.7  # as a tool that weighs its records would
    Path(second).write_text(json.dumps(value))
    report, _ = assemble([], load_results([first, second]))
    cell = report["tables"][0]["cells"]["tuned"]["held out/acc"]
    assert cell["value"] == 0.7 and "change" not in cell


def test_several_answers_to_a_prompt_are_resampled_together(tmp_path):
    """Else four answers to each of four prompts would pass for sixteen independent ones."""
    files = []
    for system, offset in (("base", 0.0), ("text2grad", 0.3)):
        once = {f"t3_{p}": {"mean_delta": 0.1 * p + offset * (p % 2)} for p in range(4)}
        often = {f"{key}@{sample}": value for key, value in once.items() for sample in range(4)}
        files += [result_file(tmp_path / f"{system}{len(v)}.json", system, v) for v in (once, often)]
    single, several = (assemble([], load_results(pair))[0] for pair in (files[::2], files[1::2]))
    key = "held out/mean_delta"
    first, second = (report["tables"][0]["cells"]["text2grad"][key] for report in (single, several))
    assert second.pop("change") == pytest.approx(first.pop("change"))
    assert second == pytest.approx(first)
    assert story.text(several, several["standfirst"][0]).startswith("On 4 prompts (16 answers), Text2Grad")


def test_a_metric_that_never_moves_is_not_told(tmp_path):
    files = []
    for system, value in (("base", 0.1), ("text2grad", 0.3)):
        told = {str(n): {"mean_delta": value + 0.01 * n, "critic_failures": 0.0} for n in range(4)}
        files.append(result_file(tmp_path / f"{system}.json", system, told))
    report, _ = assemble([], load_results(files))
    assert "critic failures" not in story.text(report, report["standfirst"][0])
    cell = report["tables"][0]["cells"]["text2grad"]["held out/critic_failures"]
    assert cell["change"]["verdict"] == "same"


def test_copying_is_called_out(tmp_path):
    files = []
    for system, value in (("base", 0.9), ("text2grad", 0.3)):
        told = {str(n): {"mean_delta": 0.1, "novelty_3": value + 0.01 * n} for n in range(4)}
        files.append(result_file(tmp_path / f"{system}.json", system, told))
    report, _ = assemble([], load_results(files))
    cautions = " ".join(story.text(report, item) for item in report["cautions"])
    assert "Text2Grad takes more from its source: new word triples 91.5 % → 31.5 % (" in cautions


def test_kl_beyond_its_target_is_called_out(tmp_path):
    folder = write_run(tmp_path / "run", [hand_made(step) for step in range(1, 5)], config={"kl_target": 2.0})
    cycles = [{"step": step, "kl/full": 1.0 * step} for step in range(1, 5)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(cycle) + "\n" for cycle in cycles))
    report, _ = assemble([load_run(folder)], [])
    cautions = [story.text(report, item) for item in report["cautions"]]
    assert "Text2Grad: KL ends at 4.000, above its target of 2.000." in cautions


def test_runs_alone_say_that_nothing_was_held_out(runs):
    report, _ = assemble(load_runs([str(runs / "text2grad-seed1")]), [])
    headline = story.text(report, report["headline"])
    assert re.fullmatch(r"Mean δ per token goes from −0\.\d\d to [+−]0\.\d\d in training", headline)
    cautions = [story.text(report, item) for item in report["cautions"]]
    assert "Nothing here was measured on prompts that the policy was not trained on." in cautions
    assert "Text2Grad: one seed. Another seed may end elsewhere." in cautions


def test_collapse_is_called_out(tmp_path):
    folder = write_run(tmp_path / "run", [hand_made(step) for step in range(1, 21)])
    cycles = rows(folder / "metrics.jsonl")
    for number, row in enumerate(cycles):
        row |= {"entropy": 2.0 - 0.1 * number, "length/finished": 1 - 0.04 * number, "delta/mean": -0.01 * number}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in cycles))
    report, _ = assemble([load_run(folder)], [])
    cautions = " ".join(story.text(report, item) for item in report["cautions"])
    assert "entropy fell by more than half, from 1.950 to 0.150" in cautions
    assert "fewer answers are finished, from 98.0 % to 26.0 %" in cautions
    assert "the reward did not rise in training, from −0.01 to −0.18" in cautions


def test_the_critic_that_trained_is_named_where_it_also_judges(runs):
    run = load_runs([str(runs / "text2grad-seed1")])
    results = load_results([str(runs / "base.result.json"), str(runs / "text2grad-seed1.result.json")])
    told = lambda report: " ".join(story.text(report, item) for item in report["cautions"])  # noqa: E731
    assert "δ is measured here by the critic that trained the policy" in told(assemble(run, results)[0])
    run[0].critic = "runs/seed1/reward_model"
    assert "learnt from the critic reward_model; δ on the evaluation prompts is measured by the programmatic" in told(
        assemble(run, results)[0]
    )


# Runs


def hand_made(step: int, **changes) -> dict:
    """A rollout of three tokens."""
    row = {"step": step, "id": "t3_1", "prompt": "A post.", "response": "Good bad", "critique": "Half and half."}
    row |= {"good": ["Good"], "poor": ["bad"], "error": None, "matched": 2, "unmatched": 0, "conflicts": 0}
    row |= {"tokens": ["Good", " bad", "<eos>"], "spans": [[0, 4], [4, 8], [8, 8]], "rewards": [1, -1, 0]}
    row |= {"advantages": [0.5, -0.5, 0.1], "old_logprobs": [-1, -1, -1], "new_logprobs": [-0.9, -1.2, -1]}
    return {**row, "ref_logprobs": [-1, -1, -1], "kl": [0, 0, 0], "finished": True, **changes}


def write_run(folder: Path, rollouts: list[dict], **about) -> Path:
    folder.mkdir(parents=True)
    settled = {"task": "slf5k", "method": "text2grad", "seed": 1, "critic": "programmatic", "model": "m", "config": {}}
    (folder / "run.json").write_text(json.dumps({**settled, **about}))
    cycles = [{"step": step, "delta/mean": 0.0} for step in sorted({row["step"] for row in rollouts})]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(cycle) + "\n" for cycle in cycles))
    (folder / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rollouts))
    return folder


def test_a_run_that_is_still_going_is_read_as_far_as_it_has_come(tmp_path):
    folder = write_run(tmp_path / "run", [hand_made(1), hand_made(2)])
    for name in ("metrics.jsonl", "rollouts.jsonl"):
        with (folder / name).open("a") as file:
            file.write('{"step": 3, "delt')
    run = load_run(folder)
    assert run.steps == [1, 2] and [rollout.step for rollout in run.rollouts] == [1, 2]
    assert run.notes == [
        f"the last line of {n}.jsonl is not finished and was left out" for n in ("metrics", "rollouts")
    ]
    report, _ = assemble([run], [])
    assert any("is not finished" in story.text(report, item) for item in report["cautions"])


def test_cycles_that_a_resumed_run_repeats_count_once(tmp_path):
    rollouts = [hand_made(1), hand_made(2, response="Good old"), hand_made(3), hand_made(2), hand_made(3)]
    folder = write_run(tmp_path / "run", rollouts)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 2, "delta/mean": 0.7}) + "\n")
    run = load_run(folder)
    assert [rollout.step for rollout in run.rollouts] == [1, 2, 3]
    assert [rollout.response for rollout in run.rollouts] == ["Good bad"] * 3
    assert run.series("delta/mean") == {1: 0.0, 2: 0.7, 3: 0.0}


def test_a_gap_in_a_metric_is_a_gap_in_its_curve(tmp_path):
    folder = write_run(tmp_path / "run", [hand_made(step) for step in range(1, 5)])
    cycles = [{"step": 1, "kl/k1": 1.0}, {"step": 2, "kl/k1": None}, {"step": 3}, {"step": 4, "kl/k1": float("nan")}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(cycle) + "\n" for cycle in cycles))
    (variant,) = training.variants([load_run(folder)])
    assert training.curve(variant, "kl/k1")["steps"] == [1]
    assert training.curve(variant, "kl/full") is None


def test_figures_of_other_stages_are_shown_with_their_intervals(tmp_path, run_script):
    annotation = {"spans": {"unmatched_rate": 0.0134, "kept": 201}, "usage": {"cost_usd_per_record": 0.00111}}
    annotation["words"] = {"mean": 2.5, "min": 1, "q1": 1, "median": 2, "q3": 3, "max": 9}
    reward_model = {"task": "slf5k", "parse_rate": {"value": 0.98, "low": 0.95, "high": 1.0, "n": 50}}
    for name, value in (("annotation", annotation), ("reward_model", reward_model)):
        (tmp_path / f"{name}.json").write_text(json.dumps(value))
    args = ["--annotation", tmp_path / "annotation.json", "--reward_model", tmp_path / "reward_model.json"]
    run = write_run(tmp_path / "run", [hand_made(1)])
    done = run_script("evaluation/report.py", run, *args, "--output", tmp_path / "report.html")
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "report.md").read_text()
    assert "| spans: unmatched rate | 1.3 % |" in text and "| spans: kept | 201 |" in text
    assert "| usage: cost usd per record | $0.00111 |" in text
    assert "| words, mean | 2.500 (quartiles 1, 2, 3) |" in text
    assert "| parse rate | 98.0 % (95.0 to 100.0 %) |" in text
    assert "|\n\n|" not in text
    shown = {path: text for path, _, _, text in Figures((tmp_path / "report.html").read_text()).found}
    assert shown["reward_models > 0 > rows > parse rate"] == "95.0 to 100.0 %"


def test_seeds_are_one_variant_and_settings_are_not(tmp_path):
    def run(name: str, **about):
        return load_run(write_run(tmp_path / name, [hand_made(1)], **about))

    runs = [
        run("a", seed=1, config={"scheme": "uniform", "seed": 1, "output_dir": "x"}, critic="runs/seed1/rm"),
        run("b", seed=2, config={"scheme": "uniform", "seed": 2, "output_dir": "y"}, critic="runs/seed2/rm"),
        run("c", seed=1, config={"scheme": "decay", "seed": 1, "output_dir": "z"}, critic="runs/seed1/rm"),
        run("d", seed=1, method="grpo"),
    ]
    groups = training.variants(runs)
    assert [(group.label, [run.seed for run in group.runs]) for group in groups] == [
        ("Text2Grad (scheme uniform)", [1, 2]),
        ("Text2Grad (scheme decay)", [1]),
        ("GRPO", [1]),
    ]
    report, _ = assemble(runs, [])
    (ablation,) = report["ablations"]
    assert [row["differs"] for row in ablation["rows"]] == [{"scheme": "uniform"}, {"scheme": "decay"}]


def test_what_an_update_did_is_counted_token_by_token(tmp_path):
    run = load_run(write_run(tmp_path / "run", [hand_made(1), hand_made(2, new_logprobs=None)]))
    (variant,) = training.variants([run])
    overall = training.update_effect(variant)["overall"]
    assert overall["good"] == {"tokens": 1, "fell": 0.0, "rose": 1.0}
    assert overall["poor"] == {"tokens": 1, "fell": 1.0, "rose": 0.0}
    assert overall["none"]["tokens"] == 0  # the end token writes nothing


def test_many_rollouts_are_thinned_by_whole_cycles(runs):
    _, groups = assemble(load_runs([str(runs / "text2grad-seed1"), str(runs / "ppo_scalar-seed1")]), [])
    packs, about = viewer.packs(groups, [], limit=2 * PER_STEP * 11)
    columns = viewer.unpack(packs["index"])["columns"]
    assert about["rollouts"] == 2 * PER_STEP * STEPS and about["shown"] == 2 * PER_STEP * 11 == len(columns["step"])
    assert {1, STEPS} <= set(columns["step"])
    assert all(columns["step"].count(step) == 2 * PER_STEP for step in set(columns["step"]))


def test_code_is_labelled_as_code(tmp_path):
    run = load_run(synthetic_runs.write_code_run(tmp_path / "code"))
    packs, _ = viewer.packs(training.variants([run]), [], 100)
    index, (text, *_) = viewer.unpack(packs["index"]), viewer.unpack(packs["text-0"])
    assert index["runs"][0]["spans"]["good"] == "improvable" and index["runs"][0]["spans"]["goodValue"] == 0
    assert [text[0][s:e] for s, e in text[4]] == ["return n % 2 == 1"]
    assert [text[0][s:e] for s, e in text[3]] == ["print(is_even(2))"]


def test_tokens_that_share_a_character_keep_their_places(tmp_path):
    folder = synthetic_runs.write_code_run(tmp_path / "emoji", answer="🙂 " + synthetic_runs.CODE_ANSWER)
    packs, _ = viewer.packs(training.variants([load_run(folder)]), [], 100)
    gaps, lengths, *_ = viewer.unpack(packs["numbers-0"])[0]
    ends = np.cumsum(np.add(gaps, lengths))
    spans = np.stack([ends - lengths, ends], axis=1).tolist()
    assert spans[:2] == [[0, 1], [0, 1]]
    assert spans == rows(folder / "rollouts.jsonl")[0]["spans"]


# Hostile text

HOSTILE = "</script><script>window.pwned=1</script><img src=x onerror=window.pwned=1> & \u2028 \ud83d x \x00"


def write_hostile(folder: Path) -> tuple[Path, Path]:
    text = HOSTILE
    spans = [[i, i + 1] for i in range(len(text))]
    numbers = [0.0] * len(text)
    row = hand_made(
        1, prompt=text, response=text, critique=text, good=[], poor=["window.pwned=1"], id=text, spans=spans
    )
    row |= {"rewards": numbers, "advantages": numbers, "old_logprobs": numbers, "new_logprobs": numbers, "kl": numbers}
    failed = {**row, "step": 2, "critique": "", "error": text, "poor": []}
    run = write_run(folder / "<b>run", [row, failed], method=text, critic=text, model=text, config={text: text})
    text = text.replace("\ud83d", "")  # which no result file can hold
    result = result_file(folder / "hostile.json", text, {text: {text: 1.0}}, {"critic": text})
    return run, Path(result)


def test_hostile_text_stays_text(tmp_path, run_script):
    run, result = write_hostile(tmp_path)
    output = tmp_path / "report.html"
    done = run_script("evaluation/report.py", run, "--results", result, "--output", output, "--figures", tmp_path / "f")
    assert done.returncode == 0, done.stderr
    page = output.read_text()
    assert "<img" not in page and "<script>window" not in page and "<b>run" not in page
    assert "&lt;img src=x onerror=window.pwned=1&gt;" in page
    texts = viewer.unpack(Figures(page).scripts["pack-text-0"])
    assert texts[0][0] == HOSTILE.replace("\ud83d", "\ufffd")


# Bad input


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda run: (run / "run.json").unlink(), "run.json: no such file"),
        (lambda run: (run / "run.json").write_text("{"), "run.json: not JSON"),
        (lambda run: (run / "run.json").write_text('{"task": "slf5k"}'), "run.json: lacks method, seed; give a folder"),
        (lambda run: (run / "run.json").write_text('{"task": "x", "method": "m", "seed": 1}'), "there is no task 'x'"),
        (lambda run: (run / "metrics.jsonl").unlink(), "metrics.jsonl: cannot be read"),
        (lambda run: (run / "metrics.jsonl").write_text(""), "metrics.jsonl: holds no finished cycle yet; wait"),
        (
            lambda run: (run / "metrics.jsonl").write_text('{"step": 1}\n{]\n{"step": 3}\n'),
            "metrics.jsonl: line 2 is not JSON",
        ),
        (
            lambda run: (run / "metrics.jsonl").write_text('{"delta": 1}\n'),
            "metrics.jsonl: line 1 has no whole number 'step'",
        ),
        (lambda run: (run / "metrics.jsonl").write_bytes(b'{"step": 1, "\xff": 1}\n'), "line 1 is not JSON: not UTF-8"),
    ],
)
def test_a_bad_run_is_refused_with_file_line_and_remedy(tmp_path, spoil, told):
    folder = write_run(tmp_path / "run", [hand_made(1)])
    spoil(folder)
    with pytest.raises(InputError, match=re.escape(told)):
        load_run(folder)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"rewards": [1, 1]}, "line 2: its 'rewards' has 2 entries for 3 tokens; each line is one slf5k rollout"),
        ({"rewards": None}, "line 2: its 'rewards' are not one number per token"),
        ({"spans": [[0, 4], [4, 8], [8, 99]]}, "line 2: its token spans do not lie in its response"),
        ({"advantages": ["a", 1, 1]}, "line 2: could not convert string"),
        ({"response": None}, "line 2: "),
    ],
)
def test_a_bad_rollout_is_refused_with_its_line(tmp_path, changes, told):
    folder = write_run(tmp_path / "run", [hand_made(1), hand_made(1, **changes)])
    with pytest.raises(InputError, match=re.escape(told)):
        load_run(folder)


def test_a_rollout_without_a_field_names_it(tmp_path):
    row = hand_made(1)
    del row["spans"]
    with pytest.raises(InputError, match=re.escape("rollouts.jsonl: line 1: lacks 'spans'; each line")):
        load_run(write_run(tmp_path / "run", [row]))


def test_the_command_exits_with_two_and_writes_nothing(tmp_path, run_script):
    run = write_run(tmp_path / "run", [hand_made(1)])
    output = tmp_path / "out" / "report.html"
    for args, told in [
        ([tmp_path / "none"], "no such folder; give a run's output folder"),
        ([run, run], "given twice; name each run folder once"),
        ([], "nothing to report; give run folders, or result files with --results"),
        ([run, "--baseline", "dpo"], "--baseline 'dpo' is not here; choose one of Text2Grad, text2grad"),
        ([run, "--results", run / "run.json"], "not a result file of evaluation/"),
        ([run, "--annotation", tmp_path / "none.json"], "none.json: no such file"),
    ]:
        done = run_script("evaluation/report.py", *args, "--output", output)
        assert (done.returncode, told in done.stderr) == (2, True), done.stderr
        assert not list(output.parent.glob("*")) if output.parent.exists() else True
    done = run_script("evaluation/report.py", run, "--output", tmp_path / "report.pdf")
    assert done.returncode == 2 and "is not an HTML file" in done.stderr


def test_a_single_short_run_makes_a_page(tmp_path, run_script):
    """One cycle, no results, nothing rescored: the least there can be."""
    run = write_run(tmp_path / "run", [hand_made(1, new_logprobs=None)])
    done = run_script("evaluation/report.py", run, "--output", tmp_path / "report.html")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "report.md").exists() and (tmp_path / "report.json").exists()


# Small parts


@pytest.mark.parametrize(
    ("value", "style", "text", "change"),
    [
        (0.0, "signed", "0.00", "0.00"),
        (-0.004, "signed", "0.00", "0.00"),
        (0.314, "signed", "+0.31", "+0.31"),
        (-0.2, "share", "−20.0 %", "−20.0 pp"),
        (0.2, "share", "20.0 %", "+20.0 pp"),
        (12, "count", "12", "+12"),
        (12.0, "count", "12.0", "+12.0"),
        (3e-7, "number", "3.0e−7", "+3.0e−7"),
        (12345.6, "number", "12,346", "+12,346"),
        (99.96, "number", "100.0", "+100.0"),
        (1.5, "seconds", "1.50 s", "+1.50 s"),
        (0.093, "relative", "+9.3 %", "+9.3 %"),
        (float("nan"), "number", "–", "–"),
        (None, "share", "–", "–"),
    ],
)
def test_figures_are_written_for_people(value, style, text, change):
    assert (show(value, style), show_change(value, style)) == (text, change)


def test_intervals_name_their_unit_once():
    assert show_interval(-0.4, 0.3, "share") == "−40.0 to 30.0 %"
    assert show_interval(0.1, 0.3, "share", change=True) == "+10.0 to +30.0 pp"
    assert show_interval(None, 0.3) == ""


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-0.63, 0.48), (1e-7, 3e-7), (0, 12345), (5, 5), (-3, -2.99)])
def test_ticks_are_round_and_cover_the_range(low, high):
    ticks = charts.nice_ticks(low, high, 5)
    assert ticks[0] <= low and ticks[-1] >= high and 2 <= len(ticks) <= 9
    steps = np.diff(ticks)
    assert steps == pytest.approx([steps[0]] * len(steps))
    assert float(f"{steps[0]:.2e}".split("e")[0]) in (1, 2, 2.5, 5)
