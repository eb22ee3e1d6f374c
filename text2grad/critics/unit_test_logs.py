"""Records for a critic that reads the log of their unit tests: new programs have none, so their tests are run first."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from text2grad.critics import Critic, OwnCritic
from text2grad.errors import InputError
from text2grad.tasks import Record, Task

if TYPE_CHECKING:
    from text2grad.sandbox import Sandbox

Complete = Callable[[Sequence[Record]], list[Record]]


def shows_log(critic: Critic, task: Task) -> bool:
    """Whether the critic's prompt file has a place for the log of unit tests."""
    prompt: Any = getattr(critic, "prompt", None)
    return task.has_unit_tests and "log" in getattr(getattr(prompt, "prompt", prompt), "names", ())


def log_completion(
    critic: Critic, task: Task, run_tests: bool | None = None, sandbox: Sandbox | None = None
) -> Complete:
    """What completes records before ``critic`` sees them: a log where they have tests and no log yet.

    Args:
        run_tests: None: where the critic's prompt shows the log.
        sandbox: where they run; by default one with the usual limits.

    Raises:
        InputError: the tests should be run, but the task has none, or the critic would not see their log.
    """
    if run_tests and not task.has_unit_tests:
        raise InputError(f"--run_tests: records of {task.name} have no unit tests; leave the flag out")
    sees = shows_log(critic, task) or isinstance(critic, OwnCritic)
    if run_tests and not sees:
        raise InputError(
            f"--run_tests: {critic.name} would not see the log; leave the flag out, or use a prompt with ${{log}}"
        )
    if run_tests is False or not (run_tests or shows_log(critic, task)):
        return list
    from text2grad.sandbox import Sandbox
    from text2grad.sandbox.unit_tests import with_log

    complete = partial(with_log, sandbox=sandbox or Sandbox(), task=task)
    pool = ThreadPoolExecutor(os.cpu_count())  # of all who ask
    return lambda records: list(pool.map(complete, records))
