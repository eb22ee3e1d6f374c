"""Text2Grad against scalar PPO on real Reddit posts: same model, prompts, critic and total reward; several seeds.

    python benchmarks/real_posts.py --data_path posts.json --output_dir runs/real_posts

``posts.json`` is any SLF5K file. Its posts of at most ``--max_words`` words are split in two; both methods train on one
part with ``quickstart/policy.yaml`` and answer the other, four samples a post. Scalar PPO gets the sum of the same δ on
the last token. Ends with ``OUTPUT_DIR/report.html``, and with the page's section, table and curves. Can be killed and
run again; ``--only text2grad:1 ppo_last_sum:2`` runs some of it, so that several processes can share the work.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from statistics import fmean

from matplotlib import pyplot
from matplotlib.ticker import MaxNLocator

from benchmarks.micro.results import table, with_section
from text2grad.errors import InputError, command
from text2grad.plotting import COLOURS, STYLE, save_figure
from text2grad.records import load_json, load_records, save_json, save_text
from text2grad.tasks import get_task

ROOT = Path(__file__).resolve().parent.parent
STAGE = "nl_gradient_policy_optimization"
LABELS = {"base": "the model as it was", "text2grad": "Text2Grad", "ppo_last_sum": "PPO, sum of δ at the last token"}
FIGURES = {
    "mean_delta": ("mean δ per token", "{:+.2f}"),
    "poor_tokens": ("poor tokens", "{:.0%}"),
    "good_tokens": ("good tokens", "{:.0%}"),
    "rougeL": ("ROUGE-L", "{:.3f}"),
    "words": ("words", "{:.0f}"),
    "longest_copy": ("longest copied run", "{:.1f}"),
    "finished": ("ended by themselves", "{:.0%}"),
}
METHODS = {
    "text2grad": [f"{STAGE}/slf5k/train.py"],
    "ppo_last_sum": [f"{STAGE}/baselines/ppo.py", "--task", "slf5k", "--reward_placement", "last_sum"],
}


def split(data_path: str, folder: Path, max_words: int, held_out: int) -> dict[str, Path]:
    """``train.json`` and ``held_out.json``: the file's posts, each once, shuffled by a fixed seed."""
    task = get_task("slf5k")
    posts = {}
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


def run(*arguments: str | Path) -> None:
    """One of the project's own commands; what it prints is shown."""
    if code := subprocess.run([sys.executable, *map(str, arguments)], cwd=ROOT, check=False).returncode:
        raise SystemExit(code)


def measure(policy: str | Path, system: str, folder: Path, held_out: Path) -> Path:
    """Answers to the held-out posts, and their figures."""
    answers, result = folder / "held_out.answers.json", folder / "held_out.result.json"
    run("evaluation/generate.py", "--config", "quickstart/held_out.yaml", "--model", policy, "--data_path", held_out,
        "--output_path", answers)  # fmt: skip
    run("evaluation/slf5k/evaluate.py", "--responses", answers, "--system", system, "--critic", "programmatic",
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
    return table(["on held-out posts", *(label for label, _ in FIGURES.values())], rows)


def draw(path: Path, runs: Mapping[str, Sequence[Path]]) -> None:
    """Mean δ, KL and entropy of each step's rollouts: every seed thin, their mean bold."""
    panels = {"delta/mean": "mean δ per token", "kl/full": "KL, nats an answer", "entropy": "entropy, nats a token"}
    with pyplot.rc_context(STYLE):
        figure, axes = pyplot.subplots(1, len(panels), figsize=(8, 2.5), layout="constrained")
        for panel, (name, label) in zip(axes, panels.items(), strict=True):
            for colour, (method, folders) in zip(COLOURS, runs.items(), strict=False):
                seeds = [[row[name] for row in load_json(folder / "metrics.jsonl")] for folder in folders]
                steps = range(1, len(seeds[0]) + 1)
                for values in seeds:
                    panel.plot(steps, values, color=colour, linewidth=0.5, alpha=0.5)
                mean = [fmean(values) for values in zip(*seeds, strict=True)]
                panel.plot(steps, mean, color=colour, linewidth=1.6, label=LABELS[method])
            panel.set(xlabel="step", title=label)
            panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
        save_figure(figure, path.with_suffix(""))


@command
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_path", required=True)
    parser.add_argument("--output_dir", required=True, type=lambda text: Path(text).resolve())
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--max_steps", type=int, default=12)
    parser.add_argument("--max_words", type=int, default=230)
    parser.add_argument("--held_out", type=int, default=12, help="posts")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--page", default="benchmarks/README.md", help="whose section real_posts is rewritten")
    parser.add_argument("--only", nargs="+", default=[], metavar="METHOD:SEED", help="these, and no report")
    args = parser.parse_args()
    args.output_dir.mkdir(parents=True, exist_ok=True)
    parts = split(args.data_path, args.output_dir, args.max_words, args.held_out)
    wanted = args.only or [f"{method}:{seed}" for seed in args.seeds for method in METHODS]
    results: dict[str, list[Path]] = {"base": []}
    runs: dict[str, list[Path]] = {}
    for name in wanted:
        method, _, seed = name.partition(":")
        if method not in METHODS or not seed.isdigit():
            raise InputError(f"--only {name}: give METHOD:SEED, a method of {', '.join(METHODS)}")
        folder = args.output_dir / f"{method}-seed{seed}"
        run(*METHODS[method], "--config", "quickstart/policy.yaml", "--model", args.model, "--seed", seed,
            "--data_path", parts["train"], "--critic", "programmatic", "--max_steps", str(args.max_steps),
            "--output_dir", folder)  # fmt: skip
        runs.setdefault(method, []).append(folder)
        results.setdefault(method, []).append(measure(folder / "policy", method, folder, parts["held_out"]))
    if args.only:
        return
    (args.output_dir / "base").mkdir(exist_ok=True)
    results["base"].append(measure(args.model, "base", args.output_dir / "base", parts["held_out"]))
    run("evaluation/report.py", *chain(*runs.values()), "--baseline", "base", "--results", *chain(*results.values()),
        "--output", args.output_dir / "report.html")  # fmt: skip
    page = Path(args.page)
    draw(page.parent / "figures" / "real_posts", runs)
    text = f"{held_out_table(results)}\n\n![real_posts](figures/real_posts.svg)"
    save_text(page, with_section(page.read_text(encoding="utf-8"), "real_posts", text))
    print(text)


if __name__ == "__main__":
    main()
