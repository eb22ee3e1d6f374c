"""What one step costs, phase by phase: Text2Grad, scalar PPO in the same trainer, and TRL's GRPOTrainer.

    python benchmarks/step_cost.py --output_path runs/benchmarks/step_cost.json
    python benchmarks/step_cost.py --reward_model runs/quickstart/reward_model --output_path FILE
    python benchmarks/step_cost.py --reward_model FOLDER --served http://127.0.0.1:8000/v1#NAME    # and by a server

Equal work: the same model, adapter, prompts and optimiser, as many responses, two to a prompt, every one of exactly
``--response_tokens`` tokens, two passes of updates, a reference forward. Each method runs in a process of its own,
method after method, ``--rounds`` times; a process's first step is not counted. A process has one core, a server that
the caller started has what it was given. The second table is ``utilisation.py``'s: what part of that core is used.
"""

import itertools
import os
import resource
import statistics
import tempfile
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from typing import Any

import torch
from tabulate import tabulate

from benchmarks.utilisation import Machine, Work, needed, used
from nl_gradient_policy_optimization.batch import Batch
from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.costs import PHASES
from nl_gradient_policy_optimization.observers.base import Observer
from nl_gradient_policy_optimization.optimize import make_critic, prepare, read_prompts, short_enough
from nl_gradient_policy_optimization.sampling import DecoderSampler, TransformersSampler
from text2grad.configs import parse, setting
from text2grad.errors import InputError, command
from text2grad.models import load_model, load_tokenizer
from text2grad.records import save_json
from text2grad.tasks import get_task

_SERVED: dict[str, Any] = {"critic_timeout": 600.0, "max_critic_failures": 1.0}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo": ("PPO, sum of δ at the last token", {"algorithm": "scalar", "reward_placement": "last_sum"}),
    "text2grad": ("Text2Grad", {}),
    "plain": ("Text2Grad, by transformers' own passes", {"generation": "transformers"}),
    "grpo": ("GRPO (TRL), sum of δ", {}),
    "text2grad_reward_model": (
        "Text2Grad, reward model in the same process",
        {"critic_constrained": "quotes", "max_critic_failures": 1.0},
    ),
    "text2grad_served": ("Text2Grad, reward model on a server", {**_SERVED, "rollouts_ahead": False}),
    "text2grad_served_ahead": (
        "Text2Grad, reward model on a server, `rollouts_ahead`",
        {**_SERVED, "rollouts_ahead": True},
    ),
}


@dataclass
class StepCostConfig:
    output_path: str = setting("", "JSON file for the figures; none by default", "--output_file", "--output")
    model: str = setting("smollm2", "the policy", "--model_path")
    data_path: str = setting("quickstart/data/posts_train.json", "posts in the SLF5K format")
    reward_model: str = setting("", "a reward model's folder; it is timed as a critic, too")
    served: str = setting("", "the same reward model on a server, http://HOST:PORT/v1#NAME; it is timed as well")
    methods: list[str] = setting([], f"some of {', '.join(METHODS)}; all by default")
    rollouts: int = setting(8, "responses in a step")
    response_tokens: int = setting(48, "tokens of every response")
    steps: int = setting(3, "timed steps of a process")
    rounds: int = setting(3, "processes of each method")

    def chosen(self) -> list[str]:
        """The methods to time: by default all whose critic is there."""
        if self.served and not self.reward_model:
            raise InputError("--served: give --reward_model, too; its folder has the server's prompt")
        there = [name for name in METHODS if self._critic(name)["critic"]]
        if others := sorted(set(self.methods) - set(there)):
            raise InputError(f"--methods {', '.join(others)}: choose from {', '.join(there)}; more need --reward_model")
        return self.methods or there

    def _critic(self, method: str) -> dict[str, str]:
        if "served" in method:
            return {"critic": self.served, "critic_prompt": f"{self.reward_model}/reward_prompt.txt"}
        return {"critic": self.reward_model if "reward_model" in method else "programmatic"}

    def policy(self, method: str, folder: str) -> PolicyConfig:
        """The settings of one method."""
        shared = {
            "model": self.model,
            "data_path": self.data_path,
            "output_dir": folder,
            **self._critic(method),
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
        return PolicyConfig.of(**{**shared, **METHODS[method][1]})


class WorkOfSteps(Observer):
    """Counts what each step needs."""

    def __init__(self) -> None:
        self.work: dict[str, Work] = {}

    def figures(self, batch: Batch) -> dict[str, float]:
        rollouts, size = batch.rollouts, self.run.config.rollouts_per_prompt
        groups = [rollouts[start : start + size] for start in range(0, len(rollouts), size)]
        self.work = needed(
            self.run.learner.scorer.base,
            [len(group[0].prompt_ids) for group in groups],
            [[len(each.response_ids) for each in group] for group in groups],
            self.run.config.ppo_epochs,
            bool(self.run.config.lora_r),
            self.run.learner.keeps_graph(batch),
        )
        return {}


def time_text2grad(config: PolicyConfig) -> list[dict[str, Any]]:
    """Seconds of each step in this project's trainer: the whole step, and each phase."""
    trainer = prepare("slf5k", config)
    machine = Machine.measured(trainer.learner.scorer.base.device, trainer.learner.scorer.base.dtype)
    trainer.watch(watching := WorkOfSteps())
    if isinstance(trainer.collector.sampler, DecoderSampler):
        trainer.collector.sampler.end_ids = []  # nothing ends a response early
    else:
        assert isinstance(trainer.collector.sampler, TransformersSampler)
        trainer.collector.sampler.settings.min_new_tokens = config.max_new_tokens
        trainer.learner.keeps_graph = lambda batch: False  # type: ignore[method-assign] # nor is a pass used twice
    rows = []
    for step in range(1, config.max_steps + 1 - bool(config.rollouts_ahead)):  # the last one samples nothing ahead
        begun = time.perf_counter()
        metrics = trainer.step(step)
        seconds = {phase: metrics[f"seconds/{phase}"] for phase in PHASES if f"seconds/{phase}" in metrics}
        part = used(watching.work, seconds, machine)
        rows.append({"step": time.perf_counter() - begun, **seconds, "used": part})
        assert metrics["length/mean"] == config.max_new_tokens
    return rows


def time_grpo(config: PolicyConfig) -> list[dict[str, Any]]:
    """Seconds of each step in TRL's GRPOTrainer: one generation and ``ppo_epochs`` passes of updates."""
    from transformers import TrainerCallback

    from benchmarks.micro.trl_trainers import SummedDeltas, grpo_trainer

    task, tokenizer = get_task("slf5k"), load_tokenizer(config.model)
    records = short_enough(read_prompts(config, task), task, tokenizer, config)
    reward = SummedDeltas(make_critic(config, task, None), task, records, tokenizer)
    ends: list[float] = []

    class Clock(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if not ends:
                ends.append(time.perf_counter())

        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step % config.ppo_epochs == 0:
                ends.append(time.perf_counter())

    whole = {"min_new_tokens": config.max_new_tokens}
    grpo_trainer(config, load_model(config.model), reward, Clock(), generation_kwargs=whole).train()
    assert reward.lengths == {config.max_new_tokens}
    return [{"step": after - before} for before, after in itertools.pairwise(ends)]


def time_one_method(config: StepCostConfig, method: str) -> dict[str, Any]:
    """The seconds of its steps, without the first, and the peak memory of this process, which is its own."""
    warnings.simplefilter("ignore", FutureWarning)  # libraries' remarks about themselves
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    if method == "plain":
        os.environ["TEXT2GRAD_PACKED"] = "0"
    with tempfile.TemporaryDirectory() as folder:
        settings = config.policy(method, folder)
        rows = time_grpo(settings) if method == "grpo" else time_text2grad(settings)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 2**10
    if torch.cuda.is_available():
        peak = torch.cuda.max_memory_allocated()
    return {"rows": rows[1:], "peak_gib": peak / 2**30}


def medians_by_method(results: dict[str, list[dict]]) -> dict[str, dict[str, float]]:
    """Medians over all timed steps; ``against_ppo`` is the median over rounds of the ratio of medians in a round."""
    table = {}
    for method, rounds in results.items():
        rows = [row for result in rounds for row in result["rows"]]
        table[method] = {name: statistics.median(row[name] for row in rows) for name in rows[0] if name != "used"}
        table[method]["peak_gib"] = max(result["peak_gib"] for result in rounds)
        if "ppo" in results:
            table[method]["against_ppo"] = statistics.median(
                _median_step(own) / _median_step(other) for own, other in zip(rounds, results["ppo"], strict=True)
            )
    return table


def use_table(results: dict[str, list[dict]]) -> str:
    """Markdown; for each phase of the policy what a step needs, what it could take, and what it took (medians)."""
    lines = []
    for method, rounds in results.items():
        rows = [row["used"] for result in rounds for row in result["rows"] if "used" in row]
        for phase in rows[0] if rows else ():
            figures = {name: statistics.median(row[phase][name] for row in rows) for name in rows[0][phase]}
            lines.append([METHODS[method][0], phase, *figures.values()])
    header = ["", "phase", "GFLOP", "GB", "least s", "s", "used"]
    return tabulate(lines, header, tablefmt="github", floatfmt=("", "", ".0f", ".1f", ".2f", ".2f", ".2f"))


def _median_step(result: dict) -> float:
    return statistics.median(row["step"] for row in result["rows"])


def cost_table(medians: dict[str, dict[str, float]]) -> str:
    """Markdown; seconds, and each step as a multiple of scalar PPO's."""
    rows = []
    for name, row in medians.items():
        against = f"{row['against_ppo']:.2f}" if "against_ppo" in row else ""
        phases = [f"{row[phase]:.2f}" if phase in row else "" for phase in PHASES]
        rows.append([METHODS[name][0], f"{row['step']:.2f} s", against, *phases, f"{row['peak_gib']:.1f} GiB"])
    header = ["", "step", "to PPO's", *PHASES, "peak memory"]
    return tabulate(rows, header, tablefmt="github", disable_numparse=True)


@command
def main() -> None:
    config = parse(StepCostConfig)
    methods = config.chosen()
    results: dict[str, list[dict]] = {method: [] for method in methods}
    for number in range(config.rounds):
        for method in methods:
            with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                results[method].append(pool.submit(time_one_method, config, method).result())
            print(f"round {number + 1}, {method}: {_median_step(results[method][-1]):.2f} s a step", flush=True)
    medians = medians_by_method(results)
    print(cost_table(medians), use_table(results), sep="\n\n")
    if config.output_path:
        save_json(config.output_path, {"settings": asdict(config), "medians": medians, "processes": results})


if __name__ == "__main__":
    main()
