"""What a step costs: seconds by phase, critiques, and tokens."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

PHASES = ("rollout", "reference", "critique", "update")


class StepCosts:
    """Of the step that is running, on this rank.

    Attributes:
        seconds: of each phase; algorithms and observers may add phases.
        counted: critiques, and tokens that went forward and backward: what the ledger adds up.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """A step begins."""
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.counted = dict.fromkeys(("critiques", "forward_tokens", "backward_tokens"), 0.0)

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
