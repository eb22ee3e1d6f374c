"""What fits where: memory and time of a policy step by ZeRO stage, and the line that launches it.

    python benchmarks/scale.py --model llama-70b --gpu h100 --gpus 8 --nodes 2
    python benchmarks/scale.py --check          # the memory model against steps of SmolLM2 (memory_check.py)

The memory model counts what stage 3 holds (weights, gradients, optimiser state, a reference where all weights train, an
in-process critic, DeepSpeed's bucket) and what each phase needs on top: sampling, scoring with the KL over the whole
vocabulary, updating, and the optimiser's step. It is counted from the code, nothing in it is fitted. The time model
divides work by what a device is said to do, times a share of it that is ours to assume (``--compute_share``,
``--bandwidth_share``): it ranks settings, it does not promise seconds.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, PretrainedConfig

from benchmarks.micro.results import table
from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.policy import SCORES_IN_MEMORY
from text2grad.configs import parse
from text2grad.errors import command
from text2grad.models import model_path

ROOT = Path(__file__).resolve().parent.parent
STAGE = "nl_gradient_policy_optimization"
GIB = 2**30
SHAPES = {
    "llama-8b": {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "intermediate_size": 14336},
    "llama-70b": {"hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64, "intermediate_size": 28672},
}
HUB_IDS = {"llama-8b": "meta-llama/Llama-3.1-8B-Instruct", "llama-70b": "meta-llama/Llama-3.1-70B-Instruct"}
GPUS = {  # GiB, dense bf16 TFLOP/s, memory TB/s, link to the GPUs beside it GB/s; the makers' data sheets
    "a100": (80, 312, 2.0, 300),
    "h100": (80, 989, 3.35, 450),
    "h200": (141, 989, 4.8, 450),
}
ROOM = 0.92  # the CUDA context, NCCL's buffers and fragmentation take the rest
NETWORK = 50  # GB/s between machines: one 400 Gbit/s port per GPU
BUCKET = 500_000_000  # DeepSpeed's default reduce_bucket_size, in elements; a GPU allocates all of it
LIVE = 1_000_000_000  # and its stage3_max_live_parameters: weights that stay gathered
PHASES = ("rollouts", "scores", "update", "step")
SCORE_BYTES = {"scores": 21, "update": 20}
"""Bytes for each vocabulary score at the peak. Scoring: both distributions' logarithms, probabilities, their difference
(twice, and where it counts); updating: the scores, and what the backward pass of their logsumexp makes of them."""


@dataclass
class Job:
    """One policy step. Lengths in tokens; ``rollouts`` and ``micro_batch`` per device, as in ``PolicyConfig``."""

    rollouts: int = 12
    micro_batch: int = 1
    prompt: int = 640
    response: int = 128
    ppo_epochs: int = 4
    lora_r: int = 16
    lora_dropout: float = 0.05
    optimizer: str = "adafactor"
    checkpointing: bool = True
    weight_bytes: int = 2
    critic_parameters: float = 0.0

    @property
    def tokens(self) -> int:
        """Of one micro-batch."""
        return self.micro_batch * (self.prompt + self.response)


@dataclass
class Shape:
    """What counts of a model."""

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


def memory(
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
    for each weight. Elsewhere its state is next to nothing, and AdamW's two moments have the weights' dtype.
    """
    if zero:
        return 12 if job.optimizer == "adamw" else 8
    return 2 * trained_size if job.optimizer == "adamw" else 0


def _step(shape: Shape, job: Job, zero: int, trained_size: int) -> int:
    """Bytes at work in the optimiser's step, on all ranks.

    DeepSpeed makes the gradients float32, and the optimiser its temporaries of the whole flat partition: AdamW one,
    Adafactor two. Elsewhere AdamW makes one of all trained weights, Adafactor goes weight by weight: its float32 copy
    and gradient, and two temporaries.
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
    whole = size * shape.parameters + trained_size * shape.adapter if zero == 3 else 0
    cache = job.rollouts * (job.prompt + job.response) * shape.layers * 2 * shape.key_value * size
    cache += cache / shape.layers  # a layer's cache is copied as it grows
    return whole + cache + job.rollouts * job.prompt * _passing(shape, job, trained_size)


def seconds(shape: Shape, job: Job, zero: int, ranks: int, args: argparse.Namespace, servers: int = 0) -> dict:
    """Seconds of a step's phases on paper, the critic aside; ``servers`` GPUs sample for all ranks where there are."""
    _, tflops, bandwidth, link = GPUS[args.gpu]
    compute, read = tflops * 1e12 * args.compute_share, bandwidth * 1e12 * args.bandwidth_share
    # Between machines NCCL makes a ring through each GPU's port, so that all ports of a machine carry a gather.
    wire = (min(link, NETWORK * args.gpus) if args.nodes > 1 else link) * 1e9
    weights = job.weight_bytes * shape.parameters
    gather = weights * (ranks - 1) / ranks / wire if zero == 3 else 0.0
    forward = 2 * shape.parameters  # FLOP a token
    sampled, devices = (job.rollouts * ranks, servers) if servers else (job.rollouts, 1)
    fetch = weights / (NETWORK * 1e9) if servers else gather  # once a step, either way
    per_token = max(weights / (read * devices), forward * sampled / (compute * devices))
    length = job.rollouts * (job.prompt + job.response)
    micro_batches = job.rollouts / job.micro_batch
    # Backward 2 FLOP a weight and token for activations and, where weights train, 2 more; checkpointing 2.
    work = forward * (2 if shape.adapter else 3) + (forward if job.checkpointing else 0)
    passes = 2 + (1 if job.checkpointing else 0)
    return {
        "rollout": fetch + job.response * per_token + forward * sampled * job.prompt / (compute * devices),
        "scores": 2 * (forward * length / compute + gather * micro_batches),
        "update": job.ppo_epochs * (work * length / compute + passes * gather * micro_batches),
    }


def serving_gpus(shape: Shape, job: Job, gpu: str, ranks: int) -> int:
    """GPUs, a power of two, that a vLLM server needs for the weights and the cache of all ranks' rollouts."""
    cache = job.rollouts * ranks * (job.prompt + job.response) * shape.layers * 2 * shape.key_value
    needed = job.weight_bytes * (shape.parameters + cache) / (0.8 * GPUS[gpu][0] * GIB)
    return 2 ** math.ceil(math.log2(max(needed, 1)))


def launch_line(args: argparse.Namespace, job: Job, zero: int, served: bool) -> str:
    """The command that starts it: every setting that the task's own file does not say already."""
    folder = ROOT / STAGE / args.task
    settings = {
        "model": HUB_IDS.get(args.model, args.model),
        "rollouts_per_device": job.rollouts,
        "micro_batch_size": job.micro_batch,
        "max_prompt_tokens": job.prompt,
        "max_response_tokens": job.response,
        "ppo_epochs": job.ppo_epochs,
        "lora_r": job.lora_r,
        "lora_dropout": job.lora_dropout,
        "optimizer": job.optimizer,
        "gradient_checkpointing": job.checkpointing,
        "generation": "vllm_server" if served else "transformers",
        "vllm_url": "http://HOST:8000" if served else "",
    }
    own = parse(PolicyConfig, args=["--config", str(folder / "config.yaml")])
    line = f"bash {STAGE}/{args.task}/train_{args.task}.sh --data_path DATA --critic CRITIC --output_dir runs/new"
    line += "".join(f" --{name} {value}" for name, value in settings.items() if getattr(own, name) != value)
    if zero in (1, 3):  # the launcher's own is ZeRO-2
        line += f" --deepspeed {STAGE}/deepspeed/zero{zero}.json"
    nodes = f"NODES={args.nodes} NODE_RANK=0..{args.nodes - 1} MASTER_ADDR=HOST " if args.nodes > 1 else ""
    return f"{nodes}PROCESSES={args.gpus} {line}"


def plan(args: argparse.Namespace) -> str:
    """Each way's memory and time, and the launch line of the first that fits: the one that shards least."""
    job = Job(**{each.name: getattr(args, each.name) for each in fields(Job)})
    shape, ranks = shape_of(load_config(args.model), job.lora_r), args.gpus * args.nodes
    chosen, servers, columns = None, serving_gpus(shape, job, args.gpu, ranks), {}
    for zero, served in ((1, False), (2, False), (3, False), (3, True)) if ranks > 1 else ((0, False),):
        parts = memory(shape, job, zero, ranks, served=served)
        time = seconds(shape, job, zero, ranks, args, servers if served else 0)
        fits = parts["peak"] / GIB <= GPUS[args.gpu][0] * ROOM
        chosen = chosen or ((zero, served) if fits else None)
        columns[(f"ZeRO-{zero}" if zero else "alone") + (", vLLM server" if served else "")] = {
            **{f"+ {part}" if part in PHASES else part: f"{value / GIB:.1f}" for part, value in parts.items()},
            f"fits {args.gpu}": "yes" if fits else "no",
            **{f"{phase}, seconds": f"{value:.1f}" for phase, value in time.items()},
        }
    rows = [[name, *(column[name] for column in columns.values())] for name in next(iter(columns.values()))]
    rows = [row for row in rows if set(row[1:]) != {"0.0"}]
    lines = [f"{args.model}: {shape.parameters / 1e9:.2f} B weights, {shape.adapter / 1e6:.1f} M in adapters"]
    lines += ["", table([f"GiB on each of {ranks} {args.gpu}", *columns], rows), ""]
    if not chosen:
        return "\n".join([*lines, "Nothing fits: take more GPUs, a smaller --rollouts or --micro_batch, or adapters."])
    if chosen[1]:
        lines += [
            f"On {servers} more GPUs, at HOST: VLLM_SERVER_DEV_MODE=1 vllm serve {HUB_IDS.get(args.model, args.model)} "
            f'--tensor-parallel-size {servers} --weight-transfer-config \'{{"backend": "nccl"}}\' '
            "--logprobs-mode processed_logprobs"
        ]
    return "\n".join([*lines, launch_line(args, job, *chosen)])


@command
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="measure instead of planning")
    parser.add_argument("--page", default="benchmarks/README.md", help="whose section --check rewrites; empty: none")
    parser.add_argument("--model", default="llama-8b", help=f"{', '.join(SHAPES)}, a folder or a hub id")
    parser.add_argument("--task", default="slf5k", choices=["slf5k", "kodcode", "ultrafeedback"])
    parser.add_argument("--gpu", default="h100", choices=list(GPUS))
    parser.add_argument("--gpus", type=int, default=8, help="on each machine")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--compute_share", type=float, default=0.4, help="of the GPU's bf16 peak that is reached")
    parser.add_argument("--bandwidth_share", type=float, default=0.5, help="of its memory bandwidth, in decoding")
    for each in fields(Job):
        kind = (lambda text: text.lower() in ("true", "1", "yes")) if isinstance(each.default, bool) else None
        parser.add_argument(f"--{each.name}", type=kind or type(each.default), default=each.default)
    args = parser.parse_args()
    if args.check:
        from benchmarks.memory_check import check

        check(args.page)
    else:
        print(plan(args))


if __name__ == "__main__":
    main()
