"""The teacher's losses: against numbers worked by hand, and against TRL's own SDPO on the same tensors."""

from math import exp, log

import pytest
import torch
from trl.experimental.sdpo import loss_utils

from text2grad.losses.ppo import capped_ratio
from text2grad.losses.teacher import divergence, gated, span_sums, weighted, with_tail


def rows(*values: float) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float64)


def test_the_teacher_gives_the_size_and_the_quote_the_sign():
    """Where the teacher agrees (l·Δ > 0) a label grows, at most by the clip; where it does not, it shrinks so far."""
    labels, gap = rows(1, 1, -1, -1, 0, 0.5), rows(log(1.1), -3, -log(1.1), 3, 5, log(0.9))
    expected = rows(1.1, 0.8, -1.1, -0.8, 0, 0.45)
    torch.testing.assert_close(weighted(labels, gap, 0.2), expected)


def test_a_label_that_the_teacher_rejects_goes_to_nothing():
    labels, gap = rows(1, -1, 1, -1, -1, 0), rows(2, -2, -log(3), log(3), 40, -7)
    # 2·σ(−log 3) = 2 · 1/(1 + 3) = ½; agreement leaves the label alone
    torch.testing.assert_close(gated(labels, gap), rows(1, -1, 0.5, -0.5, 0, 0), atol=1e-12, rtol=0)
    torch.testing.assert_close(gated(labels[:, 2:3], gap[:, 2:3], scale=0.5), rows(2 / (1 + 9)))


def test_a_span_is_judged_as_a_whole():
    labels = torch.tensor([[1.0, 1, 0, 0, -1, 1], [1, -1, -1, -1, 0, 0]])
    gap = torch.tensor([[0.5, -2, 7, 9, 1, 2], [3, 1, 1, -4, 5, 6]])
    expected = torch.tensor([[-1.5, -1.5, 7, 9, 1, 2], [3, -2, -2, -2, 5, 6]])
    torch.testing.assert_close(span_sums(labels, gap), expected)


def test_divergences_by_hand():
    own, teacher = rows(0.5, 0.5).log(), rows(0.25, 0.75).log()
    forward = 0.25 * log(0.5) + 0.75 * log(1.5)
    backward = 0.5 * log(2) + 0.5 * log(2 / 3)
    middle = (0.375, 0.625)
    both = 0.5 * sum(p * log(p / m) for pair in ((0.25, 0.75), (0.5, 0.5)) for p, m in zip(pair, middle, strict=True))
    assert divergence(own, teacher, 0).item() == pytest.approx(forward)
    assert divergence(own, teacher, 1).item() == pytest.approx(backward)
    assert divergence(own, teacher, 0.5).item() == pytest.approx(both)
    assert divergence(own, own, 0.5).item() == pytest.approx(0, abs=1e-12)


def test_the_tail_holds_what_is_left():
    chosen = with_tail(rows(log(0.5), log(0.3)))
    torch.testing.assert_close(chosen.exp(), rows(0.5, 0.3, 0.2))
    assert torch.isfinite(with_tail(rows(0.0, -60.0))).all()  # nothing is left: no −∞ in the loss


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 1.0])
def test_sdpo_is_trls_own(alpha):
    """Loss and gradient on the policy's top k with a tail, and the correction for older rollouts."""
    generator = torch.Generator().manual_seed(3)
    logits, teacher = (torch.randn(2, 5, 40, generator=generator, dtype=torch.float64) for _ in range(2))
    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    expected = loss_utils.compute_topk_self_distillation_loss(
        theirs, teacher, distillation_topk=7, distillation_alpha=alpha, distillation_add_tail=True
    )
    ids = logits.topk(7).indices
    found = divergence(
        with_tail(ours.log_softmax(-1).gather(-1, ids)), with_tail(teacher.log_softmax(-1).gather(-1, ids)), alpha
    )
    torch.testing.assert_close(found, expected)
    found.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)

    old = torch.randn(2, 5, generator=generator, dtype=torch.float64)
    now = old + torch.tensor([0.1, 0.5, 0.69, 0.7, -3])
    corrected = loss_utils.apply_importance_sampling_clipping(found.detach(), now, old, 2.0)
    torch.testing.assert_close(found.detach() * capped_ratio(now, old), corrected)
    assert capped_ratio(now, old)[0].tolist() == pytest.approx([exp(0.1), exp(0.5), exp(0.69), 2, exp(-3)])
