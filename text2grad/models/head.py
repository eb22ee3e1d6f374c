"""The vocabulary head: scores in float32, a chunk of positions at a time, and log-probabilities with their gradients.

Nothing here makes a tensor of all positions by the whole vocabulary, which would be the largest of a training.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from text2grad.models.loading import cpu_has_bfloat16

SCORES_IN_MEMORY = 2**26
"""Vocabulary scores of one chunk where its length is left open: 256 MiB in float32, a few times that at work."""


def chunk_length(config: PretrainedConfig) -> int:
    """How many positions have ``SCORES_IN_MEMORY`` scores."""
    return max(1, SCORES_IN_MEMORY // config.get_text_config().vocab_size)


def vocabulary_head(base: PreTrainedModel, exact: bool = True) -> Callable[[Tensor], Tensor]:
    """Hidden states to logits, in float32 or better, with whatever the model does to its logits after the head.

    Args:
        exact: also those of a head of 16 bits; else they are rounded to its precision first, which takes less time.
    """
    config = base.config.get_text_config()
    scale = 1.0
    for name in ("logit_scale", "output_multiplier", "lm_head_multiplier"):
        scale = getattr(config, name, None) or scale
    if getattr(config, "logits_scaling", None):
        scale = config.logits_scaling if config.model_type == "hyperclovax" else 1 / config.logits_scaling
    cap = getattr(config, "final_logit_softcapping", None)

    def logits(hidden: Tensor) -> Tensor:
        head = base.get_output_embeddings()
        with _exact(head) if exact else nullcontext():
            scores = head(hidden)
        if scale != 1:
            scores = scores * scale
        if cap:
            scores = torch.tanh(scores / cap) * cap
        return scores if scores.dtype == torch.float64 else scores.float()

    return logits


@contextmanager
def head_inputs(base: PreTrainedModel) -> Iterator[list[Tensor]]:
    """Inside, passes of the model leave in the list what its head would read, ``[B, L, H]``, and score nothing."""
    states: list[Tensor] = []

    def keep(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor]:
        states.append(inputs[0])
        return (inputs[0][:, :0],)

    hook = base.get_output_embeddings().register_forward_pre_hook(keep)
    try:
        yield states
    finally:
        hook.remove()


def is_frozen(base: PreTrainedModel) -> bool:
    """Whether the head's weights are here and get no gradient; ZeRO-3 has to gather them."""
    weights = base.get_output_embeddings().parameters()
    return not any(weight.requires_grad or hasattr(weight, "ds_id") for weight in weights)


class WithGradient(torch.autograd.Function):
    """``[N, H], [N] -> [N]``: what ``function`` makes of each row, and at once its gradient to the row's states.

    So the vocabulary's scores are neither kept for the backward pass nor computed again in it.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, targets: Tensor, function: Callable, chunk: int) -> Tensor:
        numbers, gradients = [], []
        for states, wanted in zip(hidden.split(chunk), targets.split(chunk), strict=True):
            with torch.set_grad_enabled(ctx.needs_input_grad[0]):
                states = states.detach().requires_grad_(ctx.needs_input_grad[0])
                number = function(states, wanted)
                if ctx.needs_input_grad[0]:
                    gradients += torch.autograd.grad(number.sum(), states)
            numbers.append(number.detach())
        if gradients:
            ctx.save_for_backward(torch.cat(gradients))
        return torch.cat(numbers)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (own,) = ctx.saved_tensors
        return (gradients[0][:, None] * own).to(own.dtype), None, None, None


@contextmanager
def _exact(head: Any) -> Iterator[None]:
    """A vocabulary head of 16 bits gives float32 scores inside the block. Hooks on it (ZeRO-3 has some) run as ever."""
    head = getattr(head, "base_layer", head)  # below an adapter
    if type(head) is not nn.Linear or head.weight.dtype not in (torch.bfloat16, torch.float16):
        yield
        return

    def forward(hidden: Tensor) -> Tensor:
        scores = _Float32Product.apply(hidden, head.weight)
        return scores if head.bias is None else scores + head.bias

    vars(head)["forward"] = forward
    try:
        yield
    finally:
        del vars(head)["forward"]


class _Float32Product(torch.autograd.Function):
    """``[N, H], [V, H] -> [N, V]``: x·Wᵀ in float32, a block of W at a time, so that no copy of all of it is made."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        wide = x.float()
        with _products_of_16_bits(weight):
            return torch.cat([wide @ block.float().T for block in weight.split(_rows(weight))], -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        parts = gradients[0].split(_rows(weight), -1)
        to_x = to_weight = None
        if ctx.needs_input_grad[0] and weight.dtype == torch.bfloat16:
            to_x = gradients[0].bfloat16() @ weight  # sums in float32; what comes out has 16 bits in any case
        elif ctx.needs_input_grad[0]:  # float16 has no room for gradients as small as these
            blocks = zip(parts, weight.split(_rows(weight)), strict=True)
            to_x = sum((part @ block.float() for part, block in blocks), torch.zeros_like(x, dtype=torch.float32))
            to_x = to_x.to(x.dtype)
        if ctx.needs_input_grad[1]:
            to_weight = torch.cat([(part.T @ x.float()).to(weight.dtype) for part in parts])
        return to_x, to_weight


@contextmanager
def _products_of_16_bits(weight: Tensor) -> Iterator[None]:
    """Inside the block, float32 products may round their factors to 16 bits: for factors that have no more, the same.

    The sums stay float32. On a CPU with bfloat16 instructions this takes half the time.
    """
    backend, kind = (torch.backends.cuda, "tf32") if weight.is_cuda else (torch.backends.mkldnn, "bf16")
    possible = weight.is_cuda or (weight.dtype == torch.bfloat16 and cpu_has_bfloat16())
    if not possible or not hasattr(backend.matmul, "fp32_precision"):  # torch before 2.9
        yield
        return
    before, backend.matmul.fp32_precision = backend.matmul.fp32_precision, kind
    try:
        yield
    finally:
        backend.matmul.fp32_precision = before


def _rows(weight: Tensor) -> int:
    """Of a block with 16 million weights, 64 MiB in float32."""
    return max(1, 2**24 // weight.shape[1])
