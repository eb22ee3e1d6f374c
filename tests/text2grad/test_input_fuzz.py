"""Injured record files and answers of servers: an error that names what is wrong, or values that can be kept."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.fault_server import FaultServer
from text2grad.endpoints.client import ChatClient, ChatError, Reply
from text2grad.errors import InputError, StopRunError
from text2grad.records import load_records
from text2grad.tasks import get_task

RECORDS = {
    "slf5k": """{"t3_a": {"post": "I lost my keys.", "generated_summary": "Keys “lost”."}}""",
    "ultrafeedback": """[{"prompt": "Hi?", "prompt_id": "p", "response":
        [{"role": "user", "content": "Hi?"}, {"role": "assistant", "content": "Hello. 🎉"}]}]""",
    "kodcode": """[{"question_id": "q", "question": "Add.", "solution": "def add(a, b): return a + b", "test": "x"}]""",
}
ODD = [*'{}[]",:\\\n0-', "\\ud800", "null", "NaN", "1e999", "9" * 5000, "[" * 3000, '{"a":' * 900, "\x00", "true", '""']
ANSWER = """{"id": "1", "object": "chat.completion", "model": "m", "choices": [
    {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Hello, 🎉"}, "logprobs":
    {"content": [{"token": "a", "logprob": -1, "top_logprobs": [{"token": "a", "logprob": -1}]}]}}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}}"""


def injured(chance: random.Random, text: str) -> bytes:
    for _ in range(chance.randint(1, 3)):
        at, other = sorted((chance.randrange(len(text) + 1), chance.randrange(len(text) + 1)))
        text = chance.choice(
            [
                text[:at] + chance.choice(ODD) + text[at:],
                text[:at] + text[other:],
                text[:at] + text[at:other] * 2 + text[other:],
                text.replace(chance.choice(['"', "3", "a", "-1", "e"]), chance.choice(ODD), 1),
            ]
        )
    data = text.encode("utf-8", "surrogatepass")
    if chance.random() < 0.2:
        at = chance.randrange(len(data) + 1)
        data = data[:at] + chance.choice([b"\xff", b"\xed\xa0\x80", b"\xc3", b"\x00"]) + data[at:]
    return data


@pytest.mark.promise("clear_sentence", cases=1000)
def test_a_thousand_injured_record_files(tmp_path):
    chance, seen = random.Random(0), {"read": 0, "refused": 0}
    for _ in range(1000):
        task = chance.choice(sorted(RECORDS))
        path = tmp_path / f"records.{chance.choice(['json', 'jsonl'])}"
        text = json.dumps(json.loads(RECORDS[task]), ensure_ascii=chance.random() < 0.5)
        path.write_bytes(injured(chance, text[1:-1] if path.suffix == ".jsonl" and text[0] == "[" else text))
        try:
            records = load_records(path, get_task(task), responses=chance.random() < 0.7)
        except InputError as error:
            assert str(path) in str(error)
            str(error).encode()
            seen["refused"] += 1
            continue
        json.dumps(dict(records), allow_nan=False, ensure_ascii=False).encode()
        seen["read"] += 1
    assert min(seen.values()) > 20, seen


@pytest.mark.promise("clear_sentence", "nothing_lost", cases=200)
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
        assert isinstance(reply, Reply)
        assert isinstance(reply.text, str)
        assert min(reply.usage.prompt_tokens, reply.usage.completion_tokens, reply.usage.cached_tokens) >= 0
        assert reply.usage.cost_usd > 0
        json.dumps(reply.to_dict())
        return "read"

    with FaultServer(lambda _: "", raw=answer) as server, ThreadPoolExecutor(8) as pool:
        client = ChatClient(server.url, "gpt-4o", retries=0, timeout=20, concurrency=8)
        client._answered = True
        seen = Counter(pool.map(outcome, range(count)))
        assert client.budget.spent + client.budget.lost >= client.usage.cost_usd
        assert client.usage.requests == seen["read"]
        assert len(server.requests) == count
    assert min(seen["read"], seen["refused"]) > count / 50, seen
