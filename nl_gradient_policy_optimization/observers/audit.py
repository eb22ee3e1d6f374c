"""Is the critic still right while the policy moves? A second, trusted critic gives feedback on a share of the rollouts.

Its feedback is for the log alone: no reward comes from it. A policy that exploits its critic shows as δ of the critic
rising while δ of the trusted one does not (``audit/delta_gap``), and as tokens that one praises and the other blames
(``audit/flip_rate``).
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from threading import Lock
from typing import Any

import torch

from nl_gradient_policy_optimization.batch import Batch
from nl_gradient_policy_optimization.observers.base import Observer
from nl_gradient_policy_optimization.rewards import RewardSource
from nl_gradient_policy_optimization.rollouts import Rollout, RolloutFeedback
from text2grad.records import fingerprint

WINDOW = 20
"""Steps whose audits a stop rule pools: one step's share is a rollout or two."""
LEAST = 100
"""Tokens of a window below which a stop rule says nothing."""

COUNTS = ("rollouts", "failures", "tokens", "trusted_delta", "compared", "gap", "signed", "flips", "marked", "missed")
"""What is summed over rollouts and ranks; see :func:`count`."""


class Audit(Observer):
    """The audits' figures, and the rules that end a run by them."""

    def figures(self, batch: Batch) -> dict[str, float]:
        audits = torch.tensor([count(rollout.feedback) for rollout in batch.rollouts]).double().sum(0)
        return figures(dict(zip(COUNTS, self.run.reduce(audits).tolist(), strict=True)))

    def stop_reason(self) -> str:
        flips, gap = self.run.config.audit_flip_limit, self.run.config.audit_gap_limit
        return audit_stop_reason(self.run.judged_rows(), flips, gap) if flips or gap else ""


class AuditedRewards:
    """Rewards as another source gives them; a share of the rollouts goes to the trusted critic as well.

    A rollout's id and sampled tokens decide whether it is audited, so a resumed run audits the same ones, and neither
    ranks nor batches matter.

    Args:
        rewards: what the policy is trained with.
        trusted: the trusted critic's feedback as δ on tokens.
        share: of the rollouts, 0..1.
    """

    def __init__(self, rewards: RewardSource, trusted: RewardSource, share: float, seed: int):
        self.rewards, self.trusted, self.share, self.seed = rewards, trusted, share, seed
        self.name, self.remote = rewards.name, rewards.remote
        # A remote critic's batches come in threads of their own; a model in this process takes one of them at a time.
        self._turn: AbstractContextManager[Any] = nullcontext() if trusted.remote else Lock()

    def __call__(self, rollouts: Sequence[Rollout]) -> list[RolloutFeedback]:
        feedback = self.rewards(rollouts)
        chosen = [index for index, rollout in enumerate(rollouts) if self.audits(rollout)]
        with self._turn:
            trusted = self.trusted([rollouts[index] for index in chosen]) if chosen else []
        for index, given in zip(chosen, trusted, strict=True):
            feedback[index] = replace(feedback[index], trusted=given)
        return feedback

    def audits(self, rollout: Rollout) -> bool:
        lot = int(fingerprint([self.seed, rollout.id, rollout.response_ids])[:8], 16)
        return lot < self.share * 16**8


def count(feedback: RolloutFeedback | None) -> list[float]:
    """``COUNTS`` of one rollout; zeros where it was not audited.

    Where the critic failed, or gives no δ on tokens (a scalar reward model), only the trusted critic's δ counts.
    """
    if feedback is None or feedback.trusted is None:
        return [0.0] * len(COUNTS)
    trusted = feedback.trusted.deltas
    if trusted is None or feedback.trusted.error is not None:
        return [float(name == "failures") for name in COUNTS]
    own = feedback.deltas if feedback.error is None else None
    pairs = [] if own is None else list(zip(own, trusted, strict=True))
    signed = [mine * theirs for mine, theirs in pairs if mine and theirs]
    values = {
        "rollouts": 1,
        "tokens": len(trusted),
        "trusted_delta": sum(trusted),
        "compared": len(pairs),
        "gap": sum(mine - theirs for mine, theirs in pairs),
        "signed": len(signed),
        "flips": sum(product < 0 for product in signed),
        "marked": sum(theirs != 0 for _, theirs in pairs),
        "missed": sum(theirs != 0 and mine == 0 for mine, theirs in pairs),
    }
    return [float(values.get(name, 0)) for name in COUNTS]


def figures(total: Mapping[str, float]) -> dict[str, float]:
    """A step's figures from its counts over all ranks; a share of nothing is left out.

    ``audit/delta``: mean δ of a token by the trusted critic. ``audit/delta_gap``: by how much the critic's own exceeds
    it. ``audit/flip_rate``: of the tokens on which both have δ ≠ 0, the share with opposite signs.
    ``audit/missed_rate``: of the tokens that the trusted critic marks, the share on which the critic has δ = 0.
    """
    if not total["rollouts"] + total["failures"]:
        return {}
    result = {f"audit/{name}": total[name] for name in ("rollouts", "failures", "tokens", "compared", "signed")}
    for name, part, whole in (
        ("delta", "trusted_delta", "tokens"),
        ("delta_gap", "gap", "compared"),
        ("flip_rate", "flips", "signed"),
        ("missed_rate", "missed", "marked"),
    ):
        if total[whole]:
            result[f"audit/{name}"] = total[part] / total[whole]
    return result


def audit_stop_reason(rows: Sequence[Mapping[str, float]], flip_limit: float | None, gap_limit: float | None) -> str:
    """Why the audits of the last ``WINDOW`` steps say that the run should end; empty: they do not.

    Args:
        rows: the metrics of all steps so far.
        flip_limit, gap_limit: what ``audit/flip_rate`` and ``audit/delta_gap`` may be; None or 0: anything.
    """
    for name, whole, limit, flag in (
        ("flip_rate", "signed", flip_limit, "--audit_flip_limit"),
        ("delta_gap", "compared", gap_limit, "--audit_gap_limit"),
    ):
        if not limit:
            continue
        recent = [row for row in rows[-WINDOW:] if f"audit/{name}" in row]
        weight = sum(row[f"audit/{whole}"] for row in recent)
        if weight < LEAST:
            continue
        value = sum(row[f"audit/{name}"] * row[f"audit/{whole}"] for row in recent) / weight
        if value > limit:
            return f"audit/{name} of the last {WINDOW} steps is {value:.3g}, above {flag} {limit:g}"
    return ""
