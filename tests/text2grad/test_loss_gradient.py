"""The gradient that the trainer steps along, against slow and obvious references in float64."""

import math
from types import SimpleNamespace

import pytest
import torch

from nl_gradient_policy_optimization import policy
from nl_gradient_policy_optimization.optimize import prepare
from nl_gradient_policy_optimization.weights import trainable
from tests.tiny import adapted, tiny_model
from tests.tiny_runs import ScriptedRewards, ready_batch, tiny_config
from text2grad.losses.kl import sampled_kl
from text2grad.models import load_model

HEAD, ADAPTER = {"lora_target_modules": ["q_proj", "lm_head"]}, {"modules_to_save": ["lm_head"]}
"""The vocabulary head is trained, too: by a new adapter, and by one that goes on."""


def relative_error(found: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    difference = sum(float(((a - b) ** 2).sum()) for a, b in zip(found, expected, strict=True))
    return math.sqrt(difference / sum(float((b**2).sum()) for b in expected))


def token_distributions(model, rollout, temperature):
    """log π(· | x, y_<t) for each response token, ``[T, V]``: the model's own forward on this response alone."""
    ids = torch.tensor([rollout.prompt_ids + rollout.response_ids])
    logits = model(input_ids=ids).logits[0].double() / temperature
    start = len(rollout.prompt_ids) - 1
    return logits[start : start + len(rollout.response_ids)].log_softmax(-1)


def ready_trainer(tmp_path, **settings):
    """A trainer in float64 whose rollouts were sampled, judged and scored; one of four has no judgement."""
    chosen = {
        "generation": "transformers",  # the rollouts are replaced below, and with them what sampled them
        "temperature": 0.7, "entropy_coef": 0.03, "kl_coef": 0.3, "gamma": 0.97, "value_clip_range": 0.05,
        "max_grad_norm": 1e9, "max_new_tokens": 12, "dtype": "float64",
    }  # fmt: skip
    config = tiny_config(tmp_path, **{**chosen, **settings})
    trainer = prepare("slf5k", config, ScriptedRewards(fail=["post-2"]))
    # An adapter starts at zero: shake it, the value head and the reference apart, so that no term is trivially zero.
    shake(trainer, 0.05)
    torch.manual_seed(3)
    (rollouts,) = trainer.collector.sample(["post-0", "post-1", "post-2", "post-3"])
    for rollout, length in zip(rollouts, [3, 12, 5, 7], strict=True):
        rollout.response_ids = rollout.response_ids[:length]
    trainer.learner.value_function.max_grad_norm = 1e9
    batch = trainer.batch_of_test = ready_batch(trainer, rollouts)
    named = ("id", "prompt_ids", "response_ids", "feedback", "counts")
    return trainer, [  # each rollout with what was computed for its tokens, to be read row by row
        SimpleNamespace(**{name: getattr(each, name) for name in named}, **batch.columns(row))
        for row, each in enumerate(batch.rollouts)
    ]


def shake(trainer, amount):
    torch.manual_seed(1)
    for module in (trainer.learner.scorer, trainer.learner.value_function.head):
        for parameter in trainable(module):
            parameter.data += amount * torch.randn_like(parameter)


def gradients_of_one_update(trainer, rows=(0, 1, 2, 3)):
    """What the two optimisers are given when the trainer updates on rows of its batch."""
    caught, learner = {}, trainer.learner
    for name, own in (("policy", learner.optimizer.optimizer), ("value", learner.value_function.optimizer)):

        def keep(optimizer, *_, name=name):
            caught[name] = [p.grad.clone() for p in optimizer.param_groups[0]["params"]]

        own.register_step_pre_hook(keep)
    learner.update_on(trainer.batch_of_test.select(rows))
    return caught


def reference_loss(trainer, rollouts):
    """PPO with a value function, written out token by token with Python numbers wherever no gradient flows."""
    config = trainer.config
    model, head = trainer.learner.scorer.model, trainer.learner.value_function.head
    judged = [rollout for rollout in rollouts if rollout.counts]
    count = sum(len(rollout.response_ids) for rollout in judged)
    advantages = {}
    for rollout in judged:
        kl, values = rollout.kl.tolist(), [*rollout.values.tolist(), 0.0]
        rewards = [delta - config.kl_coef * nats for delta, nats in zip(rollout.feedback.rewards, kl, strict=True)]
        errors = [rewards[k] + config.gamma * values[k + 1] - values[k] for k in range(len(rewards))]
        decay = config.gamma * config.lam
        advantages[rollout.id] = [
            sum(decay ** (k - t) * errors[k] for k in range(t, len(errors))) for t in range(len(errors))
        ]
    flat = [a for row in advantages.values() for a in row]
    mean = sum(flat) / count
    deviation = math.sqrt(sum((a - mean) ** 2 for a in flat) / count + 1e-8)

    policy_terms, value_terms = [], []
    for rollout in judged:
        log_probs = token_distributions(model, rollout, config.temperature)
        ids = torch.tensor([rollout.prompt_ids + rollout.response_ids])
        with torch.no_grad():
            states = trainer.learner.scorer.base.model(input_ids=ids).last_hidden_state[0]
        for t, token in enumerate(rollout.response_ids):
            raw, old_value = advantages[rollout.id][t], rollout.values[t]
            advantage = (raw - mean) / deviation
            ratio = (log_probs[t, token] - rollout.old_logprobs[t]).exp()
            clipped = min(max(ratio.item(), 1 - config.clip_range), 1 + config.clip_range)
            surrogate = ratio * advantage if (ratio * advantage).item() <= clipped * advantage else torch.zeros(())
            entropy = -(log_probs[t].exp() * log_probs[t]).sum()
            policy_terms.append(-surrogate - config.entropy_coef * entropy)

            state = states[len(rollout.prompt_ids) + t - 1]
            value = (state / state.pow(2).mean().add(1e-6).sqrt()) @ head.weight / math.sqrt(len(state)) + head.bias
            target = raw + old_value.item()
            near = old_value + (value - old_value).clamp(-config.value_clip_range, config.value_clip_range)
            value_terms.append(0.5 * torch.maximum((value - target) ** 2, (near - target) ** 2))
    return sum(policy_terms) / count, sum(value_terms) / count


@pytest.mark.parametrize("lora_r", [4, 0], ids=["adapter", "all weights"])
def test_gradient_of_an_update(tmp_path, lora_r):
    """Clipping, whitening, entropy, KL reward, temperature, ragged lengths, micro-batches and a failed critique."""
    trainer, rollouts = ready_trainer(tmp_path, lora_r=lora_r)
    shake(trainer, 0.02)  # now π is no longer π_old: ratios differ from 1, and some are clipped
    policy_part, value_part = reference_loss(trainer, rollouts)
    expected = torch.autograd.grad(policy_part, trainable(trainer.learner.scorer))
    expected_value = torch.autograd.grad(value_part, list(trainer.learner.value_function.head.parameters()))

    found = gradients_of_one_update(trainer)
    assert relative_error(found["policy"], expected) < 1e-6
    assert relative_error(found["value"], expected_value) < 1e-6


def test_float16_keeps_the_gradient_of_a_mean_over_many_tokens(tmp_path):
    trainer, _ = ready_trainer(tmp_path, dtype="float16")
    few, own = gradients_of_one_update(trainer)["policy"], trainer.learner.reduce
    trainer, _ = ready_trainer(tmp_path / "again", dtype="float16")
    trainer.learner.reduce = lambda sums: own(sums) * 2**16  # as of so many ranks
    many = [gradient * 2**16 for gradient in gradients_of_one_update(trainer)["policy"]]
    assert relative_error(many, few) < 0.01


def test_the_first_update_begins_with_the_pass_that_scored(tmp_path, monkeypatch):
    """Where one micro-batch holds all rollouts, and until weights change; the gradient is the same."""
    passes, computed = list[int](), policy._hidden_states
    monkeypatch.setattr(policy, "_hidden_states", lambda *inputs: passes.append(1) or computed(*inputs))

    def update(trainer):
        passes.clear()
        return gradients_of_one_update(trainer, [3, 1, 0, 2])["policy"], len(passes)

    expected, count = update(ready_trainer(tmp_path / "2", micro_batch_size=2)[0])
    assert count == 2
    trainer, _ = ready_trainer(tmp_path / "4", micro_batch_size=4)
    found, count = update(trainer)
    assert count == 0
    assert relative_error(found, expected) < 1e-6
    assert update(trainer)[1] == 1  # its second pass
    trainer.collector.score(trainer.batch_of_test.rollouts)
    with torch.no_grad():
        trainable(trainer.learner.scorer)[0].mul_(1.01)
    assert update(trainer)[1] == 1
    trainer, _ = ready_trainer(tmp_path / "dropout", micro_batch_size=4, lora_dropout=0.1)
    assert not trainer.learner.keeps_graph(trainer.batch_of_test)


def test_first_step_is_along_the_nl_gradient(tmp_path):
    """With A = δ, no entropy and π = π_old, the step is along g_NL / N, one backward per token.

    Definition 1, section 3.1: g_NL = Σ_t δ_t · ∇_θ log π_θ(y_t | x, y_{<t}).
    """
    trainer, rollouts = ready_trainer(tmp_path, lora_r=4)
    trainer.config.entropy_coef = 0.0
    judged = [rollout for rollout in rollouts if rollout.counts]
    count = sum(len(rollout.response_ids) for rollout in judged)
    parameters = trainable(trainer.learner.scorer)
    expected = [torch.zeros_like(p) for p in parameters]
    for rollout in judged:
        for t, delta in enumerate(rollout.feedback.rewards):
            if delta:
                log_prob = token_distributions(trainer.learner.scorer.model, rollout, 0.7)[t, rollout.response_ids[t]]
                for total, part in zip(expected, torch.autograd.grad(delta * log_prob, parameters), strict=True):
                    total -= part / count
    batch = trainer.batch_of_test
    batch.advantages = batch.given
    assert relative_error(gradients_of_one_update(trainer)["policy"], expected) < 1e-6


@pytest.mark.parametrize(
    ("family", "start"),
    [
        *((family, {"lora_r": 4}) for family in ("llama", "mistral", "qwen3", "gemma2", "gpt2")),
        *(("llama", start) for start in ({"lora_r": 0}, HEAD, ADAPTER)),
    ],
)
def test_scores_are_the_models_own(tmp_path, family, start):
    """Log-probabilities, entropy and full KL of a padded batch, against the bare models on each response alone."""
    if start is ADAPTER:
        adapted(load_model(tiny_model(tmp_path / "tiny"), "float32"), **start).save_pretrained(tmp_path / "adapter")
        start = {"model": str(tmp_path / "adapter")}
    # Gemma's eager attention turns a padded row of float64 into NaN (its softmax is in float32).
    dtype = "float32" if family == "gemma2" else "float64"
    trainer, rollouts = ready_trainer(tmp_path, family=family, dtype=dtype, **start)
    rtol, atol = (1e-4, 1e-5) if family == "gemma2" else (1e-6, 1e-9)
    model, reference = trainer.learner.scorer.model, load_model(trainer.config.model, dtype)
    for rollout in rollouts:
        log_probs = token_distributions(model, rollout, 0.7)
        ref_log_probs = token_distributions(reference, rollout, 0.7)
        chosen = torch.tensor(rollout.response_ids)[:, None]
        expected = {
            "old_logprobs": log_probs.gather(1, chosen)[:, 0],
            "ref_logprobs": ref_log_probs.gather(1, chosen)[:, 0],
            "entropy": -(log_probs.exp() * log_probs).sum(-1),
            "kl": (log_probs.exp() * (log_probs - ref_log_probs)).sum(-1),
        }
        for name, values in expected.items():
            torch.testing.assert_close(getattr(rollout, name).double(), values.detach(), rtol=rtol, atol=atol)
        assert rollout.kl.min() > 0
    sampled = trainer.learner.scorer(*trainer.batch_of_test.inputs(), kl="k1")
    torch.testing.assert_close(sampled.ref_logprobs, trainer.batch_of_test.ref_logprobs, rtol=rtol, atol=atol)


def test_a_sampled_kl_reaches_the_reward(tmp_path):
    _, rollouts = ready_trainer(tmp_path, kl="k3")
    for rollout in rollouts:
        expected = sampled_kl("k3", rollout.old_logprobs, rollout.ref_logprobs)
        torch.testing.assert_close(rollout.kl, expected, rtol=1e-6, atol=1e-12)
        deltas = torch.tensor(rollout.feedback.rewards, dtype=torch.float64)
        if rollout.counts:
            torch.testing.assert_close(rollout.rewards, deltas - 0.3 * expected)
        else:
            assert not rollout.rewards.any()


def test_the_head_sees_response_positions_only_and_few_at_a_time(tmp_path):
    trainer, _ = ready_trainer(tmp_path)
    inputs = trainer.batch_of_test.inputs()
    whole = trainer.learner.scorer(*inputs, entropy=True)
    (whole[0].sum() + whole[1].sum()).backward()
    expected = [p.grad.clone() for p in trainable(trainer.learner.scorer)]
    trainer.learner.scorer.zero_grad()

    rows = []
    head = trainer.learner.scorer.base.get_output_embeddings()
    head.register_forward_hook(lambda _, inputs, __: rows.append(inputs[0].shape[:-1].numel()))
    trainer.learner.scorer.chunk = 4
    logprobs, entropy, *_ = trainer.learner.scorer(*inputs, entropy=True)
    (logprobs.sum() + entropy.sum()).backward()
    assert relative_error([p.grad for p in trainable(trainer.learner.scorer)], expected) < 1e-6
    assert max(rows) <= 4
    assert sum(rows) == 2 * 27  # every response token once forwards, once more when recomputed backwards
    rows.clear()
    with torch.no_grad():
        kl = trainer.learner.scorer(*inputs, kl="full", entropy=True).kl
    assert max(rows) <= 4
    trainer.learner.scorer.chunk = 1024
    with torch.no_grad():
        torch.testing.assert_close(trainer.learner.scorer(*inputs, kl="full", entropy=True).kl, kl)
