"""Does feedback on tokens train faster than one number per response? A synthetic task with known truth, on one core.

    python benchmarks/convergence.py --config benchmarks/micro/convergence.yaml   # against scalar PPO and GRPO
    python benchmarks/convergence.py --config benchmarks/micro/ablations.yaml     # how a span's reward is spread
    python benchmarks/convergence.py --config benchmarks/micro/ahead.yaml         # rollouts that are one update old
    python benchmarks/convergence.py --config benchmarks/micro/teacher.yaml       # critiques as teachers

Each study sweeps the learning rate of every method over the same values and seeds, and trains with other seeds at the
best rate. It prints its tables and writes JSON and figures to ``--report_dir``. Finished runs are not repeated, and
studies share them. ``--stored benchmarks/figures/STUDY.json`` prints and draws a finished study without training.
"""

import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets.utils.logging import disable_progress_bar
from tabulate import tabulate
from tqdm.auto import tqdm
from transformers.utils.logging import disable_progress_bar as disable_transformers_progress_bar

from benchmarks.micro import results
from benchmarks.micro.figures import draw_curves, draw_noise
from benchmarks.micro.methods import METHODS, method_of
from benchmarks.micro.policy import BaseSettings, base_policy
from benchmarks.micro.protocol import Protocol
from benchmarks.micro.runs import Materials, run_method, training_prompts
from text2grad.configs import parse, setting
from text2grad.errors import InputError, command
from text2grad.records import load_json, save_json
from text2grad.statistics import Estimate

Runs = dict[str, list[results.Curve]]
"""The curves of each method's seeds."""
FACTS = ("machine", "runs", "processor_minutes", "median_seconds_per_run")
Sweep = dict[str, dict[str, Estimate]]
"""For each method: the mean F1 of its runs at each learning rate."""


@dataclass
class StudyConfig(Protocol):
    """One study: which methods, and the protocol that they share."""

    study: str = setting("", "the study's name: of its figures and its JSON")
    methods: list[str] = setting([], "methods to compare; benchmarks/micro/methods.py lists them")
    reference: str = setting("ppo_sum", "the method that the others are compared with")
    learning_rates: list[float] = setting([], "learning rates that are tried for every method; a single one is taken")
    sweep_seeds: list[int] = setting([], "seeds of the sweep; they are not used again")
    seeds: list[int] = setting([], "seeds of the runs that are reported")
    base_steps: int = setting(1000, "updates of supervised training that make the starting policy")
    rewritings: float = setting(0.0, "share of the starting policy's demonstrations that follow a critique")
    output_dir: str = setting("runs/benchmarks/convergence", "folder of the runs")
    report_dir: str = setting("runs/benchmarks/figures", "folder of the figures and the JSON")
    stored: str = setting("", "JSON of a finished study: it is printed and drawn again, without training")

    def check(self) -> None:
        needed = ["study", "methods", "learning_rates", "seeds"]
        if len(self.learning_rates) > 1:
            needed.append("sweep_seeds")
        for name in needed:
            if not getattr(self, name):
                raise InputError(f"--{name} is missing; the files in benchmarks/micro/*.yaml set it")
        if set(self.seeds) & set(self.sweep_seeds):
            raise InputError("--seeds and --sweep_seeds share a seed: rates would be chosen on what is reported")
        if self.reference not in self.methods:
            raise InputError(f"--reference {self.reference} is not one of --methods")
        for name in self.methods:
            method_of(name)


class Study:
    """Trains or reloads a study's runs, by folder ``METHOD/lr-RATE/seed-SEED``."""

    def __init__(self, config: StudyConfig):
        self.config, self.folder = config, Path(config.output_dir)
        settings = BaseSettings(steps=config.base_steps, rewritings=config.rewritings)
        base = base_policy(self.folder / "starting_policy", settings, seed=0)
        prompts = training_prompts(self.folder / "prompts.json", config.prompts, config.notes)
        self.materials = Materials(base, prompts)
        self.processor_seconds: list[float] = []

    def train_or_load(self, name: str, rate: float, seed: int) -> results.Curve:
        """The curve of one run."""
        folder = self.folder / name / f"lr-{rate:g}" / f"seed-{seed}"
        result = run_method(name, rate, seed, folder, self.materials, self.config)
        self.processor_seconds.append(result["processor_seconds"])
        return result["curve"]

    def sweep_rates(self, name: str) -> dict[str, Estimate]:
        """The area under the curve at each learning rate, over the sweep's seeds."""
        rates, seeds = self.config.learning_rates, self.config.sweep_seeds
        return {f"{rate:g}": results.area([self.train_or_load(name, rate, seed) for seed in seeds]) for rate in rates}

    def train_all(self) -> tuple[Runs, dict[str, float], Sweep]:
        """All curves, the chosen rates, and the sweep they were chosen in."""
        chosen: dict[str, float] = {}
        sweep: Sweep = {}
        curves: Runs = {}
        for name in tqdm(self.config.methods, desc=self.config.study, unit="method"):
            chosen[name] = self.config.learning_rates[0]
            if len(self.config.learning_rates) > 1:
                tuned_as = method_of(name).tuned_as or name
                if tuned_as not in sweep:
                    sweep[tuned_as] = self.sweep_rates(tuned_as)
                chosen[name] = float(max(sweep[tuned_as], key=lambda rate: sweep[tuned_as][rate].value))
            curves[name] = [self.train_or_load(name, chosen[name], seed) for seed in self.config.seeds]
        return curves, chosen, sweep

    def result(self) -> dict[str, Any]:
        """What the study's JSON holds."""
        curves, chosen, sweep = self.train_all()
        seconds = sorted(self.processor_seconds)
        return {
            "study": self.config.study,
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, 1 used, torch {torch.__version__}",
            "runs": len(seconds),
            "processor_minutes": round(sum(seconds) / 60, 1),
            "median_seconds_per_run": round(seconds[len(seconds) // 2], 1),
            "protocol": self.config.described(),
            "learning_rates": chosen,
            "sweep": {name: {rate: each.to_dict() for rate, each in row.items()} for name, row in sweep.items()},
            "curves": curves,
        }


def load_result(path: str, methods: list[str]) -> dict[str, Any]:
    """A finished study from its JSON, with these methods alone.

    Raises:
        InputError: it lacks some of the methods.
    """
    stored = load_json(path)
    if not set(stored["curves"]) >= set(methods):
        raise InputError(f"{path}: compares {', '.join(stored['curves'])}; give the study's own --config")
    tuned = {method_of(name).tuned_as or name for name in methods}
    sweep = {name: row for name, row in stored["sweep"].items() if name in tuned}
    return {**stored, "sweep": sweep, "curves": {name: stored["curves"][name] for name in methods}}


def reference_of(name: str, curves: Runs, reference: str) -> str:
    """The method that another one is compared with: by the same critic, where the study has it with its errors."""
    noise = method_of(name).noise
    alike = (other for other in curves if noise and method_of(other).noise == noise)
    return next((other for other in alike if method_of(other).tuned_as == reference), reference)


def summary_table(curves: Runs, chosen: dict[str, float], reference: str) -> str:
    """Final quality of each method, its distance from the reference's, and how soon it reaches that."""
    rows = []
    for name, runs in curves.items():
        others = curves[reference_of(name, curves, reference)]
        rows.append(
            {
                "method": method_of(name).label,
                "learning rate": f"{chosen[name]:g}",
                "final F1": str(results.final(runs)),
                "above the reference": str(results.difference(runs, others)),
                "precision": f"{results.final(runs, 'precision').value:.3f}",
                "recall": f"{results.final(runs, 'recall').value:.3f}",
                "tokens": f"{results.final(runs, 'tokens').value:.0f}",
                "steps to the reference": results.shown(results.steps_to_reference(runs, others)),
                "mean F1 of the run": str(results.area(runs)),
            }
        )
    return tabulate(rows, headers="keys", tablefmt="github", disable_numparse=True)


def sweep_table(sweep: Sweep) -> str:
    """Mean F1 at each learning rate, the best one bold; empty where there was one rate."""
    rows = []
    for name, figures in sweep.items():
        best = max(figures, key=lambda rate: figures[rate].value)
        shown = {rate: f"{each.value:.3f}" for rate, each in figures.items()}
        shown[best] = f"**{shown[best]}**"
        rows.append({"mean F1 of the run at learning rate": method_of(name).label, **shown})
    return tabulate(rows, headers="keys", tablefmt="github", disable_numparse=True)


def draw_study(config: StudyConfig, curves: Runs) -> None:
    """The curves by the reference's critic, and a second figure where some critics err."""
    folder, reference = Path(config.report_dir), method_of(config.reference)
    alike = {method_of(name).label: runs for name, runs in curves.items() if method_of(name).noise == reference.noise}
    draw_curves(folder / config.study, alike, reference.label)
    lines: dict[str, list[tuple[float, list[results.Curve]]]] = {}
    kinds = {method_of(name).label.partition(":")[0] for name in curves if method_of(name).noise}
    for name, runs in curves.items():
        method = method_of(name)
        if method.noise and method.tuned_as in curves:
            kind, base = method.label.partition(":")[0], METHODS[method.tuned_as].label
            label = base if len(kinds) == 1 else f"{kind}, {base}"
            lines.setdefault(label, [(0.0, curves[method.tuned_as])]).append((method.noise[1], runs))
    if lines:
        draw_noise(folder / f"{config.study}_noise", lines, kinds.pop() if len(kinds) == 1 else "in error")


@command
def main() -> None:
    config = parse(StudyConfig)
    config.check()
    torch.set_num_threads(1)
    disable_progress_bar()
    disable_transformers_progress_bar()
    if config.stored:
        result = load_result(config.stored, config.methods)
    else:
        result = Study(config).result()
        save_json(Path(config.report_dir) / f"{config.study}.json", result, indent=None)
    draw_study(config, result["curves"])
    sweep = {name: {rate: Estimate(**each) for rate, each in row.items()} for name, row in result["sweep"].items()}
    print(summary_table(result["curves"], result["learning_rates"], config.reference), sweep_table(sweep), sep="\n\n")
    print("", *(f"{name}: {result[name]}" for name in FACTS), sep="\n")


if __name__ == "__main__":
    main()
