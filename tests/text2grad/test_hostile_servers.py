"""Servers that never come to an end, or answer what no server should: bounded time and memory, and a clear error."""

from __future__ import annotations

import json
import random
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from nl_gradient_policy_optimization.vllm_server import read_samples
from tests.fault_server import FaultServer
from tests.text2grad.test_input_fuzz import injured
from text2grad.critics import served
from text2grad.critics.served import ServedCritic
from text2grad.endpoints.client import ChatClient, ChatError
from text2grad.endpoints.http import send
from text2grad.endpoints.pacing import retry_after
from text2grad.errors import InputError, StopRunError
from text2grad.feedback import Feedback, FeedbackError
from text2grad.safety.gate import UnreadableError, read_json
from text2grad.tasks import get_task

HELLO = [{"role": "user", "content": "Hello"}]


@contextmanager
def dripping_headers() -> Iterator[str]:
    """The address of a server that sends a header's character every fifth of a second."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        try:
            connection, _ = listening.accept()
            connection.recv(1 << 16)
            for byte in b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100:
                connection.send(bytes([byte]))
                time.sleep(0.2)
        except OSError:
            return

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        listening.close()


@pytest.mark.promise("bounded_time", cases=3)
def test_headers_and_bodies_that_drip_have_an_end():
    def drip() -> Iterator[bytes]:
        for _ in range(60):
            time.sleep(0.3)
            yield b" "

    begun = time.monotonic()
    with dripping_headers() as url, pytest.raises(TimeoutError, match="within 3 seconds"):
        send(f"{url}/x", {}, timeout=1, longest=3)
    with (
        FaultServer(lambda _: "", raw=lambda _: (200, {}, drip())) as server,
        pytest.raises(TimeoutError, match="within 3 seconds"),
    ):
        send(f"{server.url}/chat/completions", {"messages": []}, timeout=1, longest=3)
    with dripping_headers() as url:
        client = ChatClient(f"{url}/v1", "m", retries=0, timeout=1)
        client._answered = True
        with pytest.raises(ChatError, match="within 3 seconds"):
            client.complete(HELLO)
    assert time.monotonic() - begun < 25


@pytest.mark.promise("bounded_time")
@pytest.mark.parametrize("status", [400, 500])
def test_the_body_of_an_error_is_read_no_further_than_its_beginning(status):
    def endless() -> Iterator[bytes]:
        while True:
            yield b"x" * (1 << 20)

    with FaultServer(lambda _: "", raw=lambda _: (status, {}, endless())) as server:
        client = ChatClient(server.url, "m", retries=0, timeout=60)
        client._answered = True
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises(ChatError, match=f"HTTP {status}"):
            client.complete(HELLO)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # kB


@pytest.mark.promise("bounded_time")
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


@pytest.mark.promise("clear_sentence", cases=1500)
def test_injured_samples_of_an_engine_are_refused():
    chance, seen = random.Random(4), {"read": 0, "refused": 0}
    choice = {"token_ids": [5, 6, 7], "logprobs": {"token_logprobs": [-1.0, -0.5, 0]}}
    whole = {"model": "m", "choices": [{"index": index, **choice} for index in (1, 0)]}
    assert read_samples(whole, 2, 8, 100) == ([[5, 6, 7]] * 2, [[-1.0, -0.5, 0]] * 2)
    for _ in range(1500):
        try:
            answer = read_json(injured(chance, json.dumps(whole)))
            ids, logprobs = read_samples(answer if isinstance(answer, dict) else {}, 2, 8, 100)
        except UnreadableError:
            seen["refused"] += 1
            continue
        assert all(0 <= token < 100 for row in ids for token in row)
        assert [len(row) for row in ids] == [len(row) for row in logprobs] and 0 < len(ids[0]) <= 8
        seen["read"] += 1
    assert min(seen.values()) > 30, seen


@pytest.mark.promise("clear_sentence", cases=1000)
def test_injured_answers_of_a_served_critic(monkeypatch):
    chance, seen = random.Random(3), {"read": 0, "refused": 0}
    whole = {"items": [{"critique": "c", "good": ["a"], "poor": ["b"]}, {"error": "x"}]}

    def answer(url: str, body: object = None, **_: object) -> bytes:
        return b'{"task": "slf5k", "critic": "\\ud800"}' if body is None else injured(chance, json.dumps(whole))

    monkeypatch.setattr(served, "send", answer)
    critic = ServedCritic("http://x", get_task("slf5k"), patience=0.0)
    critic.name.encode()
    for _ in range(1000):
        try:
            given = critic(["p", "q"], ["a b", "c"])
        except (InputError, StopRunError):
            seen["refused"] += 1
            continue
        assert len(given) == 2 and all(isinstance(each, Feedback | FeedbackError) for each in given)
        seen["read"] += 1
    assert min(seen.values()) > 30, seen
