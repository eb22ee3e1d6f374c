"""Questions say what their tests use, are solvable, and lie in one part by name."""

from __future__ import annotations

import pytest

from recipes.code_questions import QuestionsConfig, declarations, questions
from text2grad.errors import InputError
from text2grad.records import load_json, save_json

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
    return {
        "question_id": f"q{number}",
        "question": question,
        "solution": f"def {name}(x):\n    return x\n",
        "test": f"from solution import {name}\n\ndef test_it():\n    assert {name}(1) == 1\n",
        "log": {"passed": passed},
    }


def test_declarations_are_what_the_tests_use():
    tests = (
        "from solution import total, Node\n\ndef helper(): ...\n\ndef test_it():\n    assert total([1]) == helper(1)\n"
    )
    assert declarations(CODE, tests) == {
        "Node": "class Node:\n    def __init__(self, value=0, next=None): ...",
        "total": "def total(values: list[int], *, start: int=0) -> int: ...",
    }
    assert list(declarations(CODE, "def test_it():\n    assert helper(1) == 1")) == ["helper"]  # without an import
    assert declarations(CODE, "from solution import total, absent") == {}


def test_parts_share_no_question_and_no_name(tmp_path):
    rows = [record(n, f"Question {n}", f"name_{n // 2}") for n in range(12)]
    rows += [record(20, "Question 0", "name_0"), record(21, "Nobody solved it", "other", passed=False)]
    save_json(tmp_path / "tested.json", rows)
    config = QuestionsConfig(data_path=str(tmp_path / "tested.json"), output_dir=str(tmp_path), test_questions=4)
    train, test = questions(config)
    assert len(train) == 8 and len(test) == 4
    assert load_json(tmp_path / "train.json") == train and load_json(tmp_path / "test.json") == test
    told = [{row["question"].split("```python\n")[1] for row in part} for part in (train, test)]
    assert not told[0] & told[1] and len(told[1]) == 2
    save_json(tmp_path / "tested.json", rows[::-1])
    again = questions(config)  # by its name and the seed, not by its place
    assert [sorted(row["question"] for row in part) for part in again] == [
        sorted(row["question"] for row in part) for part in (train, test)
    ]
    config.test_questions = 12
    with pytest.raises(InputError, match="none to train on"):
        questions(config)
