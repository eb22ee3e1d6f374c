"""The critic of programs: which lines it blames, what it says, and when it will not judge."""

import json
from pathlib import Path

import pytest

from text2grad.critics.programs.kodcode.critic import CodeCritic, lint
from text2grad.errors import InputError
from text2grad.feedback import Feedback, FeedbackError
from text2grad.grounding import ground
from text2grad.sandbox import Sandbox
from text2grad.tasks import get_task
from text2grad.token_rewards import span_intervals

TASK = get_task("kodcode")


@pytest.fixture(scope="module")
def critic(box) -> CodeCritic:
    return CodeCritic(box)


def judge(critic: CodeCritic, response: str, tests: str, log: object = "") -> Feedback | FeedbackError:
    (feedback,) = judged(critic, [{"question": "Do it.", "solution": response, "test": tests, "log": log}])
    return feedback


def judged(critic: CodeCritic, records: list[dict]) -> list[Feedback | FeedbackError]:
    return critic([TASK.prompt(record) for record in records], [TASK.response(record) for record in records], records)


def wrong_lines(feedback: Feedback, response: str) -> set[int]:
    """The lines, from 1, in which a wrong span stands; every quote must ground to one place."""
    assert all(len(ground(quote, response)) == 1 for quote in feedback.poor + feedback.good)
    return lines_of(response, [response[slice(*place)] for place in span_intervals(feedback, response, TASK)[0]])


def checks(*assertions: str) -> str:
    """One test for each assertion."""
    tests = [f"def test_{number}():\n    assert {text}\n" for number, text in enumerate(assertions)]
    return "from solution import *\n\n" + "\n".join(tests)


BUGS = {
    "the wrong operator in a return": (
        "def area(w, h):\n    if w < 0 or h < 0:\n        return 0\n    return w + h\n",
        checks("area(-1, 2) == 0", "area(3, 4) == 12"), {4},
    ),
    "a branch that returns the wrong constant": (
        'def sign(x):\n    if x > 0:\n        return "plus"\n    if x < 0:\n        return "plus"\n    return "zero"\n',
        checks("sign(2) == 'plus'", "sign(0) == 'zero'", "sign(-2) == 'minus'"), {5},
    ),
    "a condition that lets the wrong cases through": (
        "def evens(numbers):\n    found = []\n    for n in numbers:\n        if n % 2 == 1:\n"
        "            found.append(n)\n    return found\n",
        checks("evens([]) == []", "evens([1, 2, 3, 4]) == [2, 4]"), {4},
    ),
    "a wrong start value": (
        "def product(numbers):\n    total = 0\n    for n in numbers:\n        total *= n\n    return total\n",
        checks("product([2, 3]) == 6", "product([]) == 1"), {2},
    ),
    "a helper that is wrong": (
        "def square(x):\n    return x * 2\n\ndef squares(xs):\n    return [square(x) for x in xs]\n\n"
        "def total(xs):\n    values = squares(xs)\n    return sum(values)\n",
        checks("total([]) == 0", "total([2, 2]) == 8", "total([3]) == 9"), {2},
    ),
    "a missing return": ("def double(x):\n    y = x * 2\n    print(y)\n", checks("double(2) == 4"), {3}),
    "a recursion without end": (
        "def fact(n):\n    if n == 0:\n        return 1\n    return n * fact(n - 1)\n",
        checks("fact(3) == 6", "fact(-1) is None"), {2, 4},
    ),
    "an unexpected raise": (
        "def root(x):\n    if x < 1:\n        raise ValueError('too small')\n    return x ** 0.5\n",
        checks("root(4) == 2", "root(0) == 0"), {2, 3},
    ),
    "no raise where one is wanted": (
        "import pytest\n\ndef root(x):\n    return abs(x) ** 0.5\n",
        "from solution import *\n\ndef test_it():\n    with pytest.raises(ValueError):\n        root(-1)\n", {4},
    ),
    "wrong parameters": ("def power(base):\n    return base ** 2\n", checks("power(2, 3) == 8"), {1}),
    "a missing name": (
        "def power_of(base, n):\n    return base ** n\n",
        "from solution import power\n\ndef test_it():\n    assert power(2, 3) == 8\n", {1},
    ),
    "a module that is not there": (
        "import nowhere_to_be_found\n\ndef one():\n    return 1\n", checks("one() == 1"), {1},
    ),
    "a line that is not Python": ("def one():\n    value one = 1\n    return value\n", checks("one() == 1"), {2}),
    "a block that is cut off": (
        "def one():\n    return 1\n\ndef two():\n    for i in range(3):", checks("one() == 1"), {5},
    ),
    "prose below the code": (
        "def one():\n    return 1\n\nHere is how it works:\n1. The function returns one.\n   - Nothing else.\n",
        checks("one() == 1"), {4, 5, 6},
    ),
    "a response of prose and a program": (
        "Multiply:\n\nreturn w + h\n\n```python\ndef area(w, h):\n    return w + h\n```\n\nIt is `return w + h`.\n",
        checks("area(3, 4) == 12"), {7},
    ),
    "lines of several blocks": (
        "First:\n```python\ndef area(w, h):\n    return w * h\n```\n"
        "Then:\n```python\ndef share(w):\n    return w / 0\n```\n",
        checks("area(3, 4) == 12", "share(2) == 1"), {9},
    ),
    "two functions, the second wrong": (
        "class Box:\n    def __init__(self, n):\n        self.n = n\n\n    def get(self):\n        return self.n\n\n"
        "    def twice(self):\n        return self.n + 1\n",
        checks("Box(2).get() == 2", "Box(2).twice() == 4"), {9},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def found(critic) -> dict[str, Feedback | FeedbackError]:
    """What the critic says of each, asked at once; between them is a response that it cannot judge."""
    records = [{"question": "Do it.", "solution": code, "test": tests, "log": ""} for code, tests, _ in BUGS.values()]
    records.insert(5, {**records[0], "solution": ""})
    says = judged(critic, records)
    assert isinstance(says.pop(5), FeedbackError)
    return dict(zip(BUGS, says, strict=True))


@pytest.mark.parametrize("name", BUGS)
def test_the_wrong_lines_are_blamed(found, name):
    code, _, expected = BUGS[name]
    assert isinstance(found[name], Feedback), found[name]
    blamed = wrong_lines(found[name], code)
    assert expected <= blamed and len(blamed) <= (1 if "```" in code else 4)


def test_an_endless_loop_is_blamed():
    code = "def count(n):\n    i = 0\n    total = 0\n    while i < n:\n        total += 1\n    return total\n"
    tests = checks("count(0) == 0", "count(3) == 3")
    feedback = judge(CodeCritic(Sandbox(seconds=3)), code, tests)
    assert wrong_lines(feedback, code) == {4}
    assert "did not end in time" in feedback.critique


def test_the_critique_cites_the_assertion_and_a_name_that_the_tests_import_is_missing(found):
    critique = found["the wrong operator in a return"].critique
    assert critique.startswith("Wrong. 1 of 2 tests fails.")
    assert "assert area(3, 4) == 12" in critique
    assert ": assert 7 == 12, where 7 = area(3, 4). The call" in critique
    assert "line 4 `return w + h`" in critique
    assert "`return w / 0` raised ZeroDivisionError" in found["lines of several blocks"].critique
    unnamed = found["a missing name"]
    assert (unnamed.missing, unnamed.score) == (["a definition of power"], -1.0)


@pytest.mark.parametrize(
    ("response", "code"),
    [
        ("Run it:\n```python\nx = 1\n```\nOutput:\n```\n1 2\n```\n", "x = 1\n"),
        ("```bash\npip install x\n```\n```py\nx = 1\n```\n", "x = 1\n"),
        ("```\nx = 1\n```\n```text\n1\n```\n", "x = 1\n"),
        ("```Python3 title='a'\nx = 1\n```\n```python\ny = 2\n```", "x = 1\n\ny = 2\n"),
        ("Run it:\n```python3.11\nx = 1\n```\n", "x = 1\n"),
        ("x = 1\n```output\n1\n```\ny = 2\n", "x = 1\n\n\ny = 2\n"),
        ("```java\nint x;\n```", "```java\nint x;\n```"),
        ("Run it:\r\n```python\r\nx = 1\r\n```\r\nIt is 1.\r\n", "x = 1\r\n"),
        ("1. Run it:\n   ```python\n   if x:\n       y = 1\n   ```\n", "if x:\n    y = 1\n"),
    ],
)
def test_the_program_in_a_response(response, code):
    """An "Output:" block would earn +1 and, joined to the program, be a syntax error; so would a list's margin."""
    assert get_task("kodcode").code(response) == code


def test_a_line_that_occurs_twice_is_quoted_where_it_is_wrong(critic):
    code = """def first(x):
    y = x + 1
    return y

def second(x):
    y = x + 1
    return y
"""
    feedback = judge(critic, code, checks("first(1) == 2", "first(2) == 3", "second(1) == 3", "second(2) == 4"))
    assert {6, 7} <= wrong_lines(feedback, code)
    assert not wrong_lines(feedback, code) & {1, 2, 3}


def test_the_verdict_is_the_share_of_tests_that_pass(critic):
    code = "def one():\n    return 1\n"
    right = Feedback("Right. All 2 tests pass. No improvements needed.", score=1.0)
    assert judge(critic, code, checks("one() == 1", "one() > 0")) == right
    assert judge(critic, code, checks("one() == 1", "one() > 0", "one() < 9", "one() == 2")).score == 0.5
    assert judge(critic, code, checks("one() == 2", "one() == 3")).score == -1.0


def test_code_that_passes_and_could_be_better(critic):
    code = """import os

def positive(x, seen=[]):
    if x > 0:
        return True
    else:
        return False
"""
    feedback = judge(critic, code, checks("positive(1) is True", "positive(-1) is False"))
    assert feedback.poor == []
    assert [quote.strip() for quote in feedback.good][:2] == ["import os", "def positive(x, seen=[]):"]
    for rule in ("F401", "B006", "SIM103"):
        assert rule in feedback.critique


def test_the_linter_takes_no_orders_from_the_code():
    (findings,) = lint(["# ruff: noqa\nimport os  # noqa\n"])
    assert [finding.rule for finding in findings] == ["F401"]


def test_a_log_that_says_passed_is_believed(critic):
    feedback = judge(critic, "def one():\n    return 2\n", checks("one() == 1"), log={"passed": True})
    assert feedback.critique.startswith("Right. The tests pass")
    again = judge(critic, "def one():\n    return 2\n", checks("one() == 1"), log={"passed": False})
    assert again.poor == ["return 2"]


@pytest.mark.parametrize(
    ("tests", "reason"),
    [
        ("", "judged by its tests"),
        ("def test_one(:\n    pass\n", "is not Python"),
        ("from solution import one\n\ndef test_one():\n    assert helper(one()) == 1\n", "'helper'"),
        ("import other_thing\n\ndef test_one():\n    assert one() == 1\n", "'other_thing'"),
        ("x = 1\n", "no test"),
        (checks("one() == 1", "open('/dev/null').read() == ''"), "the tests use open"),
    ],
)
def test_tests_that_cannot_judge(critic, tests, reason):
    feedback = judge(critic, "def one():\n    return 1\n", tests)
    assert isinstance(feedback, FeedbackError)
    assert reason in str(feedback)


def test_without_records_there_is_no_test(critic):
    results = critic(["a", "b"], ["def one(): ...", "x"])
    assert [type(result) for result in results] == [FeedbackError, FeedbackError]
    with pytest.raises(InputError):
        critic(["a"], ["b", "c"])


@pytest.mark.parametrize(
    "response", ["", " \n", "```python\n```", "# nothing here\n", "No idea, sorry.", "\x00", "((((("]
)
def test_responses_without_a_program(critic, response):
    feedback = judge(critic, response, checks("one() == 1"))
    if isinstance(feedback, Feedback):
        assert feedback.poor
        assert all(ground(quote, response) for quote in feedback.poor)
    else:
        assert "code" in str(feedback)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_real_solutions_get_the_datasets_verdicts_and_the_lines_that_a_reader_named(critic, shared_data):
    """Wherever the critic gives a verdict; and every quote stands in the response once.

    A reader named the wrong lines of 30 failures; in the others the tests, or the questions, are at fault.
    """
    records = json.loads((shared_data / "kodcode" / "solutions_with_tests.json").read_text(encoding="utf-8"))
    labels = json.loads((Path(__file__).parent / "kodcode_labels.json").read_text())["wrong_lines"]
    unjudged, shares = 0, list[float]()  # of the named lines that are blamed
    for record, says in zip(records, judged(critic, records), strict=True):
        number = record["question_id"]
        marked = lines_of(record["solution"], says.poor) if isinstance(says, Feedback) else set()
        if named := labels.get(number):
            shares.append(sum(line in marked for line in named) / len(named))
            if shares[-1] < 1:
                print(number, "named", named, "blamed", sorted(marked))
        if isinstance(says, FeedbackError):
            assert "its tests cannot judge it" in str(says)
            unjudged += 1
        else:
            assert bool(says.poor) == (record["expected"] != "pass"), number
            assert all(len(ground(quote, TASK.response(record))) == 1 for quote in says.poor + says.good)
    assert unjudged <= len(records) / 10
    assert len(shares) == len(labels) == 30 and shares.count(1) >= 26


def lines_of(response: str, quotes: list[str]) -> set[int]:
    """The numbers of the lines, from 1, of which a quote holds more than white space."""
    found: set[int] = set()
    for start, end in (place for quote in quotes for place in ground(quote, response)):
        first = response.count("\n", 0, start) + 1
        found |= {first + step for step, text in enumerate(response[start:end].split("\n")) if text.strip()}
    return found
