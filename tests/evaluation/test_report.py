"""The report: figures by hand, and every response on the page as it was logged."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from evaluation.reporting import packs, training
from evaluation.reporting.assemble import assemble
from evaluation.reporting.comparing import load_results
from evaluation.reporting.runs import load_run, load_runs
from evaluation.reporting.wording import show, show_interval
from tests import synthetic_runs
from tests.report_files import hand_made, pack_of, result_file, rows, unpack, write_run
from text2grad.records import save_json

STEPS, PER_STEP, SEEDS = 24, 2, (1, 2)
SERVED = ("text2grad", "ppo_scalar")


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """Two methods, two seeds each, with results and judgements."""
    folder = tmp_path_factory.mktemp("runs")
    for method, skill in zip(SERVED, (0.85, 0.6), strict=True):
        for seed in SEEDS:
            synthetic_runs.write_run(folder / f"{method}-seed{seed}", method, seed, STEPS, PER_STEP)
            synthetic_runs.write_result(folder / f"{method}-seed{seed}.result.json", method, skill, seed)
    synthetic_runs.write_result(folder / "base.result.json", "base", 0.08)
    for step in (0, 12, 24):
        synthetic_runs.write_judgement(folder / f"judge{step}.result.json", "text2grad", "base", step / 24, step)
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


def test_curves_and_ends_by_hand(tmp_path):
    """Two seeds whose metric is the step, and the step plus 2: over 60 steps a window of 3 and tenths of 6 steps."""
    loaded = []
    for seed, offset in ((1, 0), (2, 2)):
        folder = write_run(tmp_path / str(seed), [hand_made(1)], seed=seed)
        cycles = [
            {"step": s, "entropy": s + offset, "spans/matched": 3, "spans/unmatched": 1, "seconds/a": s, "seconds/b": 1}
            for s in range(1, 61)
        ]
        save_json(folder / "metrics.jsonl", cycles)
        loaded.append(load_run(folder))
    (variant,) = training.variants(loaded)
    line = training.curve(variant, "entropy")
    assert (line["window"], line["seeds"], line["steps"]) == (3, 2, list(range(1, 61)))
    assert line["low"] == pytest.approx([1.5, *range(2, 60), 59.5])
    assert [high - low for low, high in zip(line["low"], line["high"], strict=True)] == pytest.approx([2] * 60)
    assert line["mean"] == pytest.approx([low + 1 for low in line["low"]])
    ends = {"first": 4.5, "last": 58.5, "last_low": 57.5, "last_high": 59.5, "change": 54.0}
    assert training.ends(variant, "entropy") == pytest.approx(ends)
    assert training.curve(variant, "spans/found")["mean"] == pytest.approx([0.75] * 60)
    assert training.ends(variant, "seconds/total")["first"] == pytest.approx(4.5)


def test_results_are_pooled_over_seeds_and_compared_prompt_by_prompt(tmp_path):
    """Two seeds of (0.2, 0.6) and (0.4, 1.0) against 0.1 and 0.2: by prompt 0.3 and 0.8, so +0.2 and +0.6."""
    values = {"base": (0.1, 0.2), "text2grad": (0.2, 0.6), "again": (0.4, 1.0)}
    files = []
    for name, pair in values.items():
        told = {str(number): {"mean_delta": value} for number, value in enumerate(pair)}
        files.append(result_file(tmp_path / f"{name}.json", name.replace("again", "text2grad"), told))
    (table,) = assemble([], load_results(files))[0]["tables"]
    cell = table["cells"]["text2grad"]["held out/mean_delta"]
    change = cell["change"]
    assert (cell["value"], cell["n"]) == (pytest.approx(0.55), 2)
    assert (change["difference"], change["low"], change["high"]) == pytest.approx((0.4, 0.2, 0.6))
    assert change["verdict"] == "better"


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
