"""Text2Grad against scalar PPO on real Reddit posts: same model, prompts, critic and total reward; several seeds.

    python benchmarks/real_posts.py --data_path posts.json --output_dir runs/real_posts

``posts.json`` is any SLF5K file. Its posts of at most ``--max_words`` words are split in two. Both methods train on one
part with ``quickstart/policy.yaml`` and answer the other, four samples a post. Scalar PPO gets the same δ, summed on
the last token. With ``--reward_model FOLDER`` there are two more methods, whose critic is that reward model of stage 2,
audited by the program on a quarter of the rollouts. The results are ``OUTPUT_DIR/report.html``, a table and curves,
those of the audits in a picture of their own. A killed run can be started again. ``--only text2grad:1 ppo_last_sum:2``
trains only those runs, so that several processes can share the work.
"""

import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import fmean

from matplotlib import pyplot
from matplotlib.ticker import MaxNLocator
from tabulate import tabulate

from benchmarks import EARLIER
from text2grad.configs import parse, setting
from text2grad.errors import InputError, command
from text2grad.plotting import COLOURS, STYLE, save_figure
from text2grad.records import load_json, load_records, save_json
from text2grad.tasks import Record, get_task

ROOT = Path(__file__).resolve().parent.parent
STAGE = "nl_gradient_policy_optimization"
LABELS = {
    "base": "the model as it was",
    "text2grad": "Text2Grad",
    "ppo_last_sum": "PPO, sum of δ at the last token",
    "learnt_text2grad": "Text2Grad, learnt critic",
    "learnt_ppo_last_sum": "PPO, sum of the learnt critic's δ",
}
FIGURES = {
    "mean_delta": ("mean δ per token", "{:+.2f}"),
    "poor_tokens": ("poor tokens", "{:.0%}"),
    "good_tokens": ("good tokens", "{:.0%}"),
    "rougeL": ("ROUGE-L", "{:.3f}"),
    "words": ("words", "{:.0f}"),
    "longest_copy": ("longest copied run", "{:.1f}"),
    "finished": ("ended by themselves", "{:.0%}"),
}
TRAINING = {
    "delta/mean": ("mean δ per token", ""),
    "kl/full": ("KL per answer (nats)", ""),
    "entropy": ("entropy per token (nats)", ""),
}
AUDIT = {
    "audit/delta": ("mean δ per token, by the rules", "audit/tokens"),
    "audit/flip_rate": ("opposite signs", "audit/signed"),
}
METHODS = {
    "text2grad": [f"{STAGE}/slf5k/train.py"],
    "ppo_last_sum": [f"{STAGE}/slf5k/train.py", "--reward_placement", "last_sum"],
}
LEARNT = {f"learnt_{name}": script for name, script in METHODS.items()}
"""The same methods, with a reward model as critic."""
AUDITED = ["--audit_critic", "text2grad.critics.programs.slf5k.critic:WorkedSummaryCritic", "--audit_share", "0.25"]


def split_posts(data_path: str, folder: Path, max_words: int, held_out: int) -> dict[str, Path]:
    """``train.json`` and ``held_out.json``: the file's posts, each once, shuffled by a fixed seed."""
    task = get_task("slf5k")
    posts: dict[str, tuple[str, Record]] = {}
    for key, record in load_records(data_path, task, responses=False).items():
        if len(task.prompt(record).split()) <= max_words:
            posts.setdefault(task.prompt(record), (key, task.with_response(record, "")))
    if len(posts) <= held_out:
        raise InputError(f"{data_path}: has {len(posts)} posts of at most {max_words} words, --held_out {held_out}")
    items = list(posts.values())
    random.Random(0).shuffle(items)
    parts = {"held_out": dict(items[:held_out]), "train": dict(items[held_out:])}
    paths = {name: folder / f"{name}.json" for name in parts}
    for name, part in parts.items():
        save_json(paths[name], part)
    return paths


def run_script(*arguments: str | Path | float) -> None:
    """Run one of the project's own scripts; its output is shown."""
    if code := subprocess.run([sys.executable, *map(str, arguments)], cwd=ROOT, check=False).returncode:
        raise SystemExit(code)


def evaluate_policy(policy: str | Path, system: str, folder: Path, held_out: Path) -> Path:
    """Answers to the held-out posts, and their figures."""
    answers, result = folder / "held_out.answers.json", folder / "held_out.result.json"
    run_script("evaluation/generate.py", "--config", "quickstart/held_out.yaml", "--model", policy,
        "--data_path", held_out, "--output_path", answers)  # fmt: skip
    run_script("evaluation/slf5k/evaluate.py", "--data_path", answers, "--system", system, "--critic", "programmatic",
        "--output_path", result)  # fmt: skip
    return result


def held_out_table(results: Mapping[str, Sequence[Path]]) -> str:
    """A row per system: the mean of its seeds, and each of them."""
    rows = []
    for system, paths in results.items():
        metrics = [load_json(path)["metrics"] for path in paths]
        row = [LABELS[system]]
        for name, (_, form) in FIGURES.items():
            values = [metric[name]["value"] for metric in metrics]
            each = f" ({', '.join(map(form.format, values))})" if len(values) > 1 else ""
            row.append((form.format(fmean(values)) + each).replace("-", "−").replace("%", " %"))
        rows.append(row)
    header = ["on held-out posts", *(label for label, _ in FIGURES.values())]
    return tabulate(rows, header, tablefmt="github", disable_numparse=True)


def pooled(rows: Sequence[Mapping[str, float]], name: str, weight: str = "") -> float | None:
    """The mean of a figure over several steps, each weighed by the tokens that it rests on; None where it is absent."""
    known = [(row[name], row[weight] if weight else 1.0) for row in rows if name in row]
    total = sum(tokens for _, tokens in known)
    return sum(value * tokens for value, tokens in known) / total if total else None


def points_of(folders: Sequence[Path], name: str, weight: str, window: int) -> list[tuple[float, float]]:
    """A figure of all these runs together, ``window`` steps at a time: the middle step, and the value."""
    rows = [row for folder in folders for row in load_json(folder / "metrics.jsonl")]
    points = []
    for first in range(1, max(row["step"] for row in rows) + 1, window):
        part = [row for row in rows if first <= row["step"] < first + window]
        if (value := pooled(part, name, weight)) is not None:
            points.append((first + (window - 1) / 2, value))
    return points


def draw_curves(
    path: Path, runs: Mapping[str, Sequence[Path]], panels: Mapping[str, tuple[str, str]], window: int = 1
) -> None:
    """A panel per figure: a bold line for all seeds of a method, and, step by step, a thin one for each.

    Args:
        panels: for each figure of ``metrics.jsonl`` its title, and the figure that weighs it, if any.
    """
    with pyplot.rc_context(STYLE):
        figure, axes = pyplot.subplots(1, len(panels), figsize=(8, 2.5), layout="constrained")
        for panel, (name, (title, weight)) in zip(axes, panels.items(), strict=True):
            for colour, (method, folders) in zip(COLOURS, runs.items(), strict=False):
                for folder in folders if window == 1 else []:
                    panel.plot(*zip(*points_of([folder], name, weight, 1), strict=True), color=colour, linewidth=0.5)
                if points := points_of(folders, name, weight, window):
                    panel.plot(*zip(*points, strict=True), color=colour, linewidth=1.6, label=LABELS[method])
            panel.set(xlabel="step", title=title)
            panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
        save_figure(figure, path)


@dataclass
class RealPostsConfig:
    REMOVED = EARLIER

    data_path: str = setting("", "posts in the SLF5K format", "--dataset_path", "--input_file")
    output_dir: str = setting("", "folder of the runs and the report", "--save_dir")
    model: str = setting("smollm2", "the model to train", "--model_path")
    max_steps: int = setting(12, "steps of each run")
    max_words: int = setting(230, "longer posts are left out")
    held_out: int = setting(12, "posts that are answered and not trained on")
    held_out_path: str = setting("", "a file of such posts; then all of data_path trains")
    reward_model: str = setting("", "a reward model of stage 2, as critic of two more methods")
    seeds: list[int] = setting([1, 2, 3], "seeds of each method")
    only: list[str] = setting([], "METHOD:SEED ...: train and evaluate these runs alone; no report")
    figures_dir: str = setting("runs/benchmarks/figures", "folder of the curves")

    def check(self) -> None:
        for name in ("data_path", "output_dir"):
            if not getattr(self, name):
                raise InputError(f"--{name} is missing; --help lists the settings")
        for name in self.runs():
            method, _, seed = name.partition(":")
            if method not in self.methods() or not seed.isdigit():
                raise InputError(f"--only {name}: give METHOD:SEED, a method of {', '.join(self.methods())}")

    def runs(self) -> list[str]:
        """``METHOD:SEED`` of each run."""
        return self.only or [f"{method}:{seed}" for seed in self.seeds for method in self.methods()]

    def methods(self) -> dict[str, list[str]]:
        return METHODS | (LEARNT if self.reward_model else {})

    def feedback(self, method: str) -> list[str | Path]:
        """The flags that say where a method's rewards come from."""
        if method in METHODS:
            return ["--critic", "programmatic"]
        return ["--critic", Path(self.reward_model).resolve(), *AUDITED]


def train_and_evaluate(config: RealPostsConfig, folder: Path) -> tuple[dict[str, list[Path]], dict[str, list[Path]]]:
    """The folders of each method's runs, and their results on the held-out posts."""
    parts = {"train": Path(config.data_path).resolve(), "held_out": Path(config.held_out_path).resolve()}
    if not config.held_out_path:
        parts = split_posts(config.data_path, folder, config.max_words, config.held_out)
    runs: dict[str, list[Path]] = {}
    results: dict[str, list[Path]] = {}
    for name in config.runs():
        method, _, seed = name.partition(":")
        place = folder / f"{method}-seed{seed}"
        run_script(*config.methods()[method], "--config", "quickstart/policy.yaml", "--model", config.model,
            "--seed", seed, "--data_path", parts["train"], *config.feedback(method), "--max_steps", config.max_steps,
            "--output_dir", place)  # fmt: skip
        runs.setdefault(method, []).append(place)
        results.setdefault(method, []).append(evaluate_policy(place / "policy", method, place, parts["held_out"]))
    if not config.only:
        (folder / "base").mkdir(exist_ok=True)
        base = evaluate_policy(config.model, "base", folder / "base", parts["held_out"])
        results = {"base": [base], **results}
    return runs, results


@command
def main() -> None:
    config = parse(RealPostsConfig)
    config.check()
    folder = Path(config.output_dir).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    runs, results = train_and_evaluate(config, folder)
    if config.only:
        return
    run_script("evaluation/report.py", *chain(*runs.values()), "--baseline", "base", "--results",
        *chain(*results.values()), "--output_path", folder / "report.html")  # fmt: skip
    figures = Path(config.figures_dir)
    draw_curves(figures / "real_posts", runs, TRAINING)
    if audited := {method: folders for method, folders in runs.items() if method not in METHODS}:
        draw_curves(figures / "learnt_posts", audited, AUDIT, window=4)
    print(held_out_table(results))


if __name__ == "__main__":
    main()
