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

_WORTH_SHARING = 0.1
"""The share of a batch's tokens that shared prefixes must save: below it, short pieces of attention cost as much."""
_SHORT = 512
"""Queries up to which plain products are the faster attention on a CPU, in bfloat16 or with gradients: PyTorch's fused
one is slow there, but leaves out the keys that a query does not see."""


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
    return torch.cat([torch.arange(own) + (tree[0] if at else 0) for tree in segments for at, own in enumerate(tree)])


def attend(q: Tensor, k: Tensor, v: Tensor, segments: Segments, scaling: float) -> Tensor:
    """Causal attention inside each row: ``[N, heads, D], [N, kv_heads, D] x 2 -> [N, heads · D]``."""
    lengths, kv_heads = [length for tree in segments for length in tree], k.shape[1]
    # The heads that share keys lie next to each other: further queries of one product, which copies no keys.
    q = q.view(len(q), kv_heads, -1, q.shape[-1]).transpose(0, 1)
    parts = [part.split(lengths, 1) for part in (q, k.transpose(0, 1), v.transpose(0, 1))]
    attended, at = [], 0
    for tree in segments:
        queries, keys, values = (part[at : at + len(tree)] for part in parts)
        at += len(tree)
        attended.append(_attention(queries[0], keys[0], values[0], 0, scaling))
        for one, key, value in zip(queries[1:], keys[1:], values[1:], strict=True):
            key, value = torch.cat([keys[0], key], 1), torch.cat([values[0], value], 1)
            attended.append(_attention(one, key, value, tree[0], scaling))
    return torch.cat(attended, 1).transpose(0, 1).flatten(1)


def _attention(q: Tensor, k: Tensor, v: Tensor, shared: int, scaling: float) -> Tensor:
    """Queries ``[kv_heads, L, groups, D]`` see the first ``shared`` of ``shared + L`` keys and, causally, their own."""
    _, length, groups, _ = q.shape
    fast = q.dtype == torch.bfloat16 or torch.is_grad_enabled()
    if q.device.type == "cpu" and length <= _SHORT and fast:
        return plain_attention(q, k, v, _unseen(length, shared, q.dtype, q.device), scaling)
    seen = _unseen(length, shared, q.dtype, q.device) == 0 if shared else None
    k, v = (part[:, None].expand(-1, groups, -1, -1) for part in (k, v))
    attended = F.scaled_dot_product_attention(q.transpose(1, 2), k, v, seen, is_causal=not shared, scale=scaling)
    return attended.transpose(1, 2)


def plain_attention(q: Tensor, k: Tensor, v: Tensor, unseen: Tensor, scaling: float) -> Tensor:
    """Attention by two products, which on a CPU takes half as long as PyTorch's fused one where queries are few.

    Args:
        q: ``[B, L, groups, D]``; the heads of a group are further queries for the same keys.
        k, v: ``[B, S, D]``.
        unseen: what is added to each query's scores, ``[L, S]`` or ``[B, L, S]``.
    """
    empty = q.new_empty(1)  # beta is 0: only there to have the products scaled
    scores = torch.baddbmm(empty, q.flatten(1, 2), k.transpose(1, 2), beta=0, alpha=scaling)
    scores.view(*q.shape[:3], -1).add_(unseen[..., None, :])
    return torch.bmm(scores.softmax(-1), v).view(q.shape)


@lru_cache(maxsize=64)
def _unseen(length: int, shared: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """What is added to scores ``[length, shared + length]``: minus infinity at the keys that a query does not see."""
    seen = torch.ones(length, shared + length, dtype=torch.bool, device=device).tril(shared)
    return torch.zeros(length, shared + length, dtype=dtype, device=device).masked_fill(~seen, float("-inf"))
