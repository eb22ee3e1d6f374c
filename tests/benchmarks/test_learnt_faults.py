"""Records dealt by prompt: no prompt is trained on and measured on."""

from __future__ import annotations

import json

import pytest

from benchmarks.learnt_faults import deal
from tests.conftest import ROOT
from text2grad.errors import InputError
from text2grad.records import load_records
from text2grad.tasks import get_task

SAMPLE = ROOT / "recipes" / "sample" / "kodcode.json"


@pytest.fixture(scope="module")
def records():
    return load_records(SAMPLE, get_task("kodcode"))


def test_a_prompt_is_in_one_part_with_all_its_records(records):
    training, held_out = deal(records, "kodcode", 0.25, 0)
    assert {**training, **held_out} == dict(records) and len(training) + len(held_out) == len(records)
    questions = [{record["question"] for record in part.values()} for part in (training, held_out)]
    assert not questions[0] & questions[1]
    assert len(questions[1]) == round(0.25 * len(questions[0] | questions[1]))
    assert list(deal(records, "kodcode", 0.25, 0)[1]) == list(held_out)
    assert list(deal(records, "kodcode", 0.25, 1)[1]) != list(held_out)


@pytest.mark.parametrize("share", [0, 1])
def test_an_empty_part_is_refused(records, share):
    with pytest.raises(InputError, match=r"kodcode\.json: .* leave one part empty"):
        deal(records, "kodcode", share, 0)


def test_the_script_writes_both_parts(tmp_path, run_script):
    done = run_script(
        "benchmarks/learnt_faults.py", "--task", "kodcode", "--data_path", SAMPLE, "--output_dir", tmp_path / "parts"
    )
    assert done.returncode == 0, done.stderr
    parts = [json.loads((tmp_path / "parts" / f"{name}.json").read_text()) for name in ("training", "held_out")]
    assert sum(map(len, parts)) == len(json.loads(SAMPLE.read_text()))
