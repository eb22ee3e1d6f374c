"""Record files: clear errors, atomic writes, and a map that a kill cannot make pay twice."""

import json
import signal
import subprocess
import sys
import time

import pytest

from text2grad.errors import InputError
from text2grad.journal import Journal, map_records
from text2grad.records import load_records, save_json, save_records
from text2grad.tasks import get_task

SUMMARY = {"post": "I lost my keys.", "generated_summary": "Keys are lost."}
ANSWER = {
    "prompt": "Hi?",
    "prompt_id": "p",
    "response": [{"role": "user", "content": "Hi?"}, {"role": "assistant", "content": "Hello."}],
}


def write(path, content):
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("task", "content", "message"),
    [
        ("slf5k", "not json", "not JSON"),
        ("slf5k", "", "not JSON"),
        ("slf5k", "[]", "no records"),
        ("slf5k", "{}", "no records"),
        ("slf5k", "3", "an object or a list"),
        ("slf5k", SUMMARY, "is not an object"),
        ("slf5k", {"t3_a": {"post": "x"}}, "'t3_a'.*no field 'generated_summary'"),
        ("slf5k", {"t3_a": {**SUMMARY, "generated_summary": " "}}, "'t3_a'.*response is empty"),
        ("slf5k", {"t3_a": {**SUMMARY, "post": 7}}, "'t3_a'.*'post' is not a text"),
        ("slf5k", f'{{"t3_a": {json.dumps(SUMMARY)}, "t3_a": {json.dumps(SUMMARY)}}}', "'t3_a' stands twice"),
        ("ultrafeedback", [ANSWER, ANSWER], "record 1.*stands twice"),
        ("ultrafeedback", [{**ANSWER, "response": "Hello."}], "record 0.*list of messages"),
        ("kodcode", {"t3_a": SUMMARY}, "'t3_a'.*no field 'question'"),
        ("kodcode", "{} {}", "name it .jsonl"),
    ],
)
def test_bad_files_name_record_and_remedy(tmp_path, task, content, message):
    path = write(tmp_path / "in.json", content)
    with pytest.raises(InputError, match=message) as error:
        load_records(path, get_task(task))
    assert str(path) in str(error.value)


def test_missing_file_and_bytes(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        load_records(tmp_path / "none.json", get_task("slf5k"))
    (tmp_path / "in.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(InputError, match="UTF-8"):
        load_records(tmp_path / "in.json", get_task("slf5k"))


@pytest.mark.parametrize("name", ["out.json", "out.jsonl"])
def test_shapes_survive(tmp_path, name):
    records = load_records(write(tmp_path / "in.json", [ANSWER]), get_task("ultrafeedback"))
    save_records(tmp_path / "new" / name, records)
    assert dict(load_records(tmp_path / "new" / name, get_task("ultrafeedback"))) == dict(records)
    keyed = load_records(write(tmp_path / "in.json", {"t3_é": SUMMARY}), get_task("slf5k"))
    save_records(tmp_path / "keyed.json", keyed)
    assert json.loads((tmp_path / "keyed.json").read_text(encoding="utf-8")) == {"t3_é": SUMMARY}


def test_prompts_are_read_once_and_need_no_response(tmp_path):
    path = write(tmp_path / "in.json", {"a": {"post": "x"}, "b": {"post": "x"}, "c": {"post": "y"}})
    assert list(load_records(path, get_task("slf5k"), responses=False)) == ["a", "c"]


def test_failed_write_leaves_the_old_file(tmp_path):
    path = write(tmp_path / "out.json", "old")
    with pytest.raises(TypeError):
        save_json(path, {"a": object()})
    with pytest.raises(UnicodeEncodeError):
        save_json(path, {"a": "\ud800"})
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["out.json"]
    with pytest.raises(InputError, match="is a folder"):
        save_json(tmp_path, {})
    with pytest.raises(InputError, match="folder cannot be made"):
        save_json(path / "below" / "out.json", {})
    with pytest.raises(InputError, match="cannot be written"):
        save_json("/proc/out.json", {})  # a folder that says it can be written to, and cannot


def test_map_resumes_and_retries_only_what_it_should(tmp_path):
    calls = []

    def work(ids, values):
        calls.extend(ids)
        return [ValueError("odd") if value % 2 else value * 10 for value in values]

    def run(records, **options):
        calls.clear()
        return map_records(
            records, work, journal=tmp_path / "j.jsonl", settings={"model": "m"}, batch_size=2, **options
        )

    records = {"a": 2, "b": 3, "c": 4}
    first = run(records)
    assert (first.results, first.failures, first.resumed) == ({"a": 20, "c": 40}, {"b": "odd"}, 0)
    again = run({**records, "d": 6}, workers=3)
    assert calls == ["d"]
    assert (list(again.results), again.failures, again.resumed) == (["a", "c", "d"], {"b": "odd"}, 3)
    run({**records, "c": 8})
    assert calls == ["c"]  # its input changed
    run(records, retry_failed=True)
    assert sorted(calls) == ["b", "c"]
    with pytest.raises(InputError, match=r"other settings.*'m' then, 'n' now"):
        map_records(records, work, journal=tmp_path / "j.jsonl", settings={"model": "n"})


def test_a_journal_cut_in_its_last_line_is_mended_and_one_with_two_writers_refused(tmp_path):
    book = Journal(tmp_path / "j", {})
    book.add("a", "h", {"x": 1})
    with pytest.raises(InputError, match="another run"):
        Journal(tmp_path / "j", {})
    book.close()
    with (tmp_path / "j").open("a") as file:
        file.write('{"id": "b", "input": "h", "resu')
    book = Journal(tmp_path / "j", {})
    assert book.results == {"a": ("h", {"x": 1})}
    book.add("b", "h", 2)
    book.close()
    book = Journal(tmp_path / "j", {})
    assert list(book.results) == ["a", "b"]
    book.close()
    lines = (tmp_path / "j").read_text().splitlines()
    write(tmp_path / "j", "\n".join([lines[0], "broken", *lines[1:]]) + "\n")
    with pytest.raises(InputError, match="line 2 is broken"):
        Journal(tmp_path / "j", {})


WORKER = """
import sys, time
from text2grad.journal import map_records
def work(ids, values):
    with open(sys.argv[2], "a") as log:
        log.write(ids[0] + "\\n")
    time.sleep(0.02)
    return [value + 1 for value in values]
records = {str(i): i for i in range(60)}
outcome = map_records(records, work, journal=sys.argv[1], settings={}, workers=4)
assert outcome.results == {str(i): i + 1 for i in range(60)}
"""


def test_kills_repeat_no_finished_record(tmp_path):
    journal, calls = tmp_path / "j.jsonl", tmp_path / "calls"
    command = [sys.executable, "-c", WORKER, str(journal), str(calls)]

    def size():
        return journal.stat().st_size if journal.exists() else 0

    finished_at_kill = []
    for _ in range(3):
        process, before = subprocess.Popen(command, stderr=subprocess.DEVNULL), size()
        while process.poll() is None and size() < before + 400:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
        whole = journal.read_bytes().split(b"\n")[:-1]
        finished_at_kill.append((len(calls.read_text().splitlines()), {json.loads(line).get("id") for line in whole}))
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    made = calls.read_text().splitlines()
    for count, finished in finished_at_kill:
        assert not finished & set(made[count:])
    assert set(made) == {str(i) for i in range(60)}
    assert len(made) <= 60 + 3 * 4  # at most what was in flight at each kill
