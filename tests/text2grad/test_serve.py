"""``text2grad serve``: what goes in and out, what is refused, what a client and its critic survive."""

import gc
import inspect
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import uvicorn
from fastapi.testclient import TestClient

from tests.fault_server import bare_server
from tests.processes import Server
from text2grad.critics import load_critic, version_of
from text2grad.critics.served import TOKEN, ServedCritic
from text2grad.endpoints.client import ChatClient
from text2grad.errors import InputError, StopRunError, command
from text2grad.feedback import Feedback, FeedbackError
from text2grad.integrations.http_app import PromptHeaders, make_app
from text2grad.integrations.serve import ServeConfig, address_of, checked_token
from text2grad.integrations.service import CriticService, Limits
from text2grad.tasks import get_task

SECRET = "a-secret-that-is-long-enough"
PLAIN = get_task("plain")


def judge(prompts, responses):
    time.sleep(1 if "slow" in responses else 0.05)
    if any("poison" in response for response in responses):
        raise RuntimeError("secret: /home/someone/model")
    return [
        FeedbackError("nothing to say") if response == "silence" else Feedback(f"On {prompt}.", ["good"], ["bad"])
        for prompt, response in zip(prompts, responses, strict=True)
    ]


CRITIC = f"import time\nfrom text2grad.feedback import Feedback, FeedbackError\n\n{inspect.getsource(judge)}"


class Named:
    name, remote = "/home/someone/critic.py:judge", False

    def __call__(self, prompts, responses, records=None):
        return judge(prompts, responses)


@pytest.fixture(autouse=True)
def _no_token(monkeypatch):
    monkeypatch.delenv(TOKEN, raising=False)


@pytest.fixture
def client():
    limits = Limits(items=8, characters=1000, waiting=16, timeout=5)
    service = CriticService(Named(), PLAIN, limits)
    with TestClient(make_app(service, SECRET, 4096), headers={"Authorization": f"Bearer {SECRET}"}) as found:
        yield found


def items(*responses: str) -> dict:
    return {"items": [{"prompt": "x", "response": response} for response in responses]}


def test_feedback_has_critique_quotes_and_the_characters_they_are(client):
    text = "naïve 🐶 good, e\u0301 bad"
    (found,) = client.post("/v1/feedback", json=items(text)).json()["items"]
    assert (found["critique"], found["good"], found["poor"]) == ("On x.", ["good"], ["bad"])
    marked = [(each["label"], text[each["start"] : each["end"]]) for each in found["spans"]]
    assert marked == [("good", "good"), ("poor", "bad")]


BROKEN = [
    ({"prompt": "x", "response": "silence"}, "nothing to say"),
    ({"prompt": "x", "response": " "}, "the response is empty"),
    ({"prompt": "x", "response": "poison"}, "broke down on this item; the server's log"),
    ({"prompt": "x", "response": 3}, "'response': "),
    ({"response": "good"}, "'prompt': "),
    ("text", "the item: "),
    ({"prompt": "x", "response": "y" * 1001}, "1001 characters"),
    ({"prompt": "x", "response": "good", "other": 1}, "'other': "),
    ({"prompt": "x", "response": "good \ud800"}, "a lone surrogate"),
    ({"prompt": "x", "response": "good", "record": []}, "'record': "),
]


@pytest.mark.parametrize(("item", "message"), BROKEN)
def test_one_bad_item_costs_no_other_and_gives_nothing_away(client, item, message):
    body = json.dumps({"items": [item, {"prompt": "x", "response": "good"}]})
    answer = client.post("/v1/feedback", content=body)
    broken, fine = answer.json()["items"]
    assert message in broken["error"]
    assert fine["critique"] == "On x."
    assert "someone" not in answer.text and "RuntimeError" not in answer.text


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400), (b"{", 400), (b"\xff\xfe", 400), (b"[" * 4000, 400), (b"[]", 422), (b'{"items": []}', 422),
        (b'{"items": 3}', 422), (b'{"items": [1], "more": 1}', 422), (b'{"items": [' + b"1," * 8 + b"1]}", 413),
        (b"x" * 5000, 413), (b'{"items": [1], "n": ' + b"9" * 2000 + b"}", 400),
    ],
)  # fmt: skip
def test_garbage_is_refused_and_the_server_goes_on(client, body, status):
    answer = client.post("/v1/feedback", content=body)
    assert answer.status_code == status
    assert list(answer.json()) == ["error"]
    assert client.post("/v1/feedback", json=items("good")).status_code == 200


@pytest.mark.parametrize("header", [None, "", SECRET, f"Bearer {SECRET}x", f"bearer {SECRET}", "Bearer \u00e9"])
def test_without_the_token_only_health_answers(client, header):
    headers = {} if header is None else {"Authorization": header.encode("latin-1")}
    client.headers.pop("Authorization")
    assert client.post("/v1/feedback", json=items("good"), headers=headers).status_code == 401
    for path in ("/docs", "/openapi.json", "/nothing"):
        assert client.get(path, headers=headers).status_code == 401
    about = client.get("/health", headers=headers).json()
    assert about == {"status": "ok", "critic": "critic.py:judge", "task": "plain"}


class Slow:
    """One response at a time, and so many seconds for each."""

    name, remote = "slow", False

    def __init__(self, seconds: float):
        self.seconds, self.asked = seconds, []

    def __call__(self, prompts, responses, records=None):
        self.asked.extend(responses)
        time.sleep(self.seconds * len(responses))
        return [Feedback(f"On {response}.") for response in responses]


def test_more_than_it_takes_on_is_told_to_come_again():
    service = CriticService(Slow(0.8), PLAIN, Limits(waiting=4, timeout=0.5), window=0)
    with TestClient(make_app(service)) as found, ThreadPoolExecutor(2) as pool:
        first = pool.submit(found.post, "/v1/feedback", json=items("good", "good", "good"))
        while service.waiting < 3 and not first.done():
            time.sleep(0.01)
        second = found.post("/v1/feedback", json=items("good", "good"))
        assert (second.status_code, second.headers["Retry-After"]) == (503, "1")
        wanted = "the critic has answered nothing for 0.5 seconds"
        assert [each["error"] for each in first.result().json()["items"]] == [wanted] * 3


def test_a_host_that_others_reach_needs_a_token(monkeypatch):
    assert checked_token("127.0.0.1") is None and checked_token("localhost") is None and checked_token("::1") is None
    for host in ("0.0.0.0", "::", "10.0.0.5", "example.org"):
        with pytest.raises(InputError, match="set TEXT2GRAD_TOKEN"):
            checked_token(host)
    monkeypatch.setenv(TOKEN, SECRET)
    assert checked_token("0.0.0.0") == SECRET
    assert address_of("0.0.0.0", 8765) == f"http://{socket.gethostname()}:8765"  # 0.0.0.0 is the client itself
    assert address_of("::1", 8765) == "http://[::1]:8765"
    monkeypatch.setenv(TOKEN, "two words")
    with pytest.raises(InputError, match="printable ASCII"):
        checked_token("127.0.0.1")
    with pytest.raises(InputError, match="--critic_prompt does nothing without an endpoint"):
        ServeConfig(critic_prompt="p.txt")


def serving(folder: Path, *flags: str, task: str = "plain", critic: str = CRITIC) -> Server:
    """The real command in a process of its own."""
    file = folder / "critic.py"
    file.write_text(critic)
    command = [sys.executable, "-m", "text2grad.integrations.serve", "--task", task, "--critic", f"{file}:judge"]
    return Server([*command, "--port", "PORT", *flags], folder / "log")


def test_a_killed_server_loses_nothing_and_a_stopped_one_finishes(tmp_path, monkeypatch):
    monkeypatch.setenv(TOKEN, SECRET)
    with serving(tmp_path) as server:
        assert f"use it with --critic served:{server.url}\n" in server.log.read_text()
        critic = load_critic(f"served:{server.url}", "plain")
        assert critic.name == f"served:{server.url}#critic.py:judge"
        assert version_of(critic) == version_of(load_critic(f"{tmp_path}/critic.py:judge", "plain")) != {}
        with ThreadPoolExecutor(8) as pool:
            texts = [[f"good {client} {number}", "silence", "poison"] for client in range(8) for number in range(2)]
            answers = [pool.submit(critic, ["x"] * 3, text) for text in texts]
            time.sleep(0.4)
            server.kill()
            server.start(seconds=0)
            found = [answer.result(120) for answer in answers]
        assert [each[0] for each in found] == [Feedback("On x.", ["good"], ["bad"])] * len(texts)
        assert {str(each[1]) for each in found} == {"nothing to say"}
        assert all("server's log" in str(each[2]) and "someone" not in str(each[2]) for each in found)

        with ThreadPoolExecutor(4) as pool:
            answers = [pool.submit(critic, ["x"] * 3, ["good", "slow", "bad"]) for _ in range(4)]
            time.sleep(0.5)  # all four are asked by then, and the slow response takes a second
            server.process.terminate()
            assert server.process.wait(60) == 0
            assert all(isinstance(each, Feedback) for answer in answers for each in answer.result(60))
        log = server.log.read_text()
        assert "secret: /home/someone/model" in log and log.endswith("\nstopped; every request was answered\n")


@pytest.mark.slow
def test_a_policy_trains_with_a_served_critic_of_its_task_alone(tmp_path, monkeypatch):
    from nl_gradient_policy_optimization.optimize import optimize
    from tests.tiny_runs import rows, tiny_config

    monkeypatch.setenv(TOKEN, SECRET)
    with serving(tmp_path, task="slf5k") as server:
        optimize("slf5k", tiny_config(tmp_path, max_steps=1, critic=f"served:{server.url}"))
        logged = rows(tmp_path / "run" / "rollouts.jsonl")
        assert len(logged) == 4
        assert all(row["critique"] == f"On {row['prompt']}." or not row["response"].strip() for row in logged)
        with pytest.raises(InputError, match="serves a critic of 'slf5k', not plain"):
            load_critic(f"served:{server.url}", "plain")
        monkeypatch.setenv(TOKEN, "another-token-than-the-servers")
        critic = load_critic(f"served:{server.url}", "slf5k")
        with pytest.raises(InputError, match=r"HTTP 401.*set TEXT2GRAD_TOKEN"):
            critic(["x"], ["good"])


# A critic that is slower than its clients' time limits


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
    """Twelve clients, whose limit is half of what all twelve take together, and the critic's a third. None asks twice.

    That the critic's limit ends an item if the critic answers nobody shows the test of more than it takes on.
    """
    slow = Slow(0.25)
    service = CriticService(slow, PLAIN, Limits(timeout=1.0), window=0, batch_size=1)
    with served(service, sign_of_life=0.2) as url, ThreadPoolExecutor(12) as pool:
        critic = ServedCritic(url, PLAIN, timeout=1.5, patience=3.0)
        asked = [f"response {number}" for number in range(12)]
        given = list(pool.map(lambda response: critic(["x"], [response]), asked))
    assert given == [[Feedback(f"On {response}.")] for response in asked]
    assert sorted(slow.asked) == sorted(asked)


def test_headers_that_drip_close_their_connection_and_slow_answers_do_not(monkeypatch):
    monkeypatch.setattr(PromptHeaders, "seconds", 0.5)
    with served(CriticService(Slow(1.0), PLAIN, window=0)) as url:
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


def test_a_request_that_is_too_large_names_the_servers_flags():
    service = CriticService(Named(), PLAIN, Limits(items=1))
    with served(service) as url, pytest.raises(InputError, match="--max_items of at least 32"):
        ServedCritic(url, PLAIN)(["x"] * 2, ["good", "bad"])


def test_a_client_stops_or_asks_again_later_as_if_the_critic_were_its_own():
    class Away(Named):
        def __call__(self, prompts, responses, records=None):
            if responses[0] == "away":
                return [FeedbackError("nobody is there", passing=True)]
            if responses[0] == "dead":
                ChatClient("http://127.0.0.1:9/v1", "m", retries=0).complete([{"role": "user", "content": "?"}])
            raise StopRunError("the budget is spent")

    with served(CriticService(Away(), PLAIN, window=0)) as url:
        critic = ServedCritic(url, PLAIN)
        (given,) = critic(["x"], ["away"])
        assert given.passing and str(given) == "nobody is there"
        with pytest.raises(StopRunError, match="the served critic stops: the budget is spent"):
            critic(["x"], ["good"])
        with pytest.raises(StopRunError, match=r"the served critic stops: .*no server answers there"):
            critic(["x", "y"], ["dead", "dead"])


def test_a_late_answer_is_given_up_when_its_client_hangs_up(caplog):
    slow = Slow(0.5)
    service = CriticService(slow, PLAIN, window=0, batch_size=1)
    with served(service, sign_of_life=0.1) as url:
        port = int(url.rsplit(":", 1)[1])
        body = json.dumps(items(*map(str, range(9))))
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(f"POST /v1/feedback HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode())
            client.sendall(body.encode())
            assert client.recv(1000).startswith(b"HTTP/1.1 200")
        while service.waiting:
            time.sleep(0.05)
    assert len(slow.asked) < 5
    gc.collect()
    assert "never retrieved" not in caplog.text


def server_that_breaks_off(times: int) -> AbstractContextManager[str]:
    """It works on the request for 0.6 s, says so, and dies, so many times. Then it answers."""

    def answer(connection: socket.socket, number: int) -> None:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n \r\n")
        if 0 < number <= times:
            time.sleep(0.6)
            return
        about = b'{"task": "plain", "critic": "c"}'
        whole = b'{"items": [{"critique": "late", "good": [], "poor": []}]}' if number else about
        connection.sendall(b"%x\r\n%s\r\n0\r\n\r\n" % (len(whole), whole))

    return bare_server(answer)


def test_patience_begins_when_the_server_is_first_away():
    with server_that_breaks_off(1) as url:
        assert ServedCritic(url, PLAIN, patience=0.5)(["x"], ["good"]) == [Feedback("late")]
    with server_that_breaks_off(9) as url, pytest.raises(StopRunError, match="the answer breaks off"):
        ServedCritic(url, PLAIN, patience=0.2)(["x"], ["good"])


def test_a_signal_ends_the_wait_for_a_server_that_is_away():
    with server_that_breaks_off(99) as url:
        critic = ServedCritic(url, PLAIN, patience=10)
        threading.Timer(0.7, os.kill, (os.getpid(), signal.SIGTERM)).start()
        begun = time.monotonic()
        with pytest.raises(SystemExit, match="143"):
            command(lambda: critic(["x"], ["good"]))()
    assert time.monotonic() - begun < 5


def test_a_stuck_critic_does_not_keep_a_stopped_server_alive(tmp_path):
    stuck = "import time\ndef judge(prompt, response):\n    time.sleep(1000)\n"
    with serving(tmp_path, "--timeout", "1", critic=stuck) as server:
        (given,) = ServedCritic(server.url, PLAIN)(["x"], ["good"])
        assert "answered nothing for 1 seconds" in str(given) and given.passing
        server.process.terminate()
        assert server.process.wait(60) == 0
