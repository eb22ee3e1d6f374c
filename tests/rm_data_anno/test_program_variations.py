"""Programs with one fault: the fault is where the quote says, the tests see it, and nothing else has changed."""

from __future__ import annotations

import json
import random

import pytest

from rm_data_anno.kodcode.mutations import mutations
from rm_data_anno.kodcode.variations import Made, variations
from text2grad.critics.programs.kodcode.critic import CodeCritic
from text2grad.errors import InputError
from text2grad.feedback import Feedback
from text2grad.grounding import ground
from text2grad.records import save_json
from text2grad.sandbox import Sandbox
from text2grad.sandbox.unit_tests import run_tests
from text2grad.tasks import get_task

TASK = get_task("kodcode")

COUNT = '''def count_above(values, limit=10):
    """How many values exceed the limit; “é” is in the text."""
    total = 0  # so far
    for value in values:
        if not isinstance(value, str) and value > limit:
            total += 1
    return total
'''
COUNT_TESTS = """from solution import count_above

def test_count():
    assert count_above([1, 11, 12]) == 2
    assert count_above([5, "a", 4, 6], limit=4) == 2

def test_empty():
    assert count_above([]) == 0
"""
WEAK = "def half(n):\n    if n > 1000:\n        return 0\n    return n // 2\n"
WEAK_TESTS = "from solution import half\n\ndef test_half():\n    assert half(9) == 4\n"
RECORDS = {
    "count": {"question_id": "count", "question": "Count them.", "solution": COUNT, "test": COUNT_TESTS},
    "half": {"question_id": "half", "question": "Halve it.", "solution": f"```python\n{WEAK}```", "test": WEAK_TESTS},
}


@pytest.fixture(scope="module")
def sandbox():
    return Sandbox(seconds=2)


@pytest.fixture(scope="module")
def made(sandbox):
    return variations(RECORDS, per_program=6, sandbox=sandbox)[0]


@pytest.mark.parametrize("code", [COUNT, COUNT.replace("\n", "\r\n"), COUNT.replace("    ", "\t"), WEAK])
def test_a_mutation_changes_one_line_and_says_which(code):
    found = mutations(code)
    assert len({each.text for each in found}) == len(found) > 8
    before = code.split("\n")
    for each in found:
        after = each.text.split("\n")
        line = Made(each.text, each).line
        assert [at for at, pair in enumerate(zip(before, after, strict=True), 1) if len(set(pair)) > 1] == [line]
        assert (before[line - 1].strip(), after[line - 1].strip()) == (each.was, each.now)


@pytest.mark.parametrize(
    ("code", "kind", "now"),
    [
        ("def f(a):\n    return a < 1\n", "boundary", "return a <= 1"),
        ("def f(a):\n    return (a) not  in (b)\n", "comparison", "return (a) in (b)"),
        ("def f(a):\n    return len(a) - a[0]\n", "swapped", "return a[0] - len(a)"),
        ("def f(é, b):\n    return é['ü'] + b\n", "operator", "return é['ü'] - b"),
        ("def f(n):\n    for i in range(n):\n        print(i)\n", "off by one", "for i in range(n - 1):"),
        ("def f(a):\n    if a:\n        pass\n    elif not a:\n        pass\n", "branch", "if not a:"),
        ("def f(a):\n    return a.lower()\n", "method", "return a.upper()"),
        ("def f(a):\n    return a.lower()\n", "left out", "return a"),
        ("def f(a, b):\n    return a\n", "variable", "return b"),
        ("def f(a):\n    return a\n", "dropped return", "a"),
        ("def f(a):\n    while a:\n        pass\n", "condition", "while not a:"),
    ],
)
def test_kinds_of_faults(code, kind, now):
    assert (kind, now) in {(each.kind, each.now) for each in mutations(code)}


def test_annotations_docstrings_and_what_does_not_parse_are_left_alone():
    assert mutations("def f(:\n") == mutations("") == mutations("x = '\0'\n") == []
    assert not mutations('import a\n\n@cached(1)\ndef f(x: "int < 3", y: tuple[0, 1]) -> Wrong[2]:\n    """1 < 2"""\n')


def test_the_quoted_line_is_the_changed_one_and_the_tests_fail_with_it(made):
    assert {key.partition("#")[0] for key in made} == set(RECORDS)
    wrong = 0
    for record in made.values():
        feedback, kind = TASK.feedback(record), record["annotation"]["kind"]
        code = record["solution"]
        run = run_tests(code, record["test"], Sandbox(seconds=60))
        if kind == "none":
            assert not feedback.poor and "All tests pass." in feedback.critique
            assert run.passed
            continue
        wrong += 1
        (quote,) = feedback.poor
        ((start, end),) = ground(quote, code)
        line = record["annotation"]["line"]
        assert code[:start].count("\n") + 1 == line and "\n" not in code[start:end].strip()
        assert code.split("\n")[line - 1].strip() == quote.strip()
        assert not run.passed
        assert run.failures[0].name == record["annotation"]["failed"]
        assert f"`{quote.strip()}` wrong, should be `{record['annotation']['was']}`" in feedback.critique
    assert wrong >= 8
    unseen = ("n > 1001", "n >= 1000", "return 1")  # no test notices
    codes = [record["solution"] for key, record in made.items() if key.startswith("half#")]
    assert not any(text in code for code in codes for text in unseen)


def test_the_same_seed_makes_the_same_records(made, sandbox):
    assert variations(RECORDS, per_program=6, sandbox=sandbox, workers=2)[0] == made
    assert variations(RECORDS, per_program=6, sandbox=sandbox, seed=1)[0] != made


def test_what_is_no_program_or_has_no_tests_is_left_out_with_its_reason(tmp_path, sandbox, run_script):
    bad = {
        "prose": {"question": "Q.", "solution": "I cannot do that", "test": COUNT_TESTS},
        "untested": {"question": "Q.", "solution": COUNT, "test": " "},
        "wrong": {"question": "Q.", "solution": COUNT.replace(">", "<"), "test": COUNT_TESTS},
        "broken tests": {"question": "Q.", "solution": COUNT, "test": "def test(:"},
    }
    made, left_out = variations(bad, 2, sandbox)
    assert not made
    assert left_out == {
        "prose": "the solution is no Python program",
        "untested": "it has no tests",
        "wrong": "it does not pass its tests",
        "broken tests": "it does not pass its tests",
    }
    script, out = "rm_data_anno/kodcode/variations.py", tmp_path / "out.json"
    save_json(tmp_path / "bad.json", {key: bad[key] for key in ("prose", "untested")})
    for name, text in {"bad.json": None, "empty.json": "", "none.json": "[]"}.items():
        if text is not None:
            (tmp_path / name).write_text(text)
        done = run_script(script, "--data_path", tmp_path / name, "--output_path", out)
        assert done.returncode == 2 and name in done.stderr, done.stderr
        assert "Traceback" not in done.stderr and not out.exists()


def test_the_script_writes_what_stage_2_reads(tmp_path, run_script):
    save_json(tmp_path / "programs.json", list(RECORDS.values()))
    out = tmp_path / "varied.json"
    done = run_script(
        "rm_data_anno/kodcode/variations.py", "--data_path", tmp_path / "programs.json", "--per_round", "3",
        "--critique_style", "plain", "--output_path", out,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "6 programs made from 2" in done.stdout
    for record in json.loads(out.read_text()):
        feedback = TASK.feedback(record)
        assert record["question_id"].partition("#")[0] in RECORDS
        assert feedback.critique.startswith("`") == bool(feedback.poor)


def test_a_number_below_one_is_refused(tmp_path, run_script):
    done = run_script(
        "rm_data_anno/kodcode/variations.py", "--data_path", "x", "--output_path", tmp_path / "y", "--per_program", "0"
    )
    assert done.returncode == 2 and "--per_program must be above 0" in done.stderr
    with pytest.raises(InputError):
        Sandbox(seconds=0)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_programmatic_critic_blames_the_changed_line_of_real_programs(shared_data):
    """Faults whose line is known, in 30 real programs: the critic follows the tests, and sees no original."""
    records = json.loads((shared_data / "kodcode/solutions_with_tests.json").read_text())
    questions = sorted({record["question"] for record in records})
    random.Random(0).shuffle(questions)
    chosen = {
        TASK.id_of(record): record
        for record in records
        if record["expected"] == "pass" and record["question"] in questions[:30]
    }
    made, _ = variations(chosen, per_program=4, sandbox=Sandbox(seconds=1))
    wrong = [record for record in made.values() if record["annotation"]["kind"] != "none"]
    critic = CodeCritic(Sandbox(seconds=20))
    judged = critic([each["question"] for each in wrong], [each["solution"] for each in wrong], wrong)
    found = first = blamed = written = 0
    for record, feedback in zip(wrong, judged, strict=True):
        assert isinstance(feedback, Feedback)
        code = record["solution"]
        lines = {
            number
            for quote in feedback.poor
            for start, end in ground(quote, code)[:1]
            for number in range(code[:start].count("\n") + 1, code[:end].count("\n") + 2)
            if code.split("\n")[number - 1].strip()
        }
        found += record["annotation"]["line"] in lines
        first += lines == {record["annotation"]["line"]}
        blamed += len(lines)
        written += sum(bool(line.strip()) for line in code.split("\n"))
    print(f"{len(wrong)} faults: blamed {found}, alone {first}; {blamed} of {written} lines are blamed")
    assert found >= 0.8 * len(wrong)
