"""Weak scaling of stage 3: one DeepSpeed rank against two, each on a core of its own, with the same work for each rank.

    python benchmarks/weak_scaling.py --output_path runs/benchmarks/weak_scaling.json

A Text2Grad step under ZeRO-2: as many responses for each rank as for the single one, every one of exactly
``--response_tokens`` tokens, to posts of nearly one length, judged by the programmatic critic. Two ranks can be slower
than one because they wait for each other and exchange gradients, or because the machine's cores slow each other down
(memory, clock). So two independent runs side by side are measured, too. What they lose is due to the machine, and two
ranks cannot do better. Each round takes all three in turn, in new processes, whose first step is not counted.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.pages import check_page, markdown_table, page_setting, write_section
from benchmarks.step_cost import StepCostConfig, keep_to, time_text2grad
from nl_gradient_policy_optimization.config import PolicyConfig
from text2grad.configs import parse, setting
from text2grad.errors import InputError, command
from text2grad.records import load_json, save_json

ROOT = Path(__file__).resolve().parent.parent
ZERO = ROOT / "nl_gradient_policy_optimization" / "deepspeed" / "zero2.json"
FIGURES = ("rollout", "reference", "update", "step")
MODES = {"one": "1 rank", "two": "2 ranks", "apart": "2 runs side by side"}

Row = dict[str, float]
"""Seconds of one step by phase, of whichever process took longest."""


@dataclass
class ScalingConfig:
    output_path: str = setting("", "JSON file for the figures; none by default", "--output_file", "--output")
    model: str = setting("smollm2", "the policy", "--model_path")
    data_path: str = setting("quickstart/data/posts_train.json", "posts in the SLF5K format")
    posts: int = setting(8, "how many posts to use: those closest to the median length")
    rollouts: int = setting(4, "responses in a step on each rank, two to a prompt")
    response_tokens: int = setting(16, "tokens of every response")
    steps: int = setting(2, "timed steps of a process")
    rounds: int = setting(3, "rounds of 1 rank, 2 ranks, 2 runs side by side")
    cores: list[int] = setting([], "two processor numbers; by default the first two allowed")
    page: str = page_setting("weak_scaling")

    def check(self) -> None:
        """Choose the cores; raise ``InputError`` unless there are two."""
        check_page(self.page, "weak_scaling")
        allowed = sorted(os.sched_getaffinity(0))
        self.cores = self.cores or allowed[:2]
        if len(set(self.cores)) != 2 or not set(self.cores) <= set(allowed):
            raise InputError(f"--cores {self.cores}: give two different cores of those allowed here, {allowed}")


def posts_of_median_length(posts: dict[str, dict], count: int) -> dict[str, dict]:
    """The ``count`` posts whose number of words is closest to the median, so that all ranks have the same work."""
    words = {key: len(record["post"].split()) for key, record in posts.items()}
    middle = statistics.median(words.values())
    return {key: posts[key] for key in sorted(posts, key=lambda key: abs(words[key] - middle))[:count]}


def run_mode(config: ScalingConfig, mode: str) -> list[Row]:
    """The timed steps of one mode's processes."""
    with tempfile.TemporaryDirectory() as folder:
        places = [Path(folder) / str(number) for number in range(2 if mode == "apart" else 1)]
        cores = [[core] for core in config.cores] if mode == "apart" else [config.cores[: 1 + (mode == "two")]]
        running = [_start(config, *each) for each in zip(places, cores, strict=True)]
        try:
            codes = [process.wait() for process in running]
        finally:
            for process in running:
                process.terminate()  # does nothing to a process that has ended
        if any(codes):
            raise InputError(f"{MODES[mode]}: a process ended with {max(codes, key=abs)}; its output above says why")
        found = [load_json(path) for place in places for path in sorted(place.glob("rank-*.json"))]
    return slowest(found)


def _start(config: ScalingConfig, folder: Path, cores: list[int]) -> subprocess.Popen:
    """One run, with one rank on each of the cores."""
    save_json(folder / "posts.json", posts_of_median_length(load_json(config.data_path), config.posts))
    cost = StepCostConfig(
        model=config.model,
        data_path=str(folder / "posts.json"),
        rollouts=config.rollouts,
        response_tokens=config.response_tokens,
        steps=config.steps,
    )
    settings = replace(cost.policy("text2grad", str(folder / "run")), deepspeed=str(ZERO))
    save_json(folder / "settings.json", {"cores": cores, "policy": asdict(settings)})
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(len(cores))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [*launcher, __file__, "--rank", str(folder)], cwd=ROOT, env=environment, stdout=subprocess.DEVNULL
    )


def run_rank(folder: Path) -> None:
    """What a rank does: bound to its core, it writes its steps' seconds."""
    given, number = load_json(folder / "settings.json"), int(os.environ["LOCAL_RANK"])
    keep_to(given["cores"][number])
    rows = time_text2grad(PolicyConfig(**given["policy"]))
    save_json(folder / f"rank-{number}.json", rows[1:])


def slowest(found: list[list[Row]]) -> list[Row]:
    """Of processes that did the same steps: the longest that any took, for each step and phase."""
    return [{name: max(row[name] for row in rows) for name in FIGURES} for rows in zip(*found, strict=True)]


def efficiencies(rounds: list[dict[str, list[Row]]]) -> dict[str, dict[str, float]]:
    """For each phase: median seconds of each mode, and efficiencies as medians over rounds of ratios of medians.

    ``ranks`` is t(1 rank) / t(2 ranks), ``machine`` is t(1 rank) / t(2 runs side by side), ``of_machine`` the first as
    a share of the second; ``low`` and ``high`` are the rounds' extremes of ``of_machine``.
    """
    result = {}
    for name in FIGURES:
        medians = [{mode: statistics.median(row[name] for row in done[mode]) for mode in MODES} for done in rounds]
        shares = [each["apart"] / each["two"] for each in medians]
        result[name] = {
            **{mode: statistics.median(row[name] for done in rounds for row in done[mode]) for mode in MODES},
            "ranks": statistics.median(each["one"] / each["two"] for each in medians),
            "machine": statistics.median(each["one"] / each["apart"] for each in medians),
            "of_machine": statistics.median(shares),
            "low": min(shares),
            "high": max(shares),
        }
    return result


def page_section(config: ScalingConfig, figures: dict[str, dict[str, float]]) -> str:
    """The page's table and the line below it."""
    header = ["seconds, median", *MODES.values(), "efficiency of 2 ranks", "of 2 runs", "2 ranks to 2 runs"]
    rows = [
        ["whole step" if phase == "step" else phase]
        + [f"{row[mode]:.2f}" for mode in MODES]
        + [f"{row[name]:.2f}" for name in ("ranks", "machine")]
        + [f"{row['of_machine']:.2f} ({row['low']:.2f}–{row['high']:.2f})"]
        for phase, row in figures.items()
    ]
    work = f"{config.rollouts} responses of {config.response_tokens} tokens for each rank and step"
    facts = f"{work}, {config.rounds} rounds of {config.steps} timed steps, {platform.machine()}, cores {config.cores}."
    return f"{markdown_table(header, rows)}\n\n{facts}"


@command
def main() -> None:
    if "--rank" in sys.argv:
        run_rank(Path(sys.argv[-1]))
        return
    config = parse(ScalingConfig)
    config.check()
    rounds: list[dict[str, list[Row]]] = []
    for number in range(config.rounds):
        rounds.append({})
        for mode, name in MODES.items():
            rounds[-1][mode] = run_mode(config, mode)
            median = statistics.median(row["step"] for row in rounds[-1][mode])
            print(f"round {number + 1}, {name}: {median:.2f} s a step", flush=True)
    figures = efficiencies(rounds)
    text = page_section(config, figures)
    print(text)
    if config.output_path:
        save_json(config.output_path, {"settings": asdict(config), "figures": figures, "rounds": rounds})
    write_section(config.page, "weak_scaling", text)


if __name__ == "__main__":
    main()
