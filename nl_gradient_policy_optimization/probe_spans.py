"""What are a critic's spans worth? How well the methods' gradients point to a better verdict, before any training.

    python nl_gradient_policy_optimization/probe_spans.py --config quickstart/policy.yaml --task slf5k \\
        --model smollm2 --critic programmatic --data_path quickstart/data/posts_train.json --rollouts_per_device 16 \\
        --rollouts_per_prompt 4 --micro_batch_size 16 --output_dir runs/probe

It takes the settings of training, and learns nothing. The first batches give the direction in which the verdict rises:
the plain policy gradient of it has no bias, and its noise averages out. On each further batch all methods compute their
gradients from the same rollouts. A gradient's cosine with that direction grows with the root of the number of
responses while noise prevails, so its squared ratio to that of the verdict alone says what spans are worth in
responses: "–" where the verdict alone is not above 0 beyond chance, and more batches are needed. ``what to say`` leaves
out the direction in which answers only end sooner or later.
"""

import os
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tabulate import tabulate
from torch import Tensor
from tqdm.auto import tqdm

from nl_gradient_policy_optimization.algorithms import algorithm_class
from nl_gradient_policy_optimization.algorithms.base import Algorithm
from nl_gradient_policy_optimization.batch import Batch
from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.optimize import default_settings, prepare
from nl_gradient_policy_optimization.rewards import RewardSource
from nl_gradient_policy_optimization.trainer import NLGradientTrainer
from nl_gradient_policy_optimization.weights import trainable
from text2grad.advantages import before_end, leave_one_out, per_response
from text2grad.configs import TaskConfig, parse, setting
from text2grad.errors import InputError, command
from text2grad.records import save_json
from text2grad.statistics import Estimate, bootstrap, mean_interval, ratio
from text2grad.tasks import Task

ALONE = "verdict alone"
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    ALONE: ("verdict", {"token_weight": 0.0}),
    "verdict and spans": ("verdict", {}),
    "Text2Grad": ("text2grad", {}),
    "GRPO, verdict": ("grpo", {"outcome": "verdict"}),
    "RTT": ("rtt", {"rtt_end_token": True}),
    "PAPO": ("papo", {}),
    "PRIME": ("prime", {}),
    "PURE": ("pure", {}),
}
"""Each row: an algorithm, and its settings. A value head has learnt nothing before the first step."""
FIGURES = "spans.json"


@dataclass
class ProbeSettings:
    """How long to measure; everything else is said as for training."""

    truth_batches: int = setting(64, "batches that give the verdict's direction", above=0)
    batches: int = setting(64, "batches on which methods are compared", above=0)


def probe(
    settings: ProbeSettings, task: str | Task, config: PolicyConfig, rewards: RewardSource | None = None
) -> dict[str, dict[str, list[float]]]:
    """Each method's cosines, batch by batch: ``{method: {"all": […], "what to say": […]}}``."""
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:  # each would measure its own share of the batches
        raise InputError("probe_spans.py takes one process: start it without torchrun, with more --truth_batches")
    steps = settings.truth_batches + settings.batches
    weight = getattr(config.algorithm, "token_weight", None)  # with spans also where a run would leave them out
    options = {"max_steps": steps, "log_rollouts_every": 0, "token_weight": 1.0 if weight is None else weight}
    config = config.changed(algorithm="verdict", **options)
    trainer = prepare(task, config, rewards)
    batches = (feedback(trainer, step) for step in tqdm(range(1, steps + 1), "gradients", unit="batch"))
    truth = end = torch.zeros((), device=trainer.accelerator.device)
    for batch in islice(batches, settings.truth_batches):
        truth = truth + gradient(trainer, batch, plain(trainer, batch))
        ended = torch.tensor([[rollout.finished] for rollout in batch.rollouts])
        end = end + gradient(trainer, batch, (batch.mask - before_end(batch.mask)) * ended)
    what_to_say = without(truth, end)
    methods = compared(trainer)
    found: dict[str, dict[str, list[float]]] = {name: {"all": [], "what to say": []} for name in methods}
    for batch in batches:
        for name, algorithm in methods.items():
            points = gradient(trainer, batch, advantages_of(algorithm, batch))
            found[name]["all"].append(cosine(points, truth))
            found[name]["what to say"].append(cosine(without(points, end), what_to_say))
    trainer.accelerator.end_training()
    return found


def feedback(trainer: NLGradientTrainer, step: int) -> Batch:
    """A step's rollouts with their feedback, as training would have them, without a KL penalty."""
    trainer.costs.begin()
    trainer.collector.seed(step)
    batch = trainer.algorithm.on_batch(trainer.take_feedback(trainer.take_rollouts(step)))
    batch.rewards = trainer.algorithm.token_rewards(batch) * batch.mask
    return batch


def plain(trainer: NLGradientTrainer, batch: Batch) -> Tensor:
    """The verdict of each response against the others to its prompt, on every token: REINFORCE without bias."""
    worths, _ = trainer.algorithm.outcomes(batch)  # type: ignore[attr-defined]
    against = leave_one_out(worths, batch.counts, trainer.config.rollouts_per_prompt)
    return per_response(against, batch.mask)


def compared(trainer: NLGradientTrainer) -> dict[str, Algorithm]:
    """Every method that can compare as many responses to a prompt, ready for the trainer's batches."""
    own: Any = trainer.config.algorithm
    of_run = {"verdict": {"outcome": own.outcome, "token_weight": own.token_weight}}
    algorithms = {
        name: algorithm_class(kind)(**(of_run.get(kind, {}) | settings)) for name, (kind, settings) in METHODS.items()
    }
    if trainer.config.rollouts_per_prompt == 1:
        algorithms = {name: each for name, each in algorithms.items() if not each.compares_groups}
    for each in algorithms.values():
        each.begin(trainer)
    return algorithms


def advantages_of(algorithm: Algorithm, batch: Batch) -> Tensor:
    """A_t of a method, from token rewards of its own and without a KL penalty."""
    batch.rewards = algorithm.token_rewards(batch) * batch.mask
    return algorithm.advantages(batch)


def gradient(trainer: NLGradientTrainer, batch: Batch, advantages: Tensor) -> Tensor:
    """∇ of mean A_t·log π(y_t): all trainable weights in one vector."""
    scorer = trainer.learner.scorer.eval()
    weights = trainable(scorer)
    total = torch.zeros(sum(each.numel() for each in weights), device=trainer.accelerator.device)
    batch.advantages = advantages
    for _, part in batch.micro_batches(trainer.config.micro_batch_size):
        part = part.to(trainer.accelerator.device)
        logprobs = scorer(*part.inputs()).logprobs
        found = torch.autograd.grad((part.advantages * logprobs).sum() / batch.mask.sum(), weights)
        total += torch.cat([each.flatten().float() for each in found])
    return total


def cosine(first: Tensor, second: Tensor) -> float:
    """0 where one of them is nothing: a batch whose verdicts are all the same points nowhere."""
    return float(torch.nn.functional.cosine_similarity(first, second, dim=0))


def without(vector: Tensor, direction: Tensor) -> Tensor:
    """What is left of a vector beside a direction."""
    return vector - (vector @ direction) / (direction @ direction).clamp(min=1e-30) * direction


def worth(found: dict[str, dict[str, list[float]]], name: str, kind: str) -> Estimate:
    """How many times the responses the verdict alone would need: (its cosine / the verdict alone's)², with its sign."""
    pairs = np.column_stack([found[name][kind], found[ALONE][kind]])
    return bootstrap(pairs, lambda sums: ratio(sums) * np.abs(ratio(sums)))


def table(found: dict[str, dict[str, list[float]]]) -> str:
    clear = {kind: mean_interval(values).low > 0 for kind, values in found[ALONE].items()}
    rows = []
    for name, row in found.items():
        cells: list[Any] = [name]
        for kind, values in row.items():
            cells += [mean_interval(values), worth(found, name, kind) if clear[kind] else "–"]
        rows.append(cells)
    head = ["method", "cosine", "worth, in responses", "what to say: cosine", "worth, in responses"]
    return tabulate(rows, head, tablefmt="github", disable_numparse=True)


@command
def main() -> None:
    file, because = default_settings()
    chosen, settings, config = parse(TaskConfig, ProbeSettings, PolicyConfig, default_config=file, because=because)
    found = probe(settings, chosen.task, config)
    save_json(Path(config.output_dir) / FIGURES, found)
    print(table(found))


if __name__ == "__main__":
    main()
