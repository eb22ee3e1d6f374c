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
