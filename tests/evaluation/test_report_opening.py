"""What a reader meets first: the example, a line per group of metrics, small charts; and a page that follows a run."""

from __future__ import annotations

import json

import pytest

from evaluation.reporting import comparing, live, panels
from evaluation.reporting.assemble import assemble
from evaluation.reporting.comparing import load_results
from evaluation.reporting.opening import pieces
from evaluation.reporting.page import tally
from evaluation.reporting.runs import load_run
from tests.report_files import hand_made, result_file, write_run
from text2grad.errors import InputError


def test_the_example_is_the_prompt_whose_change_is_the_median(tmp_path):
    """Mean δ changes by −1, by 1/3 and by 2: the middle one is shown, first and last response."""
    ends = {"worse": ([1, 1, 1], [0, 0, 0]), "middle": ([0, 0, 0], [0, 1, 0]), "better": ([-1, -1, -1], [1, 1, 1])}
    rollouts = [
        hand_made(step, id=name, prompt=f"The post {name}.", response=f"Good bad {step}", deltas=deltas[step - 1])
        for step in (1, 2)
        for name, deltas in ends.items()
    ]
    report, _ = assemble([load_run(write_run(tmp_path / "run", rollouts))], [])
    example = report["example"]
    assert (example["prompt_id"], example["prompt"], example["of"]) == ("middle", "The post middle.", 3)
    assert [side["response"] for side in example["sides"]] == ["Good bad 1", "Good bad 2"]
    assert [side["mean"] for side in example["sides"]] == [0.0, pytest.approx(1 / 3)]
    assert pieces(example["sides"][0]) == [("good", "Good"), ("", " "), ("poor", "bad"), ("", " 1")]


def test_criticism_wins_where_spans_overlap():
    side = {"response": "abc🙂d", "good": [[0, 4]], "poor": [[2, 4]]}
    assert pieces(side) == [("good", "ab"), ("poor", "c🙂"), ("", "d")]


def test_without_two_answers_to_a_prompt_there_is_no_example(tmp_path):
    report, _ = assemble([load_run(write_run(tmp_path / "run", [hand_made(1)]))], [])
    assert report["example"] is None


def test_one_line_tells_how_a_group_of_metrics_came_out(tmp_path):
    """ROUGE-L speaks for its group although ROUGE-1 comes before it."""
    before = {str(n): {"rouge1": 0.1, "rougeL": 0.1, "bleu": n % 2, "words": 40.0} for n in range(8)}
    after = {str(n): {"rouge1": 0.3, "rougeL": 0.2, "bleu": (n + 1) % 2, "words": 20.0} for n in range(8)}
    files = [result_file(tmp_path / f"{name}.json", name, told) for name, told in (("base", before), ("new", after))]
    (table,) = comparing.tables(load_results(files), None)
    groups = {group["group"]: group for group in table["groups"]}
    reference = groups["Closeness to the reference"]
    assert (reference["name"], reference["metrics"]) == ("rougeL", 3)
    assert tally(reference, "new") == "2 better, 1 unclear"
    assert tally(groups["Length"], "new") == "1 lower"
    assert sum(group["metrics"] for group in table["groups"]) == len(table["metrics"])


def column(tmp_path, value: dict) -> list[dict]:
    path = tmp_path / "figures.json"
    path.write_text(json.dumps(value))
    report, _ = assemble([load_run(write_run(tmp_path / "run", [hand_made(1)]))], [], None, [str(path)], [str(path)])
    return report["annotations"]


def test_annotation_charts_hold_shares_and_quartiles_under_the_tasks_own_words(tmp_path):
    labels = {"characters_wrong_code": 0.25, "characters_improvement_code": 0.5, "records_with_both": 1.0}
    words = {"mean": 5.0, "min": 1, "q1": 2, "median": 4, "q3": 7, "max": 40}
    rates = {"unmatched_rate": 0.125}
    columns = column(tmp_path, {"labels": labels, "wrong_code": {"words": words}, "spans": rates})
    charts = {chart["title"]: chart for chart in panels.annotation_charts(columns)}
    (bar,) = charts["Characters of the responses, by label"]["rows"]
    shares = {part["label"]: part["share"] for part in bar["parts"]}
    assert shares == {"wrong code": 0.25, "improvement code": 0.5, "neither": 0.25}
    (span,) = charts["Words per span"]["rows"]
    assert (span["label"], span["low"], span["value"], span["high"]) == ("wrong code", 2, 4, 7)
    assert charts["Quotes, by check"]["rows"][0]["value"] == 0.125
    assert "Spans per response" not in charts


def test_reward_model_charts_set_the_score_beside_chance_and_rows_sum_to_one(tmp_path):
    figure = lambda value: {"value": value, "low": value - 0.1, "high": value + 0.1, "n": 7}  # noqa: E731
    tokens = {
        "labels": {"-1": {"f1": figure(0.5)}},
        "chance": {"shuffled": {"-1": {"f1": figure(0.25)}}},
        "confusion": {"-1": {"+1": 13, "0": 419, "-1": 12, "none": 0}},
    }
    charts = {chart["title"]: chart for chart in panels.reward_model_charts(column(tmp_path, {"tokens": tokens}))}
    (row,) = charts["F1 of token labels"]["rows"]
    assert (row["label"], row["value"], row["low"], row["chance"]) == ("−1", 0.5, pytest.approx(0.4), 0.25)
    (bar,) = charts["Predicted labels"]["rows"]
    assert [part["share"] for part in bar["parts"]] == pytest.approx([13 / 444, 419 / 444, 12 / 444, 0])


def test_a_watched_run_is_built_at_each_change_and_once_more_at_its_end(tmp_path):
    run = tmp_path / "run"
    built = []

    def build(goes_on: bool) -> None:
        built.append((goes_on, len((run / "metrics.jsonl").read_text().splitlines())))
        if len(built) < 3:
            with (run / "metrics.jsonl").open("a") as file:
                file.write(json.dumps({"step": len(built) + 1}) + "\n")
        elif goes_on:
            (run / "policy").mkdir()

    write_run(run, [hand_made(1)])
    live.watch([str(run)], [], build, every=0.01)
    assert built == [(True, 1), (True, 2), (True, 3), (False, 3)]


def test_nothing_to_watch_is_refused():
    with pytest.raises(InputError, match="--output_dir"):
        live.watch([], [], lambda goes_on: None, every=1.0)


def test_the_command_follows_a_run_to_its_end(tmp_path, run_script):
    run = write_run(tmp_path / "run", [hand_made(1), hand_made(2)])
    (run / "policy").mkdir()
    output = tmp_path / "report.html"
    done = run_script("evaluation/report.py", run, "--watch", "1", "--output_path", output)
    assert done.returncode == 0, done.stderr
    assert 'id="live"' not in output.read_text()
    refused = run_script("evaluation/report.py", run, "--watch", "0", "--output_path", output)
    assert refused.returncode == 2 and "above 0 seconds" in refused.stderr
