"""Responses to learn from, and others to be examined on: made once, where they are missing.

python benchmarks/learnt_critics/make_responses.py --output_dir runs/learnt_critics
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.learnt_critics.annotated import first_responses, make_responses
from benchmarks.micro.critic import ProfileCritic
from benchmarks.micro.policy import BaseSettings, base_policy
from benchmarks.micro.protocol import Protocol
from benchmarks.micro.runs import Materials, config_of, method_of, training_prompts
from benchmarks.micro.task import PROFILES
from nl_gradient_policy_optimization.optimize import prepare
from nl_gradient_policy_optimization.rewards import CriticRewards
from text2grad.configs import parse, setting
from text2grad.errors import command
from text2grad.models import load_tokenizer
from text2grad.records import save_json

LATER = {2e-4: (10, 30, 60), 1e-3: (15, 40)}
"""Whose responses are annotated besides the starting policy's: by learning rate, the policies after so many steps. The
second rate ruins the policy, as a critic that it exploits may."""

SOURCE_SEED = 901


@dataclass(frozen=True)
class ResponsesConfig:
    """The study's starting point."""

    output_dir: str = setting("runs/learnt_critics", "where policies and responses go")
    first: int = setting(6000, "demonstrations, right and corrupted, to learn from first")
    count: int = setting(8000, "responses to learn from")
    held_out: int = setting(240, "responses to be examined on")
    base_steps: int = setting(1000, "of ordinary training that make the starting policy")


def make_materials(config: ResponsesConfig, later: Mapping[float, Sequence[int]] = LATER) -> Materials:
    """The starting policy and its prompts; beside them ``first``, ``responses`` and ``held_out.json``."""
    folder = Path(config.output_dir)
    start = base_policy(folder / "starting_policy", BaseSettings(steps=config.base_steps), seed=0)
    materials = Materials(start, training_prompts(folder / "prompts.json", Protocol().prompts))
    if not (folder / "first.json").is_file():
        save_json(folder / "first.json", first_responses(config.first, "first"))
    for name, count in (("responses", config.count), ("held_out", config.held_out)):
        path = folder / f"{name}.json"
        if not path.is_file():
            save_json(path, make_responses(start, later_policies(folder / "sources", materials, later), count, name))
    return materials


def later_policies(folder: Path, materials: Materials, later: Mapping[float, Sequence[int]]) -> list[str]:
    """Policies that the program has trained, after some steps and after many."""
    found: list[Any] = []
    for rate, steps in later.items():
        places = {step: folder / f"lr-{rate:g}-step-{step}" for step in steps}
        found += map(str, places.values())
        if all((place / "config.json").is_file() for place in places.values()):
            continue
        run = folder / f"lr-{rate:g}"
        config = config_of("text2grad", method_of("text2grad"), rate, SOURCE_SEED, run, materials, Protocol())
        tokenizer = load_tokenizer(config.model)
        trainer = prepare(PROFILES, config, CriticRewards(ProfileCritic(), PROFILES, tokenizer, config))
        for step in range(1, max(steps) + 1):
            trainer.step(step)
            if step in places:
                trainer.scorer.model.save_pretrained(places[step])
                tokenizer.save_pretrained(places[step])
    return found


@command
def main() -> None:
    torch.set_num_threads(1)
    make_materials(parse(ResponsesConfig))


if __name__ == "__main__":
    main()
