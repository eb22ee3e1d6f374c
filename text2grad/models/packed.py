"""Forward passes of Llama-like models on a CPU over rows laid end to end, with gradients, about twice as fast.

A row may be a tree of depth two: tokens that several continuations share, then each continuation, which sees the
shared tokens and itself (``nl_reward_model/rows.py`` makes such rows).

What makes it fast: no position is padding and no attention mask is built; a prompt that several rows begin with is read
once, forwards and backwards; an adapter's products run in the number type of the model, where PEFT converts each input
to float32. :func:`pack` changes a loaded model in place. It computes what it did before, within rounding:
``tests/text2grad/test_packed.py`` holds states and gradients against transformers' own forward pass.
``TEXT2GRAD_PACKED=0`` in the environment leaves models as transformers made them, also where a reward model judges.
"""

import os
from functools import lru_cache
from itertools import accumulate, pairwise
from os.path import commonprefix
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from peft.tuners.lora.layer import Linear as LoraLinear
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast

from text2grad.models.decoder import rotated, supports

_WORTH_SHARING = 0.25
"""The share of a batch's tokens that shared prefixes must save: below it, short pieces of attention cost as much."""
_SHORT = 512
"""Keys up to which plain products are the faster attention with gradients: PyTorch's fused one is slow backwards."""


def can_pack(model: PreTrainedModel) -> bool:
    """Whether the model is one that is read faster here, unless that is switched off."""
    return os.environ.get("TEXT2GRAD_PACKED") != "0" and supports(model)


def pack(model: PreTrainedModel) -> PreTrainedModel:
    """Let the model's decoder read rows without padding wherever it can; the model itself comes back."""
    decoder = model.base_model
    if can_pack(model):
        decoder.forward = MethodType(_forward, decoder)
    return model


def _forward(
    self: Any,
    input_ids: Tensor | None = None,
    attention_mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    past_key_values: Any = None,
    inputs_embeds: Tensor | None = None,
    use_cache: bool | None = None,
    **options: Any,
) -> BaseModelOutputWithPast:
    """The decoder's forward pass: packed, unless something is asked for that only its class's own pass gives."""
    asked = past_key_values is not None or inputs_embeds is not None or use_cache or _asks_more(self.config, options)
    if not asked and input_ids is not None and _can_pack(self):
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        if mask.dim() == 2 and _contiguous(mask, position_ids):
            with torch.autocast("cpu", enabled=False):  # the weights have its number type already
                return BaseModelOutputWithPast(last_hidden_state=hidden_states(self, input_ids, mask))
        if mask.dim() == 4 and position_ids is not None and (segments := _segments(mask, position_ids)):
            with torch.autocast("cpu", enabled=False):
                states = hidden_states(self, input_ids, _is_token(mask).long(), segments)
            return BaseModelOutputWithPast(last_hidden_state=states)
    return type(self).forward(
        self,
        input_ids=input_ids,
        attention_mask=attention_mask,
        position_ids=position_ids,
        past_key_values=past_key_values,
        inputs_embeds=inputs_embeds,
        use_cache=use_cache,
        **options,
    )


def _can_pack(decoder: Any) -> bool:
    weight = decoder.embed_tokens.weight  # empty under ZeRO-3
    cast = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") != weight.dtype
    dropout = decoder.training and getattr(decoder.config, "attention_dropout", 0.0)
    checkpointing = decoder.training and getattr(decoder, "gradient_checkpointing", False)
    return weight.device.type == "cpu" and weight.numel() > 0 and not (cast or dropout or checkpointing)


def _asks_more(config: Any, options: dict[str, Any]) -> bool:
    kinds = ("output_hidden_states", "output_attentions")
    more = any(options.get(kind, getattr(config, kind, False)) for kind in kinds)
    return more or options.get("return_dict") is False or options.get("cu_seq_lens_q") is not None


def _contiguous(mask: Tensor, position_ids: Tensor | None) -> bool:
    """Whether each row's tokens are one piece, and positions count them (any offset gives the same attention)."""
    starts = mask.bool() & ~F.pad(mask, (1, 0))[:, :-1].bool()
    if not bool((starts.sum(-1) == 1).all()):
        return False
    if position_ids is None:
        return True
    steps = position_ids.expand_as(mask).diff(dim=-1)
    return bool((steps[(mask[:, 1:] * mask[:, :-1]).bool()] == 1).all())


def _is_token(mask: Tensor) -> Tensor:
    """Where ``[B, L]`` a mask ``[B, 1, L, L]`` has a token: padding sees only itself, like a first token."""
    chosen = mask[:, 0].sum(-1) > 1
    chosen[:, 0] = True
    return chosen


def _segments(mask: Tensor, position_ids: Tensor) -> list[list[int]]:
    """Lengths of what each row's continuations share and of each of them; empty where the mask says something else."""
    if mask.dtype is not torch.bool or position_ids.shape[0] != mask.shape[0]:
        return []
    # The mask alone does not say where a continuation begins: its positions do, which go on from the shared tokens. The
    # lengths found are kept only where the mask has exactly as many visible pairs as a tree of these lengths has.
    found = []
    for row, positions, length in zip(mask[:, 0], position_ids, _is_token(mask).sum(-1).tolist(), strict=True):
        starts = (positions[:length].diff() != 1).nonzero().squeeze(1).add(1).tolist()
        shared = {int(positions[start]) for start in starts}
        if int(positions[0]) != 0 or len(shared) > 1:
            return []
        bounds = [0, *shared, *starts, length]
        segments = [end - start for start, end in pairwise(bounds)]
        if min(segments) < 1:
            return []
        expected = sum(_triangle(each) + each * segments[0] for each in segments[1:]) + _triangle(segments[0])
        if int(row.sum()) != expected + len(row) - length:
            return []
        found.append(segments)
    return found


def _triangle(length: int) -> int:
    return length * (length + 1) // 2


def hidden_states(
    decoder: Any, input_ids: Tensor, attention_mask: Tensor, segments: list[list[int]] | None = None
) -> Tensor:
    """The last layer's normalised states, ``[B, L, H]``, zeros on padding.

    Args:
        decoder: the model without its vocabulary head, adapter layers inside.
        input_ids, attention_mask: ``[B, L]``; a row's tokens are contiguous, padding may be on both sides.
        segments: for each row how many tokens its continuations share, then the length of each continuation.
    """
    chosen = attention_mask.bool()
    ids, read = input_ids[chosen], None
    rows = [[length] for length in attention_mask.sum(-1).tolist()] if segments is None else segments
    if segments is None and (shared := shared_prefixes(ids, [row[0] for row in rows])):
        rows, order, read = shared
        ids = ids[order]
    x = decoder.embed_tokens(ids)
    positions = torch.cat(
        [torch.arange(length) + (row[0] if part else 0) for row in rows for part, length in enumerate(row)]
    )
    cos, sin = (part[0][:, None] for part in decoder.rotary_emb(x, positions[None]))
    for layer in decoder.layers:
        x = _block(layer, x, cos, sin, rows)
    states = _norm(decoder.norm, x)
    states = states if read is None else states[read]
    return states.new_zeros(*input_ids.shape, states.shape[-1]).masked_scatter(chosen[..., None], states)


def shared_prefixes(ids: Tensor, lengths: list[int]) -> tuple[list[list[int]], Tensor, Tensor] | None:
    """Rows that begin alike as trees, in the way that leaves the fewest tokens; None where few would be saved.

    Args:
        ids: ``[N]``, the tokens of all rows, one row after the other.
        lengths: of the rows.

    Returns:
        the trees' segments as :func:`hidden_states` takes them; which tokens are read, ``[M]``; and where among these
        each token's state is, ``[N]``.
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
        return None
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


def _block(layer: Any, x: Tensor, cos: Tensor, sin: Tensor, rows: list[list[int]]) -> Tensor:
    """One decoder layer, ``[N, H] -> [N, H]``; cos and sin are ``[N, 1, D]``."""
    attention, mlp = layer.self_attn, layer.mlp
    normed = _norm(layer.input_layernorm, x)
    q, k, v = (
        linear(projection, normed).view(len(x), -1, attention.head_dim)
        for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    q, k = rotated(q, cos, sin), rotated(k, cos, sin)
    x = x + linear(attention.o_proj, _attend(q, k, v, rows, attention.scaling))
    normed = _norm(layer.post_attention_layernorm, x)
    return x + linear(mlp.down_proj, F.silu(linear(mlp.gate_proj, normed)) * linear(mlp.up_proj, normed))


def _attend(q: Tensor, k: Tensor, v: Tensor, rows: list[list[int]], scaling: float) -> Tensor:
    """Causal attention inside each row: ``[N, heads, D], [N, kv_heads, D] x 2 -> [N, heads · D]``."""
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    lengths = [length for row in rows for length in row]
    parts = [part.transpose(0, 1)[None].split(lengths, 2) for part in (q, k, v)]
    attended, at = [], 0
    for row in rows:
        queries, keys, values = (part[at : at + len(row)] for part in parts)
        at += len(row)
        attended.append(_attention(queries[0], keys[0], values[0], 0, scaling))
        for one, key, value in zip(queries[1:], keys[1:], values[1:], strict=True):
            key, value = torch.cat([keys[0], key], 2), torch.cat([values[0], value], 2)
            attended.append(_attention(one, key, value, row[0], scaling))
    return torch.cat([part[0].transpose(0, 1).flatten(1) for part in attended])


def _attention(q: Tensor, k: Tensor, v: Tensor, shared: int, scaling: float) -> Tensor:
    """Queries see the first ``shared`` keys and, causally, their own: ``[1, heads, L, D]``, keys ``shared + L``."""
    if k.shape[2] <= _SHORT and torch.is_grad_enabled():
        unseen = _unseen(q.shape[2], shared, q.dtype).expand(q.shape[1], -1, -1)
        scores = torch.baddbmm(unseen, q[0], k[0].transpose(1, 2), alpha=scaling)
        return (scores.softmax(-1) @ v[0])[None]
    if not shared:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling)
    seen = _unseen(q.shape[2], shared, q.dtype) == 0
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scaling)


@lru_cache(maxsize=64)
def _unseen(length: int, shared: int, dtype: torch.dtype) -> Tensor:
    """What is added to scores ``[length, shared + length]``: minus infinity at the keys that a query does not see."""
    seen = torch.ones(length, shared + length, dtype=torch.bool).tril(shared)
    return torch.zeros(length, shared + length, dtype=dtype).masked_fill(~seen, float("-inf"))


def _norm(module: Any, x: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], module.weight, module.variance_epsilon)


def linear(module: Any, x: Tensor) -> Tensor:
    """A linear layer on ``[N, in]``, with its active LoRA adapter where it has one."""
    if not isinstance(module, LoraLinear) or module.merged:
        return module(x)
    layer, adapters = module.get_base_layer(), [name for name in module.active_adapters if name in module.lora_A]
    if module.disable_adapters or not adapters:
        return layer(x)
    name = adapters[0]
    dropped = module.training and not isinstance(module.lora_dropout[name], nn.Identity)
    a, b = module.lora_A[name], module.lora_B[name]
    if len(adapters) > 1 or dropped or name in module.lora_variant or b.bias is not None or layer.weight.requires_grad:
        return module(x)
    return LoraProduct.apply(x, layer.weight, layer.bias, a.weight, b.weight, module.scaling[name])


class LoraProduct(torch.autograd.Function):
    """x Wᵀ + s · x Aᵀ Bᵀ, every product in x's number type; W and its bias get no gradient.

    LoRA: Hu et al. 2021, equation 3. The gradients of A and B come in their own number type.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scale: float) -> Tensor:
        """``x [N, in]``, ``weight [out, in]``, ``a [r, in]``, ``b [out, r]`` -> ``[N, out]``"""
        own_a, own_b = a.to(x.dtype), b.to(x.dtype)
        low = x @ own_a.t()
        ctx.save_for_backward(x, weight, own_a, own_b, low)
        ctx.scale, ctx.dtype = scale, a.dtype
        return torch.addmm(F.linear(x, weight, bias), low, own_b.t(), alpha=scale)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, a, b, low = ctx.saved_tensors
        grad_low = (grad @ b) * ctx.scale
        grad_x = torch.addmm(grad @ weight, grad_low, a) if ctx.needs_input_grad[0] else None
        grad_a = (grad_low.t() @ x).to(ctx.dtype)
        grad_b = ((grad.t() @ low) * ctx.scale).to(ctx.dtype)
        return grad_x, None, None, grad_a, grad_b, None
