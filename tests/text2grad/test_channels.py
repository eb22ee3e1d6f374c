"""Token and response advantages against numbers worked out by hand, and against what published code computes."""

import math

import pytest
import torch
from torch import tensor

from text2grad.advantages import (
    agreement,
    before_end,
    centred,
    group_normalised,
    leave_one_out,
    leave_one_out_tokens,
    min_form,
    prime_tokens,
    response_scores,
    scaled,
    verdict_advantages,
)

pytestmark = pytest.mark.fast

MASK = tensor([[1.0, 1, 1, 1], [1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1]])
DELTAS = tensor([[1.0, -1, 0, 1], [0, 1, 1, 0], [-1, 0, 0, 0], [1, 1, 1, 0]])
COUNTS = torch.ones(4)


def close(found: torch.Tensor, expected: list, tolerance: float = 1e-6) -> None:
    torch.testing.assert_close(found, tensor(expected, dtype=found.dtype), rtol=tolerance, atol=tolerance)


def test_leave_one_out_by_hand():
    scores = tensor([1.0, 3.0, 0.0, 0.0])
    close(leave_one_out(scores, COUNTS, group_size=2), [-2, 2, 0, 0])
    close(leave_one_out(scores, COUNTS), [0, 8 / 3, -4 / 3, -4 / 3])  # others' means: 1, 1/3, 4/3, 4/3
    # the second response has no feedback: it gets 0 and is nobody's baseline, so the first one has no other
    close(leave_one_out(scores, tensor([1.0, 0, 1, 1]), group_size=2), [0, 0, 0, 0])
    close(leave_one_out(scores, tensor([1.0, 0, 1, 1])), [1, 0, -0.5, -0.5])
    with pytest.raises(ValueError, match="groups of 3"):
        leave_one_out(scores, COUNTS, group_size=3)


def test_leave_one_out_over_ranks_is_that_of_all():
    scores = tensor([1.0, 3.0, 0.0, 2.0])
    totals = torch.stack([scores.sum(), tensor(4.0)])
    parts = [leave_one_out(part, torch.ones(2), reduce=lambda _: totals) for part in (scores[:2], scores[2:])]
    torch.testing.assert_close(torch.cat(parts), leave_one_out(scores, COUNTS))


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
    # over the step: of the others' 9 tokens of the first response 2 + (−1) + 3 is the sum
    close(leave_one_out_tokens(DELTAS, MASK)[0], [1 - 4 / 9, -1 - 4 / 9, -4 / 9, 1 - 4 / 9])


def test_min_form_is_the_worst_token():
    deltas, mask = tensor([[1.0, -1.0, 9.0], [1.0, 0.5, 0.5]]), tensor([[1.0, 1, 0], [1, 1, 1]])
    found = min_form(deltas, mask, temperature=1.0)
    low, high = math.exp(-1) / (math.exp(-1) + math.e), math.e / (math.exp(-1) + math.e)
    close(found[0], [low, -high, 0])
    sharp = min_form(deltas, mask, temperature=0.01)
    close(sharp.sum(1), [-1.0, 0.5], 1e-4)


def test_scaled_by_hand():
    close(scaled(tensor([[3.0, 4.0, 9.0]]), tensor([[1.0, 1.0, 0.0]])), [[3 / math.sqrt(12.5), 4 / math.sqrt(12.5), 0]])
    assert scaled(torch.zeros(2, 2), torch.ones(2, 2)).tolist() == [[0, 0], [0, 0]]


def test_agreement_is_the_correlation_of_two_judgements():
    means, verdicts = tensor([1, 0.5, 0, -0.5]), tensor([1.0, 0.0, 0.5, -0.5])
    expected = float(torch.corrcoef(torch.stack([means, verdicts]))[0, 1])
    assert expected == pytest.approx(0.8)
    assert agreement(means, leave_one_out(verdicts, COUNTS), COUNTS) == pytest.approx(expected)
    assert agreement(-means, verdicts, COUNTS) == 0.0  # spans that say the opposite are left out, not turned round
    assert agreement(torch.ones(4), verdicts, COUNTS) == agreement(means, torch.zeros(4), COUNTS) == 0.0
    assert agreement(means, verdicts, tensor([1.0, 1, 0, 0])) == pytest.approx(1.0)  # two points lie on a line


def test_verdict_advantages_by_hand():
    # two answers to one prompt, end tokens last; the first is praised on its first token
    mask, deltas, scores = torch.ones(2, 3), tensor([[1.0, 0, 0], [0, 0, 0]]), tensor([0.5, -0.5])
    ended, never = torch.zeros(2), torch.zeros(2, 3)
    # δ less the response's mean before the end: ½, −½ and 0, 0; agreement 1; verdicts against each other: 1, −1
    part = 0.5 / math.sqrt(2 * 0.25 / 6)
    expected = [[1 + part, 1 - part, 1], [-1, -1, -1]]
    found = verdict_advantages(deltas, mask, scores, ended, never, group_size=2)
    close(found, expected)
    alone = verdict_advantages(deltas, mask, scores, ended, never, group_size=2, weight=0.0)
    close(alone, [[1, 1, 1], [-1, -1, -1]])
    # the second lacks two things that the first has: 2 and −2 on the end tokens alone, 1 and −1 when scaled
    lacking = verdict_advantages(deltas, mask, scores, tensor([0.0, 2.0]), never, group_size=2)
    close(lacking - found, [[0, 0, 1], [0, 0, -1]])
    # what the better answer lacks contradicts the verdict, and one that was cut off chose no end
    for missing in (tensor([2.0, 0.0]), tensor([0.0, math.nan])):
        close(verdict_advantages(deltas, mask, scores, missing, never, group_size=2), expected)
    # both might have ended before their second token: going on earned −½ and 0 there, −¼ with equal chances
    chances = tensor([[0.0, 0.2, 0.9], [0.0, 0.2, 0.7]])
    size = math.sqrt((2 * 0.25 + 2 * 0.0625) / 6)
    stopping = [[1 + 0.5 / size, 1 - 0.5 / size, 1 - 0.25 / size], [-1, -1, -1 - 0.25 / size]]
    close(verdict_advantages(deltas, mask, scores, ended, chances, group_size=2), stopping)


@pytest.mark.parametrize("under", [99.0, math.nan, math.inf])
def test_nothing_under_the_padding_reaches_a_result(under):
    padded = torch.where(MASK == 0, under, DELTAS)
    for result in (
        lambda x: response_scores(x, MASK),
        lambda x: centred(x, MASK),
        lambda x: centred(x, before_end(MASK), 1e-6),
        lambda x: leave_one_out_tokens(x, MASK, 2),
        lambda x: prime_tokens(x, MASK, 2),
        lambda x: min_form(x, MASK),
        lambda x: scaled(x, MASK),
        lambda x: verdict_advantages(x, MASK, COUNTS.cumsum(0), COUNTS.cumsum(0), x.abs(), 2),
    ):
        torch.testing.assert_close(result(padded), result(DELTAS), rtol=0, atol=0)
