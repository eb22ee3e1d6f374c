"""A real small model on requests whose rules programs check: what verdicts add to spans, and spans to verdicts.

    python benchmarks/instructions/study.py --output_dir runs/benchmarks/instructions

The critic is what the checkers say: each violation quoted, with a sentence that explains it. Every policy answers
requests that no run has seen, by sampling as in training, before and after. A policy passes where no checker objects. A
killed study goes on where it was, and ``--methods`` and ``--seeds`` may be given bit by bit.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

from benchmarks.instructions.checks import passes, words_of
from benchmarks.instructions.make_requests import KINDS, make_requests
from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.optimize import optimize
from text2grad.configs import parse, setting
from text2grad.errors import InputError, command
from text2grad.models.answering import LocalPolicy, SamplingConfig
from text2grad.records import check_same_settings, load_json, save_json
from text2grad.statistics import mean_interval
from text2grad.tasks import get_task

HERE = Path(__file__).parent
TASK, CRITIC = f"{HERE / 'task.py'}:TASK", "benchmarks.instructions.critic:judge"
_VERDICT = {"unfinished_reward": -1.0}  # in units of the verdict, which lies in −1..1
_FAST = {"learning_rate": 8e-4}  # better than the others' 4e-4 in the sweep of instructions.md
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "text2grad": ("Text2Grad", {}),
    "distill": ("Text2Grad, teacher: distill", {"teacher": "distill"}),
    "sdpo": ("SDPO", {"teacher": "all", "teacher_weights": "average", "teacher_alpha": 0.5}),
    "ppo": ("PPO, sum of δ at the last token", {"reward_placement": "last_sum"}),
    "ppo_verdict": (
        "PPO, verdict at the last token, λ = 1",
        {**_VERDICT, "reward_placement": "last_verdict", "lam": 1.0},
    ),
    "grpo_verdict": ("GRPO, verdict", {**_VERDICT, **_FAST, "algorithm": "grpo", "outcome": "verdict"}),
    "verdict_alone": ("verdict alone", {**_VERDICT, **_FAST, "algorithm": "verdict", "token_weight": 0.0}),
    "verdict": ("verdict and spans", {**_VERDICT, **_FAST, "algorithm": "verdict"}),
}
START = "start"


@dataclass
class InstructionsConfig:
    """One study; all methods share everything but what ``METHODS`` says."""

    output_dir: str = setting("runs/benchmarks/instructions", "folder of the runs")
    model: str = setting("smollm2", "the policy")
    methods: list[str] = setting(
        ["verdict", "ppo_verdict", "grpo_verdict"], f"methods to train, of start (none), {', '.join(METHODS)}"
    )
    seeds: list[int] = setting([1, 2, 3], "seeds of the runs")
    steps: int = setting(20, "steps of a run")
    rollouts: int = setting(16, "responses in a step")
    group: int = setting(4, "of them to the same request")
    learning_rate: float | None = setting(None, "of the adapter; by default each method's, from a sweep")
    kinds: list[str] = setting(list(KINDS), f"kinds of requests, of {', '.join(KINDS)}")
    requests: int = setting(400, "training requests")
    held_out: int = setting(200, "held-out requests")
    max_new_tokens: int = setting(48, "longest answer")

    def check(self) -> None:
        if unknown := set(self.methods) - {START, *METHODS}:
            raise InputError(f"--methods {', '.join(sorted(unknown))}: choose from {', '.join([START, *METHODS])}")
        if unknown := set(self.kinds) - set(KINDS):
            raise InputError(f"--kinds {', '.join(sorted(unknown))}: choose from {', '.join(KINDS)}")

    def policy(self, method: str, seed: int, folder: Path) -> PolicyConfig:
        """The settings of the quickstart's policy, but for lengths and rewards of length: the checkers see to those."""
        shared = {
            "model": self.model,
            "data_path": str(Path(self.output_dir) / "requests.json"),
            "output_dir": str(folder),
            "critic": CRITIC,
            "method": method,
            "seed": seed,
            "max_steps": self.steps,
            "rollouts_per_device": self.rollouts,
            "rollouts_per_prompt": self.group,
            "max_new_tokens": self.max_new_tokens,
            "unfinished_reward": -6.0,
            "ppo_epochs": 2,
            "micro_batch_size": self.rollouts,
            "optimizer": "adamw",
            "learning_rate": 4e-4,
            "lr_schedule": "constant",
            "lora_dropout": 0.0,
            "value_clip_range": None,
            "value_learning_rate": 0.05,
            "kl_coef": 0.05,
            "kl_target": None,
            "save_every": 10,
            "save_total_limit": 1,
            "keep_policies": False,
            "report_to": ["none"],
        }
        chosen = {} if self.learning_rate is None else {"learning_rate": self.learning_rate}
        return PolicyConfig.of(**{**shared, **METHODS[method][1], **chosen})


def answer(model: str, requests: Sequence[dict[str, Any]], max_new_tokens: int) -> list[dict[str, Any]]:
    """Sampled answers, and whether the checkers pass them."""
    policy = LocalPolicy(model)
    chats = [get_task(TASK).messages(each["prompt"]) for each in requests]
    replies = []
    for start in range(0, len(chats), policy.batch_size):
        part = slice(start, start + policy.batch_size)
        ids = [each["id"] for each in requests[part]]
        replies += policy(chats[part], ids, SamplingConfig(max_new_tokens, temperature=1.0))
    rows = []
    for request, reply in zip(requests, replies, strict=True):
        if isinstance(reply, Exception):
            raise reply
        right = reply.finished and passes(reply.text, request["rules"])
        rows.append({"id": request["id"], "kind": request["kind"], "response": reply.text, "passes": right})
    return rows


def evaluated(folder: Path, model: str, settings: dict[str, Any], config: InstructionsConfig) -> list[dict[str, Any]]:
    """The policy's answers to held-out requests, from its folder where they are there.

    Raises:
        InputError: the folder's answers are of other settings.
    """
    path = folder / "answers.json"
    if not path.is_file():
        requests = make_requests(config.held_out, 0, held_out=True, kinds=config.kinds)
        save_json(path, {"settings": settings, "answers": answer(model, requests, config.max_new_tokens)})
    stored = load_json(path)
    check_same_settings(folder, stored["settings"], settings, "choose another --output_dir, or delete it")
    return stored["answers"]


def train_and_evaluate(config: InstructionsConfig) -> dict[str, list[list[dict[str, Any]]]]:
    """The answers of the starting model, and of each method's seeds."""
    folder = Path(config.output_dir)
    save_json(folder / "requests.json", make_requests(config.requests, 0, False, config.kinds))
    settings = {name: value for name, value in asdict(config).items() if name not in ("methods", "seeds")}
    found = {START: [evaluated(folder / START, config.model, settings, config)]}
    for seed in config.seeds:
        for method in [name for name in config.methods if name != START]:
            run = folder / method / f"seed-{seed}"
            if not (run / "answers.json").is_file():
                optimize(TASK, config.policy(method, seed, run))
            found.setdefault(method, []).append(evaluated(run, str(run / "policy"), settings, config))
    return found


def table(found: dict[str, list[list[dict[str, Any]]]], shown_kinds: Sequence[str]) -> str:
    """Pass rates (intervals over seeds), how far a method's are above the first one's, and those of each kind."""
    rates = {
        name: np.array([np.mean([each["passes"] for each in run]) for run in runs]) for name, runs in found.items()
    }
    first = next((name for name in found if name != START), START)
    rows = []
    for name, runs in found.items():
        paired = name not in (START, first)
        kinds = [[each["passes"] for run in runs for each in run if each["kind"] == kind] for kind in shown_kinds]
        rows.append(
            [
                METHODS[name][0] if name in METHODS else "before training",
                str(mean_interval(rates[name])),
                ", ".join(f"{rate:.2f}" for rate in rates[name]),
                str(mean_interval(rates[name] - rates[first])) if paired else "",
                f"{np.mean([len(words_of(each['response'])) for run in runs for each in run]):.0f}",
                *(f"{np.mean(kind):.2f}" if kind else "–" for kind in kinds),
            ]
        )
    header = ["policy", "pass rate", "each seed", "above the first", "words", *shown_kinds]
    return tabulate(rows, [each.replace("_", " ") for each in header], tablefmt="github", disable_numparse=True)


@command
def main() -> None:
    config = parse(InstructionsConfig)
    config.check()
    print(table(train_and_evaluate(config), config.kinds))


if __name__ == "__main__":
    main()
