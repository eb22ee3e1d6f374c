"""What fits where: memory and time of a policy step by ZeRO stage, and the line that launches it.

    python benchmarks/scale.py --model llama-70b --gpu h100 --gpus 8 --nodes 2
    python benchmarks/scale.py --check          # the memory model against runs of SmolLM2 on this machine

The memory model counts what stage 3 holds: weights, gradients, optimiser state, a reference where all weights train, an
in-process critic, and the larger of the rollouts' key-value cache and one micro-batch's activations with its slice of
the vocabulary head. The time model divides work by what a device is said to do, times a share of it that is ours to
assume (``--compute_share``, ``--bandwidth_share``): it ranks settings, it does not promise seconds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from tabulate import tabulate
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, PretrainedConfig

from nl_gradient_policy_optimization.policy import PolicyScorer
from text2grad.errors import InputError, command
from text2grad.models import model_path

ROOT = Path(__file__).resolve().parent.parent
GIB = 2**30
SHAPES = {
    "llama-8b": {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "intermediate_size": 14336},
    "llama-70b": {"hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64, "intermediate_size": 28672},
}
GPUS = {  # GiB, dense bf16 TFLOP/s, memory TB/s, link to the GPUs beside it GB/s; the makers' data sheets
    "a100": (80, 312, 2.0, 300),
    "h100": (80, 989, 3.35, 450),
    "h200": (141, 989, 4.8, 450),
}
NETWORK = 50  # GB/s between machines: one 400 Gbit/s port per GPU
HEAD_CHUNK = PolicyScorer.__init__.__defaults__[-1]


@dataclass
class Job:
    """One policy step. Lengths in tokens; ``rollouts`` and ``micro_batch`` per device, as in ``PolicyConfig``."""

    rollouts: int = 12
    micro_batch: int = 1
    prompt: int = 640
    response: int = 128
    ppo_epochs: int = 4
    lora_r: int = 16
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


def memory(shape: Shape, job: Job, zero: int = 0, ranks: int = 1) -> dict[str, float]:
    """Bytes on one device, part by part; ``peak`` is what must fit.

    ZeRO-1 shards the optimiser's state, 2 the gradients too, 3 the weights too (Rajbhandari et al. 2020, section 5).
    """
    share = {part: ranks if zero >= stage else 1 for part, stage in (("state", 1), ("gradients", 2), ("weights", 3))}
    trained = shape.adapter or shape.parameters
    # Adafactor keeps a row and a column for each matrix, which is next to nothing.
    moments = 8 * trained if job.optimizer == "adamw" else 0
    master = 4 * trained if zero or not shape.adapter else 0
    parts = {
        "weights": job.weight_bytes * shape.parameters / share["weights"],
        "adapter": 4 * shape.adapter / share["weights"],
        "gradients": (4 if shape.adapter else job.weight_bytes) * trained / share["gradients"],
        "optimiser": (moments + master) / share["state"],
        "reference": 0 if shape.adapter else job.weight_bytes * shape.parameters / share["weights"],
        "critic": job.weight_bytes * job.critic_parameters,
    }
    layer = shape.hidden * (2 * shape.query + 2 * shape.key_value + 3 * shape.intermediate)
    gathered = 2 * job.weight_bytes * layer if zero == 3 else 0  # the layer at work, and the next on its way
    length = job.prompt + job.response
    cache = job.rollouts * length * shape.layers * 2 * shape.key_value * job.weight_bytes
    # Inputs kept for the backward pass: norms (float32 inside), attention, and the gated feed-forward part.
    block = job.tokens * (
        job.weight_bytes * (6 * shape.hidden + 2 * shape.query + 2 * shape.key_value + 4 * shape.intermediate)
        + 4 * 2 * shape.hidden
    )
    blocks = shape.layers * job.tokens * job.weight_bytes * shape.hidden + block
    if not job.checkpointing:
        blocks = shape.layers * block
    rows = min(HEAD_CHUNK, job.micro_batch * job.response)
    head = 4 * rows * shape.vocabulary * 4  # logits, their softmax, the gradient, the reference's
    parts |= {"rollouts": cache + gathered, "update": blocks + head + gathered}
    held = sum(value for name, value in parts.items() if name not in ("rollouts", "update"))
    return {**parts, "peak": held + max(parts["rollouts"], parts["update"])}


def seconds(shape: Shape, job: Job, gpu: str, zero: int, ranks: int, nodes: int, args: argparse.Namespace) -> dict:
    """Seconds of a step's phases on paper, served critic aside."""
    _, tflops, bandwidth, link = GPUS[gpu]
    compute, read = tflops * 1e12 * args.compute_share, bandwidth * 1e12 * args.bandwidth_share
    wire = (NETWORK if nodes > 1 else link) * 1e9
    gather = job.weight_bytes * shape.parameters * (ranks - 1) / ranks / wire if zero == 3 else 0.0
    length = job.rollouts * (job.prompt + job.response)
    micro_batches = job.rollouts / job.micro_batch
    per_token = max(job.weight_bytes * shape.parameters / read, 2 * shape.parameters * job.rollouts / compute)
    # Forward 2 FLOP a weight and token; backward 2 for activations and, where weights train, 2 more; checkpointing 2.
    backward = (2 if shape.adapter else 4) + (2 if job.checkpointing else 0)
    passes = 2 + (1 if job.checkpointing else 0)
    return {
        "rollout": job.response * (per_token + gather) + 2 * shape.parameters * length / compute,
        "scores": 2 * (2 * shape.parameters * length / compute + gather * micro_batches),
        "update": job.ppo_epochs
        * ((2 + backward) * shape.parameters * length / compute + passes * gather * micro_batches),
    }


def launch_line(args: argparse.Namespace, zero: int) -> str:
    """The command that starts it."""
    stage = "nl_gradient_policy_optimization"
    line = f"bash {stage}/{args.task}/train_{args.task}.sh --data_path posts.json --critic CRITIC --output_dir runs/new"
    line += f" --rollouts_per_device {args.rollouts} --micro_batch_size {args.micro_batch}"
    if zero != 2:
        line += f" --deepspeed {stage}/deepspeed/zero{zero}.json"
    nodes = f"NODES={args.nodes} NODE_RANK=0..{args.nodes - 1} MASTER_ADDR=HOST " if args.nodes > 1 else ""
    return f"{nodes}PROCESSES={args.gpus} {line}"


def plan(args: argparse.Namespace) -> None:
    """Print each ZeRO stage's memory and time, and the launch line of the least sharded one that fits."""
    job = Job(**{each.name: getattr(args, each.name) for each in fields(Job)})
    shape, ranks = shape_of(load_config(args.model), job.lora_r), args.gpus * args.nodes
    room = GPUS[args.gpu][0] * 0.92  # the CUDA context, NCCL's buffers and fragmentation take their part
    print(f"{args.model}: {shape.parameters / 1e9:.2f} B weights, {shape.adapter / 1e6:.1f} M in adapters")
    rows, chosen = [], None
    for zero in (1, 2, 3):
        parts = memory(shape, job, zero, ranks)
        time = seconds(shape, job, args.gpu, zero, ranks, args.nodes, args)
        fits = parts["peak"] / GIB <= room
        chosen = chosen or (zero if fits else None)
        rows.append([f"ZeRO-{zero}", *(f"{value / GIB:.1f}" for value in parts.values()), "yes" if fits else "no"])
        rows[-1] += [f"{value:.1f}" for value in time.values()]
    names = [*memory(shape, job), f"fits {args.gpu}"]
    print(tabulate(rows, ["GiB per GPU", *names, "rollout s", "scores s", "update s"], disable_numparse=True))
    if not chosen:
        print("Nothing fits: take more GPUs, a smaller --rollouts or --micro_batch, adapters, or CPU offload.")
        return
    print(launch_line(args, chosen))
    if chosen == 3:
        print("ZeRO-3 gathers all weights for each sampled token: with vLLM (--generation vllm_server) it need not.")


POINTS = (
    {"rollouts": 4, "micro_batch": 4, "prompt": 128, "response": 64},
    {"rollouts": 4, "micro_batch": 1, "prompt": 128, "response": 64},
    {"rollouts": 4, "micro_batch": 4, "prompt": 128, "response": 64, "checkpointing": True},
    {"rollouts": 4, "micro_batch": 2, "prompt": 128, "response": 64, "lora_r": 0, "optimizer": "adamw"},
)


def check(args: argparse.Namespace) -> None:
    """Run one real step of SmolLM2 for each of a few settings; print predicted against measured peak memory."""
    config = load_config("smollm2")
    nothing = _peak(["-c", "import nl_gradient_policy_optimization.optimize, tensorboard, datasets"])
    print(f"the libraries alone: {nothing / GIB:.2f} GiB; GiB above that:")
    rows = []
    for point in POINTS:
        job = Job(**{"checkpointing": False, "ppo_epochs": 1, **point})
        with tempfile.TemporaryDirectory() as folder:
            measured = _peak(_step(job, Path(folder))) - nothing
        predicted = memory(shape_of(config, job.lora_r), job)["peak"]
        rows.append([str(point), predicted / GIB, measured / GIB, predicted / measured])
    print(tabulate(rows, ["settings", "model", "measured", "ratio"], floatfmt=".2f"))


def _step(job: Job, folder: Path) -> list[str]:
    words = "word " * (job.prompt - 60)  # with the instruction about ``job.prompt`` tokens
    data = folder / "posts.json"
    data.write_text(json.dumps({f"post-{index}": {"post": words} for index in range(job.rollouts)}))
    settings = {
        "config": ROOT / "quickstart" / "policy.yaml",
        "model": "smollm2",
        "data_path": data,
        "output_dir": folder / "run",
        "max_steps": 1,
        "rollouts_per_device": job.rollouts,
        "micro_batch_size": job.micro_batch,
        "max_prompt_tokens": 2 * job.prompt,
        "max_response_tokens": job.response,
        "ppo_epochs": job.ppo_epochs,
        "lora_r": job.lora_r,
        "optimizer": job.optimizer,
        "gradient_checkpointing": job.checkpointing,
        "dtype": "bfloat16",
        "report_to": "none",
    }
    script = ROOT / "nl_gradient_policy_optimization" / "slf5k" / "train.py"
    return [str(script), *(str(part) for name, value in settings.items() for part in (f"--{name}", value))]


def _peak(arguments: list[str]) -> int:
    """Peak resident bytes of a Python process of its own."""
    code = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=2);"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, sys.executable, *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise InputError(f"a measured run failed: {done.stderr[-800:]}")
    return int(done.stdout) * 1024


@command
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="measure instead of planning")
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
    (check if args.check else plan)(args)


if __name__ == "__main__":
    main()
