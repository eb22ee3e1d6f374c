"""A critic's own small model: a tokenizer of whole words, a GPT-NeoX of any size, and a quick forward pass.

Policy and critic need not share a tokenizer. With whole words a value is one token, so that to compare two values is
to compare two tokens. The quick pass computes what ``GPTNeoXForCausalLM`` does, in bfloat16 with few passes over
memory. On a CPU with bfloat16 instructions it takes half the time. Weights and optimiser stay in float32.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch.nn import functional
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, PreTrainedTokenizerFast

from benchmarks.micro.policy import byte_level_bpe

MOST_TOKENS = 640


@dataclass(frozen=True)
class SmallModel:
    """A model's size."""

    layers: int = 4
    hidden: int = 128
    heads: int = 4


def word_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Byte-level BPE that goes on until every frequent word is one token."""
    return byte_level_bpe(texts, vocabulary=4000, most_tokens=MOST_TOKENS, min_frequency=20)


def new_model(size: SmallModel, tokenizer: PreTrainedTokenizerFast) -> GPTNeoXForCausalLM:
    """Random weights; half of each head's dimensions rotate with the position."""
    config = GPTNeoXConfig(
        vocab_size=-(-len(tokenizer) // 16) * 16,
        hidden_size=size.hidden,
        intermediate_size=4 * size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        max_position_embeddings=MOST_TOKENS,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
        hidden_dropout=0.0,
        attention_dropout=0.0,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return GPTNeoXForCausalLM(config)


def hidden_states(weights: Mapping[str, torch.Tensor], config: GPTNeoXConfig, ids: torch.Tensor) -> torch.Tensor:
    """What the model's trunk makes of rows that are padded on the right: [rows, tokens, hidden].

    Args:
        weights: of the trunk, by name, in the type that is computed in.
        ids: [rows, tokens]
    """
    tokens = ids.shape[1]
    states = functional.embedding(ids, weights["embed_in.weight"])
    wave = rotation(tokens, config.hidden_size // config.num_attention_heads // 2, states.dtype)
    mask = torch.full((tokens, tokens), float("-inf"), dtype=states.dtype).triu(1)
    for layer in range(config.num_hidden_layers):
        prefix = f"layers.{layer}."
        own = {name.removeprefix(prefix): weight for name, weight in weights.items() if name.startswith(prefix)}
        seen = attention(own, config, _normal(states, own, "input_layernorm"), wave, mask)
        inner = functional.gelu(_linear(_normal(states, own, "post_attention_layernorm"), own, "mlp.dense_h_to_4h"))
        states = states + seen + _linear(inner, own, "mlp.dense_4h_to_h")
    return _normal(states, weights, "final_layer_norm")


def attention(
    own: Mapping[str, torch.Tensor],
    config: GPTNeoXConfig,
    states: torch.Tensor,
    wave: tuple[torch.Tensor, torch.Tensor],
    mask: torch.Tensor,
) -> torch.Tensor:
    """Causal self-attention of one layer, [rows, tokens, hidden]; ``own`` are its weights."""
    rows, tokens, hidden = states.shape
    heads = config.num_attention_heads
    size = hidden // heads
    mixed = _linear(states, own, "attention.query_key_value").view(rows, tokens, heads, 3, size)
    turned, rest = mixed[:, :, :, :2].split([size // 2, size - size // 2], dim=-1)
    half = size // 4
    swapped = torch.cat([-turned[..., half:], turned[..., :half]], dim=-1)
    both = torch.cat([turned * wave[0] + swapped * wave[1], rest], dim=-1)
    query, key, value = (
        part.permute(0, 2, 1, 3).reshape(rows * heads, tokens, size) for part in (*both.unbind(3), mixed[:, :, :, 2])
    )
    shares = torch.baddbmm(mask, query, key.transpose(1, 2), alpha=size**-0.5).softmax(-1)
    seen = torch.bmm(shares, value).view(rows, heads, tokens, size).permute(0, 2, 1, 3)
    return _linear(seen.reshape(rows, tokens, hidden), own, "attention.dense")


def rotation(tokens: int, size: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of each position's angles, [1, tokens, 1, 1, size]."""
    frequencies = 10000.0 ** -(torch.arange(0, size, 2) / size)
    angles = torch.outer(torch.arange(tokens).float(), frequencies).repeat(1, 2)
    return angles.cos().to(dtype)[None, :, None, None], angles.sin().to(dtype)[None, :, None, None]


def _normal(states: torch.Tensor, weights: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
    return functional.layer_norm(states, states.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"])


def _linear(states: torch.Tensor, weights: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
    return functional.linear(states, weights[f"{name}.weight"], weights[f"{name}.bias"])
