"""What a step and a run cost: seconds by phase, critiques, and tokens."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from text2grad.advantages import Reduce

PHASES = ("rollout", "reference", "critique", "update")
COUNTED = ("critiques", "forward_tokens", "backward_tokens")


class StepCosts:
    """Of the step that is running, on this rank; and of the steps before, on all ranks.

    Attributes:
        seconds: of each phase; algorithms and observers may add phases.
        counted: critiques, and tokens that went forward and backward.
        spent: what :meth:`ledger` has added up.
    """

    def __init__(self) -> None:
        self.spent = dict.fromkeys((*COUNTED, "seconds"), 0.0)
        self.begin()

    def begin(self) -> None:
        """A step begins."""
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.counted = dict.fromkeys(COUNTED, 0.0)

    def count(self, forward: float = 0, backward: float = 0, critiques: float = 0) -> None:
        """Add to what is counted; tokens that go backward have gone forward, too."""
        self.counted["critiques"] += critiques
        self.counted["forward_tokens"] += forward + backward
        self.counted["backward_tokens"] += backward

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the seconds that the block takes to a phase, which what is raised in it names."""
        start = time.perf_counter()
        try:
            yield
        except (MemoryError, RuntimeError) as error:
            error.add_note(f" in the phase {phase!r}")
            raise
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start

    def ledger(self, reduce: Reduce) -> dict[str, float]:
        """Add the step to what was spent: sums over all steps and ranks, by which methods compare at equal cost.

        ``critiques``: responses that a critic was asked about. ``forward_tokens``, ``backward_tokens``: tokens, prompts
        included, that went through the policy, its reference or its teacher, and tokens that a gradient went back
        through. A critic's own tokens are not in them. ``seconds``: of all phases of the steps, on the slowest rank's
        clock where ranks wait for each other.
        """
        step = torch.tensor([self.counted[name] for name in COUNTED], dtype=torch.float64)
        for name, value in zip(COUNTED, reduce(step).tolist(), strict=True):
            self.spent[name] += value
        self.spent["seconds"] += sum(self.seconds.values())
        return {f"ledger/{name}": value for name, value in self.spent.items()}
