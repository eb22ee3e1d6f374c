"""How fast each phase of the quickstart is on a CPU, beside an earlier commit, in turn on one machine.

    python benchmarks/speed.py --before 59db182 --rounds 5
    python benchmarks/speed.py --profile rollouts scoring update     # where the time goes, here

The model is SmolLM2 with LoRA adapters on all layers. Rollouts, scoring and update: eight posts, 48 response tokens,
as in a step of the quickstart. Feedback: of the shipped reward model on eight human summaries. Answers: four to each
of eight posts, by ``evaluation/generate.py``'s policy. Reward model: an update of four records by the real training
command. Programs: kodcode's critic on one program and its five
tests, in the sandbox. Seconds are processor time, so that other work on the machine adds little; the two commits take
turns, round after round.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from accelerate import Accelerator
from peft import LoraConfig, get_peft_model

from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.policy import PolicyScorer
from nl_gradient_policy_optimization.rollouts import encode_prompt, padded
from nl_gradient_policy_optimization.sampling import make_sampler
from text2grad.configs import parse, setting
from text2grad.critics.reward_model.critic import RewardModelCritic
from text2grad.errors import InputError, command
from text2grad.models import load_model, load_tokenizer
from text2grad.models.answering import LocalPolicy, SamplingConfig
from text2grad.records import load_records
from text2grad.sandbox import Sandbox
from text2grad.sandbox.unit_tests import run_tests
from text2grad.tasks import get_task

ROOT = Path(__file__).resolve().parents[1]
PHASES = ("rollouts", "feedback", "scoring", "update", "answers", "reward_model", "programs")
IN_PROCESSES = ("reward_model", "programs")
"""Phases whose work is done by processes of their own."""


@dataclass
class SpeedConfig:
    before: str = setting("", "a commit to compare with; without one only this checkout is measured")
    rounds: int = setting(5, "how often each phase is measured in each commit")
    phases: list[str] = setting(list(PHASES), f"which of {', '.join(PHASES)}")
    data_path: str = setting("quickstart/data/posts_train.json", "posts")
    model: str = setting("smollm2", "the model")
    new_tokens: int = setting(48, "response tokens")
    profile: list[str] = setting(
        [], f"instead: the share of each kind of operation in these phases, all but {' and '.join(IN_PROCESSES)}"
    )
    one: str = setting("", "measure this phase once, here, and print the seconds (what --before runs in each commit)")


KINDS = {
    "products": ("mm", "bmm", "addmm", "linear", "_linear_pointwise", "mkldnn_linear"),
    "attention": (
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention_for_cpu_backward",
    ),
    "softmax and sums": ("_log_softmax", "_softmax", "logsumexp", "sum", "mean", "cumsum", "exp", "log"),
    "copies and conversions": ("copy_", "cat", "clone", "index", "index_put_", "index_select", "fill_", "zero_"),
    "other arithmetic": ("mul", "mul_", "add", "add_", "sub", "div", "pow", "rsqrt", "silu", "silu_backward", "neg"),
}


def shares(work: Callable[[], object]) -> dict[str, float]:
    """The share of each kind of operation in the time of ``work``; what is left is Python and all other operations."""
    work()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        begun = time.perf_counter()
        work()
        whole = time.perf_counter() - begun
    spent = dict.fromkeys(KINDS, 0.0)
    for event in profiler.key_averages():
        for kind, names in KINDS.items():
            if event.key.rpartition("::")[2] in names:
                spent[kind] += event.self_cpu_time_total / 1e6
    parts = {kind: seconds / whole for kind, seconds in spent.items()}
    return parts | {"Python and the rest": 1 - sum(parts.values())}


def processor_seconds(work: Callable[[], object]) -> float:
    work()  # caches, and what is built once
    begun = time.process_time()
    work()
    return time.process_time() - begun


def measure(phase: str, config: SpeedConfig, how: Callable[[Callable[[], object]], Any] = processor_seconds) -> Any:
    """``how`` of one phase in this checkout: its processor seconds, or its :func:`shares`."""
    if phase in IN_PROCESSES:
        return _reward_model_update(config) if phase == "reward_model" else _program_tested()
    task, tokenizer = get_task("slf5k"), load_tokenizer(config.model)
    records = list(load_records(config.data_path, task, responses=False).values())
    if phase == "feedback":
        critic = RewardModelCritic.load("quickstart/reward_model", task, device="cpu", constrained="quotes")
        posts, summaries = zip(*[(task.prompt(record), task.reference(record)) for record in records[:8]], strict=True)
        return how(lambda: critic.write(posts, summaries))
    if phase == "answers":
        policy = LocalPolicy(config.model, device="cpu", batch_size=32)
        chats = [task.messages(task.prompt(record)) for record in records[:8] for _ in range(4)]
        sampling = SamplingConfig(max_new_tokens=config.new_tokens, temperature=1.0)
        return how(lambda: policy(chats, [str(i) for i in range(32)], sampling))
    torch.manual_seed(0)
    adapters = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(load_model(config.model, device="cpu"), adapters)
    prompts = [encode_prompt(task.prompt(record), task, tokenizer)[-400:] for record in records[:8]]
    if phase == "rollouts":
        settings = PolicyConfig(
            data_path=config.data_path, output_dir="none", model=config.model, max_new_tokens=config.new_tokens
        )
        sampler = make_sampler(model, model, tokenizer, [], settings, Accelerator(cpu=True))
        return how(lambda: list(sampler.batches(prompts)))
    return how(_scored(PolicyScorer(model.train()), prompts, phase, config))


def _scored(scorer: PolicyScorer, prompts: list[list[int]], phase: str, config: SpeedConfig) -> Callable[[], None]:
    """One scoring pass, or one update, of random responses to the prompts."""
    generator = torch.Generator().manual_seed(0)
    responses = torch.randint(0, 49_000, (len(prompts), config.new_tokens), generator=generator)
    ids = torch.cat([padded(prompts, torch.long, "left"), responses], 1)
    mask = torch.cat([padded([[1] * len(row) for row in prompts], torch.long, "left"), torch.ones_like(responses)], 1)
    response_mask = torch.ones(responses.shape)
    optimizer = torch.optim.AdamW([p for p in scorer.parameters() if p.requires_grad], lr=1e-6)

    def scoring() -> None:
        with torch.no_grad():
            scorer(ids, mask, response_mask, kl="full", entropy=True)

    def update() -> None:
        optimizer.zero_grad()
        logprobs, entropy, _ = scorer(ids, mask, response_mask, entropy=True)
        (logprobs.mean() + 0.01 * entropy.mean()).backward()
        optimizer.step()

    return scoring if phase == "scoring" else update


def _reward_model_update(config: SpeedConfig) -> float:
    """Of one update, from two real runs with settings of their own: what four more updates cost, by four."""
    with tempfile.TemporaryDirectory() as folder:
        posts = json.loads(Path(config.data_path).read_text(encoding="utf-8"))
        answered = {key: post | {"generated_summary": post["ideal_human_summary"]} for key, post in posts.items()}
        Path(folder, "answers.json").write_text(json.dumps(answered), encoding="utf-8")
        script = "rm_data_anno/slf5k/dual_feedback_annotation_RM.py"
        annotated = ["--data_path", f"{folder}/answers.json", "--output_path", f"{folder}/annotated.json"]
        _child(script, "--critic", "programmatic", *annotated)
        seconds = []
        for updates in (1, 5):
            options = ["--max_steps", str(updates), "--save_strategy", "no", "--eval_strategy", "no"]
            options += ["--max_prompt_tokens", "300", "--max_length", "520", "--validation_share", "0.1"]
            options += ["--lora_r", "16", "--lora_alpha", "32"]
            files = ["--data_path", f"{folder}/annotated.json", "--output_dir", f"{folder}/{updates}"]
            settings = ["--config", "quickstart/reward_model.yaml", "--model", config.model]
            begun = _spent_by_children()
            _child("nl_reward_model/slf5k/train_rm.py", *settings, *files, *options)
            seconds.append(_spent_by_children() - begun)
    return (seconds[1] - seconds[0]) / 4


def _program_tested(count: int = 4) -> float:
    """Of one program with its tests, in the sandbox, with all the processes that this takes."""
    code = "def add(a, b):\n    return a + b\n"
    tests = "from solution import add\n" + "".join(
        f"def test_{number}():\n    assert add({number}, 1) == {number + 1}\n" for number in range(5)
    )
    sandbox = Sandbox(seconds=60)  # a busy machine must not end it
    run_tests(code, tests, sandbox)  # which looks at the sandbox itself, once
    begun = _spent_by_children()
    for _ in range(count):
        if not run_tests(code, tests, sandbox).passed:
            raise InputError("the sandbox does not run a simple program; see docs/sandbox.md")
    return (_spent_by_children() - begun) / count


def _spent_by_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _child(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError(f"{arguments[0]} failed: {done.stderr[-500:]}")
    return done.stdout


def in_checkout(folder: Path, phase: str, config: SpeedConfig) -> float:
    """One phase with the code in ``folder``, by a process of its own."""
    before = Path.cwd(), os.environ.get("PYTHONPATH", "")
    os.chdir(folder)
    os.environ["PYTHONPATH"] = str(folder)
    try:
        same = ["--data_path", config.data_path, "--model", config.model, "--new_tokens", str(config.new_tokens)]
        return float(_child(str(Path(__file__).resolve()), "--one", phase, *same).split()[-1])
    finally:
        os.chdir(before[0])
        os.environ["PYTHONPATH"] = before[1]


@command
def main() -> None:
    config = parse(SpeedConfig)
    if unknown := {*config.phases, *config.profile} - set(PHASES):
        raise InputError(f"{' '.join(sorted(unknown))}: give some of {', '.join(PHASES)}")
    if set(config.profile) & set(IN_PROCESSES):
        raise InputError(f"--profile: {' and '.join(IN_PROCESSES)} run in processes of their own; leave them out")
    for phase in config.profile:
        print(
            phase,
            ", ".join(f"{kind} {share:.0%}" for kind, share in measure(phase, config, shares).items()),
            flush=True,
        )
    if config.profile:
        return
    if config.one:
        print(measure(config.one, config))
        return
    with tempfile.TemporaryDirectory() as folder:
        checkouts = {"now": ROOT}
        if config.before:
            subprocess.run(["git", "worktree", "add", "-q", "--detach", f"{folder}/w", config.before], check=True)
            checkouts = {config.before: Path(folder, "w"), **checkouts}
        try:
            for phase in config.phases:
                rows = [
                    {name: in_checkout(at, phase, config) for name, at in checkouts.items()}
                    for _ in range(config.rounds)
                ]
                _print_phase(phase, rows)
        finally:
            if config.before:
                subprocess.run(["git", "worktree", "remove", "--force", f"{folder}/w"], check=True)


def _print_phase(phase: str, rows: list[dict[str, float]]) -> None:
    seconds = {name: median(row[name] for row in rows) for name in rows[0]}
    line = ", ".join(f"{name} {value:.2f} s" for name, value in seconds.items())
    if len(seconds) == 2:
        ratios = sorted(first / second for first, second in (row.values() for row in rows))
        line += f", ratio {median(ratios):.2f} [{ratios[0]:.2f}, {ratios[-1]:.2f}]"
    print(f"{phase}: {line}", flush=True)


if __name__ == "__main__":
    main()
