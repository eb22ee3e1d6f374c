"""Llama-like models: sampling several times faster than ``generate``, from the same distribution.

A reward model's guesses are checked by it too (``text2grad.critics.reward_model.reading``). What makes it fast:
adapters are folded into a packed copy of the weights, q, k and v share one product, and so do gate and up; prompts are
read without padding, what several begin with once; keys and values are written in place; a finished row leaves the
batch. On a GPU, where starting hundreds of small kernels is what takes long, a token of all rows is one CUDA graph, and
the host looks at what was sampled only now and then.
``tests/text2grad/test_decoder.py`` holds its log-probabilities against transformers' own forward pass.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os.path import commonprefix
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from text2grad.models.adapters import base_model, merged_weight, only_products, without_adapter
from text2grad.models.trees import attend, plain_attention, shared_prefixes, tree_positions

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM")

_LOOK_EVERY = 16
"""Tokens after which the host asks a GPU whether all rows have ended."""
_AT_ONCE = 4096
"""Tokens of prompts that are read together: products of a few thousand rows are fast, and need little memory."""

Ids = Sequence[Sequence[int]]
Choose = Callable[[Tensor, list[int]], Tensor]
"""``(log-probabilities [rows, V], which rows) -> ids [rows]``"""


def supports(model: Any) -> bool:
    """Whether :class:`Decoder` computes what this model computes: plain Llama blocks, all weights on one device.

    On a GPU the copy that it makes may take an eighth of the memory.

    Args:
        model: with or without its PEFT wrapper. Of adapters only LoRA's products are folded in.
    """
    base, prompt = base_model(model), getattr(model, "active_peft_config", None)
    plain = not getattr(base.config, "sliding_window", None) or not getattr(base.config, "use_sliding_window", True)
    return (
        type(base).__name__ in ARCHITECTURES
        and base.config.hidden_act == "silu"
        and plain
        and not getattr(prompt, "is_prompt_learning", False)
        and not getattr(base, "is_quantized", False)  # its weights are packed, each way in its own form
        and all(map(only_products, base.modules()))
        and all(weight.device == base.device and weight.numel() > 0 for weight in base.parameters())
        and _room_for_copy(base)
    )


def _room_for_copy(model: PreTrainedModel) -> bool:
    if model.device.type != "cuda":
        return model.device.type == "cpu"
    size = sum(weight.nbytes for weight in model.parameters())
    return 8 * size <= torch.cuda.get_device_properties(model.device).total_memory


@dataclass
class Sampled:
    """A row's ids, the end token included where it was sampled, and log π of each as the decoder computed it."""

    ids: list[int]
    logprobs: list[float]


class _Linear:
    """x @ Wᵀ + b, the weights of several modules side by side; on a CPU in the layout that oneDNN is fastest with."""

    def __init__(self, *modules: nn.Module):
        weights = [merged_weight(module) for module in modules]
        self._weight = torch.cat(weights) if len(weights) > 1 else weights[0]
        biases = [without_adapter(module).bias for module in modules]
        self._bias = None if biases[0] is None else torch.cat([bias.detach() for bias in biases])
        on_cpu = self._weight.device.type == "cpu" and torch.backends.mkldnn.is_available()
        short = on_cpu and self._weight.dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
        self._packed = short or (on_cpu and self._weight.dtype == torch.float32)
        if self._packed:
            self._weight = torch.ops.mkldnn._reorder_linear_weight(self._weight, 8)

    def __call__(self, x: Tensor) -> Tensor:
        if self._packed:
            return torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return F.linear(x, self._weight, self._bias)


@dataclass
class _Layer:
    input_norm: Tensor
    qkv: _Linear
    out: _Linear
    post_norm: Tensor
    gate_up: _Linear
    down: _Linear


class Decoder:
    """A copy of a model's merged weights that samples. Make a new one when the weights have changed.

    Args:
        model: the causal LM itself; adapter layers may be inside.

    Memory: one more copy of the weights.
    """

    @torch.no_grad()
    def __init__(self, model: PreTrainedModel):
        config = model.config
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.eps = config.rms_norm_eps
        self.embedding = model.get_input_embeddings().weight.detach()
        self.rotary = model.model.rotary_emb
        self.layers = [
            _Layer(
                layer.input_layernorm.weight.detach(),
                _Linear(layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj),
                _Linear(layer.self_attn.o_proj),
                layer.post_attention_layernorm.weight.detach(),
                _Linear(layer.mlp.gate_proj, layer.mlp.up_proj),
                _Linear(layer.mlp.down_proj),
            )
            for layer in model.model.layers
        ]
        self.norm = model.model.norm.weight.detach()
        self.head = _Linear(model.get_output_embeddings())

    @torch.no_grad()
    def sample(
        self,
        prompts: Ids,
        max_new_tokens: int,
        end_ids: Sequence[int],
        choose: Choose | None = None,
        temperature: float = 1.0,
    ) -> list[Sampled]:
        """One response to each prompt, from the whole distribution at the given temperature.

        Args:
            choose: picks the next ids; from torch's global generator by default (:func:`draw`).
        """
        if self.embedding.is_cuda:
            return self._sample_together(prompts, max_new_tokens, end_ids, choose, temperature)
        rows = Rows(self, prompts, max_new_tokens)
        results = [Sampled([], []) for _ in prompts]
        hidden, ends = rows.prefill(), set(end_ids)
        alive = list(range(len(prompts)))
        for position in range(max_new_tokens):
            log_probs = (self.head(hidden).float() / temperature).log_softmax(-1)
            ids = choose(log_probs, alive) if choose else draw(log_probs)
            kept = log_probs.gather(-1, ids[:, None]).squeeze(-1).tolist()
            for row, token, logprob in zip(alive, ids.tolist(), kept, strict=True):
                results[row].ids.append(token)
                results[row].logprobs.append(logprob)
            going = [index for index, row in enumerate(alive) if results[row].ids[-1] not in ends]
            if not going or position == max_new_tokens - 1:
                break
            if len(going) < len(alive):
                alive = [alive[index] for index in going]
                ids = ids[going]
                rows.keep(going)
            hidden = rows.extend([[token] for token in ids.tolist()])
            rows.accept([1] * len(ids))
        return results

    def _sample_together(
        self, prompts: Ids, max_new_tokens: int, end_ids: Sequence[int], choose: Choose | None, temperature: float
    ) -> list[Sampled]:
        """:meth:`sample` for a device that should never wait for the host: ended rows go on, and are cut afterwards."""
        rows = Together(self, prompts, max_new_tokens, width=1)
        hidden, everyone = rows.prefill(), list(range(len(prompts)))
        ends = torch.tensor(list(end_ids), device=hidden.device)
        ended = torch.zeros(len(prompts), dtype=torch.bool, device=hidden.device)
        written: list[tuple[Tensor, Tensor]] = []
        while True:
            log_probs = (self.head(hidden).float() / temperature).log_softmax(-1)
            ids = choose(log_probs, everyone) if choose else draw(log_probs)
            written.append((ids, log_probs.gather(-1, ids[:, None]).squeeze(-1)))
            ended |= torch.isin(ids, ends)
            if len(written) == max_new_tokens or (len(written) % _LOOK_EVERY == 0 and bool(ended.all())):
                break
            hidden = rows.advance(ids)
        results = []
        all_ids, all_logprobs = (torch.stack(column, 1).tolist() for column in zip(*written, strict=True))
        for own, logprobs in zip(all_ids, all_logprobs, strict=True):
            end = next((place + 1 for place, token in enumerate(own) if token in end_ids), len(own))
            results.append(Sampled(own[:end], logprobs[:end]))
        return results

    def _block(self, layer: _Layer, x: Tensor, cos: Tensor, sin: Tensor, attend: Callable) -> Tensor:
        """One block on ``[N, H]``; ``attend(q, k, v)`` gets ``[N, heads, D]`` each and gives ``[N, heads · D]``."""
        normed = F.rms_norm(x, x.shape[-1:], layer.input_norm, self.eps)
        # One product gives q, k and v; q and k lie next to each other and are turned together.
        parts = layer.qkv(normed).view(len(x), self.heads + 2 * self.kv_heads, self.head_dim)
        turned, v = parts[:, : -self.kv_heads], parts[:, -self.kv_heads :]
        turned = rotated(turned, cos, sin)
        x = x + layer.out(attend(turned[:, : self.heads], turned[:, self.heads :], v))
        gate, up = layer.gate_up(F.rms_norm(x, x.shape[-1:], layer.post_norm, self.eps)).chunk(2, -1)
        return x + layer.down(F.silu(gate) * up)

    def _angles(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos and sin of the rotary embedding, ``[N, 1, D]``."""
        positions = positions.to(self.embedding.device)
        cos, sin = self.rotary(torch.empty(0, dtype=dtype, device=positions.device), positions[None])
        return cos[0][:, None], sin[0][:, None]


class Rows:
    """Keys and values of the rows under way: ``[rows, kv_heads, room, D]`` for each layer, left-aligned.

    Args:
        room: tokens to keep room for after the prompts; where they are more, the room grows.
    """

    def __init__(self, decoder: Decoder, prompts: Sequence[Sequence[int]], room: int):
        self.decoder, self.prompts = decoder, [list(ids) for ids in prompts]
        self.lengths = torch.tensor([len(ids) for ids in prompts])
        shape = (len(prompts), decoder.kv_heads, int(self.lengths.max()) + room, decoder.head_dim)
        self.keys = [decoder.embedding.new_zeros(shape) for _ in decoder.layers]
        self.values = [decoder.embedding.new_zeros(shape) for _ in decoder.layers]

    def prefill(self) -> Tensor:
        """Read the prompts, what they begin with once; every row's last normalised state, ``[rows, H]``."""
        order = sorted(range(len(self.prompts)), key=self.prompts.__getitem__)  # those that begin alike, together
        last = self.decoder.embedding.new_empty(len(order), self.decoder.embedding.shape[1])
        at = 0
        while at < len(order):
            chosen = sorted(order[at : at + _fitting([self.prompts[row] for row in order[at:]])])
            last[chosen] = self._read(chosen)
            at += len(chosen)
        return last

    def _read(self, chosen: Sequence[int]) -> Tensor:
        """Read the prompts of some rows; the last normalised states, ``[chosen, H]``."""
        decoder, lengths = self.decoder, self.lengths[chosen]
        ids = torch.tensor([token for row in chosen for token in self.prompts[row]])
        segments, order, read = shared_prefixes(ids, lengths.tolist())
        device = decoder.embedding.device
        read, last = read.to(device), (lengths.cumsum(0) - 1).to(device)
        x = decoder.embedding[ids[order].to(device)]
        cos, sin = decoder._angles(tree_positions(segments), x.dtype)
        rows = torch.tensor(chosen, device=device).repeat_interleave(lengths.to(device))
        places = tree_positions([[length] for length in lengths.tolist()]).to(device)
        for layer, keys, values in zip(decoder.layers, self.keys, self.values, strict=True):

            def attend_and_keep(q: Tensor, k: Tensor, v: Tensor, keys=keys, values=values) -> Tensor:
                keys[rows, :, places], values[rows, :, places] = k[read], v[read]
                return attend(q, k, v, segments, decoder.head_dim**-0.5)

            x = decoder._block(layer, x, cos, sin, attend_and_keep)
        x = x[read[last]]
        return F.rms_norm(x, x.shape[-1:], decoder.norm, decoder.eps)

    def extend(self, ids: Sequence[Sequence[int]]) -> Tensor:
        """Read further tokens, one or more in every row; none counts until :meth:`accept` says so.

        Returns:
            The normalised states that predict what follows each token, row after row, ``[tokens, H]``.
        """
        decoder, counts = self.decoder, torch.tensor([len(each) for each in ids])
        count, longest = len(counts), int(counts.max())
        slots = self.lengths[:, None] + torch.arange(longest)
        # Only attention sees rows of one length; all else is computed for the tokens there are.
        there = torch.arange(longest) < counts[:, None]
        rows, places = there.nonzero(as_tuple=True)
        positions = slots[rows, places]
        x = decoder.embedding[torch.tensor([token for each in ids for token in each])]
        cos, sin = decoder._angles(positions, x.dtype)
        width = int((self.lengths + counts).max())
        if (lacking := width - self.keys[0].shape[2]) > 0:
            more = (0, 0, 0, lacking + width // 4)  # a quarter more than is needed, so that it seldom happens
            self.keys = [F.pad(keys, more) for keys in self.keys]
            self.values = [F.pad(values, more) for values in self.values]
        groups = decoder.heads // decoder.kv_heads
        # The heads of a group are further positions of one query: grouped attention without copies.
        unseen = torch.where(torch.arange(width) > slots[..., None], float("-inf"), 0).to(x.dtype)
        unseen = unseen.repeat_interleave(decoder.kv_heads, 0)
        split = (count, decoder.kv_heads, longest, groups, decoder.head_dim)
        for layer, keys, values in zip(decoder.layers, self.keys, self.values, strict=True):

            def attend(q: Tensor, k: Tensor, v: Tensor, keys=keys, values=values) -> Tensor:
                # Written where the row's tokens end: what an earlier guess left there is overwritten.
                keys[rows, :, positions], values[rows, :, positions] = k, v
                queries = q.new_zeros(split)
                queries[rows, :, places] = q.view(-1, decoder.kv_heads, groups, decoder.head_dim)
                # Keys with gaps between the rows would take twice as long.
                known, told = keys[:, :, :width].contiguous().flatten(0, 1), values[:, :, :width].flatten(0, 1)
                attended = plain_attention(queries.flatten(0, 1), known, told, unseen, decoder.head_dim**-0.5)
                return attended.view(split)[rows, :, places].flatten(1)

            x = decoder._block(layer, x, cos, sin, attend)
        return F.rms_norm(x, x.shape[-1:], decoder.norm, decoder.eps)

    def accept(self, counts: Sequence[int]) -> None:
        """So many of the tokens that were last read belong to each row; the others will be written over."""
        self.lengths = self.lengths + torch.tensor(counts)

    def keep(self, rows: list[int]) -> None:
        """Drop all other rows."""
        self.lengths = self.lengths[rows]
        self.keys = [keys[rows] for keys in self.keys]
        self.values = [values[rows] for values in self.values]


class Together(Rows):
    """Rows in buffers that stay where they are, in passes of one shape: on a GPU a pass is one CUDA graph.

    Args:
        room: tokens that a row may get after its prompt, at most.
        width: tokens that each row reads in a pass, at most.
    """

    def __init__(self, decoder: Decoder, prompts: Sequence[Sequence[int]], room: int, width: int):
        needed = max(map(len, prompts)) + room + width - 1
        super().__init__(decoder, prompts, room + width - 1 - needed % -64)  # to a multiple of 64: others may fit, too
        device = decoder.embedding.device
        self.lengths = self.lengths.to(device)
        self._ids = torch.zeros(len(prompts), width, dtype=torch.long, device=device)
        self._places = torch.arange(self.keys[0].shape[2], device=device)
        self._offsets = torch.arange(width, device=device)
        self._cos, self._sin = decoder._angles(self._places, decoder.embedding.dtype)
        self._rows = list(range(len(prompts)))  # those that were kept: the others go on, and nobody looks at them
        self._graph: torch.cuda.CUDAGraph | None = None
        self._state: Tensor | None = None

    def restart(self, prompts: Sequence[Sequence[int]], room: int) -> bool:
        """Begin anew with other prompts, in the same buffers and by the same graph; whether they fit."""
        count, width = self._ids.shape
        if len(prompts) > count or max(map(len, prompts)) + room + width - 1 > len(self._places):
            return False
        self.prompts = [list(ids) for ids in prompts]
        self._rows = list(range(len(prompts)))
        self.lengths.zero_()
        self.lengths[: len(prompts)] = torch.tensor([len(ids) for ids in prompts], device=self.lengths.device)
        return True

    def advance(self, ids: Tensor) -> Tensor:
        """Read one token more of every row, ``[rows]``; the normalised states behind it, ``[rows, H]``."""
        self._ids.copy_(ids[:, None])
        state = self._pass()
        self.lengths += 1
        return state

    def extend(self, ids: Sequence[Sequence[int]]) -> Tensor:
        padded, places = torch.zeros(self._ids.shape, dtype=torch.long), list[int]()
        for row, own in zip(self._rows, ids, strict=True):
            padded[row, : len(own)] = torch.tensor(own)
            places += range(row * padded.shape[1], row * padded.shape[1] + len(own))
        self._ids.copy_(padded)
        return self._pass()[torch.tensor(places, device=self._ids.device)]

    def accept(self, counts: Sequence[int]) -> None:
        taken = torch.zeros(len(self._ids), dtype=torch.long)
        taken[self._rows] = torch.tensor(counts)
        self.lengths += taken.to(self.lengths.device)

    def keep(self, rows: list[int]) -> None:
        self._rows = [self._rows[row] for row in rows]

    def _pass(self) -> Tensor:
        """Read the tokens in ``_ids``; the normalised states behind them, ``[rows · width, H]``."""
        if not self._ids.is_cuda:
            return self._read_all()
        with torch.cuda.device(self._ids.device):
            if self._state is None:  # the first on a stream of its own: it sets up what a capture must find there
                stream, main = torch.cuda.Stream(), torch.cuda.current_stream()
                stream.wait_stream(main)
                with torch.cuda.stream(stream):
                    self._state = self._read_all()
                main.wait_stream(stream)
                return self._state
            if self._graph is None:
                self._graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(self._graph, stream=torch.cuda.Stream(), capture_error_mode="thread_local"):
                    self._state = self._read_all()
            self._graph.replay()
            return self._state

    def _read_all(self) -> Tensor:
        """:meth:`_pass` in fixed shapes and without a question to the device."""
        decoder, (count, width) = self.decoder, self._ids.shape
        at = self.lengths[:, None] + self._offsets
        rows = torch.arange(count, device=at.device)[:, None].expand_as(at).flatten()
        groups = decoder.heads // decoder.kv_heads
        x = decoder.embedding[self._ids.flatten()]
        unseen = torch.where(self._places <= at[..., None], 0.0, float("-inf")).to(x.dtype)
        unseen = unseen.repeat_interleave(groups, 1)[:, None]
        at = at.flatten()
        cos, sin = self._cos[at], self._sin[at]
        split, together = (count, width, decoder.kv_heads, groups, -1), (count, decoder.kv_heads, width * groups, -1)
        for layer, keys, values in zip(decoder.layers, self.keys, self.values, strict=True):

            def attend(q: Tensor, k: Tensor, v: Tensor, keys=keys, values=values) -> Tensor:
                keys[rows, :, at], values[rows, :, at] = k, v
                queries = q.view(split).transpose(1, 2).reshape(together)
                attended = F.scaled_dot_product_attention(queries, keys, values, attn_mask=unseen)
                return attended.reshape(count, decoder.kv_heads, width, -1).transpose(1, 2).reshape(count * width, -1)

            x = decoder._block(layer, x, cos, sin, attend)
        return F.rms_norm(x, x.shape[-1:], decoder.norm, decoder.eps)


def _fitting(prompts: Sequence[list[int]]) -> int:
    """How many of the first prompts are read at once: at least one, and about ``_AT_ONCE`` tokens that differ."""
    total, before = 0, list[int]()
    for count, prompt in enumerate(prompts):
        total += len(prompt) - len(commonprefix([before, prompt]))
        if count and total > _AT_ONCE:
            return count
        before = prompt
    return len(prompts)


def draw(log_probs: Tensor) -> Tensor:
    """A draw from each row's distribution by its inverse: one uniform number a row.  ``[rows, V] -> [rows]``"""
    cumulative = log_probs.double().exp().cumsum(-1)
    point = torch.rand(len(log_probs), 1, dtype=torch.float64, device=log_probs.device) * cumulative[:, -1:]
    return torch.searchsorted(cumulative, point, right=True).clamp(max=log_probs.shape[-1] - 1).squeeze(-1)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of ``[N, heads, D]`` by cos and sin ``[N, 1, D]``, in the halves that Llama's weights expect."""
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin
