"""The memory of real steps against the plan's arithmetic: peaks of SmolLM2 on a CPU, beside those that are predicted.

    python benchmarks/memory_check.py

Each figure is that of a new process, as Linux counts it.
"""

import os
import shlex
import subprocess
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

from tabulate import tabulate

from benchmarks.memory import BUCKET, GIB, PHASES, ROOT, Job, load_config, policy_settings, shape_of, step_memory
from nl_gradient_policy_optimization.config import PolicyConfig
from text2grad.configs import parse
from text2grad.errors import InputError, command
from text2grad.models.tiny import make_tiny_model
from text2grad.records import load_json, save_json

LORA = Job(rollouts=4, micro_batch=4, prompt=128, response=64, ppo_epochs=1, lora_dropout=0.0, optimizer="adamw")
FULL = replace(LORA, lora_r=0, rollouts=2, micro_batch=1, response=8)
POINTS = {  # by what dominates: a job, its ZeRO stage, and ranks
    "activations": (replace(LORA, checkpointing=False), 0, 1),
    "the same, recomputed": (LORA, 0, 1),
    "scores over the vocabulary": (replace(LORA, rollouts=8, micro_batch=8, response=96), 0, 1),
    "all weights, float32": (replace(FULL, weight_bytes=4), 0, 1),
    "all weights, ZeRO-2, 2 ranks": (FULL, 2, 2),
    "all weights, ZeRO-3, 2 ranks": (FULL, 3, 2),
}


def compare_with_steps() -> str:
    """Predicted and measured memory of all points, without that of Python and its libraries."""
    rows, libraries = [], {}
    for name, (job, zero, ranks) in POINTS.items():
        if zero not in libraries:  # what stays resident after a step of a model with hardly any weights
            smallest = replace(LORA, rollouts=1, micro_batch=1, response=2, lora_r=job.lora_r)
            libraries[zero] = measured_step(smallest, zero, ranks, tiny=True)["left"]
        peak = (measured_step(job, zero, ranks)["peak"] - libraries[zero]) / GIB
        expected = predicted_peak(job, zero, ranks) / GIB
        rows.append([name, f"{expected:.2f}", f"{peak:.2f}", f"{expected / peak:.2f}"])
        print(*rows[-1], sep=", ", file=sys.stderr, flush=True)
    header = ["peak of a step, GiB", "predicted", "measured", "ratio"]
    return tabulate(rows, header, tablefmt="github", disable_numparse=True)


def predicted_peak(job: Job, zero: int, ranks: int) -> float:
    """Bytes at the peak of the first step of SmolLM2 on a CPU.

    It differs from ``step_memory``, which describes a GPU in the middle of a run:

    - Gradients come with the first backward pass, AdamW's moments with the first update.
    - A bucket of DeepSpeed is resident as far as gradients fill it.
    - Weights in the file's own dtype are mapped: the reference is resident after its first use.
    - The last positions of all prompts, a strided slice, are multiplied with a frozen head as a batched product, for
      which oneDNN copies the head once per response in bfloat16.
    - AdamW makes two temporaries of a weight (under DeepSpeed, of the flat partition); on a GPU one of all of them.
    """
    shape = shape_of(load_config("smollm2"), job.lora_r)
    trained = shape.adapter or shape.parameters
    parts = step_memory(shape, job, zero, ranks, bucket=min(BUCKET, trained))
    moments = 8 * trained / ranks if zero else parts["optimiser"]
    backward = parts["gradients"] + parts["bucket"]
    held = parts["peak"] - max(parts[phase] for phase in PHASES)
    before = held - backward - moments
    head = job.weight_bytes * shape.vocabulary * shape.hidden
    unread = parts["reference"] if job.weight_bytes == 2 else 0
    step = parts["step"] + 4 * trained / ranks if zero else (0 if shape.adapter else 2 * head)
    several = zero or job.rollouts > job.micro_batch  # a single micro-batch has no gradients at its peak
    return max(
        before - unread + max(parts["rollouts"], job.rollouts * head if shape.adapter else 0),
        before + parts["scores"],
        before + max(parts["update"] + (backward if several else 0), backward + moments + step),
    )


def measured_step(job: Job, zero: int, ranks: int, tiny: bool = False) -> dict[str, int]:
    """Bytes of a real step on the fullest rank: its ``peak``, and what is ``left`` at the end."""
    with tempfile.TemporaryDirectory() as folder:
        save_json(f"{folder}/job.json", {"job": asdict(job), "zero": zero, "tiny": tiny})
        launcher = f"-m torch.distributed.run --standalone --nproc_per_node {ranks}" if zero else ""
        # Freed memory is returned at once, so that what is resident is in use, and rows are padded as on a GPU.
        environment = {"MALLOC_MMAP_THRESHOLD_": "65536", "TEXT2GRAD_PACKED": "0"}
        run_in_a_process("--one_step", folder, launcher=launcher, **environment)
        found = [load_json(path) for path in Path(folder).glob("peaks-*.json")]
    return {name: max(peaks[name] for peaks in found) for name in found[0]}


def run_in_a_process(*arguments: object, launcher: str = "", **environment: str) -> str:
    """Run this file again, with one thread; returns what it printed."""
    done = subprocess.run(
        [sys.executable, *shlex.split(launcher), __file__, *map(str, arguments)], cwd=ROOT, capture_output=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **environment}, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise InputError(f"the measured process ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def run_one_step(folder: Path) -> None:
    """What such a process does; it writes what the kernel counted."""
    from nl_gradient_policy_optimization.optimize import prepare
    from nl_gradient_policy_optimization.sampling import TransformersSampler

    given = load_json(folder / "job.json")
    job, model = Job(**given["job"]), "smollm2"
    if given["tiny"]:
        model = f"{folder}/tiny-{os.environ.get('RANK', 0)}"
        make_tiny_model(model)
    trainer = prepare("slf5k", _policy(job, given["zero"], folder, model))
    assert isinstance(trainer.collector.sampler, TransformersSampler)
    trainer.collector.sampler.settings.min_new_tokens = job.response
    Path("/proc/self/clear_refs").write_text("5")  # a new peak begins
    metrics = trainer.step(1)
    assert metrics["length/mean"] == job.response
    peaks = {"peak": resident("VmHWM"), "left": resident("VmRSS")}
    save_json(folder / f"peaks-{trainer.accelerator.process_index}.json", peaks)


def resident(name: str) -> int:
    """Bytes that the kernel reports for this process: VmRSS (resident) or VmHWM (its peak)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise InputError("/proc/self/status does not report resident memory; measure on Linux")


def _policy(job: Job, zero: int, folder: Path, model: str) -> PolicyConfig:
    """The settings of one step, on posts of about ``job.prompt`` tokens, each a word shorter than the one before."""
    posts = {f"post-{index}": {"post": "word " * (job.prompt - 60 - index)} for index in range(job.rollouts)}
    data, deepspeed = folder / "posts.json", folder / "deepspeed.json"
    save_json(data, posts)
    save_json(deepspeed, {"zero_optimization": {"stage": zero}})
    settings = {
        **policy_settings(job),
        "model": model,
        "data_path": str(data),
        "output_dir": str(folder / "run"),
        "dtype": "bfloat16" if job.weight_bytes == 2 else "float32",
        "deepspeed": str(deepspeed) if zero else "",
        "max_steps": 1,
        "max_prompt_tokens": 2 * job.prompt,
        "max_critic_failures": 1.0,
        "generation": "transformers",
        "log_rollouts_every": 0,
        "report_to": ["none"],
    }
    return PolicyConfig.of(**settings)


@command
def main() -> None:
    if "--one_step" in sys.argv:
        run_one_step(Path(sys.argv[-1]))
    else:
        parse()
        print(compare_with_steps())


if __name__ == "__main__":
    main()
