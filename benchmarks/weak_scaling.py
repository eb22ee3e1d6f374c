"""Weak scaling of stage 3: one DeepSpeed rank against two, each on a core of its own, with the same work for each rank.

    python benchmarks/weak_scaling.py --output runs/benchmarks/weak_scaling.json

A Text2Grad step under ZeRO-2: as many responses for each rank as for the single one, every one of exactly
``--response_tokens`` tokens, to posts of nearly one length, judged by the programmatic critic. Two ranks can be slower
than one because they wait for each other and exchange gradients, or because the machine's cores slow each other down
(memory, clock). So two runs that know nothing of each other, side by side, are measured too: what they lose is the
machine's, and the most that two ranks could reach. Each round takes all three in turn, in new processes, whose first
step is not counted.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from benchmarks.micro.results import table, with_section
from benchmarks.step_cost import CostConfig, keep_to, ours
from nl_gradient_policy_optimization.config import PolicyConfig
from text2grad.configs import parse
from text2grad.errors import InputError, command
from text2grad.records import load_json, save_json, save_text

ROOT = Path(__file__).resolve().parent.parent
ZERO = ROOT / "nl_gradient_policy_optimization" / "deepspeed" / "zero2.json"
FIGURES = ("rollout", "reference", "update", "step")
MODES = {"one": "1 rank", "two": "2 ranks", "apart": "2 runs side by side"}

Row = dict[str, float]
"""Seconds of one step by phase, of whichever process took longest."""


@dataclass
class ScalingConfig:
    output: str = field(default="", metadata={"help": "where the figures go, JSON"})
    page: str = field(default="benchmarks/README.md", metadata={"help": "whose section is rewritten; empty: none"})
    model: str = field(default="smollm2", metadata={"help": "the policy"})
    data_path: str = field(default="quickstart/data/posts_train.json", metadata={"help": "posts in the SLF5K format"})
    posts: int = field(default=8, metadata={"help": "how many of them: those next to the median length"})
    rollouts: int = field(default=4, metadata={"help": "responses in a step on each rank, two to a prompt"})
    response_tokens: int = field(default=16, metadata={"help": "of every response"})
    steps: int = field(default=2, metadata={"help": "timed steps of a process"})
    rounds: int = field(default=3, metadata={"help": "of 1 rank, 2 ranks, 2 runs side by side"})
    cores: list[int] = field(default_factory=list, metadata={"help": "two processors; default: the first two allowed"})

    def check(self) -> None:
        """Choose the cores; raise ``InputError`` where there are not two."""
        allowed = sorted(os.sched_getaffinity(0))
        self.cores = self.cores or allowed[:2]
        if len(set(self.cores)) != 2 or not set(self.cores) <= set(allowed):
            raise InputError(f"--cores {self.cores}: needs two different ones of those allowed here, {allowed}")


def alike(posts: dict[str, dict], count: int) -> dict[str, dict]:
    """The ``count`` posts whose number of words is next to the median: ranks get other posts, but like work."""
    words = {key: len(record["post"].split()) for key, record in posts.items()}
    middle = statistics.median(words.values())
    return {key: posts[key] for key in sorted(posts, key=lambda key: abs(words[key] - middle))[:count]}


def run(config: ScalingConfig, mode: str) -> list[Row]:
    """All steps of one mode's processes, the uncounted first aside."""
    with tempfile.TemporaryDirectory() as folder:
        places = [Path(folder) / str(number) for number in range(2 if mode == "apart" else 1)]
        cores = [[core] for core in config.cores] if mode == "apart" else [config.cores[: 1 + (mode == "two")]]
        running = [_start(config, *each) for each in zip(places, cores, strict=True)]
        try:
            codes = [process.wait() for process in running]
        finally:
            for process in running:
                process.terminate()  # nothing to do for one that has ended
        if any(codes):
            raise InputError(f"{MODES[mode]}: a process ended with {max(codes, key=abs)}; the reason stands above")
        found = [load_json(path) for place in places for path in sorted(place.glob("rank-*.json"))]
    return slowest(found)


def _start(config: ScalingConfig, folder: Path, cores: list[int]) -> subprocess.Popen:
    """One run, with one rank on each of the cores."""
    save_json(folder / "posts.json", alike(load_json(config.data_path), config.posts))
    cost = CostConfig(
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


def rank(folder: Path) -> None:
    """The body of a rank: bound to its core, it writes its steps' seconds."""
    given, number = load_json(folder / "settings.json"), int(os.environ["LOCAL_RANK"])
    keep_to(given["cores"][number])
    rows = ours(PolicyConfig(**given["policy"]))
    save_json(folder / f"rank-{number}.json", rows[1:])


def slowest(found: list[list[Row]]) -> list[Row]:
    """Of processes that did the same steps: the longest that any took, for each step and phase."""
    return [{name: max(row[name] for row in rows) for name in FIGURES} for rows in zip(*found, strict=True)]


def summary(rounds: list[dict[str, list[Row]]]) -> dict[str, dict[str, float]]:
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


def section(config: ScalingConfig, figures: dict[str, dict[str, float]]) -> str:
    """The page's table and what stands below it."""
    header = ["seconds, median", *MODES.values(), "efficiency of 2 ranks", "the machine's", "2 ranks to the machine's"]
    rows = [
        ["whole step" if phase == "step" else phase]
        + [f"{row[mode]:.2f}" for mode in MODES]
        + [f"{row[name]:.2f}" for name in ("ranks", "machine")]
        + [f"{row['of_machine']:.2f} ({row['low']:.2f}–{row['high']:.2f})"]
        for phase, row in figures.items()
    ]
    work = f"{config.rollouts} responses of {config.response_tokens} tokens for each rank and step"
    facts = f"{work}; {config.rounds} rounds of {config.steps} timed steps; {platform.machine()}, cores {config.cores}."
    return f"{table(header, rows)}\n\n{facts}"


@command
def main() -> None:
    if "--rank" in sys.argv:
        rank(Path(sys.argv[-1]))
        return
    config = parse(ScalingConfig)
    config.check()
    rounds: list[dict[str, list[Row]]] = []
    for number in range(config.rounds):
        rounds.append({})
        for mode, name in MODES.items():
            rounds[-1][mode] = run(config, mode)
            median = statistics.median(row["step"] for row in rounds[-1][mode])
            print(f"round {number + 1}, {name}: {median:.2f} s a step", flush=True)
    figures = summary(rounds)
    text = section(config, figures)
    print(text)
    if config.output:
        save_json(config.output, {"settings": asdict(config), "figures": figures, "rounds": rounds})
    if config.page:
        save_text(config.page, with_section(Path(config.page).read_text(encoding="utf-8"), "weak_scaling", text))


if __name__ == "__main__":
    main()
