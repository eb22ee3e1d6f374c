"""Critiques by people, by a program and by chance: that the three sets are what they say, and what agreement counts."""

from __future__ import annotations

import random

import numpy as np
import pytest

from benchmarks.human_critiques import (
    POOR,
    SOURCES,
    Agreement,
    MarkedAnswer,
    annotated_record,
    auc,
    by_chance,
    by_people,
    called_poor,
    differences,
    feedback_of,
    folds,
    load_answers,
    moved,
    page_section,
    sentence_intervals,
    within,
    without_training,
)
from nl_reward_model.measures.token_metrics import confusion, f1, precision, recall
from tests import tiny
from tests.conftest import ROOT
from text2grad.critics.reward_model.examples import target
from text2grad.errors import InputError
from text2grad.records import load_json, save_json
from text2grad.tasks import get_task

TEXT = 'Bloom is an album. It came out in August 2018, and sold well. "Dr. Who" is a series.'
ROWS = [
    {
        "id": "a",
        "question": "When did Bloom come out?",
        "response": TEXT,
        "spans": [
            {"start": 62, "end": 84, "type": "Irrelevant"},
            {"start": 47, "end": 61, "type": "Irrelevant"},
            {"start": 9, "end": 17, "type": "Wrong-Grounding"},
        ],
        "missing_info": [False],
    },
    {"id": "b", "question": "Who wrote it?", "response": "Nobody knows. It is old.", "spans": [], "missing_info": [1]},
]


@pytest.fixture
def answers(tmp_path) -> list[MarkedAnswer]:
    save_json(tmp_path / "people.jsonl", ROWS)
    return load_answers(tmp_path / "people.jsonl")


def random_answer(seed: int) -> MarkedAnswer:
    rng = random.Random(seed)
    text = " ".join(
        " ".join(rng.choice(["rain", "house", "sees", "old", "Paris"]) for _ in range(rng.randint(2, 9))) + "."
        for _ in range(rng.randint(2, 7))
    )
    words = [index for index, char in enumerate(text) if index == 0 or text[index - 1] == " "] + [len(text) + 1]
    cuts = sorted(rng.sample(range(len(words)), 2 * min(2, len(words) // 2)))
    marks = [(words[a], words[b] - 1) for a, b in zip(cuts[::2], cuts[1::2], strict=True)]
    return MarkedAnswer(str(seed), f"q{seed}", text, marks, ["Irrelevant"] * len(marks), False)


# The three sets


def test_people_mark_passages_and_leave_sentences(answers):
    assert [TEXT[slice(*place)] for place in sentence_intervals(TEXT)] == [
        "Bloom is an album.",
        "It came out in August 2018, and sold well.",
        '"Dr. Who" is a series.',
    ]
    first, second = map(by_people, answers)
    assert first.poor == ["an album", "and sold well.", '"Dr. Who" is a series.']
    assert first.good == []
    assert first.critique == "Irrelevant: 2 passages. Wrong-Grounding: 1 passage."
    assert (second.good, second.poor) == (["Nobody knows.", "It is old."], [])
    assert second.critique == "Something that was asked for is missing."
    partly = by_people(answers[0], [(0, 18)])
    assert partly.good == ["It came out in August 2018, and sold well.", '"Dr. Who" is a series.']


def test_chance_marks_as_much_elsewhere():
    text = "A b c. D e f. G h i."

    def everywhere(marks: list[tuple[int, int]]) -> set:
        return {tuple(moved(text, marks, random.Random(seed))) for seed in range(60)}

    assert everywhere([(0, 6)]) == {((0, 6),), ((7, 13),), ((14, 20),)}
    assert everywhere([(7, 10)]) == {((0, 3),), ((7, 10),), ((14, 17),)}
    assert everywhere([(0, 13)]) == {((0, 13),), ((7, 20),)}
    assert everywhere([(4, 8)]) == {((4, 8),), ((11, 15),)}
    assert everywhere([(0, 3), (4, 6)]) == {((0, 3), (4, 6)), ((7, 10), (11, 13)), ((14, 17), (18, 20))}
    assert everywhere([(0, 6), (7, 13), (14, 20)]) == {((0, 6), (7, 13), (14, 20))}
    assert everywhere([]) == {()}


def test_chance_has_as_many_passages_and_nothing_but_the_text():
    shares = []
    for seed in range(150):
        answer = random_answer(seed)
        people, chance = by_people(answer), by_chance(answer, 1)
        assert len(chance.poor) == len(people.poor) and chance.critique == people.critique
        assert all(quote in answer.text and quote.strip() for quote in chance.poor + chance.good)
        assert chance == by_chance(answer, 1)
        shares.append(sum(map(len, chance.poor)) / sum(map(len, people.poor)))
    assert 0.85 < np.mean(shares) < 1.15
    assert sum(by_chance(random_answer(seed), 1) != by_chance(random_answer(seed), 2) for seed in range(150)) > 60


def test_the_three_sets_are_records_of_stage_two(answers):
    task, sets = get_task("ultrafeedback"), feedback_of(answers, 42)
    assert list(sets) == list(SOURCES)
    for source, by_id in sets.items():
        assert list(by_id) == ["a", "b"]
        row = annotated_record(answers[0], by_id["a"], source)
        task.check(row)
        assert task.response(row) == TEXT and task.prompt(row) == "When did Bloom come out?"
        assert task.parse_feedback(target(row, task)) == by_id["a"]
    halves = folds([random_answer(seed) for seed in range(21)], 3)
    assert [len(half) for half in halves] == [10, 11] and not {a.id for a in halves[0]} & {a.id for a in halves[1]}


def test_rows_that_cannot_be_used_are_refused(tmp_path):
    save_json(tmp_path / "x.jsonl", [{**ROWS[0], "spans": [{"start": 500, "end": 510}]}])
    with pytest.raises(InputError, match="row 0 marks 500 to 510, which holds no text"):
        load_answers(tmp_path / "x.jsonl")
    save_json(tmp_path / "x.jsonl", [{"id": "a", "response": "x"}])
    with pytest.raises(InputError, match="lacks question, spans"):
        load_answers(tmp_path / "x.jsonl")


# Agreement


def test_agreement_is_counted_by_hand():
    truth, predicted = np.array([-1, -1, 0, 0, 0]), np.array([-1, 1, 0, 1, -1])
    rows = confusion(truth, predicted).ravel().astype(float)
    # marked −1: below 0 and +1, level with −1; marked +1: above 0 and −1, level with +1
    assert auc(rows) == pytest.approx((1 + 1 + 0.5 + 0 + 0.5 + 0) / 6)
    assert called_poor(rows) == 2 / 5
    assert [measure(POOR)(rows) for measure in (precision, recall, f1)] == [0.5, 0.5, 0.5]
    for labels, worth in (([-1, -1, 0, 0, 0], 1), ([0, 0, -1, -1, -1], 0), ([2] * 5, 0.5), ([-1] * 5, 0.5)):
        assert auc(confusion(truth, np.array(labels)).ravel().astype(float)) == worth
    one_sided = confusion(np.array([-1, -1]), np.array([-1, 0])).ravel()
    assert within(np.array([rows, one_sided], dtype=float)).tolist() == [[pytest.approx(0.5), 1], [0, 0]]


def test_agreement_with_people_goes_by_their_offsets(answers):
    """A quote that stands twice marks both places; people meant one."""
    twice = MarkedAnswer("c", "q", "Say yes now. Rain fell. Say yes now. Say no.", [(24, 36)], ["Redundant"], False)
    agreement = Agreement([twice], feedback_of([twice], 42), tiny.tokenizer("byte"))
    marked = int((agreement.truth["people"][0] == -1).sum())
    counts = agreement.counts({"c": by_people(twice)})["people"]
    assert 0 < recall(POOR)(counts[0]) == 1 and precision(POOR)(counts[0]) == pytest.approx(0.5, abs=0.1)
    nothing = agreement.counts({"c": None})["people"]
    assert (auc(nothing[0]), called_poor(nothing[0]), marked > 2) == (0.5, 0, True)


def test_judges_that_learn_nothing_are_where_they_must_be():
    many = [random_answer(seed) for seed in range(60)]
    agreement = Agreement(many, feedback_of(many, 42), tiny.tokenizer("byte"))
    counts = without_training(many, agreement, 42)
    poor = {judge: called_poor(both["people"].sum(0)) for judge, both in counts.items()}
    chance = next(judge for judge in counts if judge.startswith("chance"))
    assert poor["every sentence is poor"] > 0.95 and poor[chance] == pytest.approx(poor["people's quotes"], abs=0.08)
    assert auc(counts["the program"]["program"].sum(0)) == 1
    assert auc(counts["every sentence is poor"]["people"].sum(0)) == pytest.approx(0.5, abs=0.02)
    counts |= {f"trained on {label}": counts["people's quotes"] for label in SOURCES.values()}
    assert differences(counts)["people"].value == 0
    page = page_section(counts, dict.fromkeys(SOURCES.values(), 0.5), {"training": 2.0, "judging": 1.0}, 60)
    assert "+0.00 [+0.00, +0.00] if trained on people's" in page and page.count("| trained on") == 6
    assert "60 answers" in page and "people's critiques 50 %" in page


def test_the_page_has_its_place():
    assert (ROOT / "benchmarks" / "human_critiques.md").read_text().count("<!-- human_critiques -->") == 1


def test_real_answers(shared_data):
    answers = load_answers(shared_data / "human_spans" / "qa_feedback_100.jsonl")
    sets = feedback_of(answers, 42)
    assert len(answers) == 100 and sum(len(item.poor) for item in sets["people"].values()) == 284
    assert all(len(sets["chance"][key].poor) == len(item.poor) for key, item in sets["people"].items())


@pytest.mark.slow
def test_a_study_end_to_end_and_again(run_script, tmp_path):
    """Real training and judging by a tiny random model; the second run repeats none of it."""
    rows = [{**ROWS[0], "id": f"a{i}", "question": f"When did number {i} come out?"} for i in range(4)]
    save_json(tmp_path / "people.jsonl", rows)
    (tmp_path / "page.md").write_text("<!-- human_critiques -->\n<!-- /human_critiques -->\n")
    flags = ["--data", tmp_path / "people.jsonl", "--output_dir", tmp_path / "study", "--page", tmp_path / "page.md"]
    flags += ["--model", tiny.tiny_model(tmp_path / "model"), "--epochs", "1", "--max_length", "1200"]
    flags += ["--prompt_max_length", "700"]
    first = run_script("benchmarks/human_critiques.py", *flags)
    assert first.returncode == 0, first.stderr
    page, costs = (tmp_path / "page.md").read_text(), sorted((tmp_path / "study").glob("*/cost.json"))
    assert len(costs) == 6 and "| trained on critiques by chance |" in page
    for cost in costs:
        judged, seen = load_json(cost.parent / "judged.json"), load_json(cost.parent / "training.json")
        assert len(judged) == len(seen) == 2 and not {r["prompt"] for r in judged} & {r["prompt"] for r in seen}
        assert load_json(cost)["minutes"]["training"] > 0
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "study").rglob("*.safetensors")}
    again = run_script("benchmarks/human_critiques.py", *flags)
    assert again.returncode == 0 and (tmp_path / "page.md").read_text() == page
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "study").rglob("*.safetensors")} == times
    refused = run_script("benchmarks/human_critiques.py", *flags, "--epochs", "2")
    assert refused.returncode == 2 and "choose another --output_dir" in refused.stderr
