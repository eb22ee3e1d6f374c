"""Answers that no server should give: one record fails with a reason, the others are annotated, a resume goes on."""

import contextlib
import json
import threading
import time

import pytest

from rm_data_anno.annotate import annotate
from tests.annotation_runs import judge, posts, read, record_of, setting, unfinished
from tests.fault_server import FaultServer
from tests.processes import full
from text2grad.endpoints.client import ChatClient, ChatError
from text2grad.errors import InputError, StopRunError

LONG = "1" * 5000
SECRET = "sk-a-key-of-the-usual-length-0123456789"


def answer_with(body: dict, **changes: object) -> dict:
    """A well-formed completion whose parts are replaced."""
    message = {"role": "assistant", "content": judge(body)} | changes.pop("message", {})
    choice = {"index": 0, "finish_reason": "stop", "message": message} | changes.pop("choice", {})
    usage = {"prompt_tokens": 10, "completion_tokens": 5} | changes.pop("usage", {})
    return {"id": "1", "object": "chat.completion", "model": "m", "choices": [choice], "usage": usage} | changes


def completion(**changes: object):
    return lambda body: json.dumps(answer_with(body, **changes)).encode()


def content(change):
    return lambda body: json.dumps(answer_with(body, message={"content": change(judge(body))})).encode()


BODIES = {
    "depth": lambda body: b"[" * 200_000,
    "digits": lambda body: b'{"choices": [], "created": ' + LONG.encode() + b"}",
    "not UTF-8": lambda body: json.dumps(answer_with(body)).encode().replace(b"Dog", b"\xff\xfe"),
    "cached is a text": completion(usage={"prompt_tokens_details": {"cached_tokens": "9"}}),
    "logprobs are texts": completion(choice={"logprobs": {"content": ["a"]}}),
    "digits in the reply": content(lambda text: text.replace('"reasoning"', f'"n": {LONG}, "reasoning"')),
    "half pair in a key": content(lambda text: text.replace('"reasoning"', '"\\ud800": 1, "reasoning"')),
    "half pair in the reasoning": content(lambda text: text.replace("The post is", "The post \\ud83d is")),
    "two megabytes of braces": content(lambda text: '{"' * 1_000_000),
}


@pytest.mark.parametrize("name", BODIES)
def test_one_odd_answer_fails_one_record_and_a_resume_moves_on(tmp_path, name):
    def raw(body: dict):
        return (200, {}, BODIES[name](body)) if record_of(body) == "t3_2" else None

    begun = time.monotonic()
    with FaultServer(judge, raw=raw) as server:
        try:
            annotate("slf5k", setting(tmp_path, server, posts(6), retries=0))
        except SystemExit as ended:
            assert ended.code == 1
            (failed,) = read(tmp_path, ".failed.json").values()
            assert failed
            assert len(read(tmp_path)) == 5
        else:
            assert len(read(tmp_path)) == 6
    assert time.monotonic() - begun < 30
    with FaultServer(judge) as server:
        annotate("slf5k", setting(tmp_path, server, posts(6), retry_failed=True))
        assert len(server.requests) <= 1
    assert len(read(tmp_path)) == 6


def test_a_refusal_is_a_failure_and_not_argued_with(tmp_path):
    refusal = completion(message={"content": None, "refusal": "I cannot judge dogs."})
    with FaultServer(judge, raw=lambda body: (200, {}, refusal(body))) as server:
        unfinished(setting(tmp_path, server, posts(1)))
    assert len(server.requests) == 1
    assert "refused to judge" in read(tmp_path, ".failed.json")["t3_0"]


def test_prompts_are_not_sent_on_to_another_host():
    with FaultServer(lambda body: "stolen") as other:
        raw = lambda body: (307, {"Location": f"{other.url}/chat/completions"}, b"")  # noqa: E731
        with FaultServer(judge, raw=raw) as server:
            client = ChatClient(server.url, "m", retries=0)
            with pytest.raises(ChatError, match="sends requests on to http"):
                client.complete([{"role": "user", "content": "secret post"}])
        assert other.requests == []


@pytest.mark.parametrize("key", ["x", "EMPTY", "ran"])
def test_a_dummy_key_does_not_eat_the_replies(tmp_path, monkeypatch, key):
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with FaultServer(judge) as server:
        annotate("slf5k", setting(tmp_path, server, posts(2)))
        assert len(server.requests) == 2
    record = read(tmp_path)["t3_1"]
    assert (record["good_spans"], record["poor_spans"]) == (["Dog 1 ran off"], ["what now?"])
    assert record["textual_feedback"] == "It says that the dog 1 ran off, but 'what now?' is vague."


@pytest.mark.parametrize("key", ["clé-0123456789abcdef", "sk-\x00"])
def test_a_key_that_cannot_be_sent_is_an_input_error(key):
    with pytest.raises(InputError, match="OPENAI_API_KEY"):
        ChatClient("http://127.0.0.1:1/v1", "m", api_key=key)


def test_a_key_as_the_models_name_is_sent_and_written_nowhere(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    with FaultServer(judge) as server:
        for key in (SECRET, f"openai:{SECRET}"):
            with pytest.raises(InputError, match="OPENAI_API_KEY") as refused:
                annotate("slf5k", setting(tmp_path, server, posts(2), model=key))
            assert SECRET not in str(refused.value)
        assert not server.requests
    assert [path.name for path in tmp_path.iterdir()] == ["in.json"]


def test_a_password_in_an_address_is_written_nowhere(tmp_path, capsys):
    with FaultServer(judge) as server:
        address = server.url.replace("http://", "http://me:hunter2@")
        annotate("slf5k", setting(tmp_path, server, posts(2), base_url=address))
    assert len(read(tmp_path)) == 2
    with pytest.raises(InputError) as dead:
        annotate("slf5k", setting(tmp_path, server, posts(3), base_url=address, retries=0))
    streams = capsys.readouterr()
    shown = [str(dead.value), streams.out, streams.err]
    shown += [path.read_text() for path in tmp_path.iterdir() if path.name != "in.json"]
    assert all("hunter2" not in text for text in shown)


def test_counts_that_are_none_do_not_raise_the_budget():
    answer = completion(usage={"completion_tokens": -(10**6)})
    with FaultServer(judge, raw=lambda body: (200, {}, answer(body))) as server:
        client = ChatClient(server.url, "gpt-4o", max_cost_usd=0.05, max_tokens=1000)
        with pytest.raises(StopRunError, match="--max_cost_usd"):
            for number in range(40):
                client.complete([{"role": "user", "content": f"Post number {number} \n<summary>\na; b\n</summary>"}])
    assert len(server.requests) < 5
    assert client.budget.spent > 0


def test_a_full_disk_stops_the_run_with_a_message_and_nothing_is_paid_twice(small_disk, capsys):
    """Once before a request is sent, once while replies come in; then room is made."""
    disk = small_disk(6)
    ballast = disk / "ballast"
    with FaultServer(judge, on_request=lambda body: time.sleep(0.01)) as server:
        ballast.write_bytes(b"x" * (5 << 20))
        with pytest.raises(SystemExit):
            annotate("slf5k", setting(disk, server, posts(20), timeout=60.0))
        assert server.requests == []
        assert "the disk is full" in capsys.readouterr().err

        ballast.write_bytes(b"x" * (3 << 20))

        def fill(body: dict) -> None:
            if len(server.requests) == 5:
                threading.Timer(2.0, full(disk).unlink, kwargs={"missing_ok": True}).start()

        server.on_request = fill
        with contextlib.suppress(SystemExit, InputError):
            annotate("slf5k", setting(disk, server, posts(20), timeout=60.0, concurrency=2))
        ballast.unlink()
        server.on_request = lambda body: None
        with contextlib.suppress(SystemExit, InputError):
            annotate("slf5k", setting(disk, server, posts(20), timeout=60.0))
        assert len(read(disk)) == 20
        assert len(server.requests) == 20
