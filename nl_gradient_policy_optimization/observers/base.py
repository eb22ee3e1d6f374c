"""What the trainer tells those who watch a run."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from nl_gradient_policy_optimization.batch import Batch

if TYPE_CHECKING:
    from nl_gradient_policy_optimization.trainer import NLGradientTrainer


class Observer:
    """Watches a run; every hook may be left out. The trainer is ``self.run`` once it is ready."""

    def begin(self, run: NLGradientTrainer) -> None:
        """The trainer is ready, its models are loaded."""
        self.run = weakref.proxy(run)  # a run that nobody holds any more frees its memory and files at once

    def figures(self, batch: Batch) -> dict[str, float]:
        """Metrics of a step whose updates are made, equal on all ranks. Every rank calls it."""
        return {}

    def stop_reason(self) -> str:
        """Why the run should end after ``run.judged_rows()``; empty: it should not. The main process calls it."""
        return ""
