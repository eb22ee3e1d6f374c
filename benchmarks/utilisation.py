"""What part of a machine a step uses: the arithmetic and the bytes that it needs, over what the machine can do.

``needed`` counts what any implementation must do with a Llama-like model: products with the weights, attention, and
one reading of all weights for each token that the rows are sampled together. It reads a prompt of several responses
once. Adapters (below 4 % of the weights), norms and softmaxes count nothing, so a quotient of 1 is out of reach.
"""

import timeit
from collections.abc import Callable
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel


@dataclass(frozen=True)
class Machine:
    """What it was seen to do: products of two matrices, and reading memory; in operations and bytes a second."""

    operations: float
    bytes: float

    @classmethod
    def measured(cls, device: torch.device, dtype: torch.dtype) -> "Machine":
        """The best of several tries, by the threads that PyTorch has now."""
        side = 1024 if device.type == "cpu" else 8192
        left, right = (torch.randn(shape, device=device).to(dtype) for shape in ((side, side), (side, 4096)))
        long = torch.ones(2**26 if device.type == "cpu" else 2**30, device=device)
        product = _fastest(lambda: (left @ right)[0, 0].item())
        return cls(2 * side * side * 4096 / product, long.nbytes / _fastest(lambda: long.sum().item()))


Work = list[tuple[float, float]]
"""Operations and bytes of a phase's parts, one after the other."""


def least_seconds(work: Work, machine: Machine) -> float:
    """Each part needs its arithmetic or its bytes, whichever takes longer."""
    return sum(max(operations / machine.operations, moved / machine.bytes) for operations, moved in work)


def needed(
    model: PreTrainedModel,
    prompts: list[int],
    responses: list[list[int]],
    passes: int,
    adapter: bool = True,
    kept: bool = False,
) -> dict[str, Work]:
    """The work of a step's phases that a policy does.

    Args:
        prompts: tokens of each distinct prompt.
        responses: for each of them, the tokens of its responses.
        passes: of updates.
        adapter: an update asks for gradients of activations only; without, of all weights as well.
        kept: the first update begins with the pass that scored, so that one forward pass is in "reference" alone.
    """
    config = model.config.get_text_config()
    layers = sum(weight.numel() for weight in model.base_model.layers.parameters())
    head = config.hidden_size * config.vocab_size
    width = config.num_attention_heads * getattr(config, "head_dim", config.hidden_size // config.num_attention_heads)
    size = model.dtype.itemsize
    sampled = sum(map(sum, responses))
    attention = 4 * config.num_hidden_layers * width
    alone = sum(prompt * prompt / 2 for prompt in prompts)
    after = sum(
        length * (prompt + length / 2) for prompt, lengths in zip(prompts, responses, strict=True) for length in lengths
    )
    before = 2 * layers * sum(prompts) + attention * alone
    forward = before + 2 * (layers + head) * sampled + attention * after
    together = max(max(lengths) for lengths in responses)  # all rows advance by one token at a time
    weights = (layers + head) * size
    updates = passes * (2 if adapter else 3) - kept
    return {
        "rollout": [(before, weights), (forward - before, together * weights)],
        "reference": [(2 * forward, 2 * weights)],  # the policy's own scores, and the reference's
        "update": [(updates * forward, updates * weights)],
    }


def used(work: dict[str, Work], seconds: dict[str, float], machine: Machine) -> dict[str, dict[str, float]]:
    """For each phase its needs, the least seconds, those it took, and the quotient."""
    found = {}
    for phase, parts in work.items():
        operations, moved = map(sum, zip(*parts, strict=True))
        least, took = least_seconds(parts, machine), seconds[phase]
        needs = {"gflop": operations / 1e9, "gb": moved / 1e9}
        found[phase] = {**needs, "least": least, "seconds": took, "used": least / took}
    return found


def _fastest(function: Callable[[], object]) -> float:
    return min(timeit.repeat(function, number=1, repeat=7))
