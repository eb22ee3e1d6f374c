"""The quickstart's posts: format, split, variety, and summaries that are summaries."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from text2grad.critics import load_critic
from text2grad.records import load_json
from text2grad.tasks import get_task

DATA = Path(__file__).parents[2] / "quickstart" / "data"
TASK = get_task("slf5k")
SIZES = {"train": 64, "validation": 16, "test": 160, "more": 188}
SPLITS = {split: load_json(DATA / f"posts_{split}.json") for split in SIZES}
ALL = {key: record for records in SPLITS.values() for key, record in records.items()}
MEASURED = {key: record for key, record in ALL.items() if key not in SPLITS["more"]}


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+(?:'[a-z]+)?", text.lower())


def test_the_splits_share_nothing():
    assert {split: len(records) for split, records in SPLITS.items()} == SIZES
    assert len(ALL) == sum(SIZES.values())
    assert len({record["post"] for record in ALL.values()}) == len(ALL)
    assert len({record["ideal_human_summary"] for record in ALL.values()}) == len(ALL)


@pytest.mark.parametrize("record_id", sorted(ALL))
def test_each_record_has_the_format_and_its_lengths(record_id):
    record = ALL[record_id]
    assert re.fullmatch(r"t3_qs\d{3}", record_id)
    assert set(record) == {"post", "ideal_human_summary"}
    assert 50 <= len(record["post"].split()) <= 120
    assert 12 <= len(record["ideal_human_summary"].split()) <= 30
    for text in record.values():
        assert text == text.strip() and text[-1] in ".!?" and text.isprintable()
    assert TASK.reference(record) == record["ideal_human_summary"]
    TASK.check(TASK.with_response(record, "An answer."))


def test_files_are_plain_json_that_a_person_can_read():
    for split in SPLITS:
        raw = (DATA / f"posts_{split}.json").read_text(encoding="utf-8")
        assert raw == json.dumps(json.loads(raw), ensure_ascii=False, indent=2) + "\n"


def test_no_two_posts_are_alike():
    """No pair shares a tenth of its four-word runs."""
    runs = {
        key: {tuple(w[i : i + 4]) for i in range(len(w) - 3)} for key, r in ALL.items() for w in [_words(r["post"])]
    }
    for one in runs:
        for other in runs:
            if one < other:
                assert len(runs[one] & runs[other]) < min(len(runs[one]), len(runs[other])) / 10, (one, other)


@pytest.mark.parametrize(("records", "beginnings", "ends"), [(MEASURED, 170, 195), (ALL, 360, 420)])
def test_posts_begin_and_end_in_many_ways(records, beginnings, ends):
    assert len({" ".join(_words(record["post"])[:2]) for record in records.values()}) >= beginnings
    assert len({" ".join(_words(record["post"])[-3:]) for record in records.values()}) >= ends


@pytest.mark.parametrize(
    ("records", "copies", "without_praise"),
    [(MEASURED, 6, 0), (SPLITS["more"], 0, 6)],  # six tell the story in other words than the post's
)
def test_summaries_are_in_their_own_words(records, copies, without_praise):
    critic = load_critic("programmatic", TASK)
    verdicts = critic(
        [record["post"] for record in records.values()], [record["ideal_human_summary"] for record in records.values()]
    )
    assert sum("Copies" in verdict.critique for verdict in verdicts) <= copies
    assert sum(not verdict.good for verdict in verdicts) <= without_praise


def test_the_readme_tells_what_the_files_hold():
    readme = (DATA / "README.md").read_text(encoding="utf-8")
    assert "written for this repository" in readme and "MIT" in readme
    for split, size in SIZES.items():
        assert re.search(rf"posts_{split}\.json` \| {size}\b", readme)
    assert f"{len(ALL)} posts" in readme
