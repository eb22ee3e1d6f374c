"""The figures of a step."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from tqdm.auto import tqdm

from nl_gradient_policy_optimization import audit
from nl_gradient_policy_optimization.rollouts import Rollout, counting_mask, read_column
from text2grad.advantages import Reduce, explained_variance


def measure(rollouts: Sequence[Rollout], kl: str, reduce: Reduce) -> dict[str, float]:
    """Figures of a step over all ranks; per-token shares count the response tokens of rollouts with feedback."""
    counting = [rollout for rollout in rollouts if rollout.counts]
    deltas = torch.tensor([delta for r in counting for delta in r.received.deltas or r.received.rewards]).double()
    sums: dict[str, Any] = {
        "tokens": len(deltas),
        "delta": deltas.sum(),
        "positive": (deltas > 0).sum(),
        "negative": (deltas < 0).sum(),
        "reward": sum(sum(r.received.rewards) for r in counting),
        "counting": len(counting),
        "matched": sum(r.received.matched for r in rollouts),
        "unmatched": sum(r.received.unmatched for r in rollouts),
        "conflicts": sum(r.received.conflicts for r in rollouts),
        "all": len(rollouts),
        "length": sum(len(r.response_ids) for r in rollouts),
        "finished": sum(r.finished for r in rollouts),
        "kl": sum(r.columns()["kl"].double().sum() for r in rollouts),
        "entropy": sum(r.columns()["entropy"].double().sum() for r in rollouts),
    }
    audits = torch.tensor([audit.count(r.feedback) for r in rollouts]).double().sum(0).tolist()
    sums |= {f"audit/{name}": value for name, value in zip(audit.COUNTS, audits, strict=True)}
    total = dict(zip(sums, reduce(torch.tensor([float(v) for v in sums.values()]).double()).tolist(), strict=True))
    tokens = max(total["tokens"], 1)
    values, returns = (read_column(rollouts, name, torch.float64) for name in ("values", "returns"))
    mask = counting_mask(rollouts, torch.float64)
    return {
        "delta/mean": total["delta"] / tokens,
        "delta/positive": total["positive"] / tokens,
        "delta/negative": total["negative"] / tokens,
        "reward/mean": total["reward"] / max(total["counting"], 1),
        "spans/matched": total["matched"],
        "spans/unmatched": total["unmatched"],
        "spans/conflicts": total["conflicts"],
        "critic/failures": total["all"] - total["counting"],
        f"kl/{kl}": total["kl"] / total["all"],
        "entropy": total["entropy"] / total["length"],
        "length/mean": total["length"] / total["all"],
        "length/finished": total["finished"] / total["all"],
        "value/explained_variance": explained_variance(values, returns, mask, reduce),
        **audit.figures({name: total[f"audit/{name}"] for name in audit.COUNTS}),
        **({"sampler/difference": sampler_difference(rollouts, reduce)} if sampled_apart(rollouts) else {}),
    }


def sampled_apart(rollouts: Sequence[Rollout]) -> bool:
    """Whether an engine other than the policy itself sampled them, and said with which log-probabilities."""
    return rollouts[0].sampler_logprobs is not None


def sampler_difference(rollouts: Sequence[Rollout], reduce: Reduce) -> float:
    """Mean |log π_sampler − log π_old| of a response token, in nats, over all ranks; NaNs of the engine left aside."""
    columns = [rollout.columns() for rollout in rollouts]
    apart = torch.cat([(each["sampler_logprobs"] - each["old_logprobs"]).double().abs() for each in columns])
    known = apart[~apart.isnan()]
    total, count = reduce(torch.tensor([known.sum(), len(known)], dtype=torch.float64)).tolist()
    return total / max(count, 1)


def measure_effect(rollouts: Sequence[Rollout], reduce: Reduce) -> dict[str, float]:
    """Did the update do what the critique says? Of rescored rollouts, over all ranks.

    The share of praised (δ > 0), criticised (δ < 0) and other tokens that became more likely, and how far each kind
    moved on average, in nats.
    """
    counting = [rollout for rollout in rollouts if rollout.counts]
    deltas = torch.tensor([delta for r in counting for delta in r.received.deltas or r.received.rewards]).double()
    empty = [torch.zeros(0)]
    columns = [r.columns() for r in counting]
    moved = torch.cat([(each["new_logprobs"] - each["old_logprobs"]).double() for each in columns] or empty)
    result = {}
    for kind, chosen in (("praised", deltas > 0), ("criticised", deltas < 0), ("other", deltas == 0)):
        part = moved[chosen]
        count, rose, total = reduce(
            torch.stack([torch.tensor(len(part)).double(), (part > 0).sum(), part.sum()])
        ).tolist()
        result[f"effect/{kind}_rose"] = rose / max(count, 1)
        result[f"effect/{kind}_moved"] = total / max(count, 1)
    return result


def progress(finished: int, total: int, quiet: bool) -> tqdm:
    """The bar over the steps that are left."""
    return tqdm(
        range(finished + 1, total + 1), initial=finished, total=total, desc="policy", unit="step", disable=quiet
    )


def shown_figures(metrics: Mapping[str, float], kl: str) -> dict[str, str]:
    """The few of a step that the progress bar shows."""
    return {
        "δ": f"{metrics['delta/mean']:+.3f}",
        "KL": f"{metrics[f'kl/{kl}']:.3g}",
        "H": f"{metrics['entropy']:.2f}",
        "spans": f"{metrics['spans/matched']:.0f}",
    }


@contextmanager
def timed(seconds: dict[str, float], phase: str) -> Iterator[None]:
    """Add the seconds that the block takes to ``seconds[phase]``."""
    start = time.perf_counter()
    yield
    seconds[phase] += time.perf_counter() - start
