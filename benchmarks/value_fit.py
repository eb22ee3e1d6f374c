"""How much of a policy run's returns could a value function know? Ridge regressions on hidden states, in closed form.

    python benchmarks/value_fit.py --run runs/a --others runs/b runs/c --model smollm2 --task slf5k

Each step's returns (γ = λ = 1) are predicted by heads that were fitted to earlier rollouts: of the run itself, of other
runs of the same task, or of both. An optimiser cannot do better with the same head and data, so this bounds what a
longer training of the value head, or a warm-up, can bring. States are those of the model before training, on the logged
text encoded again.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from tqdm.auto import tqdm

from nl_gradient_policy_optimization.rollouts import encode_prompt
from text2grad.configs import TaskConfig, check_given, parse, setting
from text2grad.errors import InputError, command
from text2grad.models import load_model, load_tokenizer
from text2grad.records import load_json
from text2grad.tasks import Task, get_task

PENALTIES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)


@dataclass(kw_only=True)
class ValueFitConfig(TaskConfig):
    run: str = setting("", "the policy run whose returns are predicted")
    others: list[str] = setting([], "runs whose rollouts may be known before")
    model: str = setting("smollm2", "the model before training")
    every: int = setting(1, "read every so many rollouts of the others")


@dataclass
class Returns:
    """Tokens of one step: ``features`` ``[N, H + 3]``, and what followed each, ``returns`` ``[N]``."""

    features: Tensor
    returns: Tensor


def explained_variance(predicted: Tensor, returns: Tensor) -> float:
    """1 − Var(G − V) / Var(G); 0 for a constant, below 0 for worse than that."""
    return float(1 - (returns - predicted).var() / returns.var())


def ridge(features: Tensor, returns: Tensor, penalty: float) -> Tensor:
    """The weights that minimise ‖Xw − G‖² + penalty · ‖w‖².  ``[N, F], [N] -> [F]``"""
    gram = features.T @ features + penalty * torch.eye(features.shape[1], dtype=features.dtype)
    return torch.linalg.solve(gram, features.T @ returns)


def predicted_share(target: dict[int, Returns], known: Sequence[Returns], own: bool) -> tuple[list[float], float]:
    """The explained variance of each step but the first, by the penalty that is best on average, and that penalty.

    Args:
        target: the run's steps.
        known: what is known before the run.
        own: whether the run's earlier steps are known too.
    """
    steps, best = sorted(target), ([float("-inf")], 0.0)
    for penalty in PENALTIES:
        found = []
        for step in steps[1:]:
            data = [*known, *(target[earlier] for earlier in steps if own and earlier < step)]
            weights = ridge(torch.cat([d.features for d in data]), torch.cat([d.returns for d in data]), penalty)
            found.append(explained_variance(target[step].features @ weights, target[step].returns))
        if sum(found) > sum(best[0]):
            best = found, penalty
    return best


class States:
    """Normalised hidden states of logged rollouts, as the value head reads them, with a one, t and t² beside them."""

    def __init__(self, model: str, task: Task):
        self.task, self.tokenizer = task, load_tokenizer(model)
        self.model = load_model(model).eval()

    @torch.no_grad()
    def read(self, run: str, every: int = 1) -> dict[int, Returns]:
        """The logged steps of a run."""
        rows = load_json(Path(run) / "rollouts.jsonl")
        if not rows or "rewards" not in rows[0]:
            raise InputError(f"{run}: no rollouts with rewards in its log; give a folder of a policy run")
        steps = defaultdict(list)
        for row in tqdm(rows[::every], desc=Path(run).name, unit="rollout", leave=False):
            steps[row["step"]].append(self._one(row))
        return {
            step: Returns(*(torch.cat(columns) for columns in zip(*parts, strict=True)))
            for step, parts in steps.items()
        }

    def _one(self, row: dict) -> tuple[Tensor, Tensor]:
        prompt = encode_prompt(row["prompt"], self.task, self.tokenizer)
        ids = self.tokenizer(row["response"], add_special_tokens=False).input_ids[: len(row["rewards"])]
        inputs = torch.tensor([prompt + ids], device=self.model.device)
        hidden = self.model.base_model(inputs).last_hidden_state[0, len(prompt) - 1 : -1].double().cpu()
        normalised = hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + 1e-6) / hidden.shape[-1] ** 0.5
        time = torch.arange(len(ids), dtype=torch.float64)[:, None] / 48
        returns = torch.tensor(row["rewards"], dtype=torch.float64).flip(0).cumsum(0).flip(0)[: len(ids)]
        return torch.cat([normalised, torch.ones_like(time), time, time**2], 1), returns


@command
def main() -> None:
    config = parse(ValueFitConfig)
    check_given(config, "run")
    states = States(config.model, get_task(config.task))
    target = states.read(config.run)
    known = [part for run in config.others for part in states.read(run, config.every).values()]
    ways: dict[str, tuple[list[Returns], bool]] = {"its own earlier steps": ([], True)}
    if known:
        ways |= {"the other runs": (known, False), "both": (known, True)}
    for name, (before, own) in ways.items():
        shares, penalty = predicted_share(target, before, own)
        print(
            f"{name} (penalty {penalty:g}): {sum(shares) / len(shares):.2f}, of each step "
            + json.dumps([round(share, 2) for share in shares])
        )


if __name__ == "__main__":
    main()
