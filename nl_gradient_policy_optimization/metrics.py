"""The figures of a step."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from nl_gradient_policy_optimization.rollouts import Rollout, padded
from text2grad.advantages import Reduce, explained_variance


def measure(rollouts: Sequence[Rollout], kl: str, reduce: Reduce) -> dict[str, float]:
    """Figures of a step over all ranks; per-token shares count the response tokens of judged rollouts."""
    judged = [rollout for rollout in rollouts if rollout.counts]
    deltas = torch.tensor([delta for r in judged for delta in r.judgement.deltas or r.judgement.rewards]).double()
    sums = {
        "tokens": len(deltas),
        "delta": deltas.sum(),
        "positive": (deltas > 0).sum(),
        "negative": (deltas < 0).sum(),
        "reward": sum(sum(r.judgement.rewards) for r in judged),
        "judged": len(judged),
        "matched": sum(r.judgement.matched for r in rollouts),
        "unmatched": sum(r.judgement.unmatched for r in rollouts),
        "conflicts": sum(r.judgement.conflicts for r in rollouts),
        "all": len(rollouts),
        "length": sum(len(r.response_ids) for r in rollouts),
        "finished": sum(r.finished for r in rollouts),
        "kl": sum(r.series["kl"].double().sum() for r in rollouts),
        "entropy": sum(r.series["entropy"].double().sum() for r in rollouts),
    }
    total = dict(zip(sums, reduce(torch.tensor([float(v) for v in sums.values()]).double()).tolist(), strict=True))
    tokens = max(total["tokens"], 1)
    columns = (padded([r.series[name] for r in rollouts], torch.float64) for name in ("values", "returns"))
    mask = padded([[float(r.counts)] * len(r.response_ids) for r in rollouts], torch.float64)
    return {
        "delta/mean": total["delta"] / tokens,
        "delta/positive": total["positive"] / tokens,
        "delta/negative": total["negative"] / tokens,
        "reward/mean": total["reward"] / max(total["judged"], 1),
        "spans/matched": total["matched"],
        "spans/unmatched": total["unmatched"],
        "spans/conflicts": total["conflicts"],
        "critic/failures": total["all"] - total["judged"],
        f"kl/{kl}": total["kl"] / total["all"],
        "entropy": total["entropy"] / total["length"],
        "length/mean": total["length"] / total["all"],
        "length/finished": total["finished"] / total["all"],
        "value/explained_variance": explained_variance(*columns, mask, reduce),
    }


def measure_effect(rollouts: Sequence[Rollout], reduce: Reduce) -> dict[str, float]:
    """Did the update do what the critique says? Of rescored rollouts, over all ranks.

    The share of praised (δ > 0), criticised (δ < 0) and other tokens that became more likely, and how far each kind
    moved on average, in nats.
    """
    judged = [rollout for rollout in rollouts if rollout.counts]
    deltas = torch.tensor([delta for r in judged for delta in r.judgement.deltas or r.judgement.rewards]).double()
    empty = [torch.zeros(0)]
    moved = torch.cat([(r.series["new_logprobs"] - r.series["old_logprobs"]).double() for r in judged] or empty)
    result = {}
    for kind, chosen in (("praised", deltas > 0), ("criticised", deltas < 0), ("other", deltas == 0)):
        part = moved[chosen]
        count, rose, total = reduce(
            torch.stack([torch.tensor(len(part)).double(), (part > 0).sum(), part.sum()])
        ).tolist()
        result[f"effect/{kind}_rose"] = rose / max(count, 1)
        result[f"effect/{kind}_moved"] = total / max(count, 1)
    return result
