"""The methods that are compared: what each changes in Text2Grad's settings, and nothing else."""

from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.micro.noise import KINDS
from text2grad.errors import InputError


@dataclass(frozen=True)
class Method:
    """One line of a table.

    Attributes:
        label: its name for readers.
        settings: fields of ``PolicyConfig`` that differ from Text2Grad's.
        trl: it is trained by TRL's GRPOTrainer, and not by this project's trainer.
        noise: the critic's errors: their kind, and the share of spans that have them.
        tuned_as: the method whose learning rate it takes; if empty, its own is swept.
    """

    label: str
    settings: dict[str, Any] = field(default_factory=dict)
    trl: bool = False
    noise: tuple[str, float] | None = None
    tuned_as: str = ""


_GROUPS = {"rollouts_per_prompt": 4}
_PPO, _TEACHER = {"algorithm": "scalar"}, {"algorithm": "teacher"}
_ATTEMPTS = {"algorithm": "second", "rollouts_per_prompt": 2, "micro_batch_size": 8}
METHODS = {
    "text2grad": Method("Text2Grad"),
    "ppo_sum": Method("PPO, sum of δ at the last token", {**_PPO, "reward_placement": "last_sum"}),
    "ppo_mean": Method("PPO, mean of δ at the last token", {**_PPO, "reward_placement": "last_mean"}),
    "ppo_sum_lambda_1": Method(
        "PPO, sum at the last token, λ = 1", {**_PPO, "reward_placement": "last_sum", "lam": 1.0}
    ),
    "verdict": Method("verdict and spans", {"algorithm": "verdict"}),
    "verdict_alone": Method("verdict alone", {"algorithm": "verdict", "token_weight": 0.0}),
    "ppo_verdict": Method(
        "PPO, verdict at the last token, λ = 1", {**_PPO, "reward_placement": "last_verdict", "lam": 1.0}
    ),
    "grpo_verdict": Method("GRPO, verdict", {**_GROUPS, "algorithm": "grpo", "outcome": "verdict"}),
    "dr_grpo": Method("Dr. GRPO, verdict", {**_GROUPS, "algorithm": "dr_grpo", "outcome": "verdict"}),
    "rtt": Method("RTT, end token left out", {**_GROUPS, "algorithm": "rtt"}),
    "rtt_published": Method("RTT", {**_GROUPS, "algorithm": "rtt", "rtt_end_token": True}),
    "papo": Method("PAPO", {**_GROUPS, "algorithm": "papo"}),
    "pure": Method("PURE", {**_GROUPS, "algorithm": "pure"}),
    "prime": Method("PRIME", {**_GROUPS, "algorithm": "prime"}),
    "verdict_groups": Method("verdict and spans, four responses a prompt", {**_GROUPS, "algorithm": "verdict"}),
    "grpo": Method("GRPO (TRL), sum of δ", _GROUPS, trl=True),
    "decay": Method("linear decay over a span", {"scheme": "decay"}),
    "importance": Method("token importance (nouns and verbs)", {"scheme": "importance"}),
    "dense": Method("dense: every word ±1", {"scheme": "dense"}),
    "ahead": Method("Text2Grad, `rollouts_ahead`", {"rollouts_ahead": True}),
    "weight": Method("Text2Grad, teacher: weight", {**_TEACHER, "teacher": "weight"}),
    "gate": Method("Text2Grad, teacher: gate", {**_TEACHER, "teacher": "gate"}),
    "distill": Method("Text2Grad, teacher: distill", {**_TEACHER, "teacher": "distill"}),
    "gate_distill": Method("Text2Grad, teacher: gate and distill", {**_TEACHER, "teacher": "gate+distill"}),
    "verdict_distill": Method(
        "verdict and spans, teacher: distill", {"algorithm": "verdict_teacher", "teacher": "distill"}
    ),
    "sdpo_fixed": Method("SDPO, fixed teacher, reverse KL", {**_TEACHER, "teacher": "all"}),
    **{
        f"sdpo_{percent}": Method(
            f"SDPO, a teacher that moves by {percent} %", {"algorithm": "sdpo", "teacher_rate": percent / 100}
        )
        for percent in (1, 5, 20)
    },
    "rltf_sd": Method("RLTF-SD", {**_ATTEMPTS, "learn": "rltf_sd"}),
    "critique_grpo": Method("Critique-GRPO", {**_ATTEMPTS, "learn": "critique_grpo"}),
    "capo": Method("CAPO", {**_GROUPS, "algorithm": "capo"}),
}


def method_of(name: str) -> Method:
    """A method by name; ``flip-10``, ``always-25`` … are Text2Grad with a critic that errs so often.

    ``flip-25-ppo_sum`` is another method with that critic.
    """
    if name in METHODS:
        return METHODS[name]
    kind, _, rest = name.partition("-")
    percent, _, base = rest.partition("-")
    base = base or "text2grad"
    if kind not in KINDS or not percent.isdigit() or base not in METHODS:
        raise InputError(f"there is no method {name!r}; choose from {', '.join(METHODS)}, or flip-10, always-25")
    clean = METHODS[base]
    label = f"{KINDS[kind]}: {percent} %" + ("" if base == "text2grad" else f", {clean.label}")
    return replace(clean, label=label, noise=(kind, int(percent) / 100), tuned_as=clean.tuned_as or base)
