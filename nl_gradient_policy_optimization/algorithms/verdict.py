"""Verdict, spans and what is missing, each in its place: how good a response is, where in it, and where it stopped.

δ summed up makes each further token pay where most is praised, and cost where most is blamed. Here a response is
compared with the others by its verdict, each token by the spans with the response's other tokens, and the end token by
what the response lacks. Spans and missing things count as far as they agree with the verdict
(:func:`text2grad.advantages.verdict_advantages`).

Where responses pass or fail as a whole, spans were worth no more than the verdict, or less (``benchmarks/code.md`` and
``instructions.md``): in such tasks (``Task.passes_or_fails``) this is GRPO on the verdict unless ``--token_weight`` is
given.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from nl_gradient_policy_optimization.algorithms.grpo import GRPO
from nl_gradient_policy_optimization.batch import Batch
from text2grad.advantages import before_end, centred, leave_one_out, verdict_advantages
from text2grad.configs import setting
from text2grad.errors import InputError
from text2grad.records import load_json, save_json

STATE_FILE = "verdict.json"


@dataclass
class Verdict(GRPO):
    """Clipped PPO on all three, without a value head; prompts may have one response or several."""

    name = "verdict"
    compares_groups = False

    outcome: Literal["auto", "sum", "mean", "verdict"] = setting(  # type: ignore[assignment]
        "auto", "as in grpo; auto: the verdict once the critic has given one or named a missing thing, else the sum"
    )
    token_weight: float | None = setting(
        None,
        "verdict: weight of spans and missing things where they agree with the verdict; 0: leave them out (default: 1; "
        "where responses pass or fail as a whole, as in kodcode: the advantages of grpo)",
        at_least=0,
    )

    def __post_init__(self) -> None:
        self.as_grpo = False
        self.told = False  # whether the critic has said more than quotes can
        self.begin_with("")

    def begin(self, run) -> None:
        super().begin(run)
        if run.config.rollouts_per_device * run.accelerator.num_processes < 2:
            raise InputError("--algorithm verdict compares a step's responses; set --rollouts_per_device to 2 or more")
        self.as_grpo = self.token_weight is None and run.task.passes_or_fails
        if self.as_grpo:
            self.told = True  # without one of the critic's, the verdict is derived from quotes
            run.accelerator.print(
                f"{run.task.name}: responses pass or fail as a whole, so their verdicts are compared, as by grpo; "
                "--token_weight 1 adds spans"
            )

    def begin_with(self, kind: str) -> None:
        """The first step in which what a response is worth has this kind: sums and verdicts differ in size."""
        self.kind = kind
        self.steps, self.squares = 0, [0.0, 0.0, 0.0]  # steps so far, and the sums of the channels' mean squares

    def outcome_of(self, batch: Batch) -> str:
        """A verdict derived from quotes alone knows no length: a short answer without a fault would be the best."""
        kind: str = self.outcome
        if kind == "auto":
            given = [each.received for each in batch.rollouts]
            told = any(each.missing or (each.score is not None and each.score_source == "given") for each in given)
            self.told = self.told or bool(self.run.reduce(torch.tensor(float(told))))
            kind = "verdict" if self.told else "sum"
        if kind != self.kind:
            self.begin_with(kind)
        return kind

    def score_options(self) -> dict[str, Any]:
        ends = {} if self.as_grpo else {"ends": list(self.run.collector.end_ids)}
        return {**super().score_options(), **ends}

    def advantages(self, batch: Batch) -> Tensor:
        if self.as_grpo:
            return super().advantages(batch)
        size, (worths, scores) = self.run.config.rollouts_per_prompt, self.outcomes(batch)
        deltas = batch.rewards
        # Scaled, KL penalties would be all there is where responses are worth the same, or no span tells tokens apart.
        if self._nothing(leave_one_out(worths, batch.counts, size, self.run.reduce)):
            scores = worths
        if self._nothing(centred(self.token_rewards(batch), before_end(batch.mask))):
            deltas = torch.zeros_like(deltas)
        unfinished = torch.tensor([not rollout.finished for rollout in batch.rollouts])
        advantages, squares = verdict_advantages(
            deltas,
            batch.mask,
            scores,
            batch.missing.masked_fill(unfinished, float("nan")),
            batch.extra["at"].exp().sum(-1),
            size,
            1.0 if self.token_weight is None else self.token_weight,
            [total / max(1, self.steps) for total in self.squares],
            self.run.reduce,
            torch.tensor([not rollout.blank for rollout in batch.rollouts]),
        )
        self.steps += 1
        self.squares = [total + now for total, now in zip(self.squares, squares, strict=True)]
        return advantages

    def save(self, folder: Path) -> None:
        save_json(folder / STATE_FILE, {name: getattr(self, name) for name in ("told", "kind", "steps", "squares")})

    def load(self, folder: Path) -> None:
        for name, value in load_json(folder / STATE_FILE).items():
            setattr(self, name, value)
