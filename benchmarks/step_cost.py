"""What one step costs, phase by phase: Text2Grad, scalar PPO in the same trainer, and TRL's GRPOTrainer.

    python benchmarks/step_cost.py --output runs/benchmarks/step_cost.json
    python benchmarks/step_cost.py --reward_model runs/quickstart/reward_model --output runs/benchmarks/step_cost.json

Equal work: the same model, adapter, prompts and optimiser, as many responses, two to a prompt, every one of exactly
``--response_tokens`` tokens, two passes of updates, a reference forward. Each method runs in a process of its own,
method after method, ``--rounds`` times; a process's first step is not counted. A process has one core to itself; a
reward model elsewhere has another, as a served one has other processors.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path

import torch
from tabulate import tabulate

from benchmarks.micro.results import with_section
from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.optimize import make_critic, prepare, read_prompts, short_enough
from nl_gradient_policy_optimization.rewards import CriticRewards
from text2grad.configs import parse
from text2grad.critics import Critic, load_critic
from text2grad.errors import InputError, command
from text2grad.feedback import Feedback, FeedbackError
from text2grad.models import load_model, load_tokenizer, lora_config
from text2grad.records import save_json, save_text
from text2grad.tasks import get_task
from text2grad.token_rewards import token_rewards

ROOT = Path(__file__).resolve().parent.parent
PHASES = ("rollout", "reference", "critique", "update")
_REWARD_MODEL = {"critic_constrained": "quotes", "max_critic_failures": 1.0}
METHODS = {
    "ppo": ("PPO, sum of δ at the last token", {"reward_placement": "last_sum"}),
    "text2grad": ("Text2Grad", {}),
    "text2grad_full_kl": ("Text2Grad, KL over the whole vocabulary", {"kl": "full"}),
    "grpo": ("GRPO (TRL), sum of δ", {}),
    "text2grad_reward_model": ("Text2Grad, reward model in the same process", _REWARD_MODEL),
    "text2grad_elsewhere": ("Text2Grad, reward model on a core of its own", _REWARD_MODEL),
    "text2grad_elsewhere_ahead": (
        "Text2Grad, reward model on a core of its own, `rollouts_ahead`",
        {**_REWARD_MODEL, "rollouts_ahead": True},
    ),
}


@dataclass
class CostConfig:
    output: str = field(default="", metadata={"help": "where the figures go, JSON"})
    model: str = field(default="smollm2", metadata={"help": "the policy"})
    data_path: str = field(default="quickstart/data/posts_train.json", metadata={"help": "posts in the SLF5K format"})
    reward_model: str = field(default="", metadata={"help": "a reward model's folder: measured as critic as well"})
    methods: list[str] = field(default_factory=list, metadata={"help": f"some of {', '.join(METHODS)}; default: all"})
    rollouts: int = field(default=8, metadata={"help": "responses in a step"})
    response_tokens: int = field(default=48, metadata={"help": "of every response"})
    steps: int = field(default=3, metadata={"help": "timed steps of a process"})
    rounds: int = field(default=3, metadata={"help": "processes of each method"})
    page: str = field(default="benchmarks/README.md", metadata={"help": "whose section is rewritten; empty: none"})

    def policy(self, method: str, folder: str) -> PolicyConfig:
        """The settings of one method."""
        shared = {
            "model": self.model,
            "data_path": self.data_path,
            "output_dir": folder,
            "critic": self.reward_model if _judges_by_model(method) else "programmatic",
            "rollouts_per_device": self.rollouts,
            "rollouts_per_prompt": 2,
            "micro_batch_size": self.rollouts,
            "ppo_epochs": 2,
            "max_steps": self.steps + 1 + METHODS[method][1].get("rollouts_ahead", False),
            "max_new_tokens": self.response_tokens,
            "optimizer": "adamw",
            "lora_dropout": 0.0,
            "kl": "k3",
            "kl_coef": 0.05,
            "kl_target": None,
            "log_rollouts_every": 0,
            "report_to": ["none"],
        }
        return PolicyConfig(**{**shared, **METHODS[method][1]})


class CriticElsewhere:
    """The reward model in a process and on a core of its own; the trainer need not wait until it must."""

    name, remote = "a reward model elsewhere", True

    def __init__(self, config: PolicyConfig, core: int):
        self._process = ProcessPoolExecutor(1, get_context("spawn"), _load, (config, core))
        self._process.submit(_judge, [], [], []).result()  # loaded before the first step

    def __call__(self, *rollouts: Sequence) -> list[Feedback | FeedbackError]:
        return self._process.submit(_judge, *rollouts).result()


_loaded: list[Critic] = []


def _load(config: PolicyConfig, core: int) -> None:
    keep_to(core)
    _loaded.append(
        load_critic(config.critic, "slf5k", device="cpu", batch_size=config.rollouts_per_device, constrained="quotes")
    )


def _judge(*rollouts: Sequence) -> list[Feedback | FeedbackError]:
    return _loaded[0](*rollouts) if rollouts[0] else []


def keep_to(core: int) -> None:
    """Bind this process to one core, with one thread."""
    os.sched_setaffinity(0, {core})
    torch.set_num_threads(1)


def _judges_by_model(method: str) -> bool:
    return METHODS[method][1].items() >= _REWARD_MODEL.items()


def ours(config: PolicyConfig, core_of_critic: int | None = None) -> list[dict[str, float]]:
    """Seconds of each step, in all and by phase, in the project's trainer."""
    rewards = None
    if core_of_critic is not None:
        critic = CriticElsewhere(config, core_of_critic)
        rewards = CriticRewards(critic, get_task("slf5k"), load_tokenizer(config.model), config)
    trainer = prepare("slf5k", config, rewards)
    trainer.sampler.settings.min_new_tokens = config.max_new_tokens
    rows = []
    for step in range(1, config.max_steps + 1 - config.rollouts_ahead):  # the last one samples nothing ahead
        begun = time.perf_counter()
        metrics = trainer.step(step)
        rows.append({"step": time.perf_counter() - begun} | {phase: metrics[f"seconds/{phase}"] for phase in PHASES})
        assert metrics["length/mean"] == config.max_new_tokens
    return rows


def trl(config: PolicyConfig) -> list[dict[str, float]]:
    """The same in TRL's GRPOTrainer; one of its generations and ``ppo_epochs`` updates are a step."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOTrainer

    from benchmarks.micro.grpo import grpo_settings

    task, tokenizer = get_task("slf5k"), load_tokenizer(config.model)
    records = short_enough(read_prompts(config, task), task, tokenizer, config)
    critic = make_critic(config, task, None)
    ends, lengths = [], set()

    def total_reward(completions: list, completion_ids: list[list[int]], id: list[str], **_) -> list[float]:
        texts = [completion[0]["content"] for completion in completions]
        chosen = [task.with_response(records[key], text) for key, text in zip(id, texts, strict=True)]
        replies = critic([task.prompt(record) for record in chosen], texts, chosen)
        lengths.update(map(len, completion_ids))
        pairs = zip(completion_ids, replies, strict=True)
        return [sum(token_rewards(ids, tokenizer, reply, task).values) for ids, reply in pairs]

    class Clock(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if not ends:
                ends.append(time.perf_counter())

        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step % config.ppo_epochs == 0:
                ends.append(time.perf_counter())

    settings = grpo_settings(config, generation_kwargs={"min_new_tokens": config.max_new_tokens})
    rows = [{"prompt": task.messages(task.prompt(record)), "id": key} for key, record in records.items()]
    trainer = GRPOTrainer(
        model=load_model(config.model),
        reward_funcs=total_reward,
        args=settings,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        peft_config=lora_config(config),
        callbacks=[Clock()],
    )
    trainer.train()
    assert lengths == {config.max_new_tokens}
    return [{"step": after - before} for before, after in itertools.pairwise(ends)]


def one_process(config: CostConfig, method: str) -> dict[str, object]:
    """Run one method in a new process."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder) / "settings.json"
        save_json(settings, asdict(config.policy(method, f"{folder}/run")))
        command_line = [sys.executable, __file__, "--one", method, str(settings)]
        done = subprocess.run(command_line, cwd=ROOT, text=True, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise InputError(f"{method}: its process ended with {done.returncode}; the reason stands above")
    return json.loads(done.stdout.splitlines()[-1])


def measure(method: str, settings: str) -> None:
    """The body of such a process: its steps' seconds and its peak memory, as the last line that it prints."""
    config = PolicyConfig(**json.loads(Path(settings).read_text()))
    first, *others = sorted(os.sched_getaffinity(0))
    keep_to(first)
    elsewhere = (others or [first])[0] if "elsewhere" in method else None
    rows = trl(config) if method == "grpo" else ours(config, elsewhere)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps({"rows": rows[1:], "peak_gib": peak}))


def summary(results: dict[str, list[dict]]) -> dict[str, dict[str, float]]:
    """Medians over all timed steps; ``against_ppo`` is the median over rounds of the ratio of medians in a round."""
    table = {}
    for method, rounds in results.items():
        rows = [row for result in rounds for row in result["rows"]]
        table[method] = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
        table[method]["peak_gib"] = max(result["peak_gib"] for result in rounds)
        if "ppo" in results:
            table[method]["against_ppo"] = statistics.median(
                _median_step(own) / _median_step(other) for own, other in zip(rounds, results["ppo"], strict=True)
            )
    return table


def _median_step(result: dict) -> float:
    return statistics.median(row["step"] for row in result["rows"])


@command
def main() -> None:
    if "--one" in sys.argv:
        measure(*sys.argv[-2:])
        return
    config = parse(CostConfig)
    methods = config.methods or [name for name in METHODS if config.reward_model or not _judges_by_model(name)]
    if unknown := set(methods) - set(METHODS):
        raise InputError(f"--methods {', '.join(unknown)}: choose from {', '.join(METHODS)}")
    results: dict[str, list[dict]] = {method: [] for method in methods}
    for number in range(config.rounds):
        for method in methods:
            results[method].append(one_process(config, method))
            print(f"round {number + 1}, {method}: {_median_step(results[method][-1]):.2f} s a step", flush=True)
    medians = summary(results)
    table = as_table(medians)
    print(table)
    if config.output:
        save_json(config.output, {"settings": asdict(config), "medians": medians, "processes": results})
    if config.page:
        page = Path(config.page)
        save_text(page, with_section(page.read_text(encoding="utf-8"), "step_cost", table))


def as_table(medians: dict[str, dict[str, float]]) -> str:
    """Markdown; seconds, and each step as a multiple of scalar PPO's."""
    header = ["", "step", "to PPO's", *PHASES, "peak memory"]
    rows = [
        [METHODS[name][0]]
        + [f"{row['step']:.2f} s", f"{row['against_ppo']:.2f}" if "against_ppo" in row else ""]
        + [f"{row[phase]:.2f}" if phase in row else "" for phase in PHASES]
        + [f"{row['peak_gib']:.1f} GiB"]
        for name, row in medians.items()
    ]
    return tabulate(rows, header, tablefmt="pipe", colalign=["left", *["right"] * (len(header) - 1)])


if __name__ == "__main__":
    main()
