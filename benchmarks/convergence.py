"""Does feedback on tokens train faster than one number per response? A controlled task, on one core.

    python benchmarks/convergence.py --config benchmarks/micro/convergence.yaml   # against scalar PPO and GRPO
    python benchmarks/convergence.py --config benchmarks/micro/ablations.yaml     # how the reward is spread
    python benchmarks/convergence.py --config benchmarks/micro/questions.yaml     # graded rewards, critics that err
    python benchmarks/convergence.py --config benchmarks/micro/reward_models.yaml # learnt against learnt

Each sweeps the learning rate of every method over the same values with the same seeds, trains with other seeds at the
best, and writes the study's table, figures and JSON. Runs that have finished are not repeated; the studies share them.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from datasets.utils.logging import disable_progress_bar
from tqdm.auto import tqdm
from transformers.utils.logging import disable_progress_bar as disable_transformers_progress_bar

from benchmarks.micro import results
from benchmarks.micro.figures import draw_curves, draw_noise
from benchmarks.micro.judges import examine, judges_table, train_reward_models
from benchmarks.micro.methods import METHODS, method_of
from benchmarks.micro.policy import BaseSettings, base_policy
from benchmarks.micro.runs import Materials, Protocol, run, training_prompts
from text2grad.configs import parse
from text2grad.errors import InputError, command
from text2grad.records import save_json, save_text

Runs = dict[str, list[results.Curve]]


@dataclass
class StudyConfig:
    """One study: which methods, and the protocol that they share."""

    study: str = field(default="", metadata={"help": "its name: of the figures, the JSON, and the page's section"})
    methods: list[str] = field(default_factory=list, metadata={"help": "what is compared; see micro/methods.py"})
    reference: str = field(default="ppo_sum", metadata={"help": "the method whose final quality is the goal"})
    learning_rates: list[float] = field(default_factory=list, metadata={"help": "tried for every method"})
    sweep_seeds: list[int] = field(default_factory=list, metadata={"help": "of the sweep; not used again"})
    seeds: list[int] = field(default_factory=list, metadata={"help": "of the runs that are reported"})
    steps: int = field(default=60, metadata={"help": "cycles of rollouts and updates in a run"})
    rollouts: int = field(default=16, metadata={"help": "responses in each"})
    epochs: int = field(default=2, metadata={"help": "passes of updates over them"})
    evaluate_every: int = field(default=5, metadata={"help": "steps between examinations"})
    held_out: int = field(default=96, metadata={"help": "held-out prompts in each"})
    base_steps: int = field(default=1000, metadata={"help": "of ordinary training that make the starting policy"})
    reward_pairs: int = field(default=1000, metadata={"help": "judged pairs for the reward models"})
    judge_steps: int = field(default=3000, metadata={"help": "of training of a reward model that writes"})
    examine_pairs: int = field(default=0, metadata={"help": "judged pairs on which the reward models are examined"})
    output_dir: str = field(default="runs/benchmarks/convergence", metadata={"help": "where runs are kept"})
    report_dir: str = field(default="benchmarks/figures", metadata={"help": "where figures and JSON go"})
    page: str = field(default="benchmarks/README.md", metadata={"help": "whose section is rewritten; empty: none"})
    threads: int = field(default=1, metadata={"help": "cores to use"})

    def check(self) -> None:
        for item in fields(self):
            if item.name not in ("page", "examine_pairs") and not getattr(self, item.name):
                raise InputError(f"--{item.name} is missing; the files in benchmarks/micro/*.yaml set it")
        if set(self.seeds) & set(self.sweep_seeds):
            raise InputError("--seeds and --sweep_seeds share a seed: rates would be chosen on what is reported")
        if self.reference not in self.methods:
            raise InputError(f"--reference {self.reference} is not one of --methods")
        for name in self.methods:
            method_of(name)

    @property
    def protocol(self) -> Protocol:
        names = ("steps", "rollouts", "epochs", "evaluate_every", "held_out")
        return Protocol(**{name: getattr(self, name) for name in names})


class Study:
    """A study's runs, by folder ``METHOD/lr-RATE/seed-SEED``."""

    def __init__(self, config: StudyConfig):
        self.config, self.folder, self.protocol = config, Path(config.output_dir), config.protocol
        settings = BaseSettings(steps=config.base_steps)
        base = base_policy(self.folder / "starting_policy", settings, seed=0)
        prompts = training_prompts(self.folder / "prompts.json", self.protocol.prompts)
        learnt = [model for name in config.methods if (model := method_of(name).reward_model)]
        limit = self.protocol.max_response_tokens
        models = train_reward_models(self.folder, base, learnt, config.reward_pairs, limit, config.judge_steps)
        self.materials = Materials(base, prompts, models)
        self.processor_seconds: list[float] = []

    def curve(self, name: str, rate: float, seed: int) -> results.Curve:
        folder = self.folder / name / f"lr-{rate:g}" / f"seed-{seed}"
        result = run(name, rate, seed, folder, self.materials, self.protocol)
        self.processor_seconds.append(result["processor_seconds"])
        return result["curve"]

    def tuned(self, name: str) -> dict[str, results.Estimate]:
        """The area under the curve at each learning rate, over the sweep's seeds."""
        rates, seeds = self.config.learning_rates, self.config.sweep_seeds
        return {f"{rate:g}": results.area([self.curve(name, rate, seed) for seed in seeds]) for rate in rates}

    def run(self) -> tuple[Runs, dict[str, float], dict[str, dict[str, results.Estimate]]]:
        """All curves, the chosen rates, and the sweep they were chosen in."""
        chosen: dict[str, float] = {}
        sweep: dict[str, dict[str, results.Estimate]] = {}
        curves: Runs = {}
        for name in tqdm(self.config.methods, desc=self.config.study, unit="method"):
            tuned_as = method_of(name).tuned_as or name
            if tuned_as not in sweep:
                sweep[tuned_as] = self.tuned(tuned_as)
            chosen[name] = float(max(sweep[tuned_as], key=lambda rate: sweep[tuned_as][rate].value))
            curves[name] = [self.curve(name, chosen[name], seed) for seed in self.config.seeds]
        return curves, chosen, sweep

    def judges(self) -> list[dict[str, Any]]:
        """How good the study's reward models are as judges; nothing where that was not asked for."""
        made, config = self.materials, self.config
        limit = self.protocol.max_response_tokens
        if not config.examine_pairs:
            return []
        return examine(made.reward_models, config.reward_pairs, made.base, config.examine_pairs, limit)


def summary_table(curves: Runs, chosen: dict[str, float], reference: str) -> str:
    rows = []
    for name, runs in curves.items():
        end, speed = results.final(runs), results.speed(runs, curves[reference])
        rows.append(
            [
                method_of(name).label,
                f"{chosen[name]:g}",
                str(end),
                f"{results.final(runs, 'precision').value:.3f}",
                f"{results.final(runs, 'recall').value:.3f}",
                f"{results.shown(speed.steps)} {results.interval(speed.low, speed.high)}",
                f"{results.shown(speed.share, 2)} {results.interval(speed.share_low, speed.share_high, 2)}",
                str(results.area(runs)),
            ]
        )
    label = METHODS[reference].label
    header = [
        "method",
        "learning rate",
        "final F1",
        "precision",
        "recall",
        f"steps to the final F1 of “{label}”",
        "share of its steps",
        "mean F1 of the run",
    ]
    return results.table(header, rows)


def sweep_table(sweep: dict[str, dict[str, results.Estimate]]) -> str:
    rates = list(next(iter(sweep.values())))
    rows = []
    for name, figures in sweep.items():
        best = max(rates, key=lambda rate: figures[rate].value)
        shown = [f"**{figures[rate].value:.3f}**" if rate == best else f"{figures[rate].value:.3f}" for rate in rates]
        rows.append([method_of(name).label, *shown])
    return results.table(["mean F1 of the run at learning rate", *rates], rows)


def draw(config: StudyConfig, curves: Runs) -> list[str]:
    """The study's figures; returns their names."""
    folder, names = Path(config.report_dir), [config.study]
    clean = {name: runs for name, runs in curves.items() if method_of(name).noise is None}
    labels = {method_of(name).label: runs for name, runs in clean.items()}
    draw_curves(folder / config.study, labels, METHODS[config.reference].label)
    lines: dict[str, list[tuple[float, list[results.Curve]]]] = {}
    for name, runs in curves.items():
        method = method_of(name)
        if method.noise and method.tuned_as in curves:
            label = method.label.partition(":")[0] + (
                "" if method.tuned_as == "text2grad" else f", {METHODS[method.tuned_as].label}"
            )
            lines.setdefault(label, [(0.0, curves[method.tuned_as])]).append((method.noise[1], runs))
    if lines:
        draw_noise(folder / f"{config.study}_noise", lines)
        names.append(f"{config.study}_noise")
    return names


def report(config: StudyConfig, study: Study) -> None:
    judges = study.judges()
    curves, chosen, sweep = study.run()
    figures = draw(config, curves)
    table, tuning = summary_table(curves, chosen, config.reference), sweep_table(sweep)
    facts = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {config.threads} used, torch {torch.__version__}",
        "runs": len(study.processor_seconds),
        "processor_minutes": round(sum(study.processor_seconds) / 60, 1),
        "median_seconds_per_run": round(sorted(study.processor_seconds)[len(study.processor_seconds) // 2], 1),
    }
    save_json(
        Path(config.report_dir) / f"{config.study}.json",
        {
            "study": config.study,
            **facts,
            "protocol": vars(config.protocol),
            "learning_rates": chosen,
            "sweep": {name: {r: e.to_dict() for r, e in row.items()} for name, row in sweep.items()},
            **({"reward_models": judges} if judges else {}),
            "curves": curves,
        },
        indent=None,
    )
    print(f"{table}\n\n{tuning}\n\n{facts}")
    if config.page:
        page, folder = Path(config.page), os.path.relpath(config.report_dir, Path(config.page).parent)
        pictures = "\n\n".join(f"![{name}]({Path(folder) / name}.svg)" for name in figures)
        machine = f"{facts['runs']} runs, {facts['processor_minutes']} minutes of processor time ({facts['machine']})."
        text = "\n\n".join(
            [
                *([judges_table(judges)] if judges else []),
                table,
                pictures,
                f"The sweep ({len(config.sweep_seeds)} seeds of its own):",
                tuning,
                machine,
            ]
        )
        save_text(page, results.with_section(page.read_text(encoding="utf-8"), config.study, text))


@command
def main() -> None:
    config = parse(StudyConfig)
    config.check()
    torch.set_num_threads(config.threads)
    disable_progress_bar()
    disable_transformers_progress_bar()
    report(config, Study(config))


if __name__ == "__main__":
    main()
