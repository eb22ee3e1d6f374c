"""Texts with a known fault: the wrong characters are the ones that changed, and they become poor."""

import random
from collections import Counter

import pytest

from rm_data_anno.slf5k.corruptions import CORRUPTIONS, KnownFault, marked, split, spoil
from rm_data_anno.slf5k.variations import SHARES, SummaryVariationsConfig, variations
from tests.processes import ROOT
from text2grad.critics.programs.slf5k.critic import WorkedSummaryCritic
from text2grad.feedback import Feedback
from text2grad.records import load_json, load_records, save_json
from text2grad.tasks import get_task

POST = (
    "My sister borrowed 400 dollars from me in March and promised to pay it back within two weeks. Now Robert, my "
    "boss, has cut my hours and I cannot pay my rent. She says that she never promised anything at all. Should I ask "
    "our mother to step in, or is the money gone?"
)
SUMMARY = "My sister owes me 400 dollars since March and denies it. My boss Robert cut my hours. Should I ask our mom?"
OTHERS = ["The neighbour's dog barks all night. Earplugs do not help."]


def spoilt(kind: str, seed: int = 0, summary: str = SUMMARY) -> KnownFault | None:
    return CORRUPTIONS[kind](POST, summary, OTHERS, random.Random(seed))


@pytest.mark.parametrize("kind", ["number", "name"])
def test_an_exchange_changes_the_wrong_characters_and_no_others(kind):
    for seed in range(20):
        made = spoilt(kind, seed)
        start, end = made.wrong
        assert made.text[start:end].lower() not in POST.lower().split()
        rest = made.text[:start], made.text[end:]
        assert SUMMARY.startswith(rest[0]) and SUMMARY.endswith(rest[1])
        old = SUMMARY[start : len(SUMMARY) - len(rest[1])]
        assert old in {"number": {"400"}, "name": {"sister", "March", "boss", "Robert", "mom"}}[kind]


def test_the_comma_after_a_number_is_none_of_it():
    made = spoilt("number", summary="She owes me 1,400, and denies it.")
    assert made.text[made.wrong[1] :] == ", and denies it."


def test_a_name_that_begins_a_sentence_is_left_alone():
    assert spoilt("name", summary="“Robert cut hours.” Robert said so. (No!) “Robert” lied.") is None


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
    judged = Feedback("Tells part.", ["My boss owes me 900 dollars", "since March."], ["900"])
    feedback = marked(judged, KnownFault("number", text, (16, 19)))
    assert feedback.critique == "Tells part."
    assert feedback.good == ["My boss owes me", "dollars", "since March."] and feedback.poor == ["900"]
    assert marked(judged, KnownFault("left_out", text)) == judged


def test_a_verdict_that_overlooked_the_fault_follows_from_the_spans():
    fault = KnownFault("number", "My boss owes me 900 dollars.", (16, 19))
    saw, overlooked = (Feedback("c", ["My boss"], poor, missing=["rent"], score=0.9) for poor in (["900"], []))
    assert marked(saw, fault).score == 0.9
    assert marked(overlooked, fault).score == 0.0  # one good quote, one poor, one thing missing: F1 is a half


def test_a_poor_span_that_says_more_takes_the_known_one_in():
    fault = KnownFault("number", "He owes 900 dollars now.", (8, 11))
    assert marked(Feedback("c", [], ["owes 900 dollars"]), fault).poor == ["owes 900 dollars"]


def test_the_rarest_kind_that_is_possible_comes_first():
    counts = Counter(dict.fromkeys(CORRUPTIONS, 1))
    counts["borrowed"] = 0
    seen: set[str] = set()
    made = spoil(POST, [SUMMARY], OTHERS, counts, seen, random.Random(0))
    assert made.kind == "borrowed"
    counts["number"] = -1
    assert spoil(POST, ["No figure here."], OTHERS, counts, seen, random.Random(0)).kind == "borrowed"


TASK = get_task("slf5k")
READ = load_records(ROOT / "quickstart" / "data" / "posts_train.json", TASK, responses=False)
POSTS = READ.like({key: READ[key] for key in list(READ)[:6]})
ANSWERS = {k: [f"{v['ideal_human_summary']} It happened {n} times." for n in range(9)] for k, v in POSTS.items()}


def test_records_are_judged_against_their_variation_and_made_in_all_ways():
    made = variations(POSTS, ANSWERS, SummaryVariationsConfig(rounds=8, per_post=5))
    assert len(made) == 6 * 8 * 5
    assert Counter(record["annotation"]["how"] for record in made.values()).keys() == SHARES.keys()
    critic, differ = WorkedSummaryCritic(), 0
    for key, record in made.items():
        own = POSTS[key.partition("~")[0]]["post"]
        judged, kept = critic.feedback_on(record["post"], record["generated_summary"]), TASK.feedback(record)
        if record["annotation"]["how"] != "spoilt":
            assert kept == judged
            differ += kept != critic.feedback_on(own, record["generated_summary"])
        else:  # a fault that is known besides is poor, too
            assert kept.critique == judged.critique
            assert all(any(quote in longer for longer in kept.poor) for quote in judged.poor)
        assert set(split(record["post"])) & set(split(own))  # a variation keeps sentences of its own post
    assert differ > 30  # a variation changes what is true of a response
    groups = {key.partition("#")[0]: record["post"] for key, record in made.items()}
    assert all(record["post"] == groups[key.partition("#")[0]] for key, record in made.items())
    assert sum(text == POSTS[key.partition("~")[0]]["post"] for key, text in groups.items()) < len(groups) / 2


def test_the_script_takes_what_generate_writes(tmp_path, run_script):
    rows = ((f"{key}@{n}", key, text) for key, texts in ANSWERS.items() for n, text in enumerate(texts))
    sampled = {sample: {"id": sample, **POSTS[key], "generated_summary": text} for sample, key, text in rows}
    files = {name: tmp_path / f"{name}.json" for name in ("data_path", "answers", "output_path")}
    save_json(files["data_path"], POSTS)
    save_json(files["answers"], sampled)
    done = run_script("rm_data_anno/slf5k/variations.py", **files, rounds=1, per_post=3)
    assert "18 responses to 1 variations of 6 posts" in done.stdout
    assert all(TASK.feedback(record) is not None for record in load_json(files["output_path"]).values())
