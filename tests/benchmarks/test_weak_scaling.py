"""The weak-scaling benchmark: its arithmetic by hand, and the real command on a tiny model."""

from __future__ import annotations

import json
import os

import pytest

from benchmarks.weak_scaling import FIGURES, ScalingConfig, efficiencies, page_section, posts_of_median_length, slowest
from tests.tiny import tiny_model


def steps(*seconds: float) -> list[dict[str, float]]:
    return [dict.fromkeys(FIGURES, value) for value in seconds]


def test_efficiencies_are_ratios_within_a_round():
    rounds = [
        {"one": steps(4, 6, 5), "two": steps(10, 10, 1), "apart": steps(8, 8, 8)},  # medians 5, 10, 8
        {"one": steps(6, 6, 6), "two": steps(8, 8, 80), "apart": steps(6, 6, 6)},  # the machine was slower: 6, 8, 6
        {"one": steps(2, 2, 2), "two": steps(2, 2, 2), "apart": steps(2, 2, 2)},
    ]
    found = efficiencies(rounds)["step"]
    assert (found["one"], found["two"], found["apart"]) == (5, 8, 6)  # of all nine steps
    assert found["ranks"] == 0.75  # of 0.5, 0.75, 1
    assert found["machine"] == 1.0  # of 0.625, 1, 1
    assert found["of_machine"] == 0.8 and (found["low"], found["high"]) == (0.75, 1.0)  # of 0.8, 0.75, 1


def test_a_step_takes_as_long_as_its_slowest_process():
    first, second = steps(3, 1), steps(2, 5)
    second[0]["update"] = 4
    assert slowest([first, second]) == [{"rollout": 3, "reference": 3, "update": 4, "step": 3}, steps(5)[0]]
    with pytest.raises(ValueError, match="shorter"):
        slowest([steps(1, 2), steps(1)])


def test_posts_of_the_median_length_are_taken():
    posts = {key: {"post": "word " * length} for key, length in zip("abcde", (50, 11, 9, 10, 1), strict=True)}
    assert list(posts_of_median_length(posts, 3)) == ["d", "b", "c"]


def test_the_table_names_every_phase():
    one = {"one": steps(1), "two": steps(2), "apart": steps(1)}
    text = page_section(ScalingConfig(cores=[0, 1]), efficiencies([one]))
    assert "| whole step | 1.00 | 2.00 | 1.00 | 0.50 | 1.00 | 0.50 (0.50–0.50) |" in text
    assert all(f"| {phase} |" in text for phase in FIGURES[:-1])


def test_one_core_is_not_enough(run_script):
    done = run_script("benchmarks/weak_scaling.py", "--cores", "0", "0")
    assert done.returncode == 2 and "--cores [0, 0]" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_all_three_ways_are_measured(run_script, tmp_path):
    page, output = tmp_path / "page.md", tmp_path / "figures.json"
    page.write_text("before\n<!-- weak_scaling -->\nold\n<!-- /weak_scaling -->\nafter\n")
    settings = {"model": tiny_model(tmp_path / "model"), "steps": 1, "rounds": 1, "rollouts": 2, "response_tokens": 4}
    settings |= {"page": page, "output": output}
    flags = [str(part) for name, value in settings.items() for part in (f"--{name}", value)]
    done = run_script("benchmarks/weak_scaling.py", *flags)
    assert done.returncode == 0, done.stderr[-3000:]
    (measured,) = json.loads(output.read_text())["rounds"]
    for rows in measured.values():
        assert len(rows) == 1 and all(rows[0][name] > 0 for name in FIGURES)
        assert rows[0]["step"] > rows[0]["update"]
    assert "whole step" in page.read_text() and "old" not in page.read_text()
