"""The quickstart's posts: format, split, variety, and summaries that are summaries."""

import re
from itertools import combinations
from pathlib import Path

import pytest

from text2grad.critics import load_critic
from text2grad.records import load_json
from text2grad.tasks import get_task

pytestmark = pytest.mark.fast

DATA = Path(__file__).parents[2] / "quickstart" / "data"
TASK = get_task("slf5k")
SIZES = {"train": 64, "validation": 16, "test": 160, "more": 188}
SPLITS = {split: load_json(DATA / f"posts_{split}.json") for split in SIZES}
ALL = {key: record for records in SPLITS.values() for key, record in records.items()}


def test_the_splits_share_nothing():
    assert {split: len(records) for split, records in SPLITS.items()} == SIZES
    assert len(ALL) == sum(SIZES.values())
    assert len({record["post"] for record in ALL.values()}) == len(ALL)
    assert len({record["ideal_human_summary"] for record in ALL.values()}) == len(ALL)


def test_each_record_has_the_format_and_its_lengths():
    for record_id, record in ALL.items():
        assert re.fullmatch(r"t3_qs\d{3}", record_id)
        assert set(record) == {"post", "ideal_human_summary"}, record_id
        assert 50 <= len(record["post"].split()) <= 120, record_id
        assert 12 <= len(record["ideal_human_summary"].split()) <= 30, record_id
        for text in record.values():
            assert text == text.strip() and text[-1] in ".!?" and text.isprintable(), record_id
        TASK.check(TASK.with_response(record, "An answer."))


def test_no_two_posts_are_alike():
    """No pair shares a tenth of its four-word runs."""
    runs = {}
    for key, record in ALL.items():
        words = re.findall(r"[a-z0-9']+", record["post"].lower())
        runs[key] = {tuple(words[start : start + 4]) for start in range(len(words) - 3)}
    for one, other in combinations(runs, 2):
        assert len(runs[one] & runs[other]) < min(len(runs[one]), len(runs[other])) / 10, (one, other)


@pytest.mark.parametrize(
    ("splits", "copies", "without_praise"),
    [(("train", "validation", "test"), 6, 0), (("more",), 0, 6)],  # six tell the story in other words than the post's
)
def test_summaries_are_in_their_own_words(splits, copies, without_praise):
    records = [record for split in splits for record in SPLITS[split].values()]
    critic = load_critic("programmatic", TASK)
    verdicts = critic([record["post"] for record in records], [record["ideal_human_summary"] for record in records])
    assert sum("Copies" in verdict.critique for verdict in verdicts) <= copies
    assert sum(not verdict.good for verdict in verdicts) <= without_praise
