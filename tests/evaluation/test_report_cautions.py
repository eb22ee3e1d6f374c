"""What the report says of its figures: the headline, what limits them, the example."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest

from evaluation.reporting.assemble import assemble
from evaluation.reporting.comparing import load_results
from evaluation.reporting.opening import pieces
from evaluation.reporting.runs import load_run
from evaluation.reporting.wording import METHODS, told
from nl_gradient_policy_optimization.config import Placement
from tests.report_files import hand_made, result_file, write_run
from text2grad.feedback import Feedback
from text2grad.models import weights_fingerprint


def report_of(tmp_path, before: list[float], after: list[float], name: str = "mean_delta") -> dict:
    files = []
    for system, values in (("base", before), ("text2grad", after)):
        told = {str(number): {name: value} for number, value in enumerate(values)}
        files.append(result_file(tmp_path / f"{system}.json", system, told))
    return assemble([], load_results(files))[0]


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
    report = report_of(tmp_path, before, after, name)
    assert title in report["headline"]["title"] and report["headline"]["deck"].endswith(verdict)
    assert report["tables"][0]["cells"]["text2grad"][f"held out/{name}"]["change"]["verdict"] == verdict
    assert "4 evaluation prompts" in " ".join(report["cautions"])


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


def test_without_a_critics_delta_none_is_shown(tmp_path):
    """A scalar reward model gives no δ, whatever ``delta/mean`` its run logged."""
    scalar = write_run(tmp_path / "scalar", [hand_made(step, deltas=None) for step in (1, 2)], method="ppo_scalar")
    report, _ = assemble([load_run(scalar)], [])
    assert "delta/mean" not in {chart["name"] for chart in report["training"][0]["charts"]}
    assert "δ" not in report["headline"]["title"] and "held-out" in report["cautions"][0]


def test_an_empty_response_has_no_mean(tmp_path):
    empty = hand_made(1, response="", spans=[], deltas=[], rewards=[], advantages=[], kl=[])
    run = load_run(write_run(tmp_path / "run", [{**empty, "old_logprobs": [], "new_logprobs": []}, hand_made(1)]))
    assert [rollout.mean("δ") for rollout in run.rollouts] == [None, 0.0]
    assert run.rollouts[0].mean("reward") is None


def test_every_policy_method_has_a_readers_name():
    for placement in get_args(Placement):
        assert ("text2grad" if placement == "token" else f"ppo_{placement}") in METHODS
    assert {"ppo_scalar", "prm_ppo"} <= set(METHODS)


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
        report, _ = assemble([load_run(folder)], load_results([str(path)]))
        assert any("no policy of the runs shown" in item for item in report["cautions"]) == foreign
        assert report["tables"][0]["systems"][0].get("foreign", False) == foreign


def test_what_no_quote_can_show_follows_the_critique():
    feedback = Feedback("Names the dog.", ["dog"], [], missing=["the boy", "when"], score=-0.25)
    assert told(feedback) == "Names the dog. Missing: the boy, when. Verdict −0.25."
    assert told(Feedback("Fine.")) == "Fine." and told(None) == ""
