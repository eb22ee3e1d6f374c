"""Asking a critic about many responses in one call, with the logs of their unit tests, and for several opinions."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from text2grad.critics import Critic, OwnCritic, version_of
from text2grad.errors import InputError
from text2grad.feedback import Feedback, FeedbackError
from text2grad.journal import Outcome, map_records
from text2grad.tasks import Record, Task

if TYPE_CHECKING:
    from text2grad.sandbox import Sandbox

Ask = Callable[..., list[Feedback | FeedbackError]]
"""A critic, or one of its opinions."""
Complete = Callable[[Sequence[Record]], list[Record]]
"""What a record needs before a critic sees it: see :func:`log_completion`."""


class Question(NamedTuple):
    """A response, what it answers, and the whole record where there is one."""

    prompt: str
    response: str
    record: Record | None = None


def ask(critic: Ask, questions: Sequence[Question], complete: Complete = list) -> list[Feedback | FeedbackError | None]:
    """The feedback on each response, in order; None on one without text, which no critic sees.

    One call of the critic. Questions with records and questions without make two, as a critic takes all or none.

    Args:
        complete: what a record needs before the critic sees it (``log_completion``).
    """
    answers: dict[int, Any] = {}
    written = [row for row, question in enumerate(questions) if question.response.strip()]
    for known in (True, False):
        rows = [row for row in written if (questions[row].record is not None) == known]
        if rows:
            columns = list(zip(*(questions[row] for row in rows), strict=True))
            given = critic(list(columns[0]), list(columns[1]), complete(list(columns[2])) if known else None)
            answers |= dict(zip(rows, given, strict=True))
    return [answers.get(row) for row in range(len(questions))]


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
    prompt: Any = getattr(critic, "prompt", None)
    shown = task.has_unit_tests and "log" in getattr(getattr(prompt, "prompt", prompt), "names", ())
    if not (shown if run_tests is None else run_tests):
        return list
    if not task.has_unit_tests:
        raise InputError(f"--run_tests: records of {task.name} have no unit tests; leave the flag out")
    if not shown and not isinstance(critic, OwnCritic):
        raise InputError(
            f"--run_tests: {critic.name} would not see the log; leave the flag out, or use a prompt with ${{log}}"
        )
    from text2grad.sandbox import Sandbox
    from text2grad.sandbox.unit_tests import with_log

    complete = partial(with_log, sandbox=sandbox or Sandbox(), task=task)
    pool = ThreadPoolExecutor(os.cpu_count())  # of all who ask
    return lambda records: list(pool.map(complete, records))


def feedback_on(
    critic: Critic,
    records: Mapping[str, Record],
    task: Task,
    journal: str | Path,
    *,
    empty: Feedback | None = None,
    sandbox: Sandbox | None = None,
    batch_size: int = 8,
    retry_failed: bool = False,
    description: str = "",
) -> Outcome:
    """The feedback on each record's response, as the task's fields; a journal keeps it, so that none is paid twice.

    An endpoint gets one response at a time, from several threads: what is paid for is kept as it comes.

    Args:
        empty: what a response without text gets; it fails otherwise.
        sandbox: where the unit tests run whose log the critic's prompt shows.
    """
    client, complete = getattr(critic, "client", None), log_completion(critic, task, sandbox=sandbox)

    def work(ids: list[str], batch: list[Record]) -> list[dict | FeedbackError]:
        replies = ask(critic, [Question(task.prompt(each), task.response(each), each) for each in batch], complete)
        given = [reply or empty or FeedbackError("the response is empty") for reply in replies]
        return [task.fields.to_dict(reply) if isinstance(reply, Feedback) else reply for reply in given]

    return map_records(
        records,
        work,
        journal=journal,
        settings={"critic": critic.name, **version_of(critic), "task": task.name},
        batch_size=1 if client else batch_size,
        workers=getattr(client or critic, "concurrency", 0),  # of an endpoint, or of a served critic
        retry_failed=retry_failed,
        result_type=dict,
        description=description,
    ).whole()


def opinions(critic: Any, count: int) -> list[Ask]:
    """So many opinions of a critic; one that always says the same (a program, a function) gives equal ones.

    Those of a model that samples differ, the first is what it says anyway. Asked again, each is the same.
    """
    if not getattr(critic, "has_opinions", False):
        return [critic] * count
    return [critic, *(partial(critic, number=number) for number in range(1, count))]
