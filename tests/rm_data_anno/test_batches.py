"""Annotation through a Batch API: half the price, collected by a later run, never sent twice."""

from __future__ import annotations

import pytest

from rm_data_anno.annotate import annotate
from tests.annotation_runs import (
    judge,
    posts,
    prices,
    read,
    record_of,
    setting,
)
from tests.fault_server import FaultServer


def test_batches_cost_half_and_second_questions_become_a_second_batch(tmp_path):
    def answer(body: dict) -> str:
        if record_of(body) == "t3_1" and len(body["messages"]) == 1:
            return judge(body).replace("what now?", "what then?")
        return judge(body)

    with FaultServer(answer) as server:
        options = {"batch_api": True, "batch_poll_seconds": 0.05, "prices": str(prices(tmp_path)), "max_cost_usd": 50.0}
        annotate("slf5k", setting(tmp_path, server, posts(4), **options))
        assert len(server.batches) == 2
        assert sorted(map(record_of, server.requests)) == ["t3_0", "t3_1", "t3_1", "t3_2", "t3_3"]
        usage = read(tmp_path)["t3_0"]["annotation"]["usage"]
        assert usage["cost_usd"] == pytest.approx(usage["completion_tokens"] * 0.0005)
        assert list(read(tmp_path)) == list(posts(4))
        annotate("slf5k", setting(tmp_path, server, posts(4), **options))
        assert len(server.batches) == 2


def test_a_batch_is_collected_by_a_later_run_and_never_sent_twice(tmp_path, capsys):
    with FaultServer(judge, batch_delay=3) as server:
        config = setting(tmp_path, server, posts(3), batch_api=True, batch_poll_seconds=0)
        for _ in range(3):
            with pytest.raises(SystemExit) as ended:
                annotate("slf5k", config)
            assert ended.value.code == 1
            assert "run the same command later" in capsys.readouterr().err
        annotate("slf5k", config)
        assert len(server.batches) == 1
        assert len(server.requests) == 3
    assert list(read(tmp_path)) == list(posts(3))


def test_what_a_batch_fails_at_is_listed_and_can_be_tried_again(tmp_path):
    with FaultServer(judge, faults=["500"], rate=0.5, seed=3) as server:
        config = setting(tmp_path, server, posts(12), batch_api=True, batch_poll_seconds=0.02)
        with pytest.raises(SystemExit):
            annotate("slf5k", config)
        failed = read(tmp_path, ".failed.json")
        assert 0 < len(failed) < 12
        assert all("the model stumbled" in reason for reason in failed.values())
        server.rate, config.retry_failed = 0.0, True
        annotate("slf5k", config)
        assert sorted(map(record_of, server.requests[12:])) == sorted(failed)
    assert list(read(tmp_path)) == list(posts(12))


def test_a_batch_stays_within_the_budget(tmp_path):
    with FaultServer(judge) as server:
        options = {
            "batch_api": True,
            "batch_poll_seconds": 0.02,
            "prices": str(prices(tmp_path)),
            "max_new_tokens": 100,
        }
        with pytest.raises(SystemExit):
            annotate("slf5k", setting(tmp_path, server, posts(30), max_cost_usd=0.4, **options))
        paid = read(tmp_path, ".report.json")["paid"]["cost_usd"]
    assert 0.3 < paid <= 0.4
    assert len(read(tmp_path)) == len(server.requests) < 30
