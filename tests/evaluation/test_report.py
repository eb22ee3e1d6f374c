"""The report: figures by hand, and every response on the page as it was logged."""

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import get_args
from xml.etree import ElementTree

import numpy as np
import pytest

from evaluation.judge import pair_figures
from evaluation.report import main
from evaluation.reporting import packs, training
from evaluation.reporting.assemble import assemble
from evaluation.reporting.charts import line_chart
from evaluation.reporting.comparing import load_results, tables
from evaluation.reporting.opening import pieces
from evaluation.reporting.page import html
from evaluation.reporting.runs import load_run
from evaluation.reporting.wording import METHODS, show, show_interval, told
from evaluation.results import Figure, ResultConfig, instruments, save_result
from nl_gradient_policy_optimization.algorithms.scalar import Placement
from tests.processes import run_forked
from tests.report_files import hand_made, pack_of, result_file, unpack, write_learning_run, write_result, write_run
from text2grad.feedback import Feedback
from text2grad.models import weights_fingerprint
from text2grad.records import load_json, save_json

STEPS, PER_STEP, SEEDS = 24, 2, (1, 2)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """Two methods, two seeds each, with results and judgements."""
    folder = tmp_path_factory.mktemp("runs")
    for method, skill in (("text2grad", 0.85), ("ppo_scalar", 0.6)):
        for seed in SEEDS:
            write_learning_run(folder / f"{method}-seed{seed}", method, seed, STEPS, PER_STEP)
            write_result(folder / f"{method}-seed{seed}.result.json", method, skill, seed)
    write_result(folder / "base.result.json", "base", 0.08)
    for step in (0, 12, 24, None):  # None: the finished policy
        wins = 24 if step is None else step
        verdicts = {str(n): {"ab": "first" if n < wins else "tie", "ba": "second"} for n in range(24)}
        save_result(
            ResultConfig(system="text2grad", output_path=str(folder / f"judge{step}.result.json")), "", task="slf5k",
            benchmark="judge against base", settings={"judge": "openai:gpt-4o"},
            figures=pair_figures(verdicts, both=True), responses=dict.fromkeys(verdicts, "-"),
            extra={"baseline": "base", "step": step, "verdicts": verdicts},
        )  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def built(runs, tmp_path_factory) -> Path:
    """The page, made by the command a user types; returns its folder."""
    out = tmp_path_factory.mktemp("report")
    flags = ["--results", *sorted(runs.glob("*.result.json")), "--output", out / "report.html"]
    folders = sorted(p for p in runs.iterdir() if p.is_dir())
    run_forked("evaluation/report.py", *folders, *flags)
    return out


@pytest.fixture(scope="module")
def report(built) -> dict:
    return json.loads((built / "report.json").read_text())


@pytest.fixture(scope="module")
def page(built) -> str:
    return (built / "report.html").read_text()


def report_of(tmp_path, *results: tuple[str, *tuple[float, ...]], name: str = "mean_delta") -> dict:
    """What is told of systems and a metric's values by prompt."""
    files = []
    for number, (system, *values) in enumerate(results):
        told = {str(prompt): {name: value} for prompt, value in enumerate(values)}
        files.append(result_file(tmp_path / f"{number}.json", system, told))
    return assemble([], load_results(files))[0]


def test_curves_and_ends_by_hand(tmp_path):
    """Two seeds whose metric is the step, and the step plus 2: over 60 steps a window of 3 and tenths of 6 steps."""
    loaded = []
    for seed, offset in ((1, 0), (2, 2)):
        folder = write_run(tmp_path / str(seed), [hand_made(1)], seed=seed)
        cycles = [
            {"step": s, "entropy": s + offset, "spans/matched": 3, "spans/unmatched": 1, "seconds/a": s, "seconds/b": 1}
            for s in range(1, 61)
        ]
        cycles[59]["seconds/c"] = 60  # a phase that the run did not have when it began
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
    seconds = training.ends(variant, "seconds/total")
    assert (seconds["first"], seconds["last"]) == (pytest.approx(4.5), pytest.approx(58.5 + 10))


def test_results_are_pooled_over_seeds_and_compared_prompt_by_prompt(tmp_path):
    """Two seeds of (0.2, 0.6) and (0.4, 1.0) against 0.1 and 0.2: by prompt 0.3 and 0.8, so +0.2 and +0.6."""
    (table,) = report_of(tmp_path, ("base", 0.1, 0.2), ("text2grad", 0.2, 0.6), ("text2grad", 0.4, 1.0))["tables"]
    cell = table["cells"]["text2grad"]["held out/mean_delta"]
    change = cell["change"]
    assert (cell["value"], cell["n"]) == (pytest.approx(0.55), 2)
    assert (change["difference"], change["low"], change["high"]) == pytest.approx((0.4, 0.2, 0.6))
    assert change["verdict"] == "unclear"  # of two prompts


def test_a_table_without_the_named_baseline_has_its_usual_one(tmp_path):
    files = [result_file(tmp_path / name, name, {"1": {"rougeL": 0.5}}) for name in ("text2grad", "base")]
    assert [table["baseline"] for table in tables(load_results(files), "ppo_scalar")] == ["base"]


def test_every_chart_is_an_svg_file(report):
    for chart in report["training"][0]["charts"] + report["win_rates"]:
        svg = ElementTree.fromstring(line_chart(chart))
        assert svg.tag.endswith("svg")
        assert all(line["label"] in "".join(svg.itertext()) for line in chart["lines"] if len(chart["lines"]) > 1)


def test_the_page_holds_the_figures(page, report):
    cell = report["tables"][0]["cells"]["text2grad"]["held out/rougeL"]
    assert report["headline"]["title"] in page and report["headline"]["deck"] in page
    assert show(cell["value"]) in page and show_interval(cell["low"], cell["high"]) in page
    assert all(caution in page for caution in report["cautions"])
    assert [judge["step"] for judge in report["judges"] if judge["latest"]] == [None]
    assert report["win_rates"][0]["lines"][0]["steps"] == [0, 12, 24]
    assert [chart["title"] for chart in report["training"][0]["charts"] if chart["constant"]] == ["Learning rate"]


def test_the_viewer_holds_every_rollout_as_it_was_logged(page, runs, report):
    index = pack_of(page, "index")
    prompts = pack_of(page, "prompts")
    logs = [load_json(runs / about["name"] / "rollouts.jsonl") for about in index["runs"]]
    logged = [(run, row) for run, log in enumerate(logs) for row in log]
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


def test_the_same_input_gives_the_same_page(built, runs, tmp_path):
    folders = sorted(str(path) for path in runs.iterdir() if path.is_dir())
    results = sorted(map(str, runs.glob("*.result.json")))
    main([*folders, "--results", *results, "--output", f"{tmp_path}/report.html"])
    assert (tmp_path / "report.html").read_bytes() == (built / "report.html").read_bytes()


def test_many_rollouts_are_thinned_by_whole_steps(runs):
    _, groups, _ = assemble([load_run(runs / name) for name in ("text2grad-seed1", "ppo_scalar-seed1")], [])
    packed, about = packs.packs(groups, [], limit=2 * PER_STEP * 11)
    columns = unpack(packed["index"])["columns"]
    assert about["rollouts"] == 2 * PER_STEP * STEPS and about["shown"] == 2 * PER_STEP * 11 == len(columns["step"])
    assert {1, STEPS} <= set(columns["step"])
    assert all(columns["step"].count(step) == 2 * PER_STEP for step in set(columns["step"]))


def test_the_critic_that_trained_is_named_where_it_also_judges(runs):
    run = [load_run(runs / "text2grad-seed1")]
    results = load_results([str(runs / "base.result.json"), str(runs / "text2grad-seed1.result.json")])
    told = " ".join(assemble(run, results)[0]["cautions"])
    assert "by the critic that trained the policy" in told and "one seed" in told and "not compare" not in told
    results[0]["settings"] = {"critic": "openai:m"}
    told = " ".join(assemble(run, results)[0]["cautions"])
    assert "held out: what these measure does not compare: critic openai:m, programmatic." in told
    results[0]["settings"] = results[1]["settings"]
    run[0].critic = "runs/seed1/reward_model"
    told = " ".join(assemble(run, results)[0]["cautions"])
    assert "Trained with runs/seed1/reward_model; δ in evaluation is by programmatic" in told
    assert "held-out" in " ".join(assemble(run, [])[0]["cautions"])


def test_tokenizers_count_where_figures_are_in_tokens():
    for metric, differing in (("mean_delta", ["tokenizer a, b"]), ("words", [])):
        assert instruments([{"settings": {"tokenizer": name}, "metrics": {metric: {}}} for name in "ab"]) == differing


@pytest.mark.parametrize(
    ("before", "after", "name", "title", "verdict"),
    [
        ([-0.5, -0.4, -0.6, -0.5], [0.2, 0.3, 0.2, 0.3], "mean_delta", "−0.50 → +0.25", "better"),
        ([0.5, 0.4, 0.6, 0.5], [0.1, 0.2, 0.1, 0.2], "mean_delta", "+0.50 → +0.15", "worse"),
        ([0.5, 0.4, 0.6, 0.5], [0.1, 0.2, 0.1, 0.2], "poor_tokens", "50.0 % → 15.0 %", "better"),
        ([-0.5, 0.4, -0.6, 0.5], [0.4, -0.5, 0.6, -0.4], "mean_delta", "No clear change", "unclear"),
    ],
)
def test_the_headline_says_what_came_out(tmp_path, before, after, name, title, verdict):
    report = report_of(tmp_path, ("base", *before, *before), ("text2grad", *after, *after), name=name)
    assert title in report["headline"]["title"] and report["headline"]["deck"].endswith(verdict)
    assert report["tables"][0]["cells"]["text2grad"][f"held out/{name}"]["change"]["verdict"] == verdict
    assert "8 evaluation prompts" in " ".join(report["cautions"])


def test_what_a_task_measures_itself_comes_first(tmp_path):
    files = []
    for system, passes in (("base", 0.0), ("verdict", 1.0)):
        values = {str(prompt): {"words": 9.0, "mean_delta": 0.5, "passes": passes} for prompt in range(8)}
        files.append(result_file(tmp_path / f"{system}.json", system, values, benchmark="slf5k"))
    report, *_ = assemble([], load_results(files))
    assert report["headline"]["title"] == "passes 0.000 → 1.000" and report["headline"]["deck"].endswith("higher")
    assert next(metric["name"] for metric in report["tables"][0]["metrics"] if metric["main"]) == "passes"


def test_systems_are_compared_on_the_prompts_they_share_alone(tmp_path):
    """The baseline does worse on what the others were not asked; one of them was asked nothing that it was."""
    base, new = [0.8] * 4 + [0.0] * 4, [0.6] * 4
    report = report_of(tmp_path, ("base", *base), ("text2grad", *new), name="closeness")
    assert report["headline"]["title"].endswith("0.800 → 0.600")
    assert "Base model and Text2Grad answered 8 and 4 prompts, 4 in common." in " ".join(report["cautions"])
    apart = result_file(tmp_path / "apart.json", "text2grad", {"9": {"closeness": 0.9}})
    trivial = {"reference": {"closeness": {"value": 1.0, "low": None, "high": None, "n": 8}}}
    save_json(tmp_path / "0.json", {**load_json(tmp_path / "0.json"), "trivial": trivial})
    report, *_ = assemble([], load_results([str(tmp_path / "0.json"), apart]))
    assert report["headline"]["title"] == "Results"
    assert "answered 8 and 1 prompts, 0 in common" in " ".join(report["cautions"])
    assert [row["name"] for row in report["tables"][0]["trivial"]["rows"]] == ["base", "reference"]


def test_two_judges_are_told_apart(runs, tmp_path):
    for step in (12, 24, None):
        value = json.loads((runs / f"judge{step}.result.json").read_text())
        save_json(tmp_path / f"{step}.json", {**value, "settings": {"judge": "another"}})
    files = [*runs.glob("judge*.result.json"), *tmp_path.iterdir()]
    report, *_ = assemble([], load_results([str(file) for file in files]))
    latest = [(judge["judge"], judge["step"]) for judge in report["judges"] if judge["latest"]]
    assert latest == [("another", None), ("openai:gpt-4o", None)]
    lines = report["win_rates"][0]["lines"]
    drawn = [(line["label"].rpartition("by ")[2], line["slot"], line["steps"]) for line in lines]
    assert drawn == [("another", 0, [12, 24]), ("openai:gpt-4o", 1, [0, 12, 24])]
    assert html({**report, "viewer": packs.packs([], [], 1)[1]}, {}).count(", by another</small>") == 1


def test_a_comparison_whose_every_judgement_failed_is_shown_as_one(tmp_path):
    figures = {**pair_figures({}, both=True), "judge_failures": Figure.mean({"a": True, "b": True})}
    compared = {"baseline": "base", "step": 1}
    for name, about in (("judge", compared), ("tests", {})):  # a program's tests have verdicts, too
        save_result(
            ResultConfig(system="text2grad", output_path=str(tmp_path / f"{name}.json")), "", task="slf5k",
            benchmark=name, figures=figures, responses={"a": "-", "b": "-"}, extra={**about, "verdicts": {}},
        )  # fmt: skip
    report, *_ = assemble([], load_results([str(path) for path in tmp_path.iterdir()]))
    assert [metric["benchmark"] for metric in report["tables"][0]["metrics"]] == ["tests"]
    assert len(report["judges"]) == 1 and not report["win_rates"]
    assert "Judge failures" in html({**report, "viewer": packs.packs([], [], 1)[1]}, {})


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


def test_without_a_critics_delta_none_is_shown(tmp_path):
    """A scalar reward model gives no δ, whatever ``delta/mean`` its run logged."""
    scalar = write_run(tmp_path / "scalar", [hand_made(step, deltas=None) for step in (1, 2)], method="ppo_scalar")
    report, *_ = assemble([load_run(scalar)], [])
    assert "delta/mean" not in {chart["name"] for chart in report["training"][0]["charts"]}
    assert "δ" not in report["headline"]["title"] and "held-out" in report["cautions"][0]


def test_an_empty_response_has_no_mean(tmp_path):
    empty = hand_made(1, response="", spans=[], deltas=[], rewards=[], advantages=[], kl=[])
    run = load_run(write_run(tmp_path / "run", [{**empty, "old_logprobs": [], "new_logprobs": []}, hand_made(1)]))
    assert [rollout.mean("δ") for rollout in run.rollouts] == [None, 0.0]
    assert run.rollouts[0].mean("reward") is None


def test_every_policy_method_has_a_readers_name():
    assert {"ppo_scalar", "prm_ppo", *(f"ppo_{placement}" for placement in get_args(Placement))} <= set(METHODS)


def test_the_example_is_the_prompt_whose_change_is_the_median(tmp_path):
    """Mean δ changes by −1, by 1/3 and by 2: the middle one is shown, first and last response."""
    ends = {"worse": ([1, 1, 1], [0, 0, 0]), "middle": ([0, 0, 0], [0, 1, 0]), "better": ([-1, -1, -1], [1, 1, 1])}
    rollouts = [
        hand_made(step, id=name, prompt=f"The post {name}.", response=f"Good bad {step}", deltas=deltas[step - 1])
        for step in (1, 2)
        for name, deltas in ends.items()
    ]
    report, *_ = assemble([load_run(write_run(tmp_path / "run", rollouts))], [])
    example = report["example"]
    assert (example["prompt_id"], example["prompt"], example["of"]) == ("middle", "The post middle.", 3)
    assert [side["response"] for side in example["sides"]] == ["Good bad 1", "Good bad 2"]
    assert [side["mean"] for side in example["sides"]] == [0.0, pytest.approx(1 / 3)]
    assert pieces(example["sides"][0]) == [("good", "Good"), ("", " "), ("poor", "bad"), ("", " 1")]


def test_criticism_wins_where_spans_overlap():
    side = {"response": "abc🙂d", "good": [[0, 4]], "poor": [[2, 4]]}
    assert pieces(side) == [("good", "ab"), ("poor", "c🙂"), ("", "d")]


def test_responses_of_another_runs_policy_are_marked(tmp_path):
    """By the weights' hash: a result of this run's policy is not, one of the same name and other weights is."""
    folder = write_run(tmp_path / "run", [hand_made(1)])
    for policy in (folder / "policy", tmp_path / "other"):
        policy.mkdir()
        (policy / "config.json").write_text("{}")
        (policy / "model.safetensors").write_bytes(policy.name.encode())
    path = Path(result_file(tmp_path / "r.json", "text2grad", {"1": {"mean_delta": 0.1}}))
    value = json.loads(path.read_text())
    for policy, foreign in ((folder / "policy", False), (tmp_path / "other", True)):
        value["models"] = [f"{policy}@{weights_fingerprint(str(policy))} on smollm2"]
        path.write_text(json.dumps(value))
        report, *_ = assemble([load_run(folder)], load_results([str(path)]))
        assert any("no policy of the runs shown" in item for item in report["cautions"]) == foreign
        assert report["tables"][0]["systems"][0].get("foreign", False) == foreign


def test_what_no_quote_can_show_follows_the_critique():
    feedback = Feedback("Names the dog.", ["dog"], [], missing=["the boy", "when"], score=-0.25)
    assert told(feedback) == "Names the dog. Missing: the boy, when. Verdict −0.25."
    assert told(Feedback("Fine.")) == "Fine." and told(None) == ""
