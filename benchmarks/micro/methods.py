"""The methods that are compared: what each changes in Text2Grad's settings, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from benchmarks.micro.noise import KINDS
from text2grad.errors import InputError


@dataclass(frozen=True)
class Method:
    """One line of a table.

    Attributes:
        label: its name for readers.
        settings: fields of ``PolicyConfig`` that differ from Text2Grad's.
        engine: ``text2grad`` (this project's trainer) or ``trl`` (TRL's GRPOTrainer).
        reward_model: rewarded by a trained scalar reward model in place of the critic.
        noise: the critic's errors: their kind, and the share of spans that have them.
        tuned_as: the method whose learning rate it takes; its own is swept where this is empty.
    """

    label: str
    settings: dict[str, Any] = field(default_factory=dict)
    engine: str = "text2grad"
    reward_model: bool = False
    noise: tuple[str, float] | None = None
    tuned_as: str = ""


METHODS = {
    "text2grad": Method("Text2Grad"),
    "ppo_sum": Method("PPO, sum of δ at the last token", {"reward_placement": "last_sum"}),
    "ppo_mean": Method("PPO, mean of δ at the last token", {"reward_placement": "last_mean"}),
    "ppo_sum_lambda_1": Method("PPO, sum at the last token, λ = 1", {"reward_placement": "last_sum", "lam": 1.0}),
    "ppo_reward_model": Method("PPO, trained scalar reward model", reward_model=True),
    "grpo": Method("GRPO (TRL), sum of δ", {"reward_placement": "last_sum"}, engine="trl"),
    "decay": Method("linear decay over a span", {"scheme": "decay"}),
    "importance": Method("token importance (nouns and verbs)", {"scheme": "importance"}),
    "dense": Method("dense: every word ±1", {"scheme": "dense"}),
    "continuous": Method("continuous: every word graded in −1..1", {"scheme": "continuous"}),
    "group": Method("group advantages, no value function", {"advantage": "group", "rollouts_per_prompt": 4}),
}
_NOISE_LABELS = {"drop": "spans lost", "shift": "spans shifted", "flip": "signs flipped"}


def method_of(name: str) -> Method:
    """A method by name; ``drop-10``, ``shift-25``, ``flip-50`` … are Text2Grad with a critic that errs so often.

    ``flip-25-ppo_sum`` is another method with that critic.
    """
    if name in METHODS:
        return METHODS[name]
    kind, _, rest = name.partition("-")
    percent, _, base = rest.partition("-")
    base = base or "text2grad"
    if kind not in KINDS or not percent.isdigit() or base not in METHODS:
        raise InputError(
            f"there is no method {name!r}; choose from {', '.join(METHODS)}, or drop-10, shift-25, flip-50"
        )
    clean = METHODS[base]
    label = f"{_NOISE_LABELS[kind]}: {percent} %" + ("" if base == "text2grad" else f", {clean.label}")
    return Method(
        label, clean.settings, clean.engine, clean.reward_model, (kind, int(percent) / 100), clean.tuned_as or base
    )
