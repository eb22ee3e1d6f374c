"""Answers with one fault: the rules see it where it is, and the same answer without it has none there."""

from __future__ import annotations

import json
import random
import re
from collections import Counter

import pytest

from rm_data_anno.ultrafeedback.injections import INJECTIONS, pieces
from rm_data_anno.ultrafeedback.variations import variations
from text2grad.critics.programs.ultrafeedback.critic import AnswerCritic, WorkedAnswerCritic
from text2grad.errors import InputError
from text2grad.grounding import ground
from text2grad.records import save_json
from text2grad.tasks import get_task

TASK = get_task("ultrafeedback")
ANSWERS = {
    "How did the Roman aqueducts carry their water?": (
        "Roman aqueducts carried water from springs to cities by gravity alone. Engineers cut a channel with a gentle "
        "slope and lined it with waterproof mortar. Where valleys crossed the route, they raised the channel on "
        "arches. Settling basins caught sand and gravel before the water reached the distribution tanks."
    ),
    "What should I pack for a winter hike in the mountains?": (
        "Pack for cold and for delay:\n\n1. Wool layers and a windproof shell.\n2. A map, a compass and a headlamp.\n"
        "3. Food with plenty of calories, such as nuts and chocolate.\n4. A thermos with hot tea."
    ),
    "Why do bees dance inside of their hive?": (
        "Honeybees dance to tell others where they found nectar. The angle of the waggle gives the direction relative "
        "to the sun. Its duration gives the distance to the flowers."
    ),
}
RECORDS = {
    f"q{number}": TASK.with_response({"prompt_id": f"q{number}", "prompt": request, "score": 3.0}, answer)
    for number, (request, answer) in enumerate(ANSWERS.items())
}


def test_pieces_are_the_whole_text_and_keep_list_marks():
    for answer in ANSWERS.values():
        assert "".join(pieces(answer)) == answer
    assert pieces(ANSWERS["What should I pack for a winter hike in the mountains?"])[2].startswith("2. A map")


@pytest.mark.parametrize("kind", INJECTIONS)
def test_what_was_made_wrong_is_where_it_says(kind):
    rng, done = random.Random(1), 0
    for request, answer in ANSWERS.items():
        others = [text for text in ANSWERS.values() if text != answer]
        for _ in range(5):
            found = INJECTIONS[kind](request, pieces(answer), others, rng)
            if found is None:
                continue
            done += 1
            if found.wrong is None:
                assert found.text == answer
                continue
            start, end = found.wrong
            assert 0 <= start < end <= len(found.text)
            rest = found.text[:start] + found.text[end:]
            if kind == "arithmetic":
                one, sign, other, _, result = found.text[start:end].split()
                assert int(result) != int(one) + (1 if sign == "+" else -1) * int(other)
            elif kind not in ("no_end", "no_language") and rest.strip():
                assert "".join(rest.split()) == "".join(answer.split())
            elif kind == "no_language":
                said, meant = (sorted(re.findall(r"\w+", text)) for text in (found.text, answer))
                assert said == meant and found.text != answer
    assert done >= 5


def test_the_rules_blame_each_fault_and_annotate_all():
    made, unseen = variations(RECORDS, rounds=6, per_prompt=6, seed=2)
    assert unseen and "unchanged" not in unseen
    kinds = Counter(record["annotation"]["kind"] for record in made.values())
    assert len(kinds) >= 7 and kinds["unchanged"] >= 10
    plain, worked = AnswerCritic(), WorkedAnswerCritic()
    demanded = 0
    for record in made.values():
        prompt, text, feedback = TASK.prompt(record), TASK.response(record), TASK.feedback(record)
        assert feedback == worked.feedback_on(prompt, text)
        rules = plain.feedback_on(prompt, text)
        assert (feedback.good, feedback.poor) == (rules.good, rules.poor)
        assert "score" not in record  # of another answer
        demanded += prompt not in ANSWERS
        if wrong := record["annotation"]["wrong"]:
            places = [place for quote in feedback.poor for place in ground(quote, text)]
            assert any(start < wrong[1] and wrong[0] < end for start, end in places)
    assert demanded
    assert all(record["prompt"] in ANSWERS for key, record in made.items() if "~0#" in key)
    groups = Counter(key.partition("#")[0] for key in made)
    assert max(groups.values()) == 6 and len(groups) == 18


def test_a_worked_critique_names_the_fault_of_each_sentence():
    request, answer = next(iter(ANSWERS.items()))
    text = f"Sure! {answer}"
    critique = WorkedAnswerCritic().feedback_on(request, text).critique
    assert critique.startswith("Sure: nothing new: filler. Roman aqueducts carried: springs, cities, gravity")
    assert "Asked for exactly 2 sentences" not in critique
    asked = WorkedAnswerCritic().feedback_on(f"{request} Answer in at most two sentences.", text).critique
    assert "Asked for at most 2 sentences: broken." in asked and "breaks the form" in asked


def test_the_same_seed_makes_the_same_records():
    assert variations(RECORDS, 2, 4, seed=3) == variations(RECORDS, 2, 4, seed=3)
    assert variations(RECORDS, 2, 4, seed=3) != variations(RECORDS, 2, 4, seed=4)


def test_what_is_missing_is_named():
    with pytest.raises(InputError, match="at least two"):
        variations({"q0": RECORDS["q0"]}, 1, 1)
    with pytest.raises(InputError, match="'q1' has an answer without words"):
        variations({**RECORDS, "q1": TASK.with_response(RECORDS["q1"], " … ")}, 1, 1)


def test_the_script_writes_what_stage_2_reads(tmp_path, run_script):
    save_json(tmp_path / "answers.json", list(RECORDS.values()))
    files = [tmp_path / "one.json", tmp_path / "two.json"]
    for out in files:
        done = run_script(
            "rm_data_anno/ultrafeedback/variations.py", "--data_path", tmp_path / "answers.json", "--rounds", "1",
            "--per_prompt", "3", "--output_path", out,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "9 answers to 3 requests" in done.stdout
    assert files[0].read_bytes() == files[1].read_bytes()
    assert all(TASK.feedback(record) is not None for record in json.loads(files[0].read_text()))
    done = run_script(
        "rm_data_anno/ultrafeedback/variations.py", "--data_path", tmp_path / "answers.json", "--rounds", "0",
        "--output_path", files[0],
    )  # fmt: skip
    assert done.returncode == 2 and "--rounds must be above 0" in done.stderr
