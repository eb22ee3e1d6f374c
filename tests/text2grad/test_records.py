"""Record files: clear errors, atomic writes, and a map that a kill cannot make pay twice."""

import errno
import fcntl
import json
import os
import signal
import sys
import threading
import time
from datetime import datetime

import pytest
from datasets import Dataset, DatasetDict

from text2grad.endpoints.reply_cache import ReplyCache
from text2grad.errors import InputError, Interrupted, StopRunError, handling
from text2grad.journal import Journal, map_records
from text2grad.prompts import load_prompt
from text2grad.records import Records, check_output, check_writable, is_data_set, load_records, save_json, save_records
from text2grad.tasks import get_task

pytestmark = pytest.mark.fast

SUMMARY = {"post": "I lost my keys.", "generated_summary": "Keys are lost."}
CHAT = [{"role": "user", "content": "Hi?"}, {"role": "assistant", "content": "Hello."}]
ANSWER = {"prompt": "Hi?", "prompt_id": "p", "response": CHAT}


def write(path, content):
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("task", "content", "message"),
    [
        ("slf5k", "not json", "not JSON"), ("slf5k", "[]", "no records"), ("slf5k", "3", "an object or a list"),
        ("slf5k", SUMMARY, "is not an object"), ("kodcode", "{} {}", "name it .jsonl"),
        ("slf5k", {"t3_a": {"post": "x"}}, "'t3_a'.*no field 'generated_summary'"),
        ("slf5k", {"t3_a": {**SUMMARY, "generated_summary": " "}}, "'t3_a'.*response is empty"),
        ("slf5k", {"t3_a": {**SUMMARY, "post": 7}}, "'t3_a'.*'post' is not a text"),
        ("slf5k", f'{{"t3_a": {json.dumps(SUMMARY)}, "t3_a": {json.dumps(SUMMARY)}}}', "twice.*'t3_a'"),
        ("ultrafeedback", [ANSWER, ANSWER], "record 1.*is there twice"),
        ("ultrafeedback", [{**ANSWER, "id": "mail@2022"}, {**ANSWER, "id": "mail@2022", "response": "No."}], "rename"),
        ("ultrafeedback", [{**ANSWER, "response": 3}], "record 0.*list of messages"),
        ("kodcode", {"t3_a": SUMMARY}, "'t3_a'.*no field 'question'"),
    ],
)  # fmt: skip
def test_bad_files_name_record_and_remedy(tmp_path, task, content, message):
    path = write(tmp_path / "in.json", content)
    with pytest.raises(InputError, match=message) as error:
        load_records(path, get_task(task))
    assert str(path) in str(error.value)


@pytest.mark.parametrize("name", ["out.json", "out.jsonl", "OUT.JSONL"])
def test_shapes_survive(tmp_path, name):
    records = load_records(write(tmp_path / "in.json", [ANSWER]), get_task("ultrafeedback"))
    save_records(tmp_path / "new" / name, records)
    assert dict(load_records(tmp_path / "new" / name, get_task("ultrafeedback"))) == dict(records)
    keyed = load_records(write(tmp_path / "in.json", {"t3_é": SUMMARY}), get_task("slf5k"))
    save_records(tmp_path / "keyed.json", keyed)
    assert json.loads((tmp_path / "keyed.json").read_text(encoding="utf-8")) == {"t3_é": SUMMARY}


def test_an_object_by_id_becomes_rows_with_their_ids(tmp_path):
    given = {"a": {"post": "p", "generated_summary": "s"}, "b": {"id": "b", "post": "q", "generated_summary": "t"}}
    save_json(tmp_path / "in.json", given)
    save_records(tmp_path / "out.jsonl", load_records(tmp_path / "in.json", get_task("slf5k")))
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert rows == [{"id": "a", **given["a"]}, given["b"]]
    assert dict(load_records(tmp_path / "out.jsonl", get_task("slf5k"))) == {"a": rows[0], "b": rows[1]}
    with pytest.raises(InputError, match=r"name it \.json"):
        save_json(tmp_path / "out.jsonl", given)


@pytest.mark.parametrize(
    ("task", "answer"),
    [("ultrafeedback", ANSWER), ("kodcode", {"question_id": "p", "question": "q", "solution": "s", "test": ""})],
)
def test_equal_answers_in_rows_keep_their_numbers(tmp_path, task, answer):
    answer = answer | {"generation": {"id": "p"}}  # of the record that lent its prompt
    save_records(tmp_path / "rows.jsonl", Records({f"p@{n}": answer for n in range(2)}, tmp_path, keyed=True))
    assert list(load_records(tmp_path / "rows.jsonl", get_task(task))) == ["p@0", "p@1"]


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
    (tmp_path / "j").write_text((tmp_path / "j").read_text().rstrip("\n"))  # as some editors leave a file
    book = Journal(tmp_path / "j", {})
    book.add("c", "h", 3)
    book.close()
    book = Journal(tmp_path / "j", {})
    assert list(book.results) == ["a", "b", "c"]
    book.close()


def test_where_no_file_can_be_locked_work_goes_on_with_a_warning(tmp_path, monkeypatch, capsys):
    def unknown(*_):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", unknown)
    journal = tmp_path / "j"
    assert map_records({"a": 1}, lambda ids, values: values, journal=journal, settings={}).results == {"a": 1}
    assert f"{journal}: cannot be locked here (Function not implemented)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        ("NaN", "holds nan"), ("1e999", "holds inf"), ('"\\ud83d"', "a lone surrogate"),
        ('{"\\ud83d": 1}', "a lone surrogate"), ("1" * 5000, "5000 digits"),
        ("[" * 10_000 + "]" * 10_000, "too deeply"),
    ],
    ids=["NaN", "infinity", "half a pair", "half a pair in a name", "digits", "depth"],
)  # fmt: skip
@pytest.mark.parametrize("field", ["extra", "post"])
def test_values_that_no_output_could_hold_are_refused_before_any_work(tmp_path, extra, reason, field):
    path = tmp_path / "in.json"
    record = json.dumps({**SUMMARY, field: "HERE"}).replace('"HERE"', extra)
    path.write_text(f'{{"t3_a": {json.dumps(SUMMARY)}, "t3_b": {record}}}')
    with pytest.raises(InputError, match=reason) as refused:
        load_records(path, get_task("slf5k"))
    assert str(path) in str(refused.value)
    if "digits" not in reason and "too deeply" not in reason:
        assert "'t3_b'" in str(refused.value)
    str(refused.value).encode()


def test_a_file_with_an_id_that_occurs_twice_is_read_in_time_that_grows_with_its_length(tmp_path):
    path = tmp_path / "in.json"
    ids = [*(f"t3_{number}" for number in range(200_000)), "t3_199999"]
    path.write_text("{" + ", ".join(f'"{name}": 1' for name in ids) + "}")
    begun = time.process_time()
    with pytest.raises(InputError, match="t3_199999"):
        load_records(path, get_task("slf5k"))
    assert time.process_time() - begun < 5


DAMAGED = [
    b"broken", b"[]", b"\xff\xfe", b"\x00\x00", b"[" * 100_000, b'{"id": "a", "result": 1}',
    b'{"id": ["a"], "input": "x", "error": "e"}', b'{"id": "a", "input": "x", "error": 3}',
    b'{"id": "a", "input": "x", "result": ' + b"1" * 5000 + b"}",
    *(b'{"id": "b", "input": "x", "result": %b}' % other for other in (b"null", b"5", b"[]")),  # where it is an object
]  # fmt: skip


@pytest.mark.parametrize("line", DAMAGED)
@pytest.mark.parametrize("place", [0, 1])
def test_a_damaged_line_of_a_journal_is_named(tmp_path, line, place):
    path = tmp_path / "journal.jsonl"
    map_records({"a": {}, "b": {}}, lambda ids, values: values, journal=path, settings={})
    lines = path.read_bytes().splitlines(keepends=True)
    lines[place] = line + b"\n"
    path.write_bytes(b"".join(lines))
    with pytest.raises(InputError, match=f"line {place + 1}"):
        Journal(path, {}, result_type=dict)


@pytest.mark.parametrize(
    "line",
    [
        *DAMAGED,
        b'{"sent": "x", "bound": 1}',
        b'{"reply": 1, "key": [], "scope": "a", "value": {"text": "t", "usage": {}}}',
        b'{"reply": 1, "key": "k", "scope": "a", "value": {"text": "t", "usage": {"requests": "x"}}}',
        b'{"reply": 1, "key": "k", "scope": "a", "value": {"text": "t", "usage": {"wrong": 1}}}',
    ],
)
def test_a_damaged_line_of_the_paid_replies_is_named(tmp_path, line):
    path = tmp_path / "replies.jsonl"
    path.write_bytes(line + b"\n")
    with pytest.raises(InputError, match="line 1 is broken"):
        ReplyCache(path)


def test_a_result_that_no_file_can_hold_fails_its_record_alone(tmp_path):
    def work(ids, values):
        return [{"text": values[0]}]

    outcome = map_records({"a": "fine", "b": "\ud800"}, work, journal=tmp_path / "journal.jsonl", settings={})
    assert outcome.results == {"a": {"text": "fine"}}
    assert "a lone surrogate" in outcome.failures["b"]
    failing = map_records(
        {"a": 1}, lambda ids, values: [ValueError("x\ud800")], journal=tmp_path / "other.jsonl", settings={}
    )
    assert failing.failures == {"a": "x\ufffd"}


def test_a_name_too_long_for_the_files_beside_it_is_refused_before_any_work(tmp_path):
    for length in (241, 250, 255, 300):
        with pytest.raises(InputError, match="choose another output path"):
            check_writable(tmp_path / ("a" * (length - 5) + ".json"))
    check_writable(tmp_path / ("a" * 220 + ".json"))


class AwayError(ValueError):
    passing = True


def test_records_that_nobody_could_be_asked_about_come_again_after_the_others(tmp_path):
    asked: list[str] = []

    def work(ids, values):
        asked.extend(ids)
        if len(asked) == 3:
            raise StopRunError("away")
        return [AwayError("away") if ids == ["a"] and len(asked) < 3 else ValueError("odd") if ids == ["b"] else ids[0]]

    given = {"journal": tmp_path / "j.jsonl", "settings": {}}
    first = map_records(dict.fromkeys("abcd", 1), work, **given)
    assert (first.failures, first.stopped) == ({"a": "away", "b": "odd"}, "away")
    second = map_records(dict.fromkeys("abcd", 1), work, **given)
    assert asked[3:] == ["c", "d", "a"]
    assert (second.results, second.failures) == ({"a": "a", "c": "c", "d": "d"}, {"b": "odd"})
    map_records(dict.fromkeys("abcd", 1), work, **given)
    assert len(asked) == 6


def test_a_signal_loses_no_answer_that_one_worker_has_asked_for(tmp_path):
    """One request at a time, as for an endpoint with ``--concurrency 1``."""

    def work(ids, values):
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        time.sleep(0.6)
        return values

    def interrupted(number: int) -> None:
        raise Interrupted(number)

    with handling(interrupted), pytest.raises(Interrupted):
        map_records({"a": 1, "b": 2}, work, journal=tmp_path / "j.jsonl", settings={}, workers=1)
    book = Journal(tmp_path / "j.jsonl", {})
    assert list(book.results) == ["a"]
    book.close()


def test_a_program_replaces_what_it_wrote_and_nothing_else_also_after_a_kill(tmp_path, monkeypatch):
    path = tmp_path / "result.json"
    check_output(path)
    for value in (1, 2):
        save_json(path, value)
        check_output(path)
    monkeypatch.setattr(sys, "argv", ["/elsewhere/report.py"])
    with pytest.raises(InputError, match=r"not written by report\.py"):
        check_output(path)
    monkeypatch.undo()
    path.write_text("edited by a person")
    with pytest.raises(InputError, match="not written by"):
        check_output(path)
    copy = tmp_path / "copy.json"
    save_json(copy, 2)
    with pytest.raises(InputError, match="not written by"):
        check_output(copy)
    (tmp_path / "link.json").symlink_to(copy)  # it would be replaced, and not what it points to
    for other in ("/dev/null", tmp_path / "link.json"):
        with pytest.raises(InputError, match="not a regular file"):
            check_output(other)
    with pytest.raises(InputError, match=r"outputs are JSON; name it \.json"):
        check_output(tmp_path / "answers.csv")
    path.unlink()
    check_output(path)
    save_json(path, 3)
    with monkeypatch.context() as killed:  # between the ledger and the file
        killed.setattr(os, "replace", lambda *_: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            save_json(path, 4)
    check_output(path)
    assert json.loads(path.read_text()) == 3


@pytest.mark.parametrize("content", ["notes", '{"precious": 1}\n'])
def test_a_file_that_is_no_journal_keeps_its_content(tmp_path, content):
    mine = tmp_path / "mine"
    mine.write_text(content)
    (tmp_path / "j.jsonl").symlink_to(mine)
    for path in (mine, tmp_path / "j.jsonl"):
        with pytest.raises(InputError, match=r"is another file|line 1 is broken"):
            Journal(path, {})
    assert mine.read_text() == content


# Parquet files, folders and data sets


ROWS = [
    {"prompt": "Wie geht's? 🐶", "response": "Good.\r\nThanks.", "id": "a", "reference": None},
    {"prompt": "And now?", "response": "Bad.", "id": None, "reference": "Better."},
]
PLAIN = get_task("plain")


def filled(rows: list[dict]) -> list[dict]:
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


def test_parquet_folders_and_saved_data_sets_hold_the_same_records(tmp_path):
    data = Dataset.from_list(ROWS)
    data.to_parquet(tmp_path / "rows.parquet")
    (tmp_path / "folder").mkdir()
    data.to_parquet(tmp_path / "folder" / "train.parquet")
    data.save_to_disk(tmp_path / "saved")
    DatasetDict({"train": data.select([0]), "test": data.select([1])}).save_to_disk(tmp_path / "splits")
    for name in ("rows.parquet", "folder", "saved"):
        records = load_records(tmp_path / name, PLAIN)
        assert list(records.values()) == filled(ROWS), name
        assert next(iter(records)).startswith("a#") and not records.keyed
    assert list(load_records(f"{tmp_path}/splits", PLAIN).values()) == filled(ROWS[:1])
    assert list(load_records(f"{tmp_path}/splits#test", PLAIN).values()) == filled(ROWS[1:])


def test_what_is_no_data_set_is_named_with_its_remedy(tmp_path):
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 no table")
    nested = {**ROWS[0], "about": {"when": datetime(2026, 1, 1)}}
    Dataset.from_list([nested]).to_parquet(tmp_path / "dates.parquet")
    Dataset.from_list(ROWS).save_to_disk(tmp_path / "saved")
    (tmp_path / "empty").mkdir()
    (tmp_path / "mixed").mkdir()
    (tmp_path / "scripted").mkdir()
    (tmp_path / "scripted" / "scripted.py").touch()
    for number, row in enumerate([{"prompt": "x"}, {"other": 1}]):
        save_json(tmp_path / "mixed" / f"{number}.json", [row])
    for name, message in {
        "broken.parquet": "no Parquet file that can be read", "missing.parquet": "no such file",
        "dates.parquet": "record 0: Object of type datetime is not JSON serializable", "empty": "no data set",
        "mixed": r"no data set .Schema", "saved#test": "no data set .*it has no splits",
        "scripted#train": r"made by a script.*\(hf download .*/scripted --repo-type dataset",
    }.items():  # fmt: skip
        with pytest.raises(InputError, match=message):
            load_records(tmp_path / name, PLAIN)
    with pytest.raises(InputError, match="no data set"):
        load_records("nobody/nothing#train", PLAIN)


def test_paths_of_files_are_not_taken_for_names_on_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "records").write_text("[]")
    assert not any(map(is_data_set, ("data/records.json", "data/records", "data/none.parquet", "records", "/data/set")))
    assert is_data_set("data") and is_data_set("owner/name") and is_data_set("owner/name.v2#train")
    with pytest.raises(InputError, match="no such file"):
        load_records("data/none.json", PLAIN)


def test_files_are_known_by_their_endings_in_capitals_too_and_others_refused_by_theirs(tmp_path):
    write(tmp_path / "POSTS.CSV", "prompt,response\nHi?,Hello.\n")
    write(tmp_path / "POSTS.JSONL", '{"prompt": "Hi?", "response": "Hello."}\n\n')
    for name in ("POSTS.CSV", "POSTS.JSONL"):
        assert list(load_records(tmp_path / name, PLAIN).values()) == [{"prompt": "Hi?", "response": "Hello."}]
    (tmp_path / "posts.json.gz").write_bytes(b"\x1f\x8b")
    for name in (tmp_path / "posts.json.gz", "data/missing.TSV"):
        with pytest.raises(InputError, match=r"is not read; unpack it, or save it as \.json"):
            load_records(name, PLAIN)


def test_what_may_have_no_end_and_paths_that_no_system_takes_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    for name in ("pipe", "loop", "/".join("d" * 2000)):
        with pytest.raises(InputError, match="another output"):
            Journal(tmp_path / name, {})
    endless, unheard_of = "not a regular file", "cannot be read"
    told = {"pipe": endless, "/dev/zero": endless, "a\0b.json": unheard_of, "x" * 5000 + ".json": unheard_of}
    for name, message in told.items():
        with pytest.raises(InputError, match=message):
            load_records(tmp_path / name, PLAIN)
        with pytest.raises(InputError, match=message):
            load_prompt(tmp_path / name, ())
    with pytest.raises(InputError, match="cannot be written"):
        check_writable(tmp_path / "a\0b.json")
