"""Annotation as a process of its own: killed, interrupted, read by nobody, and with a real model behind a server."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.annotation_runs import judge, posts, read, record_of, rows, start
from tests.fault_server import FAULTS, FaultServer
from tests.processes import Server, all_said, flags
from text2grad.models import model_path


def test_ctrl_c_ends_cleanly_and_keeps_what_was_paid_for(tmp_path):
    secret = "sk-of-the-user"
    (tmp_path / "in.json").write_text(json.dumps(posts(30)))
    with FaultServer(judge, key=secret, on_request=lambda body: time.sleep(0.1)) as server:
        process = start(tmp_path, server, "--concurrency", "4", OPENAI_API_KEY=secret)
        while len(server.requests) < 10:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        said = all_said(process, 130, timeout=30)
        assert "run the same command again" in said and "Traceback" not in said
        asked = len(server.requests)
        assert asked < 22
        assert not (tmp_path / "out.json").exists()

        process = start(tmp_path, server, "--concurrency", "4", OPENAI_API_KEY=secret)
        said += all_said(process, timeout=60)
        assert len(server.requests) == 30
    assert list(read(tmp_path)) == list(posts(30))
    assert all(secret not in text for text in [said, *(path.read_text() for path in tmp_path.iterdir())])


def test_faults_and_kills_lose_nothing_and_repeat_nothing(tmp_path):
    """Every kind of fault, at a fifth of the requests, and a process that is killed again and again."""
    chance, count, kills = random.Random(1), 60, 2
    (tmp_path / "in.json").write_text(json.dumps(posts(count)))
    journal = tmp_path / "out.json.journal.jsonl"
    args = ("--concurrency", "8", "--timeout", "1", "--retries", "4")
    pause = lambda body: time.sleep(0.1)  # noqa: E731
    with FaultServer(judge, faults=FAULTS, rate=0.2, seed=1, stall=1.5, retry_after=0.3, on_request=pause) as server:
        for attempt in range(kills + 1):
            finished = {row["id"] for row in rows(journal) if "id" in row}
            before = len(server.requests)
            process = start(tmp_path, server, *args)
            if attempt < kills:
                while len(server.requests) == before and process.poll() is None:
                    time.sleep(0.01)
                time.sleep(chance.uniform(0.0, 0.9))
                process.send_signal(signal.SIGKILL)
            said = process.communicate(timeout=300)[0]
            time.sleep(0.3)  # requests of the dead process that are still being answered
            assert not finished & {record_of(body) for body in server.requests[before:]}
        assert process.returncode in (0, 1) and "Traceback" not in said, said
    assert set(server.faults_made) == set(FAULTS)
    paid = [row["key"] for row in rows(tmp_path / "out.json.replies.jsonl") if "reply" in row]
    assert len(paid) == len(set(paid))
    assert len(server.requests) - len(paid) <= 8 * kills + sum(server.faults_made.values())  # what was on its way
    annotated = read(tmp_path)
    failed = read(tmp_path, ".failed.json") if process.returncode else {}
    assert set(annotated) | set(failed) == set(posts(count))
    assert not set(annotated) & set(failed) and all(failed.values())
    for key, record in annotated.items():
        quotes = record["good_spans"], record["poor_spans"]
        assert quotes == ([f"Dog {key.removeprefix('t3_')} ran off"], ["what now?"])


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_run_goes_on_when_nobody_reads_what_it_says(tmp_path, unbuffered):
    (tmp_path / "in.json").write_text(json.dumps(posts(40)))
    with FaultServer(judge, on_request=lambda body: time.sleep(0.05)) as server:
        run = start(tmp_path, server, PYTHONUNBUFFERED=unbuffered)
        while not server.requests:
            time.sleep(0.05)
        run.stdout.close()
        assert run.wait(120) == 0
    assert len(read(tmp_path)) == 40


def test_closed_streams_and_an_old_encoding(tmp_path):
    folder = tmp_path / "é"
    folder.mkdir()
    (folder / "in.json").write_text(json.dumps(posts(2)))
    with FaultServer(judge) as server:
        run = start(folder, server, PYTHONIOENCODING="ascii")
        said = all_said(run)
        assert "2 of 2 records annotated" in said and "\\xe9" in said
        (folder / "out.json").unlink()
        (folder / "in.json").write_text(json.dumps(posts(3)))
        again = subprocess.Popen(run.args, preexec_fn=lambda: (os.close(1), os.close(2)))
        assert again.wait(120) == 0
    assert len(read(folder)) == 3


LINE = '{"poor_spans": ["a"], "textual_feedback": "This is good: ${response}", "good_spans": ["${response}"]}\n'
EASY_PROMPT = "${prompt}\n\nRepeat this JSON exactly, and write nothing else:\n" + 3 * LINE
"""What even 135M parameters can do."""


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_real_model_behind_transformers_serve(tmp_path):
    """Each record is annotated, by exact quotes, or listed as failed."""
    records, model = posts(6), model_path("smollm2")
    (tmp_path / "in.json").write_text(json.dumps(records))
    (tmp_path / "easy.txt").write_text(EASY_PROMPT)
    serve = [Path(sys.executable).with_name("transformers"), "serve", model, "--host", "127.0.0.1"]
    serve += ["--port", "PORT", "--device", "cpu", "--dtype", "bfloat16"]
    given = flags(model=model, prompt=tmp_path / "easy.txt", max_tokens=120, timeout=600, concurrency=2)
    with Server(serve, tmp_path / "log.txt", HF_HUB_OFFLINE="1") as server:
        server.url += "/v1"
        run = start(tmp_path, server, *given)
        said = run.communicate(timeout=3000)[0]
    assert "Traceback" not in said
    kept, failed = read(tmp_path), read(tmp_path, ".failed.json") if run.returncode else {}
    print(f"\n{len(kept)} annotated, {len(failed)} failed")
    assert sorted([*kept, *failed]) == sorted(records) and all(failed.values())
    assert len(kept) >= len(records) // 2
    for record in kept.values():
        assert all(span in record["generated_summary"] for span in record["good_spans"] + record["poor_spans"])
    assert len(records) <= read(tmp_path, ".report.json")["paid"]["requests"] <= 2 * len(records)
