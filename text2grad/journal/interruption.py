"""Ending a training run where nothing is lost, when a signal asks for it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from text2grad.errors import Interrupted, handling


class Interruption(ExitStack):
    """Inside, signals are noted; the loop asks for them where it can end.

    Attributes:
        number: the signal that came, or 0.
    """

    def __init__(self) -> None:
        super().__init__()
        self.number = 0
        self._raising = False
        self._launcher = os.getppid() if "LOCAL_RANK" in os.environ else None

    def __enter__(self) -> Interruption:
        self.enter_context(handling(self._note))
        return self

    def _note(self, number: int) -> None:
        self.number = self.number or number
        if self._raising:
            raise Interrupted(number)

    def asked(self) -> int:
        """The signal that asked the run to end; 0 where none did. A launcher that is gone counts as one."""
        if not self.number and self._launcher is not None and os.getppid() != self._launcher:
            self.number = signal.SIGTERM
        return self.number

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Inside, a signal raises ``Interrupted`` wherever the program is."""
        self._raising = True
        try:
            if self.number:
                raise Interrupted(self.number)
            yield
        finally:
            self._raising = False
