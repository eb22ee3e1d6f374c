"""The memory of a policy step: what fits where.

    python benchmarks/memory.py --model llama-70b --gpu h100 --gpus 8 --nodes 2    # a plan, and its launch line

The plan counts bytes from the code and fits nothing. Every peak of SmolLM2 on a CPU was within 6 % of its arithmetic;
commit fa125e5 has the comparison (``benchmarks/memory_check.py``).
"""

import math
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import torch
from peft import LoraConfig, get_peft_model
from tabulate import tabulate
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, PretrainedConfig

from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.policy import SCORES_IN_MEMORY
from text2grad.configs import parse, setting
from text2grad.errors import command
from text2grad.models import model_path

ROOT = Path(__file__).resolve().parent.parent
STAGE = "nl_gradient_policy_optimization"
GIB = 2**30
WEIGHT = 2  # bytes: bfloat16
SHAPES = {
    "llama-8b": {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "intermediate_size": 14336},
    "llama-70b": {"hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64, "intermediate_size": 28672},
}
HUB_IDS = {"llama-8b": "meta-llama/Llama-3.1-8B-Instruct", "llama-70b": "meta-llama/Llama-3.1-70B-Instruct"}
GPUS = {"a100": 80, "h100": 80, "h200": 141}  # GiB
ROOM = 0.92  # the CUDA context, NCCL's buffers and fragmentation take the rest
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

    @property
    def tokens(self) -> int:
        """Tokens of one micro-batch."""
        return self.micro_batch * (self.prompt + self.response)


@dataclass
class PlanConfig(Job):
    """A policy step, and the machines that run it."""

    model: str = setting("llama-8b", f"{', '.join(SHAPES)}, a folder or a hub id", "--model_path")
    task: Literal["slf5k", "kodcode", "ultrafeedback"] = setting("slf5k", "the task whose launcher is named")
    gpu: Literal["a100", "h100", "h200"] = setting("h100", "the kind of GPU")
    gpus: int = setting(8, "GPUs of each machine")
    nodes: int = setting(1, "machines")


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


def step_memory(shape: Shape, job: Job, zero: int = 0, ranks: int = 1, served: bool = False) -> dict[str, float]:
    """Bytes on one device: what is held throughout, what each phase adds, and the ``peak`` that must fit.

    ZeRO-1 shards the optimiser's state, 2 the gradients too, 3 the weights too (Rajbhandari et al. 2020, section 5);
    ``zero=0`` is a run without DeepSpeed; ``served``: a vLLM server on other GPUs samples.
    """
    size = WEIGHT
    share = {part: ranks if zero >= stage else 1 for part, stage in (("state", 1), ("gradients", 2), ("weights", 3))}
    trained = shape.adapter or shape.parameters
    trained_size = 4 if shape.adapter and not zero else size  # peft keeps adapters in float32, DeepSpeed one dtype
    held = {
        "weights": size * shape.parameters / share["weights"],
        "adapter": trained_size * shape.adapter / share["weights"],
        "gradients": trained_size * trained / share["gradients"],
        "optimiser": _state(job, zero, trained_size) * trained / share["state"],
        "reference": 0 if shape.adapter else size * shape.parameters,  # whole on every rank, under ZeRO-3 too
        "bucket": size * BUCKET if zero == 3 else 0,  # ZeRO-1 and 2 have one in the backward pass only
    }
    largest = max(LIVE, shape.vocabulary * shape.hidden)
    gathered = size * min(shape.parameters, largest) if zero == 3 else 0
    filling = size * BUCKET if zero in (1, 2) else 0
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
    size, hidden, query, inner = WEIGHT, shape.hidden, shape.query, shape.intermediate
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
    size = WEIGHT
    inner = 2 * size + 2 * trained_size if shape.adapter else 3 * size
    return 2 * size * shape.hidden + inner * shape.intermediate


def _sampling(shape: Shape, job: Job, zero: int, trained_size: int, served: bool) -> float:
    """Bytes that sampling adds: ZeRO-3 gathers all weights for it, unless a vLLM server samples."""
    size = WEIGHT
    if served:  # the adapter is gathered, and saved for it
        return trained_size * shape.adapter
    whole: float = size * shape.parameters + trained_size * shape.adapter if zero == 3 else 0
    cache: float = job.rollouts * (job.prompt + job.response) * shape.layers * 2 * shape.key_value * size
    cache += cache / shape.layers  # a layer's cache is copied as it grows
    return whole + cache + job.rollouts * job.prompt * _passing(shape, job, trained_size)


def serving_gpus(shape: Shape, job: Job, gpu: str, ranks: int) -> int:
    """GPUs, a power of two, that a vLLM server needs for the weights and the cache of all ranks' rollouts."""
    cache = job.rollouts * ranks * (job.prompt + job.response) * shape.layers * 2 * shape.key_value
    needed = WEIGHT * (shape.parameters + cache) / (0.8 * GPUS[gpu] * GIB)
    return 2 ** math.ceil(math.log2(max(needed, 1)))


def policy_settings(job: Job) -> dict[str, Any]:
    """A job as the flags of a policy run."""
    return {
        "rollouts_per_device": job.rollouts,
        "micro_batch_size": job.micro_batch,
        "max_prompt_tokens": job.prompt,
        "max_new_tokens": job.response,
        "ppo_epochs": job.ppo_epochs,
        "lora_r": job.lora_r,
        "lora_dropout": job.lora_dropout,
        "optimizer": job.optimizer,
        "gradient_checkpointing": job.checkpointing,
    }


def launch_lines(args: PlanConfig, job: Job, zero: int, servers: int) -> list[str]:
    """The commands that start the run, and its vLLM server where ``servers`` GPUs sample."""
    model = HUB_IDS.get(args.model, args.model)
    server = [f"bash {STAGE}/serve_vllm.sh {model} --host 0.0.0.0 --tensor-parallel-size {servers} "
              f"--max-lora-rank {job.lora_r}"] if servers else []  # fmt: skip
    settings = {"model": model, **policy_settings(job), "generation": "vllm_server" if servers else "transformers"}
    settings["vllm_url"] = "http://HOST:8000" if servers else []
    own = parse(PolicyConfig, args=["--config", str(ROOT / STAGE / args.task / "config.yaml")])
    line = f"bash {STAGE}/{args.task}/train_{args.task}.sh --data_path DATA --critic CRITIC --output_dir runs/new"
    line += "".join(f" --{name} {value}" for name, value in settings.items() if getattr(own, name) != value)
    if zero:
        line += f" --deepspeed {STAGE}/deepspeed/zero{zero}.json"
    nodes = f"NODES={args.nodes} NODE_RANK=0..{args.nodes - 1} MASTER_ADDR=HOST " if args.nodes > 1 else ""
    return [*server, f"{nodes}PROCESSES={args.gpus} {line}"]


def plan(args: PlanConfig) -> str:
    """Memory of each way to shard, and the commands for the first that fits: the one that shards least."""
    job = Job(**{each.name: getattr(args, each.name) for each in fields(Job)})
    shape, ranks = shape_of(load_config(args.model), job.lora_r), args.gpus * args.nodes
    servers = serving_gpus(shape, job, args.gpu, ranks)
    ways = [(0, 0), (1, 0), (2, 0), (3, 0)] if ranks > 1 else [(0, 0)]
    if ranks > 1 and job.lora_r:  # adapters are loaded into the server over HTTP
        ways.append((3, servers))
    rows, chosen = [], None
    for zero, serving in ways:
        sharded = replace(job, optimizer="adamw") if zero else job  # DeepSpeed and Adafactor do not go together
        parts = step_memory(shape, sharded, zero, ranks, served=serving > 0)
        fits = parts["peak"] / GIB <= GPUS[args.gpu] * ROOM
        name = f"ZeRO-{zero}" if zero else "DDP" if ranks > 1 else "one GPU"
        shown = {f"+ {part}" if part in PHASES else part: f"{value / GIB:.1f}" for part, value in parts.items()}
        rows.append({"GiB": name + (", vLLM server" if serving else ""), **shown, "fits": "yes" if fits else "no"})
        if fits and chosen is None:
            chosen = (sharded, zero, serving)
    table = tabulate(rows, headers="keys", tablefmt="github", disable_numparse=True)
    text = f"{args.model}: {shape.parameters / 1e9:.2f} B weights, {shape.adapter / 1e6:.1f} M in adapters, "
    text += f"on each of {ranks} {args.gpu}\n\n{table}\n\n"
    if chosen is None:
        return text + "Nothing fits: take more GPUs, a smaller --rollouts or --micro_batch, or adapters."
    if chosen[2]:
        text += f"The first command runs on {servers} more GPUs, at HOST.\n\n"
    return text + "\n".join(launch_lines(args, *chosen))


@command
def main() -> None:
    print(plan(parse(PlanConfig)))


if __name__ == "__main__":
    main()
