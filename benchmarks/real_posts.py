"""Text2Grad against scalar PPO on real Reddit posts: same model, prompts, critic and total reward; several seeds.

    python benchmarks/real_posts.py --data_path posts.json --output_dir runs/real_posts

``posts.json`` is any SLF5K file. Its posts of at most ``--max_words`` words are split in two. All methods train on one
part with ``quickstart/policy.yaml`` and answer the other, four samples a post. Scalar PPO gets the same δ, summed on
the last token. ``OUTPUT_DIR/report.html`` has the results, and ``OUTPUT_DIR/figures`` the curves. A killed run can be
started again.
"""

import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks import EARLIER
from text2grad.configs import check_given, parse, setting
from text2grad.errors import InputError, command
from text2grad.records import load_records, save_json
from text2grad.tasks import Record, get_task

ROOT = Path(__file__).resolve().parent.parent
LEARNT = "is of a finished study; benchmarks/learnt_posts.md names the commit that has it"
REPORTED = "is no setting any more; the report has the curves, and OUTPUT_DIR/figures"
METHODS = {"verdict": [], "text2grad": ["--algorithm", "text2grad"], "ppo_last_sum": ["--reward_placement", "last_sum"]}


@dataclass
class RealPostsConfig:
    REMOVED = EARLIER | {
        "reward_model": ("", LEARNT), "held_out_path": ("", LEARNT), "figures_dir": ("", REPORTED),
        "only": ([], "is no setting any more; --seeds divides the work, a folder for each part"),
    }  # fmt: skip

    data_path: str = setting("", "posts in the SLF5K format", "--dataset_path", "--input_file")
    output_dir: str = setting("", "folder of the runs and the report", "--save_dir")
    model: str = setting("smollm2", "the model to train", "--model_path")
    max_steps: int = setting(12, "steps of each run")
    max_words: int = setting(230, "longer posts are left out")
    held_out: int = setting(12, "posts that are answered and not trained on")
    seeds: list[int] = setting([1, 2, 3], "seeds of each method")


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
    folder.mkdir(exist_ok=True)
    answers, result = folder / "held_out.answers.json", folder / "held_out.result.json"
    run_script("evaluation/generate.py", "--config", "quickstart/held_out.yaml", "--model", policy,
        "--data_path", held_out, "--output_path", answers)  # fmt: skip
    run_script("evaluation/slf5k/evaluate.py", "--data_path", answers, "--system", system, "--critic", "programmatic",
        "--output_path", result)  # fmt: skip
    return result


@command
def main() -> None:
    config = parse(RealPostsConfig)
    check_given(config, "data_path", "output_dir")
    folder = Path(config.output_dir).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    parts = split_posts(config.data_path, folder, config.max_words, config.held_out)
    runs, results = [], [evaluate_policy(config.model, "base", folder / "base", parts["held_out"])]
    for seed in config.seeds:
        for method, flags in METHODS.items():
            run = folder / f"{method}-seed{seed}"
            run_script("nl_gradient_policy_optimization/slf5k/train.py", *flags, "--config", "quickstart/policy.yaml",
                "--model", config.model, "--seed", seed, "--data_path", parts["train"], "--critic", "programmatic",
                "--max_steps", config.max_steps, "--output_dir", run)  # fmt: skip
            runs.append(run)
            results.append(evaluate_policy(run / "policy", method, run, parts["held_out"]))
    run_script("evaluation/report.py", *runs, "--baseline", "base", "--results", *results,
        "--figures", folder / "figures", "--output_path", folder / "report.html")  # fmt: skip


if __name__ == "__main__":
    main()
