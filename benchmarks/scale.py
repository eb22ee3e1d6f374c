"""What fits where: memory and time of a policy step by ZeRO stage, and the line that launches it.

    python benchmarks/scale.py --model llama-70b --gpu h100 --gpus 8 --nodes 2
    python benchmarks/scale.py --check          # the memory model against steps of SmolLM2 (memory_check.py)

The memory model is ``memory_model.py``. The time model divides the work by a device's data sheet and by assumed shares
of it (``--compute_share``, ``--bandwidth_share``). It ranks settings; its seconds are not predictions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal

from benchmarks.memory_check import compare_with_steps
from benchmarks.memory_model import GIB, PHASES, SHAPES, Job, Shape, load_config, shape_of, step_memory
from benchmarks.pages import markdown_table, page_setting
from nl_gradient_policy_optimization.config import PolicyConfig
from text2grad.configs import parse, setting
from text2grad.errors import command

ROOT = Path(__file__).resolve().parent.parent
STAGE = "nl_gradient_policy_optimization"
HUB_IDS = {"llama-8b": "meta-llama/Llama-3.1-8B-Instruct", "llama-70b": "meta-llama/Llama-3.1-70B-Instruct"}
GPUS = {  # GiB, dense bf16 TFLOP/s, memory TB/s, link to the GPUs beside it GB/s; the makers' data sheets
    "a100": (80, 312, 2.0, 300),
    "h100": (80, 989, 3.35, 450),
    "h200": (141, 989, 4.8, 450),
}
ROOM = 0.92  # the CUDA context, NCCL's buffers and fragmentation take the rest
NETWORK = 50  # GB/s between machines: one 400 Gbit/s port per GPU


@dataclass
class PlanConfig(Job):
    """A policy step, and the machines that run it."""

    model: str = setting("llama-8b", f"{', '.join(SHAPES)}, a folder or a hub id", "--model_path")
    task: Literal["slf5k", "kodcode", "ultrafeedback"] = setting("slf5k", "the task whose launcher is named")
    gpu: Literal["a100", "h100", "h200"] = setting("h100", "the kind of GPU")
    gpus: int = setting(8, "GPUs of each machine")
    nodes: int = setting(1, "machines")
    compute_share: float = setting(0.4, "share of a GPU's bfloat16 peak that is reached")
    bandwidth_share: float = setting(0.5, "share of a GPU's memory bandwidth that decoding reaches")
    check: bool = setting(False, "compare the memory model with real steps on this machine; plans nothing")
    page: str = page_setting("scale")


def step_seconds(shape: Shape, job: Job, zero: int, ranks: int, args: PlanConfig, servers: int = 0) -> dict:
    """Estimated seconds of a step's phases without the critic; ``servers`` GPUs, if any, sample for all ranks."""
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


def _generation(job: Job) -> str:
    """Adapters are loaded into the server over HTTP; whole weights need NCCL."""
    return "vllm_server" if job.lora_r else "vllm_nccl"


def server_line(args: PlanConfig, job: Job, servers: int) -> str:
    """The command that starts the vLLM server."""
    model = HUB_IDS.get(args.model, args.model)
    if job.lora_r:
        script = f"bash {STAGE}/serve_vllm.sh {model} --host 0.0.0.0"
        return f"{script} --tensor-parallel-size {servers} --max-lora-rank {job.lora_r}"
    return (
        f"VLLM_SERVER_DEV_MODE=1 vllm serve {model} --tensor-parallel-size {servers} "
        '--weight-transfer-config \'{"backend": "nccl"}\' --logprobs-mode processed_logprobs'
    )


def launch_line(args: PlanConfig, job: Job, zero: int, served: bool) -> str:
    """The command that starts the run, with every setting that differs from the task's own file."""
    folder = ROOT / STAGE / args.task
    settings = {
        "model": HUB_IDS.get(args.model, args.model),
        "rollouts_per_device": job.rollouts,
        "micro_batch_size": job.micro_batch,
        "max_prompt_tokens": job.prompt,
        "max_new_tokens": job.response,
        "ppo_epochs": job.ppo_epochs,
        "lora_r": job.lora_r,
        "lora_dropout": job.lora_dropout,
        "optimizer": job.optimizer,
        "gradient_checkpointing": job.checkpointing,
        "generation": _generation(job) if served else "transformers",
        "vllm_url": "http://HOST:8000" if served else [],
    }
    own = parse(PolicyConfig, args=["--config", str(folder / "config.yaml")])
    line = f"bash {STAGE}/{args.task}/train_{args.task}.sh --data_path DATA --critic CRITIC --output_dir runs/new"
    line += "".join(f" --{name} {value}" for name, value in settings.items() if getattr(own, name) != value)
    if zero:
        line += f" --deepspeed {STAGE}/deepspeed/zero{zero}.json"
    nodes = f"NODES={args.nodes} NODE_RANK=0..{args.nodes - 1} MASTER_ADDR=HOST " if args.nodes > 1 else ""
    return f"{nodes}PROCESSES={args.gpus} {line}"


def plan(args: PlanConfig) -> str:
    """Memory and time of each way to shard, and the command for the first that fits: the one that shards least."""
    job = Job(**{each.name: getattr(args, each.name) for each in fields(Job)})
    shape, ranks = shape_of(load_config(args.model), job.lora_r), args.gpus * args.nodes
    chosen, servers, columns = None, serving_gpus(shape, job, args.gpu, ranks), {}
    ways = ((0, False), (1, False), (2, False), (3, False), (3, True)) if ranks > 1 else ((0, False),)
    for zero, served in ways:
        job = replace(job, optimizer="adamw" if zero else args.optimizer)  # DeepSpeed and Adafactor do not go together
        parts = step_memory(shape, job, zero, ranks, served=served)
        time = step_seconds(shape, job, zero, ranks, args, servers if served else 0)
        fits = parts["peak"] / GIB <= GPUS[args.gpu][0] * ROOM
        chosen = chosen or ((zero, served) if fits else None)
        columns[(f"ZeRO-{zero}" if zero else "DDP" if ranks > 1 else "alone") + (", vLLM server" if served else "")] = {
            **{f"+ {part}" if part in PHASES else part: f"{value / GIB:.1f}" for part, value in parts.items()},
            f"fits {args.gpu}": "yes" if fits else "no",
            **{f"{phase}, seconds": f"{value:.1f}" for phase, value in time.items()},
        }
    rows = [[name, *(column[name] for column in columns.values())] for name in next(iter(columns.values()))]
    rows = [row for row in rows if set(row[1:]) != {"0.0"}]
    lines = [f"{args.model}: {shape.parameters / 1e9:.2f} B weights, {shape.adapter / 1e6:.1f} M in adapters"]
    lines += ["", markdown_table([f"GiB on each of {ranks} {args.gpu}", *columns], rows), ""]
    if not chosen:
        return "\n".join([*lines, "Nothing fits: take more GPUs, a smaller --rollouts or --micro_batch, or adapters."])
    if chosen[1]:
        server = server_line(args, job, servers)
        lines += [f"On {servers} more GPUs, at HOST:", "", "```bash", server, "```", "", "On the trainer's GPUs:", ""]
    job = replace(job, optimizer="adamw" if chosen[0] else args.optimizer)
    return "\n".join([*lines, "```bash", launch_line(args, job, *chosen), "```"])


@command
def main() -> None:
    config = parse(PlanConfig)
    if config.check:
        compare_with_steps(config.page)
    else:
        print(plan(config))


if __name__ == "__main__":
    main()
