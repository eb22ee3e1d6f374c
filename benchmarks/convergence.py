"""Does feedback on tokens train faster than one number per response? A synthetic task with known truth, on one core.

    python benchmarks/convergence.py --config benchmarks/micro/convergence.yaml   # against scalar PPO and GRPO
    python benchmarks/convergence.py --config benchmarks/micro/ablations.yaml     # how a span's reward is spread
    python benchmarks/convergence.py --config benchmarks/micro/questions.yaml     # graded rewards, critics that err
    python benchmarks/convergence.py --config benchmarks/micro/reward_models.yaml # learnt rewards
    python benchmarks/convergence.py --config benchmarks/micro/ahead.yaml         # rollouts that are one update old
    python benchmarks/convergence.py --config benchmarks/micro/teacher.yaml       # critiques as teachers

Each study sweeps the learning rate of every method over the same values with the same seeds, and trains with other
seeds at the best one. It writes the study's JSON and figures to ``--report_dir`` and prints its tables. Finished runs
are not repeated, and studies share them. ``--stored benchmarks/figures/STUDY.json`` makes tables and figures of a
finished study again without training.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from datasets.utils.logging import disable_progress_bar
from tqdm.auto import tqdm
from transformers.utils.logging import disable_progress_bar as disable_transformers_progress_bar

from benchmarks.micro import results
from benchmarks.micro.figures import draw_curves, draw_noise
from benchmarks.micro.methods import METHODS, method_of
from benchmarks.micro.policy import BaseSettings, base_policy
from benchmarks.micro.reward_models import evaluate_reward_models, reward_models_table, train_reward_models
from benchmarks.micro.runs import Materials, Protocol, run_method, training_prompts
from benchmarks.pages import check_page, markdown_table, page_setting, write_section
from text2grad.configs import parse, setting
from text2grad.errors import InputError, command
from text2grad.records import load_json, save_json
from text2grad.statistics import Estimate

Runs = dict[str, list[results.Curve]]
"""The curves of each method's seeds."""
Sweep = dict[str, dict[str, Estimate]]
"""For each method: the mean F1 of its runs at each learning rate."""
_OPTIONAL = (
    "page", "stored", "examine_pairs", "already_listed", "rewritings", "kl_coef", "praises", "notes", "learnt_critics",
)  # fmt: skip


@dataclass
class StudyConfig:
    """One study: which methods, and the protocol that they share."""

    study: str = setting("", "the study's name: of its figures, its JSON and its section of a page")
    methods: list[str] = setting([], "methods to compare; benchmarks/micro/methods.py lists them")
    reference: str = setting("ppo_sum", "the method whose final F1 the others' steps are counted to")
    already_listed: list[str] = setting(
        [], "methods that another study's table lists; a page's section omits their rows"
    )
    learning_rates: list[float] = setting([], "learning rates that are tried for every method; one alone is taken")
    sweep_seeds: list[int] = setting([], "seeds of the sweep; they are not used again")
    seeds: list[int] = setting([], "seeds of the runs that are reported")
    steps: int = setting(60, "steps of a run; a step is one cycle of rollouts and updates")
    rollouts: int = setting(16, "responses sampled in a step")
    epochs: int = setting(2, "passes of updates over a step's responses")
    evaluate_every: int = setting(5, "steps between two evaluations on held-out prompts")
    held_out: int = setting(96, "held-out prompts of an evaluation")
    base_steps: int = setting(1000, "updates of supervised training that make the starting policy")
    rewritings: float = setting(0.0, "share of the starting policy's demonstrations that follow a critique")
    kl_coef: float = setting(0.0, "coefficient of the KL to the starting policy, for all methods")
    generation: str = setting("transformers", "what samples the rollouts; decoder: the project's own, faster here")
    praises: bool = setting(False, "the critic's critiques also name what is right")
    notes: int = setting(0, "notes of every prompt; 0: three to five")
    learnt_critics: str = setting("", "folder of learnt critics (benchmarks/learnt_critics), for methods learnt-N")
    reward_pairs: int = setting(1000, "pairs of responses that a reward model learns from, unless its method says")
    reward_model_steps: int = setting(3000, "updates of a reward model that writes feedback", "--judge_steps")
    examine_pairs: int = setting(0, "pairs of responses on which the reward models are evaluated; 0: they are not")
    output_dir: str = setting("runs/benchmarks/convergence", "folder of the runs")
    report_dir: str = setting("benchmarks/figures", "folder of the figures and the JSON")
    stored: str = setting("", "JSON of a finished study: its tables and figures are made again, without training")
    page: str = page_setting("STUDY")
    threads: int = setting(1, "cores to use")

    def check(self) -> None:
        for item in fields(self):
            swept = item.name != "sweep_seeds" or len(self.learning_rates) > 1
            if item.name not in _OPTIONAL and swept and not getattr(self, item.name):
                raise InputError(f"--{item.name} is missing; the files in benchmarks/micro/*.yaml set it")
        if set(self.seeds) & set(self.sweep_seeds):
            raise InputError("--seeds and --sweep_seeds share a seed: rates would be chosen on what is reported")
        if self.reference not in self.methods:
            raise InputError(f"--reference {self.reference} is not one of --methods")
        for name in [*self.methods, *self.already_listed]:
            if method_of(name).critic and not self.learnt_critics:
                raise InputError(f"{name}: give --learnt_critics, the folder of {method_of(name).critic}")
        check_page(self.page, self.study)

    @property
    def protocol(self) -> Protocol:
        names = (
            "steps",
            "rollouts",
            "epochs",
            "evaluate_every",
            "held_out",
            "kl_coef",
            "praises",
            "generation",
            "notes",
        )
        return Protocol(**{name: getattr(self, name) for name in names})


@dataclass
class StudyResult:
    """What a study found; its JSON holds the same.

    Attributes:
        facts: the machine, the number of runs, and the time that they took.
        learning_rates: the chosen one of each method.
        reward_models: how good the learnt reward models are; empty where they were not evaluated.
    """

    facts: dict[str, Any]
    learning_rates: dict[str, float]
    sweep: Sweep
    reward_models: list[dict[str, Any]]
    curves: Runs


class Study:
    """Trains or reloads a study's runs, by folder ``METHOD/lr-RATE/seed-SEED``."""

    def __init__(self, config: StudyConfig):
        self.config, self.folder, self.protocol = config, Path(config.output_dir), config.protocol
        settings = BaseSettings(steps=config.base_steps, rewritings=config.rewritings)
        base = base_policy(self.folder / "starting_policy", settings, seed=0)
        prompts = training_prompts(self.folder / "prompts.json", self.protocol.prompts, self.protocol.notes)
        learnt = [model for name in config.methods if (model := method_of(name).reward_model)]
        limit = self.protocol.max_response_tokens
        models = train_reward_models(self.folder, base, learnt, config.reward_pairs, limit, config.reward_model_steps)
        self.materials = Materials(base, prompts, models, config.learnt_critics)
        self.processor_seconds: list[float] = []

    def train_or_load(self, name: str, rate: float, seed: int) -> results.Curve:
        """The curve of one run."""
        folder = self.folder / name / f"lr-{rate:g}" / f"seed-{seed}"
        result = run_method(name, rate, seed, folder, self.materials, self.protocol)
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

    def reward_model_quality(self) -> list[dict[str, Any]]:
        """How well the study's reward models know the program's feedback; empty without ``--examine_pairs``."""
        made, config = self.materials, self.config
        limit = self.protocol.max_response_tokens
        if not config.examine_pairs:
            return []
        return evaluate_reward_models(made.reward_models, config.reward_pairs, made.base, config.examine_pairs, limit)

    def result(self) -> StudyResult:
        reward_models = self.reward_model_quality()
        curves, chosen, sweep = self.train_all()
        seconds, config = sorted(self.processor_seconds), self.config
        facts = {
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, {config.threads} used, "
            f"torch {torch.__version__}",
            "runs": len(seconds),
            "processor_minutes": round(sum(seconds) / 60, 1),
            "median_seconds_per_run": round(seconds[len(seconds) // 2], 1),
        }
        return StudyResult(facts, chosen, sweep, reward_models, curves)


def load_result(path: str, methods: list[str]) -> StudyResult:
    """A finished study from its JSON.

    Raises:
        InputError: it compares other methods.
    """
    stored = load_json(path)
    if set(stored["curves"]) != set(methods):
        raise InputError(f"{path}: compares {', '.join(stored['curves'])}; give the study's own --config")
    facts = {name: stored[name] for name in ("machine", "runs", "processor_minutes", "median_seconds_per_run")}
    sweep = {name: {rate: Estimate(**each) for rate, each in row.items()} for name, row in stored["sweep"].items()}
    curves = {name: stored["curves"][name] for name in methods}
    return StudyResult(facts, stored["learning_rates"], sweep, stored.get("reward_models", []), curves)


def save_result(config: StudyConfig, result: StudyResult) -> None:
    sweep = {name: {rate: each.to_dict() for rate, each in row.items()} for name, row in result.sweep.items()}
    save_json(
        Path(config.report_dir) / f"{config.study}.json",
        {
            "study": config.study,
            **result.facts,
            "protocol": config.protocol.described(),
            "learning_rates": result.learning_rates,
            "sweep": sweep,
            **({"reward_models": result.reward_models} if result.reward_models else {}),
            "curves": result.curves,
        },
        indent=None,
    )


def summary_table(curves: Runs, chosen: dict[str, float], reference: str, omitted: Sequence[str] = ()) -> str:
    """Final quality of each method, and how soon it reaches the reference's; ``omitted`` methods get no row."""
    rows = []
    for name, runs in curves.items():
        if name in omitted:
            continue
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
    header = ["method", "learning rate", "final F1", "precision", "recall"]
    return markdown_table([*header, "steps to the reference", "share of its steps", "mean F1 of the run"], rows)


def sweep_table(sweep: Sweep, omitted: Sequence[str] = ()) -> str:
    """Mean F1 at each learning rate, the best one bold; empty where there was one rate."""
    if not sweep:
        return ""
    rates = list(next(iter(sweep.values())))
    rows = []
    for name, figures in sweep.items():
        if name in omitted:
            continue
        best = max(rates, key=lambda rate: figures[rate].value)
        shown = [f"**{figures[rate].value:.3f}**" if rate == best else f"{figures[rate].value:.3f}" for rate in rates]
        rows.append([method_of(name).label, *shown])
    return markdown_table(["mean F1 of the run at learning rate", *rates], rows)


def draw_study(config: StudyConfig, curves: Runs) -> list[str]:
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


def page_section(config: StudyConfig, result: StudyResult, figures: list[str], folder: str) -> str:
    """The study's section of a page; ``folder`` holds the figures, seen from the page."""
    facts, omitted = result.facts, config.already_listed
    sweep = [f"The sweep of learning rates, with {len(config.sweep_seeds)} seeds of its own:"]
    sweep += [sweep_table(result.sweep, omitted)]
    return "\n\n".join(
        [
            *([reward_models_table(result.reward_models)] if result.reward_models else []),
            summary_table(result.curves, result.learning_rates, config.reference, omitted),
            *(f"![{name}]({Path(folder) / name}.svg)" for name in figures),
            *(sweep if result.sweep else []),
            f"{facts['runs']} runs, {facts['processor_minutes']} minutes of processor time. "
            f"Machine: {facts['machine']}.",
        ]
    )


@command
def main() -> None:
    config = parse(StudyConfig)
    config.check()
    torch.set_num_threads(config.threads)
    disable_progress_bar()
    disable_transformers_progress_bar()
    if config.stored:
        result = load_result(config.stored, config.methods)
    else:
        result = Study(config).result()
        save_result(config, result)
    figures = draw_study(config, result.curves)
    print(summary_table(result.curves, result.learning_rates, config.reference), sweep_table(result.sweep), sep="\n\n")
    print(f"\n{result.facts}")
    folder = os.path.relpath(config.report_dir, Path(config.page).parent)
    write_section(config.page, config.study, page_section(config, result, figures, folder))


if __name__ == "__main__":
    main()
