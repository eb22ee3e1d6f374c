"""From rewards to advantages: the paper's GAE and whitening (section 3.5 and algorithm 4), and channels apart.

Token advantages say where in a response something is good or bad; response advantages say how good the whole is. δ
summed over tokens mixes the two: praise pays for every further token, and blame charges for it.

Unless it says ``[B]``, a tensor is ``[B, T]``: rollouts by response tokens, padded on the right; ``mask`` is 1 on
response tokens, 0 on padding and on what a tool wrote in between. Whatever is there never reaches a result. Rows
i·group_size … (i+1)·group_size − 1 answer the same prompt. Pure functions: no model, no state.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Reduce = Callable[[Tensor], Tensor]
"""Sums a small tensor over all ranks."""


def alone(sums: Tensor) -> Tensor:
    """The sums over all ranks where there is one process."""
    return sums


def _chosen(values: Tensor, mask: Tensor) -> Tensor:
    """0 on padding, also where NaN stands there, which a product with the mask would keep."""
    return values.masked_fill(mask == 0, 0)


def total_rewards(deltas: Tensor, kl: Tensor, kl_coef: float) -> Tensor:
    """r_t = δ_t − β·KL_t, in reward units. Source: section 3.5, r^total = δ + r^KL."""
    return deltas - kl_coef * kl


def gae(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimates and the value function's targets.

    A_t = Σ_l (γλ)^l · (r_{t+l} + γ·V_{t+l+1} − V_{t+l}), V beyond the last response token = 0; R_t = A_t + V_t.
    Source: section 3.5; Schulman et al. 2016, equation 16.

    Args:
        rewards: r_t.
        values: V_t = V(x, y_{<t}), the value before token t is read.

    Returns:
        Advantages and returns, both 0 on padding.
    """
    rewards, values = _chosen(rewards, mask), _chosen(values, mask)
    advantages = torch.zeros_like(rewards)
    running = torch.zeros_like(rewards[:, 0])
    next_value = torch.zeros_like(running)
    for t in reversed(range(rewards.shape[1])):
        own = mask[:, t] > 0  # what another wrote in between is passed over: credit goes on to the token before it
        error = rewards[:, t] + gamma * next_value - values[:, t]
        running = torch.where(own, error + gamma * lam * running, running)
        next_value = torch.where(own, values[:, t], next_value)
        advantages[:, t] = running
    return advantages * mask, (advantages + values) * mask


def discounted_sums(rewards: Tensor, mask: Tensor, discount: float) -> Tensor:
    """G_t = Σ_l discount^l · r_{t+l} over the response's tokens. With discount γλ: GAE without a value function."""
    return gae(rewards, torch.zeros_like(rewards), mask, discount, 1.0)[0]


def masked_moments(values: Tensor, mask: Tensor, reduce: Reduce = alone) -> tuple[Tensor, Tensor]:
    """Mean and (biased) variance over the masked entries of all ranks, in float64 and in two passes."""
    chosen = _chosen(values.double(), mask)
    count, total = reduce(torch.stack([mask.double().sum(), chosen.sum()]))
    mean = total / count.clamp(min=1)
    squares = reduce((((chosen - mean) * mask) ** 2).sum())
    return mean, squares / count.clamp(min=1)


def whiten(values: Tensor, mask: Tensor, reduce: Reduce = alone, eps: float = 1e-8) -> Tensor:
    """(values − mean) / √(variance + eps) over the masked entries of all ranks; 0 on padding.

    A batch in which all entries are equal becomes all zeros: it says nothing about which token to prefer.
    """
    mean, variance = masked_moments(values, mask, reduce)
    return _chosen((values.double() - mean) * torch.rsqrt(variance + eps), mask).to(values.dtype)


def group_advantages(rewards: Tensor, mask: Tensor, group_size: int, discount: float, eps: float = 1e-4) -> Tensor:
    """Token advantages without a value function: :func:`group_tokens` of G_t = Σ_l discount^l · r'_{t+l}.

    r' is :func:`leave_one_out_tokens` of the rewards: else equal responses would have advantages, as an early token has
    more rewards to come than a late one, and praise of everything would pay for each further token.

    Args:
        discount: γλ.
    """
    compared = leave_one_out_tokens(rewards, mask, group_size)
    return group_tokens(discounted_sums(compared, mask, discount), mask, group_size, eps)


def group_tokens(values: Tensor, mask: Tensor, group_size: int, eps: float = 1e-4) -> Tensor:
    """(v − mean) / (standard deviation + eps) over all response tokens of the responses to one prompt."""
    if values.shape[0] % group_size:
        raise ValueError(f"{values.shape[0]} rollouts are not whole groups of {group_size}")
    as_one = (-1, group_size * values.shape[1])
    return centred(values.reshape(as_one), mask.reshape(as_one), eps).view_as(values)


def explained_variance(values: Tensor, returns: Tensor, mask: Tensor, reduce: Reduce = alone) -> float:
    """1 − Var(R − V) / Var(R): 1 for a perfect value function, 0 for a constant one (and where R is constant)."""
    spread, rest = (masked_moments(each, mask, reduce)[1] for each in (returns, returns - values))
    return float(1 - rest / spread) if spread > 1e-12 else 0.0


# Response channel: one number per response, [B]


def per_response(values: Tensor, mask: Tensor) -> Tensor:
    """``[B] -> [B, T]``: the same for all tokens of a response, 0 where the mask is."""
    return torch.where(mask > 0, values[:, None], 0.0).to(mask.dtype)


def response_scores(deltas: Tensor, mask: Tensor, mean: bool = False) -> Tensor:
    """Σ_t δ_t of each response, or its mean over the response's tokens: ``[B]``."""
    sums = _chosen(deltas, mask).sum(1)
    return sums / mask.sum(1).clamp(min=1) if mean else sums


def leave_one_out(scores: Tensor, counts: Tensor, group_size: int = 1, reduce: Reduce = alone) -> Tensor:
    """R_i − mean of R_j over the group's other responses; 0 where there is no other. Kool et al. 2019, RLOO.

    Args:
        scores: R, ``[B]``.
        counts: ``[B]``, 1 for responses that have feedback; the others get 0 and are nobody's baseline.
        group_size: 1: each prompt has one response, and all responses of the step, over all ranks, are one group.
    """
    chosen, counts = _chosen(scores, counts), counts.to(scores.dtype)
    totals = _group_sums(torch.stack([chosen, counts]), group_size, reduce)
    others = totals - torch.stack([chosen, counts])
    baseline = others[0] / others[1].clamp(min=1)
    return torch.where((counts > 0) & (others[1] > 0), chosen - baseline, torch.zeros_like(chosen))


def group_normalised(
    scores: Tensor, counts: Tensor, group_size: int, eps: float = 1e-4, divide: bool = True, reduce: Reduce = alone
) -> Tensor:
    """(R_i − mean) / (standard deviation + eps) over a prompt's responses. Source: GRPO, Shao et al. 2024.

    Args:
        divide: False leaves the deviation out (Dr. GRPO, Liu et al. 2025): it blows up prompts whose responses hardly
            differ, those that are nearly always or hardly ever answered well.
    """
    chosen, counts = _chosen(scores, counts), counts.to(scores.dtype)
    total, count = _group_sums(torch.stack([chosen, counts]), group_size, reduce)
    deviations = (chosen - total / count.clamp(min=1)) * counts
    if not divide:
        return deviations
    (squares,) = _group_sums(deviations[None] ** 2, group_size, reduce)
    return deviations / ((squares / (count - 1).clamp(min=1)).sqrt() + eps)


def _group_sums(columns: Tensor, group_size: int, reduce: Reduce = alone) -> Tensor:
    """Each row's sums over its group: ``[C, B]`` to ``[C, B]``."""
    rows = columns.shape[1]
    if group_size == 1:
        total = reduce(columns.sum(1))
        return total[:, None].expand(-1, rows)
    if rows % group_size:
        raise ValueError(f"{rows} rollouts are not whole groups of {group_size}")
    return columns.view(len(columns), -1, group_size).sum(2).repeat_interleave(group_size, dim=1)


# Token channel: credit inside a response, [B, T]


def before_end(mask: Tensor) -> Tensor:
    """The mask without each response's last token, which says "stop"."""
    return mask * (mask.flip(1).cumsum(1).flip(1) > mask)


def centred(deltas: Tensor, mask: Tensor, std_eps: float | None = None) -> Tensor:
    """δ_t minus its mean over the masked tokens of the same response: the credits of a response sum to 0.

    Args:
        mask: :func:`before_end` of the response's mask leaves the choice between stopping and going on alone.
        std_eps: divide by the response's standard deviation plus this. Source: RTT, arXiv 2604.02795.
    """
    chosen, count = _chosen(deltas, mask), mask.sum(1, keepdim=True).clamp(min=1)
    deviations = (chosen - chosen.sum(1, keepdim=True) / count) * mask
    if std_eps is None:
        return deviations
    return deviations / (((deviations**2).sum(1, keepdim=True) / count).sqrt() + std_eps)


def leave_one_out_tokens(deltas: Tensor, mask: Tensor, group_size: int) -> Tensor:
    """δ_t minus the mean of δ over all tokens of the group's other responses; 0 where there is no other.

    So a further token earns what it is better than a usual one, and praise alone no longer pays for length.
    Source: PURE, arXiv 2504.15275.
    """
    chosen = _chosen(deltas, mask)
    own = torch.stack([chosen.sum(1), mask.sum(1).to(chosen.dtype)])
    others = _group_sums(own, group_size) - own
    baseline = others[0] / others[1].clamp(min=1)
    return (chosen - baseline[:, None]) * mask * (others[1] > 0)[:, None]


def prime_tokens(deltas: Tensor, mask: Tensor, group_size: int) -> Tensor:
    """(δ_t − mean over the group's responses of their mean δ) · n / (n − 1). Source: PRIME, arXiv 2502.01456.

    n is the number of the group's responses that have feedback; 0 where that is one.
    """
    if group_size < 2:
        raise ValueError("PRIME compares a prompt's responses; give groups of 2 or more")
    means = response_scores(deltas, mask, mean=True)
    total, count = _group_sums(torch.stack([means, mask.any(1).to(means.dtype)]), group_size)
    rest = torch.where(count > 1, count / (count - 1).clamp(min=1), 0.0)
    return _chosen((_chosen(deltas, mask) - (total / count.clamp(min=1))[:, None]) * rest[:, None], mask)


def min_form(deltas: Tensor, mask: Tensor, temperature: float = 0.1) -> Tensor:
    """softmax(−δ/T)_t · δ_t: a response is worth about as much as its worst token. Source: PURE, arXiv 2504.15275."""
    chosen = _chosen(deltas, mask)
    weights = torch.softmax((-chosen / temperature).masked_fill(mask == 0, -torch.inf), dim=1)
    return _chosen(weights * chosen, mask)


# Both together


def scaled(values: Tensor, mask: Tensor, usual: float = 0.0, reduce: Reduce = alone) -> tuple[Tensor, float]:
    """Values divided by their root mean square over the masked entries of all ranks; and that mean square.

    Args:
        usual: the mean square of earlier steps; where it is larger, it is the divisor's. Else the last differences
            would be blown up to full size once all responses are nearly the same.
    """
    chosen = _chosen(values.double(), mask)
    squares, count = reduce(torch.stack([(chosen**2).sum(), mask.double().sum()])).tolist()
    mean = squares / max(count, 1.0)
    return (chosen * (max(mean, usual) + 1e-8) ** -0.5).to(values.dtype), mean


def agreement(first: Tensor, second: Tensor, counts: Tensor, reduce: Reduce = alone) -> float:
    """How far two judgements say the same of whole responses: their correlation over the step, at least 0.

    Spans of a critic that praises everything, or praises the long, tell nothing of a response's worth: they get 0.

    Args:
        first, second: each against the other responses', ``[B]``.
        counts: ``[B]``, 1 for responses that have feedback.
    """
    first, second = (_chosen(values, counts).double() for values in (first, second))
    products = torch.stack([first * second, first**2, second**2, first, second, counts.double()]).sum(1)
    both, squares, other_squares, total, other, count = reduce(products).tolist()
    count = max(count, 1.0)
    spread = (squares - total**2 / count) * (other_squares - other**2 / count)
    return max(0.0, (both - total * other / count) / spread**0.5) if spread > 1e-12 else 0.0


def verdict_advantages(
    deltas: Tensor,
    mask: Tensor,
    scores: Tensor,
    missing: Tensor,
    end_probs: Tensor,
    group_size: int = 1,
    weight: float = 1.0,
    usual: Sequence[float] = (0.0, 0.0, 0.0),
    reduce: Reduce = alone,
    seen: Tensor | None = None,
) -> tuple[Tensor, list[float]]:
    """The verdict says how good a response is; spans and what is missing say where. None of them pays for length.

    Three channels, each :func:`scaled` on its own, are added up:

    - on every token the verdict, against the other responses';
    - before the end token δ_t, against the response's own mean: :func:`centred`, without a discount, so that a span
      moves the tokens it is about and no others. The end token gets the mean of this over the others, weighted by how
      probable ending was there: then, over the step, the spans move no token against the choice to stop. It gets less
      of this the more what is missing agrees with the verdict, since there it may pay to go on;
    - on the end token what is missing, against the other responses': it was left out by stopping there.

    The second and third weigh ``weight`` times their :func:`agreement` with the verdict.

    Args:
        deltas: what each token earns by its spans (and loses by the KL penalty).
        scores: the verdict on each response, ``[B]``.
        missing: how many things each response lacks, ``[B]``; NaN where it did not end by itself.
        end_probs: the policy's probability of ending in place of each token.
        group_size: as in :func:`leave_one_out`.
        usual: each channel's mean square in earlier steps, as in :func:`scaled`.
        seen: ``[B]``, False for blank responses, which no critic is shown; by default those of one token.

    Returns:
        Advantages, and each channel's mean square.
    """
    counts, inside = mask.any(1), before_end(mask)
    # A blank response, which no critic has seen, has no spans, and lacks nothing by name.
    spoken = inside.any(1) if seen is None else counts & seen
    ended = counts & ~missing.isnan()
    end, judged = (mask - inside) * ended[:, None], ended & spoken
    whole, told_of = (leave_one_out(scores, those, group_size, reduce) for those in (counts, spoken))
    spans, chances = centred(deltas, inside), _chosen(end_probs, inside)
    going_on, total = reduce(torch.stack([(spans * chances).sum(), chances.sum()]))
    told = leave_one_out(-missing, judged, group_size, reduce)
    lacks = agreement(told, told_of, judged, reduce)
    spans = spans + (1 - lacks) * end * going_on / total.clamp(min=1e-8)
    means = leave_one_out(response_scores(deltas, inside, mean=True), spoken, group_size, reduce)
    trusted = agreement(means, told_of, spoken, reduce)
    by_verdict, first = scaled(per_response(whole, mask), mask, usual[0], reduce)
    by_spans, second = scaled(spans, mask, usual[1], reduce)
    by_missing, third = scaled(per_response(told, end), end * spoken[:, None], usual[2], reduce)
    return by_verdict + weight * trusted * by_spans + weight * lacks * by_missing, [first, second, third]
