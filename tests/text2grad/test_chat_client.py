"""The client of OpenAI-compatible endpoints, against a server that misbehaves as told."""

import io
import json
import logging
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.fault_server import FaultServer
from text2grad.critics import load_critic
from text2grad.critics.asking import feedback_on
from text2grad.critics.chat import ChatCritic
from text2grad.critics.quote_grammar import quote_grammar
from text2grad.endpoints.client import ChatClient, ChatError, ChatRequest, endpoint_of
from text2grad.endpoints.reply_cache import ReplyCache
from text2grad.endpoints.spending import Usage, load_price
from text2grad.errors import InputError, StopRunError, handling
from text2grad.feedback import Feedback
from text2grad.models.answering import AnsweringConfig, SamplingConfig, ServedPolicy
from text2grad.tasks import get_task

HELLO = [{"role": "user", "content": "hello"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}


def echo(body: dict) -> str:
    return f"you said {body['messages'][-1]['content']}"


def client_of(server: FaultServer, **options) -> ChatClient:
    return ChatClient(server.url, options.pop("model", "some-model"), **{"timeout": 2.0, **options})


def test_a_reply_with_its_usage_and_no_key_needed():
    with FaultServer(echo) as server:
        client = client_of(server, max_tokens=50, temperature=0.5)
        reply = client.complete(HELLO, SCHEMA, logprobs=2)
    assert reply.text == "you said hello"
    assert reply.finish_reason == "stop"
    assert reply.logprobs[0] == {"you": -0.5, "other": -1.5}
    assert (reply.usage.requests, reply.usage.prompt_tokens, reply.usage.completion_tokens) == (1, 1, 3)
    assert server.requests[0]["max_tokens"] == 50
    assert server.requests[0]["temperature"] == 0.5
    assert server.requests[0]["response_format"]["json_schema"]["schema"] == SCHEMA
    assert client.usage == reply.usage


@pytest.mark.parametrize("fault", ["429", "500", "reset", "stall", "half_body", "no_choices"])
def test_every_transient_fault_is_overcome(fault):
    with FaultServer(echo, faults=[fault], rate=1.0, stall=1.5) as server:
        server.on_request = lambda body: setattr(server, "rate", 0.0 if len(server.requests) > 1 else 1.0)
        reply = client_of(server, timeout=0.5).complete(HELLO)
    assert reply.text == "you said hello"
    assert len(server.requests) == 2


def test_retry_after_holds_everyone_back():
    with FaultServer(echo, faults=["429"], rate=1.0, retry_after=1.0) as server:
        server.on_request = lambda body: setattr(server, "rate", 0.0 if len(server.requests) > 1 else 1.0)
        client = client_of(server)
        first = threading.Thread(target=client.complete, args=(HELLO,))
        first.start()
        while not server.times:
            time.sleep(0.01)
        time.sleep(0.4)
        client.complete(HELLO)
        first.join()
    assert min(server.times[1:]) - server.times[0] >= 0.95


def test_a_fault_that_lasts_fails_the_request_and_then_ends_the_run():
    with FaultServer(echo, faults=["500"], rate=1.0) as server:
        client = client_of(server, retries=0, concurrency=1)
        for _ in range(7):
            with pytest.raises(ChatError, match="HTTP 500: the model fell over"):
                client.complete(HELLO)
        with pytest.raises(StopRunError, match="8 requests in a row failed"):
            client.complete(HELLO)
        server.faults, server.retry_after = ["429"], 7200
        with pytest.raises(StopRunError, match="7200 seconds"):
            client_of(server).complete(HELLO)


def test_wrong_key_wrong_model_no_server_and_no_price_are_the_users_to_mend():
    with FaultServer(echo, key="right") as server:
        with pytest.raises(InputError, match="refuses the API key"):
            client_of(server, api_key="wrong").complete(HELLO)
        with pytest.raises(InputError, match="knows no model 'some-model'"):
            ChatClient(f"{server.url}/nowhere", "some-model").complete([])
        url = server.url
    with FaultServer(echo, faults=["quota"], rate=1.0) as server, pytest.raises(InputError, match="quota is used up"):
        client_of(server).complete(HELLO)
    with pytest.raises(InputError, match="no server answers there"):
        ChatClient(url, "m", retries=1).complete(HELLO)
    with pytest.raises(InputError, match="OPENAI_API_KEY"):
        ChatClient(None, "gpt-4o")
    for address in ("localhost:8000", "http://HOST:PORT/v1", "http://[::1/v1", "http:///v1"):
        with pytest.raises(InputError, match="not an address"):
            ChatClient(address, "m")
        with pytest.raises(InputError, match="not an address"):
            load_critic(f"served:{address}", "slf5k")
    with pytest.raises(InputError, match="does not list some-model"):
        ChatClient(url, "some-model", max_cost_usd=1.0)


def test_the_key_shows_neither_in_errors_nor_in_logs_nor_in_files(tmp_path, caplog, monkeypatch):
    key = "sk-very-secret-and-as-long-as-keys-are"
    monkeypatch.setenv("OPENAI_API_KEY", key)
    caplog.set_level(logging.DEBUG)
    with FaultServer(lambda body: f"your key is {key}", faults=["429"], retry_after=0.01) as server:
        client = client_of(server, retries=1, cache=ReplyCache(tmp_path / "replies.jsonl"))
        with pytest.raises(ChatError) as echoed:
            client.complete(HELLO)
        choice = {"message": {"content": "hi"}, "finish_reason": f"stop {key}"}
        headers = {"X-Echo": key, "Set-Cookie": f"key={key}"}
        server.raw = lambda body: (200, headers, json.dumps({"choices": [choice]}).encode())
        assert client.complete(HELLO, scope="headers").finish_reason == "other"
        choice["message"] = {"content": None, "refusal": f"no, {key}"}
        with pytest.raises(ChatError, match="holds the API key"):
            client.complete(HELLO, scope="refusal")
        server.rate = 1.0
        with pytest.raises(ChatError) as failed:
            client.complete([*HELLO, *HELLO])
        assert server.headers[0]["authorization"] == f"Bearer {key}"
        server.key = "another"
        with pytest.raises(InputError) as refused:
            client.complete(HELLO, max_tokens=7)
    assert "slow down, [redacted]" in str(failed.value)
    shown = [str(echoed.value), str(failed.value), str(refused.value), repr(client), caplog.text]
    shown += [(tmp_path / "replies.jsonl").read_text()]
    assert all("very-secret" not in text for text in shown)


def quoting(server: FaultServer, task: str = "slf5k", **options) -> ChatCritic:
    return ChatCritic(f"{server.url}#some-model", task, constrained="quotes", timeout=2.0, **options)


def test_quotes_are_asked_for_by_a_grammar_of_this_response():
    code = 'Here:\n```python\nprint("a")\n```\n and\n```python\n  \n```\n'
    reply = '{"code_feedback": "Prints.", "improvement_code": [], "wrong_code": ["print(\\"a\\")\\n"]}'
    with FaultServer(lambda body: reply) as server:
        (feedback,) = quoting(server, "kodcode", variant="no_cot")(["q"], [code])
    assert feedback == Feedback("Prints.", [], ['print("a")\n'])
    (body,) = server.requests
    assert "response_format" not in body
    start, *_, piece, blanks, solid, _, _ = body["structured_outputs"]["grammar"].splitlines()[1:]
    assert start == (
        r'start: " "? "{\"code_feedback\": " TEXT ", \"improvement_code\": " quotes ", \"wrong_code\": " quotes '
        r'(", \"missing\": " texts (", \"verdict\": " VERDICT)?)? "}"'
    )
    chunks = r'["p", "r", "i", "n", "t", "(", "\\\"", "a", "\\\"", ")", "\\n"]'
    assert piece == f'PIECE_0: %regex {{"substring_chunks": {chunks}}}'
    assert (blanks, solid) == (r'BLANKS: ("" | "\\n")*', "SOLID: (PIECE_0) & ~BLANKS")
    nothing = quote_grammar(get_task("kodcode").without_critique().fields, "spans", "", [(0, 0)]).splitlines()
    assert nothing[1] == r'start: " "? "{\"improvement_code\": " quotes ", \"wrong_code\": " quotes "}"'
    assert nothing[-1] == 'quotes: "[]"'


def test_a_server_without_grammars_is_refused_or_found_out():
    reply = '{"textual_feedback": "It ran.", "good_spans": ["%s"], "poor_spans": []}'
    with FaultServer(lambda body: reply % "The dog", refuses=["structured_outputs"]) as server:
        critic = quoting(server, variant="no_cot")
        with pytest.raises(InputError, match=r"takes no grammar of quotes .*serve the model by vLLM"):
            critic(["q"], ["The dog ran."])
        server.refuses = []
        assert critic(["q"], ["The dog ran."]) == [Feedback("It ran.", ["The dog"], [])]
        server.refuses = ["structured_outputs"]  # one odd response is not the end of a run
        assert "takes no grammar of quotes" in str(critic(["q"], ["The dog sat."])[0])
    with FaultServer(lambda body: reply % "A cat") as server:
        assert "the server ignores structured_outputs" in str(quoting(server)(["q"], ["The dog ran."])[0])
        with pytest.raises(InputError, match="scores have no grammar"):
            quoting(server, variant="dense")


def test_each_refused_parameter_is_left_away_or_renamed_and_not_tried_again():
    with FaultServer(echo, refuses=["response_format", "temperature", "max_tokens", "logprobs"]) as server:
        client = client_of(server, max_tokens=9)
        assert client.complete(HELLO, SCHEMA, logprobs=1).logprobs is None
        assert client.complete(HELLO, SCHEMA, logprobs=1).text
    assert len(server.requests) == 6
    assert server.requests[-1] == {"messages": HELLO, "model": "some-model", "max_completion_tokens": 9}


@pytest.mark.parametrize("body", [{"detail": "temperature is no field"}, {"error": "no temperature, please"}])
def test_a_refusal_in_other_words_than_openais_is_understood(body):
    def refuse(asked: dict) -> tuple[int, dict, bytes] | None:
        return (422, {}, json.dumps(body).encode()) if "temperature" in asked else None

    with FaultServer(echo, raw=refuse) as server:
        assert client_of(server).complete(HELLO).text
    unclear = FaultServer(echo, raw=lambda asked: (422, {}, b'{"detail": "no such field"}'))
    with unclear as server, pytest.raises(ChatError, match="no such field"):
        client_of(server).complete(HELLO)


def test_never_more_requests_at_once_than_told():
    with FaultServer(echo, on_request=lambda body: time.sleep(0.05)) as server:
        client = client_of(server, concurrency=3)
        with ThreadPoolExecutor(12) as pool:
            list(pool.map(lambda _: client.complete(HELLO), range(24)))
    assert server.most_flying == 3


@pytest.mark.parametrize(
    "limits",
    [
        {"requests_per_minute": 600},
        {"tokens_per_minute": 30_000, "max_tokens": 40},
        {"requests_per_minute": 600, "tokens_per_minute": 60_000, "concurrency": 1},  # most tokens are given back
    ],
)
def test_requests_keep_their_distance(limits):
    answer = " ".join(["word"] * 40)
    messages = [{"role": "user", "content": "x" * (4 * 20 - 32)}]
    with FaultServer(lambda body: answer) as server:
        client = client_of(server, **limits)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: client.complete(messages), range(8)))
    steps = sorted(server.times)
    assert steps[-1] - steps[0] >= 7 * 0.1 * 0.9


def test_a_policys_threads_and_temperatures_share_its_pace_and_its_budget():
    with FaultServer(echo) as server:
        settings = AnsweringConfig(model="gpt-4o", base_url=server.url, requests_per_minute=600, max_cost_usd=0.0008)
        policy = ServedPolicy("gpt-4o", server.url, settings)

        def ask(number: int) -> list:
            return policy([HELLO], [str(number)], SamplingConfig(max_new_tokens=9, temperature=number % 2))

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(ask, range(8)))
        assert server.times[-1] - server.times[0] >= 7 * 0.1 * 0.9  # twice as fast, with a pace for each temperature
        assert sorted(body["temperature"] for body in server.requests) == [0] * 4 + [1] * 4
        with pytest.raises(StopRunError, match=r"0\.0003 of the budget"):
            policy([HELLO], ["8"], SamplingConfig(max_new_tokens=50))


def test_prices_by_pattern(tmp_path):
    usage = Usage(prompt_tokens=1_000_000, cached_tokens=400_000, completion_tokens=100_000)
    assert load_price("gpt-4o-2024-11-20").of(usage) == pytest.approx(0.6 * 2.5 + 0.4 * 1.25 + 1.0)
    assert load_price("gpt-4o-mini").output == 0.6
    assert load_price("gpt-4o", batch=True).of(usage) == pytest.approx(1.5)
    assert not load_price("my-model").listed
    table = tmp_path / "prices.yaml"
    table.write_text("batch_discount: 0.5\nmodels:\n  my-*: {input: 1, cached_input: 1, output: 2}\n")
    assert load_price("my-model", table).output == 2
    table.write_text("models: [1, 2]")
    with pytest.raises(InputError, match="not a price table"):
        load_price("my-model", table)


def test_the_budget_holds_with_many_requests_in_flight():
    answer = " ".join(["word"] * 100)  # 100 tokens of 0.00001 $: 0.001 $ a reply
    with FaultServer(lambda body: answer, on_request=lambda body: time.sleep(0.02)) as server:
        client = client_of(server, model="gpt-4o", max_cost_usd=0.02, max_tokens=150)
        with ThreadPoolExecutor(16) as pool:
            results = [pool.submit(client.complete, HELLO) for _ in range(60)]
        errors = [result.exception() for result in results if result.exception()]
    assert errors
    told = "a larger --max_cost_usd or --critic_max_cost_usd"  # train and serve have the second
    assert all(isinstance(error, StopRunError) and told in str(error) for error in errors)
    assert 0.017 < client.usage.cost_usd <= 0.02
    assert len(server.requests) == client.usage.requests


def test_feedback_that_was_paid_for_is_kept_when_the_budget_ends(tmp_path):
    task = get_task("slf5k")
    records = {str(number): {"post": "A post.", "generated_summary": f"It is {number}."} for number in range(12)}
    reply = task.render_feedback(Feedback("Fine.", ["It"], []))
    with FaultServer(lambda body: reply) as server:
        critics = [
            ChatCritic(f"{server.url}#gpt-4o", task, variant="no_cot", max_tokens=1000, max_cost_usd=budget)
            for budget in (0.025, None)
        ]
        with pytest.raises(InputError, match="--max_cost_usd"):
            feedback_on(critics[0], records, task, tmp_path / "journal.jsonl")
        assert 0 < len(server.requests) < 12
        kept = feedback_on(critics[1], records, task, tmp_path / "journal.jsonl").results
    assert len(server.requests) == len(kept) == 12


def test_the_cache_remembers_replies_and_spending_across_runs(tmp_path):
    path = tmp_path / "replies.jsonl"
    with FaultServer(echo) as server:
        first = client_of(server, model="gpt-4o", cache=ReplyCache(path))
        reply = first.complete(HELLO, scope="a")
        first.complete(HELLO, scope="b")
        with pytest.raises(InputError, match="another run"):
            ReplyCache(path)
        first.cache.close()
        with path.open("ab") as file:
            file.write(b'{"reply": 1, "key": "cut o')

        second = client_of(server, model="gpt-4o", cache=ReplyCache(path))
        again = second.complete(HELLO, scope="a")
        assert len(server.requests) == 2
        assert (again.text, again.usage) == (reply.text, reply.usage)
        assert second.budget.spent == pytest.approx(2 * reply.usage.cost_usd)

        with FaultServer(echo) as other:  # which may run another model by the same name
            client_of(other, model="gpt-4o", cache=second.cache).complete(HELLO, scope="a")
            assert len(other.requests) == 1

        second.cache.void("a")
        second.complete(HELLO, scope="a")
        assert len(server.requests) == 3
        second.cache.close()
        third = ReplyCache(path)
    assert third.usage.cost_usd == pytest.approx(4 * reply.usage.cost_usd)
    assert third.lost_usd == 0


def test_lost_requests_count_at_their_bound_and_refused_ones_nothing(tmp_path):
    path = tmp_path / "replies.jsonl"
    with FaultServer(echo, faults=["reset"], rate=1.0) as server:
        client = client_of(server, model="gpt-4o", retries=0, max_tokens=100, cache=ReplyCache(path))
        client._answered = True
        with pytest.raises(ChatError):
            client.complete(HELLO)
        server.faults = ["500"]
        with pytest.raises(ChatError):
            client.complete(HELLO)
        bound = client.bound(ChatRequest(HELLO, None, 0, 100, ""))
        assert client.budget.lost == pytest.approx(bound)
        client.cache.close()
    assert ReplyCache(path).lost_usd == pytest.approx(bound)


def test_a_reply_that_cannot_be_kept_is_counted_and_holds_no_budget(tmp_path):
    """Other requests would wait for ever for the end of this one."""
    with FaultServer(echo, on_request=lambda body: client.cache.close()) as server:
        client = client_of(server, model="gpt-4o", max_cost_usd=0.01, max_tokens=900, cache=ReplyCache(tmp_path / "a"))
        with pytest.raises(ValueError, match="closed file"):
            client.complete(HELLO)
    assert 0 < client.budget.spent < 0.001 and client.budget.fits(0.009)


def test_a_request_after_the_end_is_refused_and_waits_for_nothing(tmp_path):
    with FaultServer(echo) as server, ThreadPoolExecutor(1) as others:
        client = client_of(server, concurrency=2, cache=ReplyCache(tmp_path / "a"))
        client.close()
        late = others.submit(client.complete, HELLO)
        try:
            assert isinstance(late.exception(timeout=5), StopRunError) and not server.requests
        finally:
            client._slots.release(2)


def test_a_signal_stops_a_policys_requests():
    with FaultServer(echo, faults=["429"], rate=1.0, retry_after=60) as server:
        policy = ServedPolicy("m", server.url, AnsweringConfig(model="m"))
        result = ThreadPoolExecutor(1).submit(policy, [HELLO], ["a"], SamplingConfig())
        while not server.requests:
            time.sleep(0.01)
        with handling(lambda number: None):
            os.kill(os.getpid(), signal.SIGTERM)
        assert isinstance(result.exception(timeout=2), StopRunError)


def test_a_signal_may_come_while_the_progress_bar_is_written(monkeypatch, capfd):
    signals = [signal.SIGTERM]

    class Interrupted(io.RawIOBase):
        def writable(self):
            return True

        def write(self, data):
            while signals:
                os.kill(os.getpid(), signals.pop())
            return len(data)

    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BufferedWriter(Interrupted()), line_buffering=True))
    with handling(lambda number: None), ChatClient("http://localhost:1/v1", "m").interruptible():
        print("50%", file=sys.stderr)
    assert "waiting for requests in flight" in capfd.readouterr().err


def test_endpoint_specs(monkeypatch):
    assert endpoint_of("openai:gpt-4o") == (None, "gpt-4o")
    assert endpoint_of("http://host:1/v1#a/b") == ("http://host:1/v1", "a/b")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://proxy/v1")
    assert endpoint_of("openai:gpt-4o") == ("http://proxy/v1", "gpt-4o")
    for spec in ("openai:", "http://host:1/v1"):
        with pytest.raises(InputError, match="names no model"):
            endpoint_of(spec)
