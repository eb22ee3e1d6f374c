"""Injured files and answers, and servers that never end: a clear error in bounded time, or values that can be kept."""

import json
import random
import socket
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from types import SimpleNamespace

import pytest

from nl_gradient_policy_optimization.vllm_server import read_samples
from tests.fault_server import FaultServer, bare_server
from tests.injuries import injured, read_or_refused
from text2grad.critics import served
from text2grad.critics.served import ServedCritic
from text2grad.endpoints.client import ChatClient, ChatError
from text2grad.endpoints.http import send, within
from text2grad.endpoints.pacing import retry_after
from text2grad.errors import InputError, StopRunError
from text2grad.feedback import Feedback, FeedbackError
from text2grad.records import load_records
from text2grad.safety.gate import UnreadableError, read_json
from text2grad.tasks import get_task

RECORDS = {
    "slf5k": """{"t3_a": {"post": "I lost my keys.", "generated_summary": "Keys “lost”."}}""",
    "ultrafeedback": """[{"prompt": "Hi?", "prompt_id": "p", "response":
        [{"role": "user", "content": "Hi?"}, {"role": "assistant", "content": "Hello. 🎉"}]}]""",
    "kodcode": """[{"question_id": "q", "question": "Add.", "solution": "def add(a, b): return a + b",
        "test": "def test_it(): 0"}]""",
}
ANSWER = """{"id": "1", "object": "chat.completion", "model": "m", "choices": [
    {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Hello, 🎉"}, "logprobs":
    {"content": [{"token": "a", "logprob": -1, "top_logprobs": [{"token": "a", "logprob": -1}]}]}}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}}"""


def test_a_thousand_injured_record_files(tmp_path):
    def read(chance: random.Random) -> None:
        task = chance.choice(sorted(RECORDS))
        path = tmp_path / f"records.{chance.choice(['json', 'jsonl'])}"
        text = json.dumps(json.loads(RECORDS[task]), ensure_ascii=chance.random() < 0.5)
        path.write_bytes(injured(chance, text[1:-1] if path.suffix == ".jsonl" and text[0] == "[" else text))
        records = load_records(path, get_task(task), responses=chance.random() < 0.7)
        json.dumps(dict(records), allow_nan=False, ensure_ascii=False).encode()

    read_or_refused(1000, 0, read, InputError, told=f"{tmp_path}/records.json")


def test_two_hundred_injured_answers():
    count = 200

    def answer(body: dict) -> tuple[int, dict[str, str], bytes]:
        chance = random.Random(f"0/{body['messages'][0]['content']}")
        text = json.dumps(json.loads(ANSWER), ensure_ascii=chance.random() < 0.5)
        return chance.choice([200] * 9 + [400, 500, 302, 429]), {}, injured(chance, text)

    def outcome(number: int) -> str:
        client._failed_in_a_row = 0
        begun = time.monotonic()
        try:
            reply = client.complete([{"role": "user", "content": str(number)}], logprobs=1)
        except (ChatError, StopRunError) as error:
            assert str(error)
            str(error).encode()
            return "refused"
        finally:
            assert time.monotonic() - begun < 30
        assert isinstance(reply.text, str)
        assert min(reply.usage.prompt_tokens, reply.usage.completion_tokens, reply.usage.cached_tokens) >= 0
        assert reply.usage.cost_usd > 0
        json.dumps(asdict(reply))
        return "read"

    with FaultServer(lambda _: "", raw=answer) as server, ThreadPoolExecutor(8) as pool:
        client = client_of(server.url, "gpt-4o", timeout=20, concurrency=8)
        seen = Counter(pool.map(outcome, range(count)))
        assert client.budget.spent + client.budget.lost >= client.usage.cost_usd
        assert client.usage.requests == seen["read"]
        assert len(server.requests) == count
    assert min(seen["read"], seen["refused"]) > count / 50, seen


HELLO = [{"role": "user", "content": "Hello"}]


def client_of(url: str, model: str = "m", timeout: float = 60, **options: int) -> ChatClient:
    """That gives up at once, also where nothing has answered yet."""
    client = ChatClient(url, model, retries=0, timeout=timeout, **options)
    client._answered = True
    return client


def test_headers_and_bodies_that_drip_have_an_end():
    def drip() -> Iterator[bytes]:
        for _ in range(60):
            time.sleep(0.3)
            yield b" "

    def drip_headers(connection: socket.socket, _: int) -> None:
        connection.recv(1 << 16)
        for byte in b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100:
            connection.send(bytes([byte]))
            time.sleep(0.2)

    begun = time.monotonic()
    with (
        FaultServer(lambda _: "", raw=lambda _: (200, {}, drip())) as server,
        pytest.raises(TimeoutError, match="within 1 seconds"),
    ):
        within(1, lambda: send(f"{server.url}/chat/completions", {"messages": []}, timeout=1))
    with bare_server(drip_headers) as url, pytest.raises(ChatError, match="within 3 seconds"):
        client_of(f"{url}/v1", timeout=1).complete(HELLO)
    assert time.monotonic() - begun < 25


def test_the_body_of_an_error_is_read_no_further_than_its_beginning():
    sent: list[int] = []  # megabytes

    def endless() -> Iterator[bytes]:
        while len(sent) < 1000:
            sent.append(1)
            yield b"x" * (1 << 20)

    raw = lambda _: (500, {}, endless())  # noqa: E731
    with FaultServer(lambda _: "", raw=raw) as server, pytest.raises(ChatError, match="HTTP 500"):
        client_of(server.url).complete(HELLO)
    assert 0 < len(sent) < 50  # some of them lie in the sockets' buffers


@pytest.mark.parametrize(
    "value",
    [
        "Mon, 01 Jan 99999999999999999999 00:00:00 GMT", "Mon, 01 Jan 0001 00:00:00 +2359", "Mon, 01 Jan 0001 00:00:00",
        "Fri, 31 Dec 9999 23:59:59 -2359", "nan", "-5", "1e400", "\x00", "Mon, 99 Foo 2020", "9" * 5000,
    ],
)  # fmt: skip
def test_a_wish_to_wait_that_is_none(value):
    waiting = retry_after(SimpleNamespace(response=SimpleNamespace(headers={"retry-after": value})))
    assert waiting is None or waiting >= 0


def test_injured_samples_of_an_engine_are_refused():
    choice = {"token_ids": [5, 6, 7], "logprobs": {"token_logprobs": [-1.0, -0.5, 0]}}
    whole = {"model": "m", "choices": [{"index": index, **choice} for index in (1, 0)]}
    assert read_samples(whole, 2, 8, 100) == ([[5, 6, 7]] * 2, [[-1.0, -0.5, 0]] * 2)

    def read(chance: random.Random) -> None:
        answer = read_json(injured(chance, json.dumps(whole)))
        ids, logprobs = read_samples(answer if isinstance(answer, dict) else {}, 2, 8, 100)
        assert all(0 <= token < 100 for row in ids for token in row)
        assert [len(row) for row in ids] == [len(row) for row in logprobs] and 0 < len(ids[0]) <= 8

    read_or_refused(1500, 4, read, UnreadableError)


def test_injured_answers_of_a_served_critic(monkeypatch):
    whole = {"items": [{"critique": "c", "good": ["a"], "poor": ["b"]}, {"error": "x"}]}
    sent = {"/health": b'{"task": "slf5k", "critic": "\\ud800"}'}
    monkeypatch.setattr(served, "send", lambda url, body=None, **_: sent["/health" if body is None else "/feedback"])
    critic = ServedCritic("http://x", get_task("slf5k"), patience=0.0)
    critic.name.encode()

    def read(chance: random.Random) -> None:
        sent["/feedback"] = injured(chance, json.dumps(whole))
        given = critic(["p", "q"], ["a b", "c"])
        assert len(given) == 2 and all(isinstance(each, Feedback | FeedbackError) for each in given)

    read_or_refused(1000, 3, read, InputError, StopRunError)
