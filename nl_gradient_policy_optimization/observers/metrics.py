"""The figures of a step."""

from collections.abc import Mapping
from typing import Any

import torch

from nl_gradient_policy_optimization.batch import Batch
from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.observers.base import Observer
from nl_gradient_policy_optimization.sampling import sampler_difference
from text2grad.advantages import Reduce, explained_variance


class Metrics(Observer):
    """What every step measures; and the limit on the KL."""

    def figures(self, batch: Batch) -> dict[str, float]:
        figures = measure(batch, self.run.config.kl, self.run.reduce)
        return {**figures, **(measure_effect(batch, self.run.reduce) if batch.has("new_logprobs") else {})}

    def stop_reason(self) -> str:
        limit, kl = self.run.config.kl_limit, f"kl/{self.run.config.kl}"
        above = limit and any(row.get(kl, 0) > limit for row in self.run.judged_rows()[-1:])
        return f"a response's KL to the reference is above --kl_limit {limit}" if above else ""


def measure(batch: Batch, kl: str, reduce: Reduce) -> dict[str, float]:
    """Figures of a step over all ranks; per-token shares count the response tokens of rollouts with feedback."""
    counting = batch.mask.bool()
    deltas = batch.deltas[counting].double()
    feedback = [rollout.received for rollout in batch.rollouts]
    judged = ~batch.scores.isnan() & (batch.counts > 0)
    tokens, counts, size, length = len(deltas), batch.counts.sum(), len(batch), batch.response_mask.sum()
    shares: dict[str, tuple[Any, Any]] = {
        "delta/mean": (deltas.sum(), tokens),
        "delta/positive": ((deltas > 0).sum(), tokens),
        "delta/negative": ((deltas < 0).sum(), tokens),
        "verdict/mean": (batch.scores[judged].double().sum(), judged.sum()),
        "missing/mean": ((batch.missing * batch.counts).sum(), counts),
        "reward/mean": (batch.given[counting].double().sum(), counts),
        f"kl/{kl}": (batch.kl.double().sum(), size),
        "entropy": (batch.entropy.double().sum(), length),
        "length/mean": (length, size),
        "length/finished": (sum(rollout.finished for rollout in batch.rollouts), size),
        "spans/matched": (sum(each.matched for each in feedback), 0),
        "spans/unmatched": (sum(each.unmatched for each in feedback), 0),
        "spans/conflicts": (sum(each.conflicts for each in feedback), 0),
        "critic/failures": (size - counts, 0),
    }
    values, returns, mask = batch.values.double(), batch.returns.double(), batch.mask.double()
    return {
        **_reduced(shares, reduce),
        "value/explained_variance": explained_variance(values, returns, mask, reduce),
        **({"sampler/difference": sampler_difference(batch, reduce)} if batch.has("sampler_logprobs") else {}),
    }


def measure_effect(batch: Batch, reduce: Reduce) -> dict[str, float]:
    """Did the update do what the critique says? Of rescored rollouts, over all ranks.

    The share of praised (δ > 0), criticised (δ < 0) and other tokens that became more likely, and how far each kind
    moved on average, in nats.
    """
    counting = batch.mask.bool()
    deltas = batch.deltas[counting]
    moved = (batch.new_logprobs - batch.old_logprobs)[counting].double()
    shares: dict[str, tuple[Any, Any]] = {}
    for kind, chosen in (("praised", deltas > 0), ("criticised", deltas < 0), ("other", deltas == 0)):
        part = moved[chosen]
        shares[f"effect/{kind}_rose"] = (part > 0).sum(), len(part)
        shares[f"effect/{kind}_moved"] = part.sum(), len(part)
    return _reduced(shares, reduce)


def _reduced(shares: Mapping[str, tuple[Any, Any]], reduce: Reduce) -> dict[str, float]:
    """Each part over all ranks, by its whole over all ranks; where that is 0, the part itself."""
    pairs = torch.tensor([[float(part), float(whole)] for part, whole in shares.values()], dtype=torch.float64)
    return {name: part / max(whole, 1) for name, (part, whole) in zip(shares, reduce(pairs).tolist(), strict=True)}


def shown_figures(metrics: Mapping[str, float], config: PolicyConfig) -> dict[str, str]:
    """The few of a step that the progress bar shows; a scalar reward model gives no δ."""
    name, key = ("reward", "reward/mean") if config.critic.startswith("scalar:") else ("δ", "delta/mean")
    return {
        name: f"{metrics[key]:+.3f}",
        "KL": f"{metrics[f'kl/{config.kl}']:.3g}",
        "H": f"{metrics['entropy']:.2f}",
        "spans": f"{metrics['spans/matched']:.0f}",
    }
