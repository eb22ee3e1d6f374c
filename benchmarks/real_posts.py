"""Text2Grad against scalar PPO on real Reddit posts: same model, prompts, critic and total reward; several seeds.

    python benchmarks/real_posts.py --data_path posts.json --output_dir runs/real_posts

``posts.json`` is any SLF5K file. Its posts of at most ``--max_words`` words are split in two; both methods train on one
part with ``quickstart/policy.yaml`` and answer the other, four samples a post. Scalar PPO gets the sum of the same δ on
the last token. Ends with ``OUTPUT_DIR/report.html``. Can be killed and run again; ``--only text2grad:1 ppo_last_sum:2``
runs some of it, so that several processes can share the work.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
from pathlib import Path

from text2grad.errors import InputError, command
from text2grad.records import load_records, save_json
from text2grad.tasks import get_task

ROOT = Path(__file__).resolve().parent.parent
STAGE = "nl_gradient_policy_optimization"
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
    parser.add_argument("--only", nargs="+", default=[], metavar="METHOD:SEED", help="these, and no report")
    args = parser.parse_args()
    args.output_dir.mkdir(parents=True, exist_ok=True)
    parts = split(args.data_path, args.output_dir, args.max_words, args.held_out)
    wanted = args.only or [f"{method}:{seed}" for seed in args.seeds for method in METHODS]
    results, runs = [], []
    for name in wanted:
        method, _, seed = name.partition(":")
        if method not in METHODS or not seed.isdigit():
            raise InputError(f"--only {name}: give METHOD:SEED, a method of {', '.join(METHODS)}")
        folder = args.output_dir / f"{method}-seed{seed}"
        run(*METHODS[method], "--config", "quickstart/policy.yaml", "--model", args.model, "--seed", seed,
            "--data_path", parts["train"], "--critic", "programmatic", "--max_steps", str(args.max_steps),
            "--output_dir", folder)  # fmt: skip
        runs.append(folder)
        results.append(measure(folder / "policy", method, folder, parts["held_out"]))
    if not args.only:
        (args.output_dir / "base").mkdir(exist_ok=True)
        results.append(measure(args.model, "base", args.output_dir / "base", parts["held_out"]))
        run("evaluation/report.py", *runs, "--baseline", "base", "--results", *results,
            "--output", args.output_dir / "report.html")  # fmt: skip


if __name__ == "__main__":
    main()
