"""Advantages, KL kinds, controller and losses against numbers worked out by hand."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import tensor

from text2grad.advantages import (
    agreement,
    before_end,
    centred,
    discounted_sums,
    explained_variance,
    gae,
    group_advantages,
    group_normalised,
    leave_one_out,
    leave_one_out_tokens,
    masked_moments,
    min_form,
    prime_tokens,
    response_scores,
    scaled,
    verdict_advantages,
    whiten,
)
from text2grad.losses.kl import KLController, full_kl, sampled_kl
from text2grad.losses.ppo import policy_loss, value_loss

pytestmark = pytest.mark.fast

MASK = tensor([[1.0, 1, 1, 1], [1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1]])
DELTAS = tensor([[1.0, -1, 0, 1], [0, 1, 1, 0], [-1, 0, 0, 0], [1, 1, 1, 0]])
COUNTS = torch.ones(4)


def close(found: torch.Tensor, expected: list, tolerance: float = 1e-6) -> None:
    torch.testing.assert_close(found, tensor(expected, dtype=found.dtype), rtol=tolerance, atol=tolerance)


@settings(max_examples=50)
@given(
    st.lists(
        st.lists(st.tuples(st.floats(-3, 3), st.floats(-3, 3), st.booleans()), min_size=1, max_size=6),
        min_size=1,
        max_size=4,
    ),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_gae_is_its_definition(rollouts, gamma, lam):
    """A_t = Σ_l (γλ)^l (r_{t+l} + γ V_{t+l+1} − V_{t+l}), summed out term by term for ragged rollouts.

    Tokens that are not the response's own, such as what a tool wrote in between, are passed over.
    """
    longest = max(map(len, rollouts))
    rewards, values, mask = (torch.zeros(len(rollouts), longest, dtype=torch.float64) for _ in range(3))
    for row, tokens in enumerate(rollouts):
        for t, token in enumerate(tokens):
            rewards[row, t], values[row, t], mask[row, t] = token
    advantages, returns = gae(rewards, values, mask, gamma, lam)
    assert not advantages[mask == 0].any() and not returns[mask == 0].any()
    for row, tokens in enumerate(rollouts):
        own = [at for at, (_, _, is_own) in enumerate(tokens) if is_own]
        padded = [*(tokens[at] for at in own), (0.0, 0.0)]
        for t, at in enumerate(own):
            expected = sum(
                (gamma * lam) ** (k - t) * (padded[k][0] + gamma * padded[k + 1][1] - padded[k][1])
                for k in range(t, len(own))
            )
            assert advantages[row, at].item() == pytest.approx(expected, abs=1e-9)
            assert returns[row, at].item() == pytest.approx(expected + padded[t][1], abs=1e-9)


def test_whiten_by_hand():
    values, mask = tensor([[1.0, 2.0, 50.0], [3.0, -50.0, 60.0]]), tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    # 1, 2, 3: mean 2, variance 2/3.
    close(whiten(values, mask), [[-math.sqrt(1.5), 0, 0], [math.sqrt(1.5), 0, 0]])
    for mask in (torch.ones(2, 2), torch.zeros(2, 2)):  # equal values, and none
        assert whiten(torch.full((2, 2), 7.0), mask).tolist() == [[0, 0], [0, 0]]


def test_group_advantages_by_hand():
    rewards = tensor([[1.0, 0.0], [0.0, 0.0], [5.0, 5.0], [5.0, 5.0]]).double()
    mask = tensor([[1.0, 1.0], [1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    result = group_advantages(rewards, mask, group_size=2, discount=0.5, eps=0.0001)
    # First group's sums, less the other response's mean: 1, 0 and -1/2: mean 1/6. Second group: all equal.
    deviation = math.sqrt((25 + 1 + 16) / 36 / 3) + 1e-4
    close(result, [[5 / 6 / deviation, -1 / 6 / deviation], [-4 / 6 / deviation, 0], [0, 0], [0, 0]])
    assert not group_advantages(-torch.ones(2, 8), torch.ones(2, 8), 2, 0.95).any()
    with pytest.raises(ValueError, match="whole groups of 3"):
        group_advantages(rewards, mask, 3, 0.5)


def test_explained_variance():
    returns, mask = tensor([[1.0, 2.0, 3.0, 9.0]]), tensor([[1.0, 1.0, 1.0, 0.0]])
    assert explained_variance(returns, returns, mask) == pytest.approx(1)
    assert explained_variance(torch.zeros(1, 4), returns, mask) == pytest.approx(0)
    # R − V = 2, 2, 2 − … with V = −R: 2, 4, 6: variance 4 times as large.
    assert explained_variance(-returns, returns, mask) == pytest.approx(-3)
    assert explained_variance(returns, torch.ones(1, 4), mask) == 0


def test_leave_one_out_by_hand():
    scores = tensor([1.0, 3.0, 0.0, 0.0])
    close(leave_one_out(scores, COUNTS, group_size=2), [-2, 2, 0, 0])
    close(leave_one_out(scores, COUNTS), [0, 8 / 3, -4 / 3, -4 / 3])  # others' means: 1, 1/3, 4/3, 4/3
    # the second response has no feedback: it gets 0 and is nobody's baseline, so the first one has no other
    close(leave_one_out(scores, tensor([1.0, 0, 1, 1]), group_size=2), [0, 0, 0, 0])
    close(leave_one_out(scores, tensor([1.0, 0, 1, 1])), [1, 0, -0.5, -0.5])
    with pytest.raises(ValueError, match="groups of 3"):
        leave_one_out(scores, COUNTS, group_size=3)


def test_comparisons_over_ranks_are_those_of_all():
    scores = tensor([1.0, 3.0, 0.0, 2.0])
    totals = torch.stack([scores.sum(), tensor(4.0)])
    parts = [leave_one_out(part, torch.ones(2), reduce=lambda _: totals) for part in (scores[:2], scores[2:])]
    torch.testing.assert_close(torch.cat(parts), leave_one_out(scores, COUNTS))
    sums = {2: totals, 1: ((scores - scores.mean()) ** 2).sum()[None]}
    parts = [group_normalised(part, torch.ones(2), 1, reduce=lambda own: sums[len(own)]) for part in scores.split(2)]
    torch.testing.assert_close(torch.cat(parts), group_normalised(scores, COUNTS, 4))


def test_group_normalised_by_hand():
    scores = tensor([1.0, 3.0, 5.0, 5.0])
    deviation = math.sqrt(2) + 1e-4  # of 1 and 3, unbiased as TRL's
    close(group_normalised(scores, COUNTS, 2), [-1 / deviation, 1 / deviation, 0, 0])
    close(group_normalised(scores, COUNTS, 2, divide=False), [-1, 1, 0, 0])  # Dr. GRPO
    close(group_normalised(scores, tensor([1.0, 1, 1, 0]), 4, divide=False), [-2, 0, 2, 0])


def test_response_scores_by_hand():
    close(response_scores(DELTAS, MASK), [1, 2, -1, 3])
    close(response_scores(DELTAS, MASK, mean=True), [1 / 4, 2 / 3, -1 / 2, 3 / 4])


def test_before_end_leaves_out_the_last_token():
    assert before_end(MASK).tolist() == [[1, 1, 1, 0], [1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 0]]
    assert before_end(torch.zeros(1, 2)).tolist() == [[0, 0]]
    assert before_end(torch.tensor([[1.0, 1, 0, 0, 1, 1]])).tolist() == [[1, 1, 0, 0, 1, 0]]  # a tool wrote in between


def test_centred_by_hand():
    close(centred(DELTAS, MASK)[:2], [[0.75, -1.25, -0.25, 0.75], [-2 / 3, 1 / 3, 1 / 3, 0]])
    inside = centred(DELTAS, before_end(MASK))
    close(inside, [[1, -1, 0, 0], [-0.5, 0.5, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]])  # all praised: nothing to tell apart
    assert inside.sum(1).tolist() == [0, 0, 0, 0]
    close(centred(DELTAS[1:2], MASK[1:2], std_eps=0.0), [[-math.sqrt(2), math.sqrt(0.5), math.sqrt(0.5), 0]])


def test_leave_one_out_tokens_by_hand():
    # mean δ over the other response's tokens: 2/3, 1/4, 3/4, −1/2
    expected = [[1 / 3, -5 / 3, -2 / 3, 1 / 3], [-1 / 4, 3 / 4, 3 / 4, 0], [-7 / 4, -3 / 4, 0, 0], [1.5, 1.5, 1.5, 0.5]]
    close(leave_one_out_tokens(DELTAS, MASK, 2), expected)


def test_min_form_is_the_worst_token():
    deltas, mask = tensor([[1.0, -1.0, 9.0], [1.0, 0.5, 0.5]]), tensor([[1.0, 1, 0], [1, 1, 1]])
    found = min_form(deltas, mask, temperature=1.0)
    low, high = math.exp(-1) / (math.exp(-1) + math.e), math.e / (math.exp(-1) + math.e)
    close(found[0], [low, -high, 0])
    sharp = min_form(deltas, mask, temperature=0.01)
    close(sharp.sum(1), [-1.0, 0.5], 1e-4)


def test_scaled_by_hand():
    values, mask = tensor([[3.0, 4.0, 9.0]]), tensor([[1.0, 1.0, 0.0]])
    for usual, size in [(0.0, math.sqrt(12.5)), (12.0, math.sqrt(12.5)), (25.0, 5.0)]:
        found, mean_square = scaled(values, mask, usual)
        close(found, [[3 / size, 4 / size, 0]])
        assert mean_square == 12.5
    assert scaled(torch.zeros(2, 2), torch.ones(2, 2))[0].tolist() == [[0, 0], [0, 0]]


def test_agreement_is_the_correlation_of_two_judgements():
    means, verdicts = tensor([1, 0.5, 0, -0.5]), tensor([1.0, 0.0, 0.5, -0.5])
    assert agreement(means, leave_one_out(verdicts, COUNTS), COUNTS) == pytest.approx(0.8)  # 1 / √(1.25 · 1.25)
    assert agreement(-means, verdicts, COUNTS) == 0.0  # spans that say the opposite are left out, not turned round
    assert agreement(torch.ones(4), verdicts, COUNTS) == agreement(means, torch.zeros(4), COUNTS) == 0.0
    assert agreement(means, verdicts, tensor([1.0, 1, 0, 0])) == pytest.approx(1.0)  # two points lie on a line


def test_verdict_advantages_by_hand():
    def advantages(*channels, **options):
        return verdict_advantages(*channels, **options)[0]

    # two answers to one prompt, end tokens last; the first is praised on its first token
    mask, deltas, scores = torch.ones(2, 3), tensor([[1.0, 0, 0], [0, 0, 0]]), tensor([0.5, -0.5])
    ended, never = torch.zeros(2), torch.zeros(2, 3)
    # δ less the response's mean before the end: ½, −½ and 0, 0; agreement 1; verdicts against each other: 1, −1
    part = 0.5 / math.sqrt(2 * 0.25 / 6)
    expected = [[1 + part, 1 - part, 1], [-1, -1, -1]]
    found = advantages(deltas, mask, scores, ended, never, group_size=2)
    close(found, expected)
    alone = advantages(deltas, mask, scores, ended, never, group_size=2, weight=0.0)
    close(alone, [[1, 1, 1], [-1, -1, -1]])
    # the second lacks two things that the first has: 2 and −2 on the end tokens alone, 1 and −1 when scaled
    lacking = advantages(deltas, mask, scores, tensor([0.0, 2.0]), never, group_size=2)
    close(lacking - found, [[0, 0, 1], [0, 0, -1]])
    # what the better answer lacks contradicts the verdict, and one that was cut off chose no end
    for missing in (tensor([2.0, 0.0]), tensor([0.0, math.nan])):
        close(advantages(deltas, mask, scores, missing, never, group_size=2), expected)
    # both might have ended before their second token: going on earned −½ and 0 there, −¼ with equal chances
    chances = tensor([[0.0, 0.2, 0.9], [0.0, 0.2, 0.7]])
    size = math.sqrt((2 * 0.25 + 2 * 0.0625) / 6)
    stopping = [[1 + 0.5 / size, 1 - 0.5 / size, 1 - 0.25 / size], [-1, -1, -1 - 0.25 / size]]
    close(advantages(deltas, mask, scores, ended, chances, group_size=2), stopping)
    # what is missing says all that the verdict does: going on may pay, and the end token gets nothing of that ¼
    telling = advantages(deltas, mask, scores, tensor([0.0, 2.0]), chances, group_size=2)
    close(telling, [[1 + part, 1 - part, 2], [-1, -1, -2]])
    # a third is blank: its verdict counts, but that no critic names anything in it is no judgement
    for blank, seen in (([1.0, 0, 0], None), ([1.0, 1, 0], tensor([True, True, False]))):
        silent = torch.cat([deltas, -tensor([blank])]), torch.cat([mask, tensor([blank])])
        judged = tensor([0.5, -0.5, -1]), tensor([0.0, 2, 0]), torch.zeros(3, 3)
        beside, count = advantages(*silent, *judged, group_size=3, seen=seen), 6 + sum(blank)
        size, part = math.sqrt((3 * 1.25**2 + 3 * 0.25**2 + sum(blank)) / count), 0.5 / math.sqrt(2 * 0.25 / count)
        first, second, third = 1.25 / size, -0.25 / size, [-each / size for each in blank]
        close(beside, [[first + part, first - part, first + 1], [second, second, second - 1], third])
    # half of what was usual for the verdict, twice that for the spans
    less, squares = verdict_advantages(deltas, mask, scores, ended, never, group_size=2, usual=(4.0, 1e-3, 0.0))
    close(less - found, [[-0.5] * 3, [0.5] * 3])
    assert squares == pytest.approx([1, 0.5 / 6, 0])


@pytest.mark.parametrize("under", [99.0, math.nan, math.inf])
def test_nothing_under_the_padding_reaches_a_result(under):
    padded = torch.where(MASK == 0, under, DELTAS)
    for result in (
        lambda x: gae(x, x, MASK, 0.9, 0.5), lambda x: discounted_sums(x, MASK, 0.9), lambda x: whiten(x, MASK),
        lambda x: group_advantages(x, MASK, 2, 0.9), lambda x: masked_moments(x, MASK),
        lambda x: tensor(explained_variance(x, x, MASK)), lambda x: response_scores(x, MASK),
        lambda x: centred(x, MASK), lambda x: centred(x, before_end(MASK), 1e-6),
        lambda x: leave_one_out_tokens(x, MASK, 2), lambda x: prime_tokens(x, MASK, 2), lambda x: min_form(x, MASK),
        lambda x: scaled(x, MASK)[0],
        lambda x: verdict_advantages(x, MASK, COUNTS.cumsum(0), COUNTS.cumsum(0), x.abs(), 2)[0],
    ):  # fmt: skip
        torch.testing.assert_close(result(padded), result(DELTAS), rtol=0, atol=0)


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
    controller.update(kl=0.0, rollouts=60_000)  # 20 % at most, in however large a step
    assert controller.coef == pytest.approx(0.2 * 0.999 * 0.998 * 0.8)
    for target in (None, 0):
        fixed = KLController(coef=0.2, target=target)
        fixed.update(kl=100.0, rollouts=100)
        assert fixed.coef == 0.2


def test_policy_loss_by_hand():
    ratios, advantages = tensor([1.5, 1.5, 0.5, 0.5, 1.1]), tensor([2.0, -2.0, 2.0, -2.0, 1.0])
    loss, clipped = policy_loss(ratios.log(), torch.zeros(5), advantages, clip_range=0.2)
    assert loss.tolist() == pytest.approx([-2.4, 3.0, -1.0, 1.6, -1.1])
    assert clipped.tolist() == [1, 0, 0, 1, 0]


def test_value_loss_by_hand():
    values, old, returns = tensor([1.0, 1.0, 0.1]), tensor([0.0, 0.0, 0.0]), tensor([2.0, -1.0, 1.0])
    # V_clip = 0.2, 0.2, 0.1: ½·max(1, 3.24), ½·max(4, 1.44), ½·0.81.
    assert value_loss(values, old, returns, 0.2).tolist() == pytest.approx([1.62, 2.0, 0.405])
    assert value_loss(values, old, returns, 0).tolist() == pytest.approx([0.5, 2.0, 0.405])  # ½·1, ½·4, ½·0.81
