"""Published data become parts that share no prompt, unless the paper's do; questions say what their tests use."""

from __future__ import annotations

import json
import random

import pytest

from recipes.code_questions import QuestionsConfig, declarations, questions
from recipes.published import read_published
from recipes.splits import SplitsConfig, split
from text2grad.errors import InputError
from text2grad.records import load_json, load_records, save_json
from text2grad.tasks import get_task

PARTS = ("sft", "reward_model", "policy", "evaluation")


def binarized(count: int) -> list[dict]:
    """Rows as the hub's UltraFeedback-binarized has them."""

    def chat(prompt: str, answer: str) -> list[dict]:
        return [{"content": prompt, "role": "user"}, {"content": answer, "role": "assistant"}]

    scores = {"messages": [], "score_chosen": 8.0, "score_rejected": 2.0}
    rows = []
    for n in range(count):
        asked = f"Question {n}?"
        answers = {"chosen": chat(asked, f"Answer {n}."), "rejected": chat(asked, "No.")}
        rows.append({"prompt": asked, "prompt_id": f"p{n}", **answers, **scores})
    return rows


def config(folder, task="ultrafeedback", rows=None, **settings) -> SplitsConfig:
    folder.mkdir(exist_ok=True)
    path = folder / "data.json"
    path.write_text(json.dumps(binarized(100) if rows is None else rows))
    defaults = {"data_path": str(path), "output_dir": str(folder / "parts"), "evaluation_records": 10}
    return SplitsConfig(task=task, **{**defaults, **settings})


def prompts(folder, task="ultrafeedback") -> dict[str, set[str]]:
    known = get_task(task)
    parts = {part: load_records(folder / "parts" / f"{part}.json", known, responses=False) for part in PARTS}
    return {part: {known.prompt(record) for record in records.values()} for part, records in parts.items()}


def test_ultrafeedback_is_dealt_thirty_fifty_twenty(tmp_path):
    about = split(config(tmp_path))
    parts = prompts(tmp_path)
    assert [len(parts[name]) for name in PARTS] == [27, 45, 18, 10]
    assert len(set.union(*parts.values())) == 100 and about["shared"] == []
    records = load_records(tmp_path / "parts" / "reward_model.json", get_task("ultrafeedback"))
    assert len(records) == 90 == about["parts"]["reward_model"]["records"]
    assert sorted({(r["is_chosen"], r["score"]) for r in records.values()}) == [(False, 2.0), (True, 8.0)]
    save_json(tmp_path / "one.json", [{**binarized(1)[0], "chosen": []}])
    (record,) = read_published(str(tmp_path / "one.json"), get_task("ultrafeedback"))
    assert not record["is_chosen"]


def test_a_fifth_is_held_out_where_no_number_is_asked_for(tmp_path):
    split(config(tmp_path, evaluation_records=None))
    assert len(prompts(tmp_path)["evaluation"]) == 20


def test_neither_the_order_of_the_file_nor_its_spelling_moves_a_prompt(tmp_path):
    split(config(tmp_path))
    before = prompts(tmp_path)
    shuffled = random.Random(1).sample(binarized(100), 100)
    split(config(tmp_path / "again", rows=shuffled))
    assert prompts(tmp_path / "again") == before
    split(config(tmp_path / "other", seed=7))
    assert prompts(tmp_path / "other") != before


def test_slf5k_shares_its_posts_as_in_the_paper_unless_told_otherwise(tmp_path):
    rows = [
        {"id": f"t3_{n}", "post": f"Post {n}.", "title": None, "generated_summary_for_feedback": f"Summary {n}.",
         "ideal_human_summary": f"S{n}."} for n in range(50)
    ]  # fmt: skip
    about = split(config(tmp_path, "slf5k", rows))
    parts = prompts(tmp_path, "slf5k")
    assert parts["sft"] == parts["reward_model"] == parts["policy"] and len(parts["sft"]) == 40
    assert not parts["sft"] & parts["evaluation"] and len(about["shared"]) == 3
    (record, *_) = load_records(tmp_path / "parts" / "sft.json", get_task("slf5k")).values()
    assert record["generated_summary"].startswith("Summary") and "title" not in record
    apart = split(config(tmp_path / "apart", "slf5k", rows, shares=[0.3, 0.5, 0.2]))
    assert apart["shared"] == [] and [apart["parts"][name]["prompts"] for name in PARTS] == [12, 20, 8, 10]


def test_a_policy_set_of_its_own_takes_its_prompts_from_no_other_part(tmp_path):
    def rows(numbers, **more):
        return [{"question_id": f"q{n}", "question": f"Write f{n}.", "test": "assert True", **more} for n in numbers]

    (tmp_path / "policy.json").write_text(json.dumps(rows(range(40, 60), test_code="assert 1")))
    graded = rows(range(50), solution="def f(): pass", log={"passed": True})
    about = split(config(tmp_path, "kodcode", graded, policy_path=str(tmp_path / "policy.json"), evaluation_records=5))
    parts = prompts(tmp_path, "kodcode")
    assert about["left_out"] == {"policy": 10} and about["shared"] == []
    assert [len(parts[name]) for name in PARTS] == [7, 28, 20, 5]


def test_the_papers_shares_of_sft_and_reward_model_hold_beside_a_policy_set(tmp_path):
    save_json(tmp_path / "policy.json", binarized(120)[100:])
    split(config(tmp_path, policy_path=str(tmp_path / "policy.json"), evaluation_records=20))
    assert [len(found) for found in prompts(tmp_path).values()] == [30, 50, 20, 20]


def test_the_manifest_notices_other_settings_and_changed_files(tmp_path):
    first = split(config(tmp_path))
    assert split(config(tmp_path)) == first
    with pytest.raises(InputError, match=r"manifest.json: was made with other settings.*choose another --output_dir"):
        split(config(tmp_path, seed=1))
    path = tmp_path / "parts" / "policy.json"
    path.write_text(path.read_text().replace("Question", "Request", 1))
    with pytest.raises(InputError, match=r"policy.json: was changed since manifest.json was written"):
        split(config(tmp_path))


def test_what_cannot_be_dealt_is_named(tmp_path):
    with pytest.raises(InputError, match=r"leave none for .*; give more"):
        split(config(tmp_path, rows=binarized(2)))
    for shares, policy_path in [([0.5, 0.5], ""), ([0.3, 0.4, 0.3], "policy.json")]:
        with pytest.raises(InputError, match="give 3 shares, or 2 where there is a --policy_path"):
            split(config(tmp_path, shares=shares, policy_path=policy_path))
    broken = binarized(3)
    del broken[1]["score_chosen"]
    with pytest.raises(InputError, match=r"data.json: record 1: has no field 'score_chosen'"):
        split(config(tmp_path, rows=broken))
    with pytest.raises(InputError, match=r"data.json: holds int"):
        split(config(tmp_path, rows=5))
    save_json(tmp_path / "policy.json", binarized(200))
    with pytest.raises(InputError, match=r"policy.json: was not written by"):  # its own input
        split(config(tmp_path, policy_path=str(tmp_path / "policy.json"), output_dir=str(tmp_path)))
    assert len(load_json(tmp_path / "policy.json")) == 200
    with pytest.raises(InputError, match="nowhere"):
        read_published(str(tmp_path / "nowhere"), get_task("slf5k"))


CODE = '''
import math

class Node:
    """A node."""
    def __init__(self, value=0, next=None):
        self.value = value

def helper(x):
    return x

def total(values: list[int], *, start: int = 0) -> int:
    return sum(values) + start
'''


def record(number: int, question: str, name: str, passed: bool = True) -> dict:
    program = f"def {name}(x):\n    return x\n"
    test = f"from solution import {name}\n\ndef test_it():\n    assert {name}(1) == 1\n"
    judged = {"solution": program, "test": test, "log": {"passed": passed}}
    return {"question_id": f"q{number}", "question": question, **judged}


def test_declarations_are_what_the_tests_use():
    tests = "from solution import total, Node\n\ndef helper(): 0\n\ndef test_it():\n    assert total([1]) == helper()\n"
    assert declarations(CODE, tests) == {
        "Node": "class Node:\n    def __init__(self, value=0, next=None): ...",
        "total": "def total(values: list[int], *, start: int=0) -> int: ...",
    }
    assert list(declarations(CODE, "def test_it():\n    assert helper(1) == 1")) == ["helper"]  # without an import
    assert declarations(CODE, "from solution import total, absent") == {}


def test_parts_share_no_question_and_no_name(tmp_path):
    rows = [record(n, f"Question {n}", f"name_{n // 2}") for n in range(12)]
    rows += [record(20, "Question 0", "name_0"), record(21, "Nobody solved it", "other", passed=False)]
    rows.append({name: value for name, value in record(22, "Without a test", "bare").items() if name != "test"})
    save_json(tmp_path / "tested.json", rows)
    config = QuestionsConfig(data_path=str(tmp_path / "tested.json"), output_dir=str(tmp_path), test_questions=4)
    train, test = questions(config)
    assert len(train) == 8 and len(test) == 4
    assert load_json(tmp_path / "train.json") == train and load_json(tmp_path / "test.json") == test
    told = [{row["question"].split("```python\n")[1] for row in part} for part in (train, test)]
    assert not told[0] & told[1] and len(told[1]) == 2
    save_json(tmp_path / "tested.json", rows[::-1])
    for part, again in zip((train, test), questions(config), strict=True):  # by name and seed, not by place
        assert sorted(row["question"] for row in again) == sorted(row["question"] for row in part)
    config.test_questions = 12
    with pytest.raises(InputError, match="none to train on"):
        questions(config)
