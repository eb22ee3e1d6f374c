"""Where credit goes in real rollouts: token-level against end-of-sequence rewards (paper, section 3.6, appendix A).

    python evaluation/credit_assignment.py --rollouts runs/text2grad/rollouts.jsonl --output_path credit.json \\
        --plot credit.svg

Each rollout's δ are credited twice: each at its own token (setting A), and as one sum at the last token (setting B).
They are the critic's own, before any placement and without penalties. Rollouts whose feedback failed are left out.
Reported are, with 95 % intervals over prompts,

- ``amplification``: how much more a labelled token's own δ weighs at that token under A, (γλ)^−(T−k);
- ``separation_A``, ``separation_B``: the chance that a praised token gets more advantage than a criticised one of the
  same rollout; 0.5 is chance;
- ``right_sign_A``, ``right_sign_B``: the share of labelled tokens whose advantage has the sign of their label;
- by distance from the end, |ΔA| between the best and the worst rollout of each prompt under both settings (B as the
  appendix writes it), drawn in the plot beside the theory's curve.
"""

from collections.abc import Sequence
from dataclasses import MISSING, asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evaluation.credit import (
    advantage_gaps,
    amplification,
    end_of_sequence_advantages,
    separation,
    token_level_advantages,
)
from text2grad.configs import parse, setting
from text2grad.errors import InputError, command
from text2grad.plotting import COLOURS, save_figure
from text2grad.records import check_output, load_json, save_json
from text2grad.statistics import Estimate, bootstrap
from text2grad.tasks.commands import say_next


@dataclass
class CreditConfig:
    """Which rollouts, and how they are credited."""

    rollouts: str = setting(MISSING, "a run's rollouts.jsonl", "--data_path")
    output_path: str = setting(MISSING, "the figures, as JSON", "--output_file", "--output")
    plot: str | None = setting(None, "the plot: .svg, .pdf or .png")
    gamma: float = setting(1.0, "γ")
    lam: float = setting(0.95, "λ")

    def __post_init__(self) -> None:
        if not 0 < self.gamma * self.lam <= 1:
            raise InputError(f"γλ = {self.gamma * self.lam:g}: must be above 0 and at most 1")
        if self.plot and Path(self.plot).suffix not in (".svg", ".pdf", ".png"):
            raise InputError(f"--plot {self.plot}: must end in .svg, .pdf or .png")


def load_rollouts(path: str) -> dict[str, list[np.ndarray]]:
    """δ per token of each rollout that has feedback, [T], by prompt."""
    by_prompt: dict[str, list[np.ndarray]] = {}
    for number, row in enumerate(load_json(path), 1):
        if not isinstance(row, dict) or not isinstance(row.get("deltas", 0), list | None):
            raise InputError(f"{path}: line {number} has no 'deltas'; give the rollouts.jsonl of a training run")
        if row["deltas"]:
            key = str(row.get("prompt", row.get("id", number)))
            by_prompt.setdefault(key, []).append(np.array(row["deltas"], dtype=float))
    if not by_prompt:
        raise InputError(f"{path}: holds no rollouts with a critic's δ")
    return by_prompt


def label_figures(by_prompt: dict[str, list[np.ndarray]], decay: float) -> dict[str, Estimate]:
    """Amplification, separation and right signs; intervals over prompts."""
    rows: dict[str, list[tuple[float, float]]] = {}
    groups: dict[str, list[str]] = {}

    def add(name: str, prompt: str, total: float, count: float) -> None:
        rows.setdefault(name, []).append((total, count))
        groups.setdefault(name, []).append(prompt)

    for prompt, rollouts in by_prompt.items():
        for deltas in rollouts:
            labelled = deltas != 0
            if not labelled.any():
                continue
            distance = len(deltas) - 1 - np.flatnonzero(labelled)
            add("amplification", prompt, float(np.sum(amplification(distance, decay))), len(distance))
            add("distance_from_end", prompt, float(distance.sum()), len(distance))
            credited = {"A": token_level_advantages(deltas, decay), "B": end_of_sequence_advantages(deltas, decay)}
            for placement, advantages in credited.items():
                right = np.sign(advantages[labelled]) == np.sign(deltas[labelled])
                add(f"right_sign_{placement}", prompt, float(right.sum()), len(distance))
                apart = separation(advantages, deltas)
                if np.isfinite(apart):
                    add(f"separation_{placement}", prompt, apart, 1)
    return {name: bootstrap(rows[name], groups=groups[name]) for name in rows}


def gaps_by_distance(by_prompt: dict[str, list[np.ndarray]], decay: float) -> list[dict[str, float]]:
    """Mean |ΔA| between the best and the worst rollout of each prompt, by distance from the end, under A and B."""
    gaps: dict[int, list[tuple[float, float]]] = {}
    for rollouts in by_prompt.values():
        ordered = sorted(rollouts, key=lambda deltas: deltas.mean())
        if len(ordered) < 2 or ordered[0].mean() == ordered[-1].mean():
            continue
        under_a, under_b = advantage_gaps(ordered[-1], ordered[0], decay)
        for distance, pair in enumerate(zip(abs(under_a[::-1]), abs(under_b[::-1]), strict=True)):
            gaps.setdefault(distance, []).append(pair)
    return [
        {
            "distance": distance,
            "pairs": len(gaps[distance]),
            "gap_A": float(np.mean([pair[0] for pair in gaps[distance]])),
            "gap_B": float(np.mean([pair[1] for pair in gaps[distance]])),
            "amplification": float(amplification(distance, decay)),
        }
        for distance in sorted(gaps)
    ]


def plot_credit(path: str, gaps: Sequence[dict[str, float]]) -> None:
    """Left: the theory's amplification. Right: |ΔA|. Both by distance from the end."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    distances = [row["distance"] for row in gaps]
    left.plot(distances, [row["amplification"] for row in gaps], color=COLOURS[1])
    left.set(xlabel="tokens before the end, $T-k$", ylabel=r"amplification, $(\gamma\lambda)^{-(T-k)}$", yscale="log")
    for name, label, color in (("gap_A", "token-level (A)", COLOURS[1]), ("gap_B", "end of sequence (B)", COLOURS[4])):
        right.plot(distances, [row[name] for row in gaps], color=color, label=label)
    right.set(xlabel="tokens before the end, $T-t$", ylabel=r"mean $|\Delta A_t|$, best $-$ worst rollout")
    right.legend(frameon=False)
    save_figure(figure, Path(path).with_suffix(""), (Path(path).suffix,))


@command
def main() -> None:
    config = parse(CreditConfig)
    for path in filter(None, (config.output_path, config.plot)):
        check_output(path)
    decay = config.gamma * config.lam
    by_prompt = load_rollouts(config.rollouts)
    figures, gaps = label_figures(by_prompt, decay), gaps_by_distance(by_prompt, decay)
    rollouts = [deltas for group in by_prompt.values() for deltas in group]
    result: dict[str, Any] = {
        "settings": {**asdict(config), "decay": decay},
        "rollouts": len(rollouts),
        "prompts": len(by_prompt),
        "metrics": {name: figure.to_dict() for name, figure in figures.items()},
        "by_distance": gaps,
    }
    save_json(config.output_path, result)
    print(f"{len(rollouts)} rollouts of {len(by_prompt)} prompts, γλ = {decay:g} -> {config.output_path}")
    for name, figure in figures.items():
        print(f"  {name:<20} {figure}")
    if config.plot:
        plot_credit(config.plot, gaps)
        print(f"  plot -> {config.plot}")
    else:
        say_next("--plot credit.svg draws the gaps next to the theoretical curve")


if __name__ == "__main__":
    main()
