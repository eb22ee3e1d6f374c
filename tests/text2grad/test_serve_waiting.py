"""``text2grad serve`` with a critic that is slower than its clients' time limits: all of them get their answers."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import uvicorn
from fastapi.testclient import TestClient

from tests.conftest import ROOT
from text2grad.critics.served import TOKEN, ServedCritic
from text2grad.errors import StopRunError
from text2grad.feedback import Feedback
from text2grad.integrations.http_app import PromptHeaders, make_app
from text2grad.integrations.service import CriticService, Limits
from text2grad.tasks import get_task

PLAIN = get_task("plain")


class Slow:
    """One response at a time, and so many seconds for each."""

    name, remote = "slow", False

    def __init__(self, seconds: float):
        self.seconds, self.asked = seconds, []

    def __call__(self, prompts, responses, records=None):
        self.asked.extend(responses)
        time.sleep(self.seconds * len(responses))
        return [Feedback(f"On {response}.") for response in responses]


@pytest.fixture(autouse=True)
def _no_token(monkeypatch):
    monkeypatch.delenv(TOKEN, raising=False)


@contextmanager
def served(service: CriticService, **options: float) -> Iterator[str]:
    """The address of a server in a thread of this process."""
    server = uvicorn.Server(uvicorn.Config(make_app(service, **options), http=PromptHeaders, log_level="error"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(30)


def test_clients_whose_turn_comes_late_are_told_that_the_server_works_and_wait():
    """Twelve clients, whose limit is half of what all twelve take together. None asks twice."""
    slow = Slow(0.25)
    service = CriticService(slow, PLAIN, {}, window=0, batch_size=1)
    with served(service, sign_of_life=0.2) as url, ThreadPoolExecutor(12) as pool:
        critic = ServedCritic(url, PLAIN, timeout=1.5, patience=3.0)
        asked = [f"response {number}" for number in range(12)]
        given = list(pool.map(lambda response: critic(["x"], [response]), asked))
    assert given == [[Feedback(f"On {response}.")] for response in asked]
    assert sorted(slow.asked) == sorted(asked)


@pytest.mark.promise("bounded_time")
def test_headers_that_drip_close_their_connection_and_slow_answers_do_not(monkeypatch):
    monkeypatch.setattr(PromptHeaders, "seconds", 0.5)
    with served(CriticService(Slow(1.0), PLAIN, {}, window=0)) as url:
        critic = ServedCritic(url, PLAIN)
        with socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), timeout=10) as dripping:
            dripping.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert dripping.recv(4096).startswith(b"HTTP/1.1 200")
            dripping.sendall(b"GET /health HTTP/1.1\r\n")
            begun = time.monotonic()
            while dripping.recv(4096):
                pass
            assert time.monotonic() - begun < 5
        assert critic(["x"], ["good"]) == [Feedback("On good.")]


def test_an_item_fails_when_the_critic_answers_nobody_not_when_many_wait_before_it():
    body = {"items": [{"prompt": "x", "response": f"response {number}"} for number in range(8)]}
    service = CriticService(Slow(0.2), PLAIN, {}, Limits(timeout=1.0), window=0, batch_size=1)
    with TestClient(make_app(service)) as client:
        found = client.post("/v1/feedback", json=body).json()["items"]
    assert [item.get("critique") for item in found] == [f"On response {number}." for number in range(8)]

    service = CriticService(Slow(0.8), PLAIN, {}, Limits(timeout=0.3), window=0, batch_size=1)
    with TestClient(make_app(service)) as client:
        found = client.post("/v1/feedback", json={"items": body["items"][:1]}).json()["items"]
    assert found == [{"error": "the critic has answered nothing for 0.3 seconds"}]


def test_a_late_answer_is_the_json_of_a_quick_one_and_is_counted_once():
    service = CriticService(Slow(0.5), PLAIN, {}, window=0)
    with TestClient(make_app(service, sign_of_life=0.1)) as client:
        late = client.post("/v1/feedback", json={"items": [{"prompt": "x", "response": "good"}]})
        metrics = client.get("/metrics").text
    assert late.status_code == 200 and late.headers["content-type"] == "application/json"
    assert late.text.startswith(" ") and json.loads(late.text)["items"][0]["critique"] == "On good."
    assert 'requests_total{path="/v1/feedback",status="200"} 1' in metrics
    assert 'request_seconds_bucket{le="0.25"} 0' in metrics and 'request_seconds_bucket{le="+Inf"} 1' in metrics


def test_a_late_answer_is_given_up_when_its_client_hangs_up():
    slow = Slow(0.5)
    service = CriticService(slow, PLAIN, {}, window=0, batch_size=1)
    with served(service, sign_of_life=0.1) as url:
        port = int(url.rsplit(":", 1)[1])
        body = json.dumps({"items": [{"prompt": "x", "response": f"response {number}"} for number in range(9)]})
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(f"POST /v1/feedback HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode())
            client.sendall(body.encode())
            assert client.recv(1000).startswith(b"HTTP/1.1 200")
        while service.waiting:
            time.sleep(0.05)
    assert len(slow.asked) < 5


@contextmanager
def server_that_breaks_off(times: int) -> Iterator[str]:
    """It works on the request for 0.6 s, says so, and dies, so many times. Then it answers."""
    listening = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        for attempt in range(times + 2):
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                about = b'{"task": "plain", "critic": "c"}'
                answer = b'{"items": [{"critique": "late", "good": [], "poor": []}]}'
                whole = about if attempt == 0 else answer
                connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n \r\n")
                if 0 < attempt <= times:
                    time.sleep(0.6)
                    continue
                connection.sendall(b"%x\r\n%s\r\n0\r\n\r\n" % (len(whole), whole))

    threading.Thread(target=run, daemon=True).start()
    with listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def test_patience_begins_when_the_server_was_last_there():
    with server_that_breaks_off(2) as url:
        assert ServedCritic(url, PLAIN, patience=0.5)(["x"], ["good"]) == [Feedback("late")]


@pytest.mark.promise("bounded_time")
def test_a_request_that_kills_the_server_again_and_again_ends_the_run():
    with server_that_breaks_off(9) as url, pytest.raises(StopRunError, match="the answer breaks off"):
        ServedCritic(url, PLAIN, patience=0.5)(["x"], ["good"])


@pytest.mark.promise("bounded_time")
def test_a_stuck_critic_does_not_keep_a_stopped_server_alive(tmp_path):
    (tmp_path / "critic.py").write_text("import time\ndef judge(prompt, response):\n    time.sleep(1000)\n")
    command = [sys.executable, "-m", "text2grad.integrations.serve", "--task", "plain", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--critic", str(tmp_path / "critic.py:judge"), "--timeout", "1"],
        cwd=ROOT, env=dict(os.environ), text=True, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        url = process.stdout.readline().rsplit("served:", 1)[1].strip()
        (given,) = ServedCritic(url, PLAIN)(["x"], ["good"])
        assert "answered nothing for 1 seconds" in str(given)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
