"""Bytes of a policy step on one device, counted from the code; nothing in it is fitted.

What stage 3 holds (weights, gradients, optimiser state, a reference where all weights train, an in-process critic,
DeepSpeed's bucket) and what each phase adds: sampling, scoring with the KL over the whole vocabulary, updating, and the
optimiser's step. ``scale.py`` plans with it, ``memory_check.py`` compares it with real steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, PretrainedConfig

from nl_gradient_policy_optimization.policy import SCORES_IN_MEMORY
from text2grad.configs import setting
from text2grad.models import model_path

GIB = 2**30
SHAPES = {
    "llama-8b": {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "intermediate_size": 14336},
    "llama-70b": {"hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64, "intermediate_size": 28672},
}
BUCKET = 500_000_000  # DeepSpeed's default reduce_bucket_size, in elements; a GPU allocates all of it
LIVE = 1_000_000_000  # and its stage3_max_live_parameters: weights that stay gathered
PHASES = ("rollouts", "scores", "update", "step")
SCORE_BYTES = {"scores": 21, "update": 20}
"""Bytes for each vocabulary score at the peak. Scoring: both distributions' logarithms, probabilities, their difference
(twice, and where it counts); updating: the scores, and what the backward pass of their logsumexp makes of them."""


@dataclass
class Job:
    """One policy step; ``rollouts`` and ``micro_batch`` per device, as in ``PolicyConfig``."""

    rollouts: int = setting(12, "responses in a step on each device")
    micro_batch: int = setting(1, "responses in a micro-batch on each device")
    prompt: int = setting(640, "tokens of a prompt")
    response: int = setting(128, "tokens of a response")
    ppo_epochs: int = setting(4, "passes of updates over a step's responses")
    lora_r: int = setting(16, "rank of the adapters; 0 trains all weights")
    lora_dropout: float = setting(0.05, "dropout of the adapters")
    optimizer: Literal["adafactor", "adamw"] = setting("adafactor", "the optimiser")
    checkpointing: bool = setting(True, "recompute activations in the backward pass")
    weight_bytes: int = setting(2, "bytes of a weight: 2 for bfloat16, 4 for float32")
    critic_parameters: float = setting(0.0, "weights of a reward model in the same process")

    @property
    def tokens(self) -> int:
        """Tokens of one micro-batch."""
        return self.micro_batch * (self.prompt + self.response)


@dataclass
class Shape:
    """The sizes of a model that the memory depends on."""

    parameters: int
    adapter: int
    layers: int
    hidden: int
    intermediate: int
    query: int
    key_value: int
    vocabulary: int


def load_config(name: str) -> PretrainedConfig:
    if name in SHAPES:
        return LlamaConfig(vocab_size=128256, num_key_value_heads=8, head_dim=128, **SHAPES[name])
    return AutoConfig.from_pretrained(model_path(name))


def shape_of(config: PretrainedConfig, lora_r: int) -> Shape:
    """Counted on a model without storage, adapters on all linear layers of its blocks included."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
        parameters = sum(weight.numel() for weight in model.parameters())
        adapter = 0
        if lora_r:
            tuned = get_peft_model(model, LoraConfig(r=lora_r, target_modules="all-linear", task_type="CAUSAL_LM"))
            adapter = sum(weight.numel() for weight in tuned.parameters() if weight.requires_grad)
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return Shape(
        parameters=parameters,
        adapter=adapter,
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        intermediate=config.intermediate_size,
        query=config.num_attention_heads * head,
        key_value=config.num_key_value_heads * head,
        vocabulary=config.vocab_size,
    )


def step_memory(
    shape: Shape, job: Job, zero: int = 0, ranks: int = 1, served: bool = False, bucket: int = BUCKET
) -> dict[str, float]:
    """Bytes on one device: what is held throughout, what each phase adds, and the ``peak`` that must fit.

    ZeRO-1 shards the optimiser's state, 2 the gradients too, 3 the weights too (Rajbhandari et al. 2020, section 5);
    ``zero=0`` is a run without DeepSpeed; ``served``: a vLLM server on other GPUs samples.
    """
    size = job.weight_bytes
    share = {part: ranks if zero >= stage else 1 for part, stage in (("state", 1), ("gradients", 2), ("weights", 3))}
    trained = shape.adapter or shape.parameters
    trained_size = 4 if shape.adapter and not zero else size  # peft keeps adapters in float32, DeepSpeed one dtype
    held = {
        "weights": size * shape.parameters / share["weights"],
        "adapter": trained_size * shape.adapter / share["weights"],
        "gradients": trained_size * trained / share["gradients"],
        "optimiser": _state(job, zero, trained_size) * trained / share["state"],
        "reference": 0 if shape.adapter else size * shape.parameters,  # whole on every rank, under ZeRO-3 too
        "critic": size * job.critic_parameters,
        "bucket": size * bucket if zero == 3 else 0,  # ZeRO-1 and 2 have one in the backward pass only
    }
    largest = max(LIVE, shape.vocabulary * shape.hidden)
    gathered = size * min(shape.parameters, largest) if zero == 3 else 0
    filling = size * bucket if zero in (1, 2) else 0
    kept, passing = _block(shape, job, trained_size), _passing(shape, job, trained_size)
    rows = min(SCORES_IN_MEMORY // shape.vocabulary, job.micro_batch * job.response) * shape.vocabulary
    blocks = shape.layers * job.tokens * (size * shape.hidden if job.checkpointing else kept)
    backward = job.tokens * (passing + (kept if job.checkpointing else 0))
    phases = {
        "rollouts": _sampling(shape, job, zero, trained_size, served),
        "scores": gathered + max(job.tokens * passing, SCORE_BYTES["scores"] * rows),
        "update": gathered + filling + blocks + max(backward, SCORE_BYTES["update"] * rows),
        "step": _step(shape, job, zero, trained_size) / share["state"],
    }
    return {**held, **phases, "peak": sum(held.values()) + max(phases.values())}


def _state(job: Job, zero: int, trained_size: int) -> int:
    """Bytes of optimiser state for each trained weight.

    DeepSpeed adds float32 weights and flattens: Adafactor finds no rows and columns to keep means of, and keeps a value
    for each weight. Without DeepSpeed its state is close to nothing, and AdamW's two moments have the weights' dtype.
    """
    if zero:
        return 12 if job.optimizer == "adamw" else 8
    return 2 * trained_size if job.optimizer == "adamw" else 0


def _step(shape: Shape, job: Job, zero: int, trained_size: int) -> int:
    """Bytes at work in the optimiser's step, on all ranks.

    DeepSpeed makes the gradients float32, and the optimiser its temporaries of the whole flat partition: AdamW one,
    Adafactor two. Without it AdamW makes one of all trained weights, and Adafactor goes weight by weight: its float32
    copy and gradient, and two temporaries.
    """
    trained = shape.adapter or shape.parameters
    largest = shape.hidden * (job.lora_r if shape.adapter else shape.vocabulary)
    if zero:
        return (8 if job.optimizer == "adamw" else 12) * trained
    return trained_size * trained if job.optimizer == "adamw" else 16 * largest


def _block(shape: Shape, job: Job, trained_size: int) -> int:
    """Bytes that one block keeps per token for its backward pass."""
    size, hidden, query, inner = job.weight_bytes, shape.hidden, shape.query, shape.intermediate
    kept = 2 * 4 * hidden + 3 * size * inner  # two norms, which work in float32; gate, its activation, up
    # Queries, keys, values and what comes out; a padding mask makes keys and values be repeated for all heads.
    kept += size * 2 * (query + (query if job.micro_batch > 1 else shape.key_value))
    inputs = 5 * hidden + query + inner  # of the seven linear layers, each with a copy of its own
    if not shape.adapter:
        return kept + size * (2 * hidden + 2 * hidden + inner)  # norms before their weights, then the shared inputs
    if job.lora_dropout:
        return kept + (trained_size + 1) * inputs
    return kept + (trained_size * inputs if trained_size != size else size * (2 * hidden + inner))


def _passing(shape: Shape, job: Job, trained_size: int) -> int:
    """Bytes per token at work inside a block and gone after it: the feed-forward part, the adapter's sums with it."""
    size = job.weight_bytes
    inner = 2 * size + 2 * trained_size if shape.adapter else 3 * size
    return 2 * size * shape.hidden + inner * shape.intermediate


def _sampling(shape: Shape, job: Job, zero: int, trained_size: int, served: bool) -> float:
    """Bytes that sampling adds: ZeRO-3 gathers all weights for it, unless a vLLM server samples."""
    size = job.weight_bytes
    if served:  # weights go there one by one, an adapter added in float32
        return max(size * shape.vocabulary * shape.hidden, (size + 8) * shape.hidden * shape.intermediate)
    whole: float = size * shape.parameters + trained_size * shape.adapter if zero == 3 else 0
    cache: float = job.rollouts * (job.prompt + job.response) * shape.layers * 2 * shape.key_value * size
    cache += cache / shape.layers  # a layer's cache is copied as it grows
    return whole + cache + job.rollouts * job.prompt * _passing(shape, job, trained_size)
