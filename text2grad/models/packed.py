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
from itertools import pairwise
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from peft.tuners.lora.layer import Linear as LoraLinear
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast

from text2grad.models.decoder import rotated, supports
from text2grad.models.trees import Segments, attend, shared_prefixes, tree_positions


def can_decode(model: PreTrainedModel) -> bool:
    """Whether the decoder reads it, and that is not switched off."""
    return os.environ.get("TEXT2GRAD_PACKED") != "0" and supports(model)


def pack(model: PreTrainedModel) -> PreTrainedModel:
    """Let the model's decoder read rows without padding wherever it can; the model itself comes back."""
    if model.device.type == "cpu" and can_decode(model):
        model.base_model.forward = MethodType(_forward, model.base_model)
    return model


def _forward(
    self: Any,
    input_ids: Tensor | None = None,
    attention_mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    **options: Any,
) -> BaseModelOutputWithPast:
    """The decoder's forward pass: packed, unless something is asked for that only its class's own pass gives."""
    if input_ids is not None and not _asks_more(self.config, options) and _can_pack(self):
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        if mask.dim() == 2 and _contiguous(mask, position_ids):
            with torch.autocast("cpu", enabled=False):  # the weights have its number type already
                return BaseModelOutputWithPast(last_hidden_state=hidden_states(self, input_ids, mask))
        if mask.dim() == 4 and position_ids is not None and (segments := _segments(mask, position_ids)):
            with torch.autocast("cpu", enabled=False):
                states = hidden_states(self, input_ids, _is_token(mask).long(), segments)
            return BaseModelOutputWithPast(last_hidden_state=states)
    own = {"input_ids": input_ids, "attention_mask": attention_mask, "position_ids": position_ids}
    return type(self).forward(self, **own, **options)


def _can_pack(decoder: Any) -> bool:
    weight = decoder.embed_tokens.weight  # empty under ZeRO-3
    cast = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") != weight.dtype
    dropout = decoder.training and getattr(decoder.config, "attention_dropout", 0.0)
    checkpointing = decoder.training and getattr(decoder, "gradient_checkpointing", False)
    return weight.device.type == "cpu" and weight.numel() > 0 and not (cast or dropout or checkpointing)


def _asks_more(config: Any, options: dict[str, Any]) -> bool:
    kinds = ("output_hidden_states", "output_attentions")
    more = any(options.get(kind, getattr(config, kind, False)) for kind in kinds) or options.get("use_cache")
    given = any(options.get(name) is not None for name in ("past_key_values", "inputs_embeds", "cu_seq_lens_q"))
    return more or given or options.get("return_dict") is False


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


def _segments(mask: Tensor, position_ids: Tensor) -> Segments:
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


def hidden_states(decoder: Any, input_ids: Tensor, attention_mask: Tensor, segments: Segments | None = None) -> Tensor:
    """The last layer's normalised states, ``[B, L, H]``, zeros on padding.

    Args:
        decoder: the model without its vocabulary head, adapter layers inside.
        input_ids, attention_mask: ``[B, L]``; a row's tokens are contiguous, padding may be on both sides.
        segments: for each row how many tokens its continuations share, then the length of each continuation.
    """
    chosen = attention_mask.bool()
    ids, read = input_ids[chosen], None
    if segments is None:
        segments, order, read = shared_prefixes(ids, attention_mask.sum(-1).tolist())
        ids = ids[order]
    x = decoder.embed_tokens(ids)
    cos, sin = (part[0][:, None] for part in decoder.rotary_emb(x, tree_positions(segments)[None]))
    for layer in decoder.layers:
        x = _block(layer, x, cos, sin, segments)
    states = _norm(decoder.norm, x)
    states = states if read is None else states[read]
    return states.new_zeros(*input_ids.shape, states.shape[-1]).masked_scatter(chosen[..., None], states)


def _block(layer: Any, x: Tensor, cos: Tensor, sin: Tensor, segments: Segments) -> Tensor:
    """One decoder layer, ``[N, H] -> [N, H]``; cos and sin are ``[N, 1, D]``."""
    attention, mlp = layer.self_attn, layer.mlp
    normed = _norm(layer.input_layernorm, x)
    q, k, v = (
        linear(projection, normed).view(len(x), -1, attention.head_dim)
        for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    q, k = rotated(q, cos, sin), rotated(k, cos, sin)
    x = x + linear(attention.o_proj, attend(q, k, v, segments, attention.scaling))
    normed = _norm(layer.post_attention_layernorm, x)
    return x + linear(mlp.down_proj, F.silu(linear(mlp.gate_proj, normed)) * linear(mlp.up_proj, normed))


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
