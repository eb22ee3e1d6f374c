"""Run functions in processes of their own, quickly: a server imports the heavy libraries once and forks."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
from collections.abc import Callable

PRELOADED = ["torch", "nl_gradient_policy_optimization.optimize", "tests.tiny_runs", "datasets"]


def run_ranks(function: Callable, ranks: int, *arguments, timeout: float = 240) -> list[int]:
    """Call ``function(*arguments)`` in ``ranks`` processes that torch.distributed can join; returns their exit codes.

    A process that was killed by a signal has that signal's negative number. When one ends badly the others are killed,
    as a launcher would.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = []
    for rank in range(ranks):
        environment = {"OMP_NUM_THREADS": "1"}
        if ranks > 1:
            environment |= {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "LOCAL_WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            }
        process = context.Process(target=_start, args=(environment, function, arguments))
        process.start()
        processes.append(process)
    waiting = list(processes)
    while waiting:
        ready = multiprocessing.connection.wait([process.sentinel for process in waiting], timeout)
        waiting = [process for process in waiting if process.sentinel not in ready]
        if not ready or any(process.exitcode for process in processes):
            for process in waiting:
                process.kill()
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]


def run_alone(function: Callable, *arguments) -> int:
    """The exit code of ``function(*arguments)`` in a process of its own."""
    return run_ranks(function, 1, *arguments)[0]


def die() -> None:
    """What a power cut does."""
    os.kill(os.getpid(), signal.SIGKILL)


def _start(environment: dict[str, str], function: Callable, arguments: tuple) -> None:
    os.environ.update(environment)
    function(*arguments)
