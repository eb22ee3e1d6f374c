"""The report's sentences: what came out is told as it is, and what weakens it is told too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest

from evaluation.reporting import story
from evaluation.reporting.assemble import assemble
from evaluation.reporting.comparing import load_results
from evaluation.reporting.runs import load_run
from evaluation.reporting.wording import METHODS
from nl_gradient_policy_optimization.config import Placement
from tests.report_files import hand_made, result_file, rows, write_run


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
    assert story.text(several, several["standfirst"][0]).startswith("On 4 prompts (16 responses), Text2Grad")


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
    assert "Text2Grad copies more from its source: new word triples 91.5 % → 31.5 % (" in cautions


def test_kl_beyond_its_target_is_called_out(tmp_path):
    folder = write_run(tmp_path / "run", [hand_made(step) for step in range(1, 5)], config={"kl_target": 2.0})
    cycles = [{"step": step, "kl/full": 1.0 * step} for step in range(1, 5)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(cycle) + "\n" for cycle in cycles))
    report, _ = assemble([load_run(folder)], [])
    cautions = [story.text(report, item) for item in report["cautions"]]
    assert "Text2Grad: KL ends at 4.000, above its target of 2.000." in cautions


def test_collapse_is_called_out(tmp_path):
    folder = write_run(tmp_path / "run", [hand_made(step) for step in range(1, 21)])
    cycles = rows(folder / "metrics.jsonl")
    for number, row in enumerate(cycles):
        row |= {"entropy": 2.0 - 0.1 * number, "length/finished": 1 - 0.04 * number, "delta/mean": -0.01 * number}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in cycles))
    report, _ = assemble([load_run(folder)], [])
    cautions = " ".join(story.text(report, item) for item in report["cautions"])
    assert "entropy fell by more than half, from 1.950 to 0.150" in cautions
    assert "fewer responses are finished, from 98.0 % to 26.0 %" in cautions
    assert "mean δ did not rise in training, from −0.01 to −0.18" in cautions


def test_every_policy_method_has_a_readers_name():
    for placement in get_args(Placement):
        assert ("text2grad" if placement == "token" else f"ppo_{placement}") in METHODS
    assert {"ppo_scalar", "prm_ppo"} <= set(METHODS)


def test_names_may_hold_the_separator_of_paths():
    report = {"tables": [{"cells": {"a > b": {"r > 1": {"value": 3}}, "a": {"b": {}}}}]}
    assert story.look_up(report, story.at("tables", 0, "cells", "a > b", "r > 1", "value")["at"]) == 3
    with pytest.raises(KeyError):
        story.look_up(report, "tables > 0 > cells > c")
