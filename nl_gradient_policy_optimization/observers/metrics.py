"""The figures of a step, and the progress that the screen shows."""

from collections.abc import Mapping
from typing import Any

import torch
from tqdm.auto import tqdm

from nl_gradient_policy_optimization.batch import Batch
from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.observers.base import Observer
from nl_gradient_policy_optimization.sampling import sampler_difference
from text2grad.advantages import Reduce, explained_variance

SMALL = 1e9
"""Weights below which a model is small: it wants the rates of ``small.yaml``."""
_PAPER_RATE = 1e-6


class Metrics(Observer):
    """What every step measures; and the limit on the KL."""

    def figures(self, batch: Batch) -> dict[str, float]:
        figures = measure(batch, self.run.config.kl, self.run.reduce)
        return {**figures, **(measure_effect(batch, self.run.reduce) if batch.has("new_logprobs") else {})}

    def stop_reason(self) -> str:
        limit, kl = self.run.config.kl_limit, f"kl/{self.run.config.kl}"
        above = limit and any(row.get(kl, 0) > limit for row in self.run.metrics_log.rows()[-1:])
        return f"a response's KL to the reference is above --kl_limit {limit}" if above else ""


class Progress(Observer):
    """Tells the screen what the run is about to do, and after its first step how long that will take."""

    def begin(self, run) -> None:
        super().begin(run)
        self.begun = False
        config, ranks = run.config, run.accelerator.num_processes
        prompts, responses = len(run.collector.ids), config.rollouts_per_device * ranks
        device = f"{ranks} × {run.accelerator.device}" if ranks > 1 else str(run.accelerator.device)
        run.accelerator.print(
            f"{config.algorithm.label}: {prompts} prompts, {run.total_steps} steps of {responses} responses, on "
            f"{device} in {str(run.learner.scorer.base.dtype).removeprefix('torch.')}; critic: {run.rewards.name}"
        )
        weights = sum(
            getattr(each, "ds_numel", each.numel()) for each in run.learner.scorer.base.parameters()
        )  # ZeRO-3's
        if weights < SMALL and config.lora_r and config.learning_rate <= _PAPER_RATE:
            run.accelerator.print(
                f"{config.model} has {weights / 1e6:.0f}M weights, and --learning_rate {config.learning_rate:g} is the "
                "paper's for 8B: it will hardly learn. Add --config nl_gradient_policy_optimization/small.yaml"
            )

    def after_step(self, metrics: Mapping[str, float]) -> None:
        left = self.run.total_steps - self.run.finished_steps
        if self.begun or not left:
            return
        self.begun = True
        seconds = sum(self.run.costs.seconds.values())
        if self.run.accelerator.is_main_process:
            rest = tqdm.format_interval(left * seconds)
            tqdm.write(f"the first step took {seconds:.1f} s; the other {left} will take about {rest}")


def measure(batch: Batch, kl: str, reduce: Reduce) -> dict[str, float]:
    """Figures of a step over all ranks; per-token shares count the response tokens of rollouts with feedback."""
    counting = batch.mask.bool()
    deltas = batch.deltas[counting].double()
    feedback = [rollout.received for rollout in batch.rollouts]
    judged = ~batch.scores.isnan() & (batch.counts > 0)
    sums: dict[str, Any] = {
        "tokens": len(deltas),
        "delta": deltas.sum(),
        "positive": (deltas > 0).sum(),
        "negative": (deltas < 0).sum(),
        "verdict": batch.scores[judged].double().sum(),
        "judged": judged.sum(),
        "missing": (batch.missing * batch.counts).sum(),
        "reward": batch.given[counting].double().sum(),
        "counting": batch.counts.sum(),
        "matched": sum(each.matched for each in feedback),
        "unmatched": sum(each.unmatched for each in feedback),
        "conflicts": sum(each.conflicts for each in feedback),
        "all": len(batch),
        "length": batch.response_mask.sum(),
        "finished": sum(rollout.finished for rollout in batch.rollouts),
        "kl": batch.kl.double().sum(),
        "entropy": batch.entropy.double().sum(),
    }
    reduced = reduce(torch.tensor([float(value) for value in sums.values()]).double()).tolist()
    total = dict(zip(sums, reduced, strict=True))
    tokens = max(total["tokens"], 1)
    values, returns, mask = batch.values.double(), batch.returns.double(), batch.mask.double()
    return {
        "delta/mean": total["delta"] / tokens,
        "delta/positive": total["positive"] / tokens,
        "delta/negative": total["negative"] / tokens,
        "verdict/mean": total["verdict"] / max(total["judged"], 1),
        "missing/mean": total["missing"] / max(total["counting"], 1),
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
    result = {}
    for kind, chosen in (("praised", deltas > 0), ("criticised", deltas < 0), ("other", deltas == 0)):
        part = moved[chosen]
        count, rose, total = reduce(
            torch.stack([torch.tensor(len(part)).double(), (part > 0).sum(), part.sum()])
        ).tolist()
        result[f"effect/{kind}_rose"] = rose / max(count, 1)
        result[f"effect/{kind}_moved"] = total / max(count, 1)
    return result


def shown_figures(metrics: Mapping[str, float], config: PolicyConfig) -> dict[str, str]:
    """The few of a step that the progress bar shows; a scalar reward model gives no δ."""
    name, key = ("reward", "reward/mean") if config.critic.startswith("scalar:") else ("δ", "delta/mean")
    return {
        name: f"{metrics[key]:+.3f}",
        "KL": f"{metrics[f'kl/{config.kl}']:.3g}",
        "H": f"{metrics['entropy']:.2f}",
        "spans": f"{metrics['spans/matched']:.0f}",
    }
