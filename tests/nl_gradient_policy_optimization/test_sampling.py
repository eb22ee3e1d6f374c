"""Log-probabilities exact in 16 bits too, those that rollouts come with, and responses from servers as vLLM's."""

import threading
import time

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from nl_gradient_policy_optimization import sampling, vllm_server
from nl_gradient_policy_optimization.optimize import prepare
from nl_gradient_policy_optimization.policy import PolicyScorer
from nl_gradient_policy_optimization.vllm_server import SamplerError
from tests.tiny import tiny_model
from tests.tiny_runs import ScriptedRewards, ready_batch, rows, tiny_config
from tests.vllm_servers import StandIn
from text2grad.errors import InputError
from text2grad.models import head as vocabulary
from text2grad.models import load_model


@pytest.mark.parametrize("head", ["frozen", "trained", "with an adapter"])
def test_scores_of_a_16_bit_head_are_not_rounded(tmp_path, monkeypatch, head):
    """Against the same hidden states and weights in float64; rounding would show in the second decimal."""
    monkeypatch.setattr(vocabulary, "_rows", lambda weight: 100)  # several blocks
    model = load_model(tiny_model(tmp_path / "tiny"), torch.bfloat16)
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.data * 20, requires_grad=head == "trained")
    lm_head = model.lm_head
    if head == "with an adapter":
        model = get_peft_model(model, LoraConfig(target_modules=["q_proj", "lm_head"]))
    scorer = PolicyScorer(model, chunk=5)
    ids = torch.randint(3, 500, (2, 20), generator=torch.Generator().manual_seed(0))
    mask, response = torch.ones_like(ids), torch.ones(2, 12, dtype=torch.long)
    logprobs, entropy, hidden, *_ = scorer(ids, mask, response, entropy=True)
    assert "forward" not in vars(lm_head) and logprobs.dtype == torch.float32

    exact, weight = hidden.double().requires_grad_(), lm_head.weight.detach().double().requires_grad_()
    log_probs = (exact @ weight.T).log_softmax(-1)
    expected = log_probs.gather(-1, ids[:, -12:, None]).squeeze(-1)
    torch.testing.assert_close(logprobs.double(), expected, rtol=0, atol=2e-5)
    torch.testing.assert_close(entropy.double(), -(log_probs.exp() * log_probs).sum(-1), rtol=0, atol=2e-5)
    assert (nn.functional.linear(hidden, lm_head.weight).float().log_softmax(-1) - log_probs).abs().max() > 5e-3

    logprobs.sum().backward()
    expected.sum().backward()
    assert any(parameter.grad is not None for name, parameter in model.named_parameters() if "layers" in name)
    if head == "trained":
        torch.testing.assert_close(lm_head.weight.grad.double(), weight.grad, rtol=0.01, atol=0.05)


def test_a_frozen_head_is_read_once_for_scores_and_their_gradient(tmp_path):
    """Weighted and tempered, in float64: the gradients of one whole log-softmax; 24 positions are five chunks."""
    model = load_model(tiny_model(tmp_path / "tiny"), torch.float64)
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.data.clone(), requires_grad=False)
    read = []
    model.lm_head.register_forward_hook(lambda *_: read.append(1))
    random = torch.Generator().manual_seed(0)
    ids, weights = torch.randint(3, 500, (2, 20), generator=random), torch.randn(2, 12, generator=random)
    mask, response = torch.ones_like(ids), torch.ones(2, 12, dtype=torch.long)
    (PolicyScorer(model, temperature=0.7, chunk=5)(ids, mask, response).logprobs * weights).sum().backward()
    assert len(read) == 5

    learnt = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    log_probs = (model(ids, use_cache=False).logits[:, 7:-1] / 0.7).log_softmax(-1)
    expected = (log_probs.gather(-1, ids[:, 8:, None]).squeeze(-1) * weights).sum()
    for weight, gradient in zip(learnt.values(), torch.autograd.grad(expected, learnt.values()), strict=True):
        torch.testing.assert_close(weight.grad, gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kl", [None, "full"])
def test_a_token_that_can_never_be_sampled_adds_nothing_to_the_entropy(tmp_path, kl):
    model = load_model(tiny_model(tmp_path / "tiny"), torch.float64)
    ids = torch.randint(8, 500, (2, 20), generator=torch.Generator().manual_seed(0))
    kept = torch.arange(model.config.vocab_size) != 7
    expected = model(ids).logits[:, 7:-1, kept].log_softmax(-1)
    model.lm_head.register_forward_hook(lambda *given: given[-1].masked_fill(~kept, -torch.inf))
    scores = PolicyScorer(model, model)(ids, torch.ones_like(ids), torch.ones(2, 12), kl=kl, entropy=True)
    torch.testing.assert_close(scores.entropy, -(expected.exp() * expected).sum(-1))
    scores.entropy.sum().backward()
    assert all(each.grad is None or each.grad.isfinite().all() for each in model.parameters())


@pytest.mark.parametrize("kl", ["full", "k3"])
def test_the_chance_to_end_is_scored_with_the_response(tmp_path, kl):
    trainer = prepare("slf5k", tiny_config(tmp_path, algorithm="verdict", kl=kl, temperature=0.7), ScriptedRewards())
    batch = trainer.collector.score(next(trainer.collector.sample([*trainer.collector.records][:2])))
    ids, attention, mask = batch.inputs()
    with torch.no_grad():
        logits = trainer.learner.scorer.base(ids, attention_mask=attention).logits[:, -mask.shape[1] - 1 : -1] / 0.7
    expected = logits.log_softmax(-1)[..., trainer.collector.end_ids] * mask[..., None]
    torch.testing.assert_close(batch.extra["at"].to(expected), expected, rtol=1e-3, atol=1e-3)


def test_the_value_head_learns_the_rewards_to_come_where_asked(tmp_path):
    """Line 24 of algorithm 4; by default it learns A + V."""
    found = {}
    for target in ("lambda", "rewards"):
        config = tiny_config(tmp_path, value_target=target, gamma=0.5, output_dir=str(tmp_path / target))
        trainer = prepare("slf5k", config, ScriptedRewards())
        batch = ready_batch(trainer, next(trainer.collector.sample(["post-0"])))
        batch.values = torch.full_like(batch.values, 3.0)
        found[target] = trainer.credit(batch).returns[0]
    rewards = batch.rewards[0].tolist()
    expected = [sum(0.5 ** (k - t) * rewards[k] for k in range(t, len(rewards))) for t in range(len(rewards))]
    assert found["rewards"].tolist() == pytest.approx(expected, abs=1e-6)
    assert (found["lambda"] - found["rewards"]).abs().max() > 0.1


def test_rollouts_come_with_the_log_probabilities_that_the_trainer_scores(tmp_path):
    config = tiny_config(tmp_path, generation="decoder", rollouts_per_device=8, generation_batch_size=3)
    trainer = prepare("slf5k", config, ScriptedRewards())
    for name, parameter in trainer.learner.scorer.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    ids = [f"post-{index % 5}" for index in range(8)]
    rollouts = [rollout for batch in trainer.collector.sample(ids) for rollout in batch]
    batch = trainer.collector.score(rollouts)
    assert [rollout.id for rollout in rollouts] == ids
    torch.testing.assert_close(batch.sampler_logprobs, batch.old_logprobs, atol=2e-5, rtol=1e-5)


def test_gradient_checkpointing_changes_no_response(tmp_path):
    """After an update, too: the policy is then in training mode, where checkpointing forbids the key-value cache."""
    sampled = []
    for checkpointing in (False, True):
        config = tiny_config(tmp_path, generation="transformers", gradient_checkpointing=checkpointing)
        trainer = prepare("slf5k", config, ScriptedRewards())
        trainer.learner.scorer.train()
        trainer.collector.seed(1)
        (rollouts,) = trainer.collector.sample([*trainer.collector.records])
        sampled.append([rollout.response_ids for rollout in rollouts])
        assert trainer.learner.scorer.base.is_activation_checkpointing == checkpointing
    assert sampled[0] == sampled[1]


# Servers that speak vLLM's protocol: newest weights, absences, refusals, resumption


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


def test_a_server_with_older_weights_stops_the_run(tmp_path, model, monkeypatch):
    monkeypatch.setattr(sampling, "SAMPLER_LIMIT", 1e-3)
    with StandIn(model, stale=True) as stale, pytest.raises(SamplerError, match="nats on average"):
        prepare("slf5k", served(tmp_path, stale), ScriptedRewards()).train()


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
    assert (tmp_path / "run" / "checkpoint-1").is_dir()
    with StandIn(model) as fresh:
        prepare("slf5k", served(tmp_path, fresh), ScriptedRewards()).train()
    assert [row["step"] for row in rows(tmp_path / "run" / "metrics.jsonl")] == [1, 2, 3]


@pytest.mark.parametrize(
    ("server", "settings", "message"),
    [
        ({}, {"lora_r": 0}, "use transformers"),
        ({"longest": 500}, {}, "takes 500 tokens.*--max-model-len"),
        ({}, {"vllm_url": []}, "needs --vllm_url"),
        ({}, {"vllm_url": ["localhost:8000"]}, "needs --vllm_url http://HOST:PORT"),
        ({"highest_rank": 8}, {}, "max_lora_rank 8.*--max-lora-rank"),
    ],
)
def test_what_cannot_work_is_refused_with_the_remedy(tmp_path, model, server, settings, message):
    with StandIn(model, **server) as one, pytest.raises(InputError, match=message):
        prepare("slf5k", served(tmp_path, one, **settings), ScriptedRewards()).train()
