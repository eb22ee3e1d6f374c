"""GAE, returns, whitening, KL kinds and controller against numbers worked out by hand."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import tensor

from text2grad.advantages import (
    discounted_sums,
    explained_variance,
    gae,
    group_advantages,
    masked_moments,
    total_rewards,
    whiten,
)
from text2grad.losses.kl import KLController, full_kl, sampled_kl
from text2grad.losses.ppo import nl_gradient, policy_loss, value_loss

pytestmark = pytest.mark.fast


def test_gae_by_hand():
    # γ = 0.9, λ = 0.5. Errors: r2 − V2 = 2 − 0.5 = 1.5; r1 + 0.9·0.5 − 1 = −0.55; r0 + 0.9·1 − 0.2 = 1.7.
    # A2 = 1.5; A1 = −0.55 + 0.45·1.5 = 0.125; A0 = 1.7 + 0.45·0.125 = 1.75625.
    rewards, values = tensor([[1.0, 0.0, 2.0]]).double(), tensor([[0.2, 1.0, 0.5]]).double()
    advantages, returns = gae(rewards, values, torch.ones(1, 3), gamma=0.9, lam=0.5)
    torch.testing.assert_close(advantages, tensor([[1.75625, 0.125, 1.5]]).double())
    torch.testing.assert_close(returns, tensor([[1.95625, 1.125, 2.0]]).double())


def test_gae_reads_nothing_under_the_padding():
    rewards, values = tensor([[1.0, -1.0, 99.0]]), tensor([[0.5, 0.25, -77.0]])
    advantages, returns = gae(rewards, values, tensor([[1.0, 1.0, 0.0]]), gamma=1.0, lam=1.0)
    # Only two tokens: A1 = −1 − 0.25; A0 = (1 + 0.25 − 0.5) + A1.
    assert advantages.tolist() == [[-0.5, -1.25, 0.0]]
    assert returns.tolist() == [[0.0, -1.0, 0.0]]


@pytest.mark.parametrize("under", [99.0, math.nan, math.inf])
def test_nothing_under_the_padding_reaches_a_result(under):
    mask = tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    values = tensor([[1.0, -1.0, 0.0], [0.5, 0.0, 0.0]])
    padded = torch.where(mask == 0, under, values)
    for result in (
        lambda x: gae(x, x, mask, 0.9, 0.5),
        lambda x: discounted_sums(x, mask, 0.9),
        lambda x: whiten(x, mask),
        lambda x: group_advantages(x, mask, 2, 0.9),
        lambda x: masked_moments(x, mask),
        lambda x: tensor(explained_variance(x, x, mask)),
    ):
        torch.testing.assert_close(result(padded), result(values), rtol=0, atol=0)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.lists(st.tuples(st.floats(-3, 3), st.floats(-3, 3)), min_size=1, max_size=6), min_size=1, max_size=4),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_gae_is_its_definition(rollouts, gamma, lam):
    """A_t = Σ_l (γλ)^l (r_{t+l} + γ V_{t+l+1} − V_{t+l}), summed out term by term for ragged rollouts."""
    longest = max(map(len, rollouts))
    rewards, values, mask = (torch.zeros(len(rollouts), longest, dtype=torch.float64) for _ in range(3))
    for row, tokens in enumerate(rollouts):
        for t, (reward, value) in enumerate(tokens):
            rewards[row, t], values[row, t], mask[row, t] = reward, value, 1
    advantages, returns = gae(rewards, values, mask, gamma, lam)
    for row, tokens in enumerate(rollouts):
        padded = [*tokens, (0.0, 0.0)]
        for t in range(len(tokens)):
            expected = sum(
                (gamma * lam) ** (k - t) * (padded[k][0] + gamma * padded[k + 1][1] - padded[k][1])
                for k in range(t, len(tokens))
            )
            assert advantages[row, t].item() == pytest.approx(expected, abs=1e-9)
            assert returns[row, t].item() == pytest.approx(expected + tokens[t][1], abs=1e-9)


def test_total_rewards():
    assert total_rewards(tensor([1.0, -1.0]), tensor([0.5, 0.0]), 0.2).tolist() == pytest.approx([0.9, -1.0])


def test_whiten_by_hand():
    values, mask = tensor([[1.0, 2.0, 50.0], [3.0, -50.0, 60.0]]), tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    # 1, 2, 3: mean 2, variance 2/3.
    expected = tensor([[-math.sqrt(1.5), 0.0, 0.0], [math.sqrt(1.5), 0.0, 0.0]])
    torch.testing.assert_close(whiten(values, mask), expected, rtol=1e-6, atol=1e-6)


def test_whiten_over_ranks_is_whiten_of_all():
    """Each rank sees its own rows; the sums it needs of the others come through ``reduce``."""
    torch.manual_seed(0)
    values, mask = torch.randn(4, 5).double(), (torch.rand(4, 5) > 0.3).double()
    parts = [(values[:1], mask[:1]), (values[1:], mask[1:])]
    everything = whiten(values, mask)
    count = mask.sum()
    sums = [torch.stack([count, (values * mask).sum()]), (((values - (values * mask).sum() / count) * mask) ** 2).sum()]
    results = []
    for part_values, part_mask in parts:
        replies = iter(sums)
        results.append(whiten(part_values, part_mask, lambda _, replies=replies: next(replies)))
    torch.testing.assert_close(torch.cat(results), everything)


def test_whiten_of_equal_or_no_values_is_zero():
    assert whiten(torch.full((2, 2), 7.0), torch.ones(2, 2)).tolist() == [[0, 0], [0, 0]]
    assert whiten(torch.full((2, 2), 7.0), torch.zeros(2, 2)).tolist() == [[0, 0], [0, 0]]


def test_group_advantages_by_hand():
    rewards = tensor([[1.0, 0.0], [0.0, 0.0], [5.0, 5.0], [5.0, 5.0]]).double()
    mask = tensor([[1.0, 1.0], [1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    result = group_advantages(rewards, mask, group_size=2, discount=0.5, eps=0.0001)
    # First group's sums: 1, 0 and 0: mean 1/3, deviation √(2)/3. Second group: all equal.
    deviation = math.sqrt(2) / 3 + 1e-4
    expected = [[2 / 3 / deviation, -1 / 3 / deviation], [-1 / 3 / deviation, 0], [0, 0], [0, 0]]
    torch.testing.assert_close(result, tensor(expected).double())
    with pytest.raises(ValueError, match="whole groups of 3"):
        group_advantages(rewards, mask, 3, 0.5)


def test_explained_variance():
    returns, mask = tensor([[1.0, 2.0, 3.0, 9.0]]), tensor([[1.0, 1.0, 1.0, 0.0]])
    assert explained_variance(returns, returns, mask) == pytest.approx(1)
    assert explained_variance(torch.zeros(1, 4), returns, mask) == pytest.approx(0)
    # R − V = 2, 2, 2 − … with V = −R: 2, 4, 6: variance 4 times as large.
    assert explained_variance(-returns, returns, mask) == pytest.approx(-3)
    assert explained_variance(returns, torch.ones(1, 4), mask) == 0


def test_kl_kinds_by_hand():
    """Log ratios log 2 and −log 2 at the sampled token."""
    kinds, log2 = ("k1", "abs", "mse", "k3"), math.log(2)
    found = {kind: sampled_kl(kind, tensor([0.5, 0.25]).log(), tensor([0.25, 0.5]).log()).tolist() for kind in kinds}
    expected = {"k1": [log2, -log2], "abs": [log2] * 2, "mse": [0.5 * log2**2] * 2, "k3": [log2 - 0.5, 1 - log2]}
    assert found == {kind: pytest.approx(values, rel=1e-6) for kind, values in expected.items()}
    with pytest.raises(ValueError, match="no KL estimator 'full'"):
        sampled_kl("full", tensor(0.0), tensor(0.0))


def test_full_kl_by_hand_and_as_expectation():
    p, q = tensor([0.5, 0.25, 0.25]).double(), tensor([0.25, 0.25, 0.5]).double()
    # ½·log 2 + 0 + ¼·log ½ = ¼·log 2
    assert full_kl(p.log(), q.log()).item() == pytest.approx(0.25 * math.log(2))
    for kind in ("k1", "k3"):  # unbiased: their mean under π is the full KL
        assert (p * sampled_kl(kind, p.log(), q.log())).sum().item() == pytest.approx(0.25 * math.log(2))
    p, q = tensor([1.0, 0.0]), tensor([0.5, 0.5])  # a token is impossible
    assert full_kl(p.log(), q.log()).item() == pytest.approx(math.log(2)) and full_kl(p.log(), p.log()).item() == 0


def test_controller_by_hand():
    controller = KLController(coef=0.2, target=6.0, horizon=10_000)
    controller.update(kl=9.0, rollouts=100)  # error 0.5, clipped to 0.2
    assert controller.coef == pytest.approx(0.2 * (1 + 0.2 * 100 / 10_000))
    controller.coef = 0.2
    controller.update(kl=5.4, rollouts=100)  # error −0.1
    assert controller.coef == pytest.approx(0.2 * (1 - 0.1 * 0.01))
    controller.update(kl=-50.0, rollouts=100)  # k1 may be negative; clipped to −0.2
    assert controller.coef == pytest.approx(0.2 * 0.999 * 0.998)
    for target in (None, 0):
        fixed = KLController(coef=0.2, target=target)
        fixed.update(kl=100.0, rollouts=100)
        assert fixed.coef == 0.2


def test_policy_loss_by_hand():
    ratios, advantages = tensor([1.5, 1.5, 0.5, 0.5, 1.1]), tensor([2.0, -2.0, 2.0, -2.0, 1.0])
    loss, clipped = policy_loss(ratios.log(), torch.zeros(5), advantages, clip_range=0.2)
    assert loss.tolist() == pytest.approx([-2.4, 3.0, -1.0, 1.6, -1.1])
    assert clipped.tolist() == [1, 0, 0, 1, 0]


def test_clipped_tokens_send_no_gradient_back():
    logprobs = tensor([1.5, 1.5, 1.1]).log().requires_grad_()
    policy_loss(logprobs, torch.zeros(3), tensor([1.0, -1.0, 1.0]), 0.2)[0].sum().backward()
    assert logprobs.grad.tolist() == pytest.approx([0.0, 1.5, -1.1])


def test_value_loss_by_hand():
    values, old, returns = tensor([1.0, 1.0, 0.1]), tensor([0.0, 0.0, 0.0]), tensor([2.0, -1.0, 1.0])
    # V_clip = 0.2, 0.2, 0.1: ½·max(1, 3.24), ½·max(4, 1.44), ½·0.81.
    assert value_loss(values, old, returns, 0.2).tolist() == pytest.approx([1.62, 2.0, 0.405])
    free = [(0.5 * (value - goal) ** 2) for value, goal in zip(values.tolist(), returns.tolist(), strict=True)]
    assert value_loss(values, old, returns, 0).tolist() == pytest.approx(free)
    assert free != pytest.approx([1.62, 2.0, 0.405])


def test_nl_gradient_is_the_weighted_sum_of_token_gradients():
    """Definition 1, against one backward pass per token."""
    torch.manual_seed(0)
    weight = torch.randn(4, 7, dtype=torch.float64, requires_grad=True)
    states, tokens = torch.randn(5, 4, dtype=torch.float64), tensor([1, 0, 6, 3, 3])
    deltas = tensor([1.0, -1.0, 0.0, 0.0, -1.0]).double()

    def logprobs():
        return (states @ weight).log_softmax(-1).gather(1, tokens[:, None]).squeeze(1)

    (result,) = nl_gradient(logprobs(), deltas, [weight])
    expected = sum(delta * torch.autograd.grad(logprobs()[t], weight)[0] for t, delta in enumerate(deltas))
    torch.testing.assert_close(result, expected)
