"""Where a run may end, on all ranks together: after a step, or before anything of a step has changed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TypeVar

import torch
from accelerate import Accelerator

from nl_gradient_policy_optimization.vllm_server import SamplerError
from text2grad.errors import InputError, Interrupted, StopRunError
from text2grad.journal.interruption import Interruption

T = TypeVar("T")


class Pauses(Interruption):
    """The signals that came to any rank."""

    def __init__(self, accelerator: Accelerator):
        super().__init__()
        self.accelerator = accelerator
        self.alone = accelerator.num_processes == 1

    @contextmanager
    def droppable(self, save: Callable[[], None], common: bool) -> Iterator[None]:
        """A part of a step that changes nothing yet: where it cannot be finished, ``save`` keeps the steps before it.

        Args:
            common: it ends early on all ranks or on none (saving is the work of all of them).
        """
        try:
            with self.at_once() if self.alone else nullcontext():
                yield
        except (InputError, StopRunError, KeyboardInterrupt) as error:
            if self.alone or common or isinstance(error, SamplerError):  # which all ranks raise together
                save()
            raise

    def together(self, work: Callable[[], T]) -> T:
        """``work()`` on every rank; where it fails on one of them, or one is asked to end, it ends on all."""
        given: list[T] = []
        problem: Exception | None = None
        try:
            given.append(work())
        except (InputError, StopRunError) as error:
            problem = error
        failed, number = self._largest(float(problem is not None), float(self.asked()))
        if number:
            raise Interrupted(int(number))
        if problem is not None:
            raise problem
        if failed:
            raise StopRunError("the critic failed on another rank")
        return given[0]

    def asked_anywhere(self) -> int:
        """The signal that asked any rank to end; 0 where none did. Every rank calls it."""
        return int(self._largest(float(self.asked()))[0])

    def _largest(self, *values: float) -> list[float]:
        """Each value's maximum over all ranks."""
        if self.alone:
            return list(values)
        mine = torch.tensor([values], device=self.accelerator.device)
        return self.accelerator.gather(mine).amax(dim=0).tolist()
