"""Rows of tokens as trees of depth two: what several begin with is read once, then how each of them goes on.

A tree is a list of lengths: of the tokens that its rows share, then of each row's own tokens, which see the shared ones
and themselves. A row by itself is a tree of one length.
"""

from functools import lru_cache
from itertools import accumulate, pairwise
from os.path import commonprefix

import torch
import torch.nn.functional as F
from torch import Tensor

Segments = list[list[int]]
"""The trees of a batch, whose tokens lie end to end."""

_WORTH_SHARING = 0.25
"""The share of a batch's tokens that shared prefixes must save: below it, short pieces of attention cost as much."""
_SHORT = 512
"""Keys up to which plain products are the faster attention with gradients: PyTorch's fused one is slow backwards."""


def shared_prefixes(ids: Tensor, lengths: list[int]) -> tuple[Segments, Tensor, Tensor]:
    """Rows that begin alike as trees, in the way that leaves the fewest tokens; each by itself where few are saved.

    Args:
        ids: ``[N]``, the tokens of all rows, one row after the other.
        lengths: of the rows.

    Returns:
        the trees; which tokens are read, ``[M]``; and where among these each token's state is, ``[N]``.
    """
    starts = [end - length for end, length in zip(accumulate(lengths), lengths, strict=True)]
    tokens = [row.tolist() for row in ids.split(lengths)]
    alike = sorted(range(len(tokens)), key=tokens.__getitem__)
    # Neighbours in this order have the longest prefixes in common, and each keeps a token of its own.
    common = [len(commonprefix([tokens[a][:-1], tokens[b][:-1]])) for a, b in pairwise(alike)]
    # best[n]: the most tokens that trees of the first n of these rows save, and where the last of them begins.
    best = [(0, 0)]
    for end in range(1, len(alike) + 1):
        best.append((best[-1][0], end - 1))
        prefix = max(lengths)
        for at in range(end - 2, -1, -1):
            prefix = min(prefix, common[at])
            best[end] = max(best[end], (best[at][0] + (end - at - 1) * prefix, at))
    if best[-1][0] < _WORTH_SHARING * len(ids):
        return [[length] for length in lengths], torch.arange(len(ids)), torch.arange(len(ids))
    segments, order, end = list[list[int]](), list[int](), len(alike)
    read = ids.new_empty(len(ids))
    while end:
        at = best[end][1]
        rows, own = alike[at:end], min(common[at : end - 1], default=0)
        root = len(order)
        order += range(starts[rows[0]], starts[rows[0]] + own)
        for row in rows:
            read[starts[row] : starts[row] + own] = torch.arange(root, root + own)
            read[starts[row] + own : starts[row] + lengths[row]] = torch.arange(lengths[row] - own) + len(order)
            order += range(starts[row] + own, starts[row] + lengths[row])
        segments.append([own, *(lengths[row] - own for row in rows)] if own else [lengths[rows[0]]])
        end = at
    return segments, torch.tensor(order), read


def tree_positions(segments: Segments) -> Tensor:
    """The position of each token in its row, ``[M]``."""
    return torch.cat(
        [torch.arange(length) + (tree[0] if part else 0) for tree in segments for part, length in enumerate(tree)]
    )


def attend(q: Tensor, k: Tensor, v: Tensor, segments: Segments, scaling: float) -> Tensor:
    """Causal attention inside each row: ``[N, heads, D], [N, kv_heads, D] x 2 -> [N, heads · D]``."""
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    lengths = [length for tree in segments for length in tree]
    parts = [part.transpose(0, 1)[None].split(lengths, 2) for part in (q, k, v)]
    attended, at = [], 0
    for tree in segments:
        queries, keys, values = (part[at : at + len(tree)] for part in parts)
        at += len(tree)
        attended.append(_attention(queries[0], keys[0], values[0], 0, scaling))
        for one, key, value in zip(queries[1:], keys[1:], values[1:], strict=True):
            key, value = torch.cat([keys[0], key], 2), torch.cat([values[0], value], 2)
            attended.append(_attention(one, key, value, tree[0], scaling))
    return torch.cat([part[0].transpose(0, 1).flatten(1) for part in attended])


def _attention(q: Tensor, k: Tensor, v: Tensor, shared: int, scaling: float) -> Tensor:
    """Queries see the first ``shared`` keys and, causally, their own: ``[1, heads, L, D]``, keys ``shared + L``."""
    if k.shape[2] <= _SHORT and torch.is_grad_enabled():
        unseen = _unseen(q.shape[2], shared, q.dtype, q.device).expand(q.shape[1], -1, -1)
        scores = torch.baddbmm(unseen, q[0], k[0].transpose(1, 2), alpha=scaling)
        return (scores.softmax(-1) @ v[0])[None]
    if not shared:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling)
    seen = _unseen(q.shape[2], shared, q.dtype, q.device) == 0
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scaling)


@lru_cache(maxsize=64)
def _unseen(length: int, shared: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """What is added to scores ``[length, shared + length]``: minus infinity at the keys that a query does not see."""
    seen = torch.ones(length, shared + length, dtype=torch.bool, device=device).tril(shared)
    return torch.zeros(length, shared + length, dtype=dtype, device=device).masked_fill(~seen, float("-inf"))
