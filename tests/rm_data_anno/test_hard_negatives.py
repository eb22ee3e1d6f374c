"""Spoilt summaries: the wrong characters are the ones that changed, they become −1, and each kind is as frequent."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import pytest

from rm_data_anno.slf5k.corruptions import CORRUPTIONS, Spoilt, split
from rm_data_anno.slf5k.hard_negatives import annotated, hard_negatives
from text2grad.errors import InputError
from text2grad.feedback import Feedback
from text2grad.records import load_records
from text2grad.tasks import get_task
from text2grad.token_rewards import span_intervals

POST = (
    "My sister borrowed 400 dollars from me in March and promised to pay it back within two weeks. Now Robert, my "
    "boss, has cut my hours and I cannot pay my rent. She says that she never promised anything at all. Should I ask "
    "our mother to step in, or is the money gone?"
)
SUMMARY = "My sister owes me 400 dollars since March and denies it. My boss Robert cut my hours. Should I ask our mom?"
OTHERS = ["The neighbour's dog barks all night. Earplugs do not help."]
POSTS = Path(__file__).parents[2] / "quickstart" / "data" / "posts_train.json"


def spoilt(kind: str, seed: int = 0, summary: str = SUMMARY) -> Spoilt | None:
    return CORRUPTIONS[kind](POST, summary, OTHERS, random.Random(seed))


@pytest.mark.parametrize("kind", ["number", "name"])
def test_an_exchange_changes_the_wrong_characters_and_no_others(kind):
    for seed in range(20):
        made = spoilt(kind, seed)
        start, end = made.wrong
        new = made.text[start:end]
        assert new.lower() not in POST.lower().split() and new in made.remark
        rest = made.text[:start], made.text[end:]
        assert SUMMARY.startswith(rest[0]) and SUMMARY.endswith(rest[1])
        old = SUMMARY[start : len(SUMMARY) - len(rest[1])]
        assert old in {"number": {"400"}, "name": {"sister", "March", "boss", "Robert", "mom"}}[kind]


def test_a_name_that_begins_a_sentence_is_left_alone():
    assert spoilt("name", summary="Robert cut hours. Robert said so.") is None


@pytest.mark.parametrize("kind", ["borrowed", "copied"])
def test_an_insertion_is_a_sentence_of_its_own_anywhere(kind):
    places = set()
    for seed in range(20):
        made = spoilt(kind, seed)
        start, end = made.wrong
        inserted = made.text[start:end]
        source = " ".join(OTHERS) if kind == "borrowed" else POST.lower()
        assert (inserted if kind == "borrowed" else inserted[:-1].lower()) in source
        without = f"{made.text[:start]} {made.text[end:]}".split()
        assert without == SUMMARY.split()
        places.add(start == 0)
    assert places == {True, False}


def test_leaving_out_and_repeating_move_whole_sentences():
    parts = split(SUMMARY)
    assert len(parts) == 3 and " ".join(parts) == SUMMARY
    left = spoilt("left_out")
    assert left.wrong is None and len(split(left.text)) == 2 and all(part in parts for part in split(left.text))
    again = spoilt("repeated")
    start, end = again.wrong
    assert again.text[:start].rstrip() == SUMMARY and again.text[start:end] in parts
    assert spoilt("left_out", summary="One sentence only.") is None


def test_what_is_known_is_poor_and_no_praise_reaches_into_it():
    text = "My boss owes me 900 dollars since March."
    made = Spoilt("number", text, (16, 19), "Says “900”, which the post does not.")
    judged = Feedback("Tells part.", ["My boss owes me 900 dollars", "since March."], ["900"])
    feedback = annotated(made, judged)
    assert feedback.critique == "Says “900”, which the post does not. Tells part."
    assert feedback.good == ["My boss owes me", "dollars", "since March."] and feedback.poor == ["900"]


def test_a_poor_span_that_says_more_takes_the_known_one_in():
    made = Spoilt("number", "He owes 900 dollars now.", (8, 11), "Wrong.")
    assert annotated(made, Feedback("c", [], ["owes 900 dollars"])).poor == ["owes 900 dollars"]


def test_records_are_ready_for_stage_2_and_kinds_are_balanced(tmp_path, run_script):
    output = tmp_path / "made.json"
    done = run_script("rm_data_anno/slf5k/hard_negatives.py", "--data_path", POSTS, "--output_path", output)
    assert done.returncode == 0, done.stderr
    task, records = get_task("slf5k"), load_records(output, get_task("slf5k"))
    posts = json.loads(POSTS.read_text())
    kinds = Counter(record["annotation"]["kind"] for record in records.values())
    assert len(records) == 8 * len(posts) and set(kinds) == set(CORRUPTIONS)
    assert max(kinds.values()) <= 1.5 * min(kinds.values()), kinds
    marked = 0
    for key, record in records.items():
        assert record["post"] == posts[key.partition("#")[0]]["post"]
        feedback, wrong = task.feedback(record), record["annotation"]["wrong"]
        assert wrong is not None or record["annotation"]["kind"] in ("unchanged", "left_out")
        if wrong is None:
            continue
        poor, _ = span_intervals(feedback, task.response(record), task)
        assert any(start <= wrong[0] and wrong[1] <= end for start, end in poor), record
        marked += 1
    assert marked > len(records) / 2


def test_the_same_seed_makes_the_same_records_and_another_one_others():
    posts = load_records(POSTS, get_task("slf5k"), responses=False)
    few = {key: posts[key] for key in list(posts)[:6]}
    first = hard_negatives(few, 5, 50, seed=1)
    assert first == hard_negatives(few, 5, 50, seed=1) != hard_negatives(few, 5, 50, seed=2)


def test_a_post_without_any_summary_is_named():
    with pytest.raises(InputError, match="'a' has no summary"):
        hard_negatives({"a": {"post": POST}}, 2, 50, 0)


def test_a_missing_path_and_no_posts_at_all_are_refused(tmp_path, run_script):
    done = run_script("rm_data_anno/slf5k/hard_negatives.py", "--output_path", tmp_path / "made.json")
    assert done.returncode == 2 and "--data_path is missing" in done.stderr
    done = run_script(
        "rm_data_anno/slf5k/hard_negatives.py", "--data_path", POSTS, "--output_path", "x.json", "--per_post", 0
    )
    assert done.returncode == 2 and "--per_post" in done.stderr
