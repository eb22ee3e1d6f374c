"""Preparing KodCode records: what is drawn, run, balanced, and remembered."""

import json
import random
from collections import Counter
from pathlib import Path

import pytest
from datasets import Dataset

from rm_data_anno.kodcode.test_case import TestCaseConfig as Config
from rm_data_anno.kodcode.test_case import balanced, draw, prepare
from text2grad.errors import InputError
from text2grad.records import load_records, output_for
from text2grad.tasks import get_task

TASK = get_task("kodcode")
SCRIPT = "rm_data_anno/kodcode/test_case.py"


def record(number: int, passes: bool = True, difficulty: str = "easy") -> dict:
    about = {"question_id": f"q{number}", "question": f"Write f that returns {number}.", "gpt_difficulty": difficulty}
    test = f"from solution import f\n\ndef test_f():\n    assert f() == {number}\n"
    return {**about, "solution": f"def f():\n    return {number if passes else -1}\n", "test": test, "log": ""}


@pytest.fixture
def data(tmp_path) -> Path:
    """12 records: of each difficulty two that pass and two that fail."""
    rows = [record(3 * i + k, i < 2, level) for i in range(4) for k, level in enumerate(("easy", "medium", "hard"))]
    path = tmp_path / "data.json"
    path.write_text(json.dumps(rows))
    return path


def test_every_record_is_run(data, run_script):
    data.write_text(json.dumps(json.loads(data.read_text())[3:9]))  # a pass and a failure of each level
    output = data.with_name("out.json")
    done = run_script(SCRIPT, "--data_path", data, "--output_path", output, "--seconds", "60")
    rows = json.loads(output.read_text())
    assert [row["question_id"] for row in rows] == [f"q{number}" for number in range(3, 9)]
    assert [row["log"]["passed"] for row in rows] == [True] * 3 + [False] * 3
    published = {"passed", "stdout", "stderr", "return_code", "error_type", "missing_modules"}
    assert all(set(row["log"]) == published for row in rows)
    assert load_records(output, TASK)
    assert "errors: AssertionError 3" in done.stdout
    assert "medium" in done.stdout

    journal = output.with_name("out.json.journal.jsonl")
    before = journal.read_text()
    run_script(SCRIPT, "--data_path", data, "--output_path", output, "--seconds", "60")
    assert journal.read_text() == before
    assert json.loads(output.read_text()) == rows


def test_answers_that_are_alike_keep_their_ids(tmp_path):
    """A policy's samples: evaluation/generate.py gives each its id, and several may be the same program."""
    answers = tmp_path / "answers.json"
    answers.write_text(json.dumps({f"q1@{sample}": record(1) for sample in range(3)}))
    for drawn, number in (({}, 3), ({"easy_samples": 2}, 2)):
        prepare(Config(str(answers), str(tmp_path / "tested.json"), **drawn))
        tested = load_records(tmp_path / "tested.json", TASK)
        assert len(tested) == number and all(tested[key]["log"]["passed"] for key in tested)
        assert set(tested) <= {f"q1@{sample}" for sample in range(3)}


def test_the_output_is_beside_its_file_or_named_after_its_data_set(data):
    assert output_for(str(data), None, "tested") == data.with_name("data.tested.json")
    assert output_for("owner/name.v2", None, "tested") == Path("name.v2.tested.json")


def test_drawing_by_difficulty(data):
    config = Config(str(data), easy_samples=2, hard_samples=1, train_samples=4)
    picked = draw(config)
    levels = Counter(row["gpt_difficulty"] for row in list(picked.values())[:3])
    assert levels == {"easy": 2, "hard": 1}
    assert len(picked) == 7
    assert list(draw(config)) == list(picked)
    assert list(draw(Config(str(data), easy_samples=2, hard_samples=1, train_samples=4, seed=1))) != list(picked)
    assert len(draw(Config(str(data)))) == 12


@pytest.mark.parametrize(("size", "passed", "failed"), [(4, 2, 2), (10, 6, 4), (5, 2, 3), (14, 10, 4), (None, 10, 4)])
def test_balance(size, passed, failed):
    rows = {str(i): {"gpt_difficulty": "easy" if i % 5 else "hard", "log": {"passed": i < 10}} for i in range(14)}
    kept = balanced(rows, size, random.Random(0))
    verdicts = Counter(row["log"]["passed"] for row in kept.values())
    assert (verdicts[True], verdicts[False]) == (passed, failed)
    assert list(kept) == [key for key in rows if key in kept]
    if size == 4:
        assert Counter(row["gpt_difficulty"] for row in kept.values()) == {"easy": 2, "hard": 2}


def test_a_record_without_tests_is_listed(tmp_path):
    path = tmp_path / "data.json"
    path.write_text(json.dumps([record(1), {**record(2), "test": ""}]))
    with pytest.raises(SystemExit, match="1"):
        prepare(Config(str(path), seconds=60))
    assert len(json.loads((tmp_path / "data.tested.json").read_text())) == 1
    assert "no 'test'" in (tmp_path / "data.tested.json.failed.json").read_text()
    prepare(Config(str(path), seconds=60, max_failures=0.5))  # so that one of them does not end a recipe
    path.write_text(json.dumps([record(1), record(2)]))
    prepare(Config(str(path), seconds=60))
    assert not (tmp_path / "data.tested.json.failed.json").exists()  # nothing has failed any more


def test_a_published_set(tmp_path, monkeypatch):
    """A folder as the hub serves it: two splits, the columns of the published set."""

    def row(number: int, passes: bool) -> dict:
        made = record(number, passes, "hard" if number % 2 else "easy")
        answer = f"```python\n{made.pop('solution')}```"
        test = made.pop("test")
        return {
            **made, "solution": "def reference(): ...", "4o_solution": answer, "test_code": test, "style": "instruct",
        }  # fmt: skip

    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    published = tmp_path / "KodCode"
    (published / "data").mkdir(parents=True)
    for split, numbers, passes in (("train", range(6), True), ("incorrect", range(6, 12), False)):
        rows = Dataset.from_list([row(number, passes) for number in numbers])
        rows.to_parquet(published / "data" / f"{split}-00000-of-00001.parquet")
    picked = draw(Config(str(published), easy_samples=1, hard_samples=2, train_samples=2))
    numbers = [int(row["question_id"][1:]) for row in picked.values()]
    assert all(number >= 6 for number in numbers[:3])
    assert all(number < 6 for number in numbers[3:])
    assert [row["gpt_difficulty"] for row in picked.values()][:3] == ["easy", "hard", "hard"]
    first = next(iter(picked.values()))
    assert first["solution"].startswith("```python")
    assert "def test_f" in first["test"]
    assert first["log"] == ""
    assert "4o_solution" not in first
    with pytest.raises(InputError, match="how many records to draw"):
        draw(Config(str(published)))
    bare = tmp_path / "without difficulties"
    bare.mkdir()
    Dataset.from_list([{"question": f"q{n}", "solution": "x = 1"} for n in range(3)]).to_parquet(bare / "train.parquet")
    assert len(draw(Config(str(bare), easy_samples=1, train_samples=2))) == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data_path": "nowhere.json"}, "no such file"),
        ({"data_path": "data.json", "output_path": "data.json"}, "not written by"),
        ({"data_path": "data.json", "workers": 0}, "--workers"),
        ({"data_path": "data.json", "easy_samples": 0}, "no record is left"),
        ({"data_path": "bad.json"}, "question"),
    ],
)
def test_mistakes_are_told_before_anything_runs(data, monkeypatch, settings, message):
    monkeypatch.chdir(data.parent)
    Path("bad.json").write_text('[{"solution": "x"}]')
    with pytest.raises(InputError, match=message):
        prepare(Config(**settings))
    assert not list(data.parent.glob("*.journal.jsonl"))
