"""Policies trained with a learnt critic, with a scalar reward model, or with the program: one run each, resumable.

    python benchmarks/learnt_critics/policies.py --critics FOLDER --names evidence-1000 --seeds 1 2 3

Beside the policy's quality a run keeps how right the critic is on the policy's own responses, step by step.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from benchmarks.learnt_critics.quality import figures, rounded_figures
from benchmarks.micro.critic import ProfileCritic
from benchmarks.micro.methods import Method
from benchmarks.micro.protocol import HeldOutEvaluation, Protocol
from benchmarks.micro.runs import Materials, config_of, learnt_critic
from benchmarks.micro.task import PROFILES
from nl_gradient_policy_optimization.baselines.scalar_model import DESCRIPTION_FILE, ScalarRewards
from nl_gradient_policy_optimization.optimize import prepare
from nl_gradient_policy_optimization.rewards import CriticRewards, RewardSource
from text2grad.configs import parse, setting
from text2grad.critics import Critic, Feedback
from text2grad.errors import InputError, command
from text2grad.models import load_tokenizer
from text2grad.records import load_json, save_json
from text2grad.token_rewards import token_rewards

RESULT = "result.json"
PROGRAM = "program"
"""A run's name for the perfect critic."""


@dataclass(frozen=True)
class PoliciesConfig:
    """Which policies to train."""

    output_dir: str = setting("runs/learnt_critics", "the study's folder")
    critics: list[str] = field(
        default_factory=list, metadata={"help": "folders of critics or scalar models, or program"}
    )
    names: list[str] = field(default_factory=list, metadata={"help": "a name for each, of the run's folder"})
    placement: str = setting("token", "token, or last_sum: the sum of δ on the last token")
    rates: list[float] = field(default_factory=lambda: [2e-4], metadata={"help": "learning rates"})
    seeds: list[int] = field(default_factory=lambda: [1], metadata={"help": "of the policies"})
    steps: int = setting(60, "steps of a run")


class Watched:
    """A critic beside the program: whatever it says, and how right that was."""

    def __init__(self, critic: Critic, tokenizer):
        self.critic, self.tokenizer, self.name = critic, tokenizer, critic.name
        self.program = ProfileCritic()
        self.rows: list[dict[str, float | None]] = []

    def __call__(self, prompts, responses, records=None):
        replies = self.critic(prompts, responses, records)
        truths: list[np.ndarray] = []
        said: list[np.ndarray] = []
        for response, record, reply in zip(responses, records, replies, strict=True):
            ids = self.tokenizer(response, add_special_tokens=False)["input_ids"]
            truth = self.program.feedback_on(record, response)
            for rows, feedback in ((truths, truth), (said, reply)):
                labels = [0.0] * len(ids)
                if isinstance(feedback, Feedback):
                    labels = token_rewards(ids, self.tokenizer, feedback, PROFILES).values
                rows.append(np.array(labels))
        row = figures(truths, said)
        row["delta"] = float(np.concatenate(said).mean())
        row["true_delta"] = float(np.concatenate(truths).mean())
        self.rows.append(rounded_figures(row))
        return replies


def critic_at(folder: str) -> Critic:
    if folder == PROGRAM:
        return ProfileCritic()
    return learnt_critic(Path(folder))


def run(folder: Path, critic: str, placement: str, rate: float, seed: int, materials: Materials, steps: int) -> None:
    """One policy's curve, in ``result.json``; nothing is done where it is there.

    Raises:
        InputError: the folder holds a run with other settings.
    """
    protocol = Protocol(steps=steps)
    settings = {"critic": critic, "placement": placement, "rate": rate, "seed": seed, "protocol": protocol.described()}
    if (folder / RESULT).is_file():
        if load_json(folder / RESULT)["settings"] != settings:
            raise InputError(f"{folder}: holds a run with other settings; choose another of --names, or delete it")
        return
    method = Method("", {"reward_placement": placement})
    config = config_of("text2grad", method, rate, seed, folder, materials, protocol)
    tokenizer = load_tokenizer(config.model)
    watched: Watched | None = None
    rewards: RewardSource
    if (Path(critic) / DESCRIPTION_FILE).is_file():
        rewards = ScalarRewards(critic, PROFILES, config)
    else:
        watched = Watched(critic_at(critic), tokenizer)
        rewards = CriticRewards(watched, PROFILES, tokenizer, config)
    begun = time.process_time()
    trainer = prepare(PROFILES, config, rewards)
    measure = HeldOutEvaluation(tokenizer, config, protocol)
    curve = [measure(trainer.scorer.model, 0)]
    for step in range(1, steps + 1):
        trainer.step(step)
        if step % protocol.evaluate_every == 0:
            curve.append(measure(trainer.scorer.model, step))
    result = {"settings": settings, "curve": curve, "audit": watched.rows if watched else []}
    (folder / "rollouts.jsonl").unlink(missing_ok=True)  # megabytes; no figure needs them
    save_json(folder / RESULT, {**result, "processor_seconds": round(time.process_time() - begun, 1)})


def train_all(config: PoliciesConfig) -> None:
    study = Path(config.output_dir)
    materials = Materials(str(study / "starting_policy"), str(study / "prompts.json"))
    if not Path(materials.prompts).is_file():
        raise InputError(f"{materials.prompts}: does not exist; run make_responses.py first")
    for seed in config.seeds:
        for rate in config.rates:
            for name, critic in zip(config.names, config.critics, strict=True):
                folder = Path(config.output_dir) / "policies" / name / f"lr-{rate:g}" / f"seed-{seed}"
                run(folder, critic, config.placement, rate, seed, materials, config.steps)
                print(folder, load_json(folder / RESULT)["curve"][-1], flush=True)


@command
def main() -> None:
    torch.set_num_threads(1)
    train_all(parse(PoliciesConfig))


if __name__ == "__main__":
    main()
