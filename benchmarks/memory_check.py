"""Compare ``memory_model.py`` with real steps of SmolLM2, phase by phase, for several settings.

    python benchmarks/scale.py --check

Resident memory of processes of their own, on Linux (``/proc/self/clear_refs`` begins a new peak for each phase). The
memory allocator is told to return freed memory at once, so that resident memory is memory in use. Python and its
libraries are subtracted: what stays resident after the same step of a model with hardly any weights.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.memory_model import BUCKET, GIB, PHASES, Job, load_config, shape_of, step_memory
from benchmarks.pages import check_page, markdown_table, write_section
from nl_gradient_policy_optimization.config import PolicyConfig
from text2grad.errors import InputError
from text2grad.models import load_tokenizer
from text2grad.records import load_json, save_json

ROOT = Path(__file__).resolve().parent.parent
SHOWN = PHASES[:3]  # the optimiser's step is in the trainer's update
LORA = Job(rollouts=4, micro_batch=4, prompt=128, response=64, ppo_epochs=1, lora_dropout=0.0, optimizer="adamw")
FULL = replace(LORA, lora_r=0, rollouts=2, micro_batch=1, response=8)
POINTS = {  # by what dominates: a job, its ZeRO stage, ranks, and whether sampling is all that is done
    "activations": (replace(LORA, checkpointing=False), 0, 1, False),
    "the same, recomputed": (LORA, 0, 1, False),
    "scores over the vocabulary": (replace(LORA, rollouts=8, micro_batch=8, response=96), 0, 1, False),
    "key-value cache": (replace(FULL, rollouts=24, prompt=384), 0, 1, True),
    "all weights, float32": (replace(FULL, weight_bytes=4), 0, 1, False),
    "all weights, ZeRO-2, 2 ranks": (FULL, 2, 2, False),
    "all weights, ZeRO-3, 2 ranks": (FULL, 3, 2, False),
}


def compare_with_steps(page: str) -> None:
    """Run all points; print predicted and measured memory, and rewrite the page's section if there is a page."""
    check_page(page, "scale")
    rows, libraries = [], {}
    for name, (job, zero, ranks, sampling_only) in POINTS.items():
        if zero not in libraries:
            smallest = replace(LORA, rollouts=1, micro_batch=1, response=2, lora_r=job.lora_r)
            libraries[zero] = measured_peaks(smallest, zero, ranks, tiny=True)["left"]
        found = measured_peaks(job, zero, ranks, sampling_only)
        model = predicted_peaks(replace(job, prompt=found["prompt"]), zero, ranks)
        pairs = [(model[phase] / GIB, (found[phase] - libraries[zero]) / GIB) for phase in SHOWN if phase in found]
        cells = [f"{ours:.2f} / {real:.2f} = {ours / real:.2f}" for ours, real in pairs]
        rows.append([name, *cells, *[""] * (len(SHOWN) - len(cells))])
        print(" | ".join(rows[-1]), flush=True)
    text = markdown_table(["predicted / measured, GiB", *SHOWN], rows)
    print(text)
    write_section(page, "scale", text)


def predicted_peaks(job: Job, zero: int, ranks: int) -> dict[str, float]:
    """Bytes at each phase's peak in the first step of SmolLM2 on a CPU.

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
    return {
        "rollouts": before - unread + max(parts["rollouts"], job.rollouts * head if shape.adapter else 0),
        "scores": before + parts["scores"],
        "update": before + max(parts["update"] + (backward if several else 0), backward + moments + step),
    }


def measured_peaks(job: Job, zero: int, ranks: int, sampling_only: bool = False, tiny: bool = False) -> dict[str, int]:
    """Peak bytes of each phase on the fullest rank, bytes left at the end, and tokens of the longest prompt."""
    with tempfile.TemporaryDirectory() as folder:
        model = _tiny_model(f"{folder}/tiny") if tiny else "smollm2"
        given = {"job": asdict(job), "zero": zero, "model": model, "sampling_only": sampling_only}
        save_json(Path(folder) / "job.json", given)
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)] if zero else []
        environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, *launcher, __file__, folder],
            cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise InputError(f"a measured run failed: {done.stderr[-2000:]}")
        found = [load_json(path) for path in Path(folder).glob("peaks-*.json")]
    return {name: max(peaks[name] for peaks in found) for name in found[0]}


def _tiny_model(folder: str) -> str:
    """A model with SmolLM2's tokenizer and hardly any weights."""
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 8, "tie_word_embeddings": True}
    settings = load_config("smollm2").to_dict() | sizes | heads
    LlamaForCausalLM(LlamaConfig(**settings)).save_pretrained(folder)
    load_tokenizer("smollm2").save_pretrained(folder)
    return folder


def run_one_step(folder: Path) -> None:
    """What such a process does: one step; it writes the peak of each phase."""
    from nl_gradient_policy_optimization import optimize
    from nl_gradient_policy_optimization.sampling import TransformersSampler

    given = load_json(folder / "job.json")
    job = Job(**given["job"])
    trainer = optimize.prepare("slf5k", _policy(job, given["zero"], folder, given["model"]))
    assert isinstance(trainer.sampler, TransformersSampler)
    trainer.sampler.settings.min_new_tokens = job.response
    peaks: dict[str, int] = {}

    def close(phase: str) -> None:
        peaks[phase] = _status("VmHWM")
        Path("/proc/self/clear_refs").write_text("5")

    def save() -> None:
        peaks["left"] = _status("VmRSS")
        save_json(folder / f"peaks-{trainer.accelerator.process_index}.json", peaks)

    score, update = trainer.score, trainer.update

    def watched_score(rollouts):
        close("rollouts")
        assert all(len(rollout.response_ids) == job.response for rollout in rollouts)
        peaks["prompt"] = max(len(rollout.prompt_ids) for rollout in rollouts)
        if given["sampling_only"]:
            save()
            raise SystemExit
        score(rollouts)
        close("scores")

    def watched_update(rollouts, step):
        result = update(rollouts, step)
        close("update")
        return result

    vars(trainer).update(score=watched_score, update=watched_update)
    close("loading")
    trainer.step(1)
    save()


def _policy(job: Job, zero: int, folder: Path, model: str) -> PolicyConfig:
    """The settings of one step, on posts of about ``job.prompt`` tokens, each a word shorter than the one before."""
    posts = {f"post-{index}": {"post": "word " * (job.prompt - 60 - index)} for index in range(job.rollouts)}
    data, deepspeed = folder / "posts.json", folder / "deepspeed.json"
    save_json(data, posts)
    save_json(deepspeed, {"zero_optimization": {"stage": zero}})
    return PolicyConfig(
        model=model,
        data_path=str(data),
        output_dir=str(folder / "run"),
        dtype="bfloat16" if job.weight_bytes == 2 else "float32",
        deepspeed=str(deepspeed) if zero else "",
        max_steps=1,
        rollouts_per_device=job.rollouts,
        micro_batch_size=job.micro_batch,
        max_prompt_tokens=2 * job.prompt,
        max_new_tokens=job.response,
        ppo_epochs=job.ppo_epochs,
        lora_r=job.lora_r,
        lora_dropout=job.lora_dropout,
        optimizer=job.optimizer,
        gradient_checkpointing=job.checkpointing,
        max_critic_failures=1.0,
        log_rollouts_every=0,
        report_to=["none"],
    )


def _status(name: str) -> int:
    """Bytes that the kernel reports for this process: VmRSS (resident) or VmHWM (its peak)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise InputError("/proc/self/status does not report resident memory; run the check on Linux")


if __name__ == "__main__":
    run_one_step(Path(sys.argv[1]))
