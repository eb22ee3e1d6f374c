"""Stage 3 with responses from servers that speak vLLM's protocol: newest weights, absences, refusals, resumption."""

import threading
import time

import pytest

from nl_gradient_policy_optimization import sampling, vllm_server
from nl_gradient_policy_optimization.optimize import prepare
from nl_gradient_policy_optimization.vllm_server import SamplerError
from tests.tiny_runs import ScriptedRewards, rows, tiny_config
from tests.vllm_servers import StandIn
from text2grad.errors import InputError


def served(tmp_path, *servers: StandIn, **settings):
    urls = [server.url for server in servers]
    return tiny_config(tmp_path, generation="vllm_server", **{"vllm_url": urls, "max_steps": 3, **settings})


@pytest.fixture
def model(tmp_path) -> str:
    return tiny_config(tmp_path).model


def test_every_server_samples_from_the_newest_weights(tmp_path, model):
    with StandIn(model) as one, StandIn(model) as two:
        config = served(tmp_path, one, two, rollouts_ahead=True, generation_batch_size=1)
        prepare("slf5k", config, ScriptedRewards()).train()
    assert [len(server.asked) for server in (one, two)] == [6, 6]
    for server in (one, two):
        assert len(set(server.loaded)) == 2  # the third step was sampled before the second one's updates
        assert list(server.decoders) == server.loaded[-1:]
    assert one.loaded == two.loaded
    assert [path.name for path in (tmp_path / "run" / "vllm_adapters").iterdir()] == one.loaded[-1:]
    log = rows(tmp_path / "run" / "metrics.jsonl")
    assert len(log) == 3 and all(row["sampler/difference"] < 1e-5 for row in log)
    asked = one.asked[0]
    assert (asked["temperature"], asked["top_p"], asked["top_k"], asked["repetition_penalty"]) == (1.0, 1.0, 0, 1.0)
    assert "seed" not in asked


def test_a_server_with_older_weights_stops_the_run_which_goes_on_with_another(tmp_path, model, monkeypatch):
    monkeypatch.setattr(sampling, "SAMPLER_LIMIT", 1e-3)
    with StandIn(model, stale=True) as stale:
        config = served(tmp_path, stale)
        with pytest.raises(SamplerError, match="nats on average"):
            prepare("slf5k", config, ScriptedRewards()).train()
    assert (tmp_path / "run" / "checkpoint-1").is_dir()
    with StandIn(model) as fresh:
        config = served(tmp_path, fresh)
        trainer = prepare("slf5k", config, ScriptedRewards())
        trainer.train()
    assert trainer.finished_steps == 3
    assert [row["step"] for row in rows(tmp_path / "run" / "metrics.jsonl")] == [1, 2, 3]


def test_a_server_that_comes_back_is_given_the_weights_again(tmp_path, model, monkeypatch, capsys):
    monkeypatch.setattr(vllm_server, "_POLL", 0.05)
    with StandIn(model) as first:
        trainer = prepare("slf5k", served(tmp_path, first, max_steps=2, vllm_timeout=30), ScriptedRewards())
        trainer.step(1)
    back = []

    def come_back() -> None:
        time.sleep(0.3)
        back.append(StandIn(model, port=first.port).__enter__())

    thread = threading.Thread(target=come_back)
    thread.start()
    metrics = trainer.step(2)
    thread.join()
    back[0].__exit__()
    assert back[0].loaded and metrics["sampler/difference"] < 1e-5
    said = capsys.readouterr().out
    assert f"{first.url} does not answer" in said and "answers again after" in said


def test_a_server_that_stays_away_costs_no_finished_step(tmp_path, model, monkeypatch):
    monkeypatch.setattr(vllm_server, "_POLL", 0.05)
    with StandIn(model) as server:
        trainer = prepare("slf5k", served(tmp_path, server, vllm_timeout=0.3), ScriptedRewards())
        trainer.step(1)
    trainer.resume = lambda: None  # train() goes on with this very trainer
    with pytest.raises(SamplerError, match=r"has not answered for 0 s .*serve_vllm.sh"):
        trainer.train()
    assert trainer.checkpoints.finished_steps() == 1
    with StandIn(model) as server:
        again = prepare("slf5k", served(tmp_path, server), ScriptedRewards())
        again.train()
    assert again.finished_steps == 3


@pytest.mark.parametrize(
    ("server", "settings", "message"),
    [
        ({}, {"lora_r": 0}, "use transformers"),
        ({"longest": 500}, {}, "takes 500 tokens.*--max-model-len"),
        ({}, {"vllm_url": []}, "needs --vllm_url"),
        ({"highest_rank": 8}, {}, "max_lora_rank 8.*--max-lora-rank"),
    ],
)
def test_what_cannot_work_is_refused_with_the_remedy(tmp_path, model, server, settings, message):
    with StandIn(model, **server) as one, pytest.raises(InputError, match=message):
        prepare("slf5k", served(tmp_path, one, **settings), ScriptedRewards()).train()
