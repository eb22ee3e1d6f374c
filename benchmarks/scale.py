"""What fits where: memory and time of a policy step by ZeRO stage, and the line that launches it.

    python benchmarks/scale.py --model llama-70b --gpu h100 --gpus 8 --nodes 2
    python benchmarks/scale.py --check          # the memory model against steps of SmolLM2 (memory_check.py)

The memory model is ``memory_model.py``. The time model
divides work by what a device is said to do, times a share of it that is ours to assume (``--compute_share``,
``--bandwidth_share``): it ranks settings, it does not promise seconds.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import fields
from pathlib import Path

from benchmarks.memory_check import check
from benchmarks.memory_model import GIB, PHASES, SHAPES, Job, Shape, load_config, memory, shape_of
from benchmarks.micro.results import table
from nl_gradient_policy_optimization.config import PolicyConfig
from text2grad.configs import parse
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
        "max_new_tokens": job.response,
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
        check(args.page)
    else:
        print(plan(args))


if __name__ == "__main__":
    main()
