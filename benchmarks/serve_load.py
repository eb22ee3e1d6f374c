"""Load on ``text2grad serve``: latency and throughput under many clients, and what a kill in the middle costs.

python benchmarks/serve_load.py --task slf5k --critic programmatic --clients 64 --requests 20
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

import numpy as np

from text2grad.configs import TaskConfig, parse, setting
from text2grad.critics import load_critic
from text2grad.errors import InputError, command
from text2grad.feedback import FeedbackError
from text2grad.records import load_records
from text2grad.tasks import get_task
from text2grad.tasks.base import PROJECT


@dataclass(kw_only=True)
class LoadConfig:
    """Which critic is served, and how many ask it how often."""

    critic: str = setting("programmatic", "the critic that is served")
    data_path: str = setting("quickstart/data/posts_train.json", "records whose reference responses are asked about")
    clients: int = setting(64, "clients at one time, each with one request at a time")
    requests: int = setting(20, "requests of each client")
    constrained: Literal["none", "json", "quotes"] = setting("none", "for a reward model: what its replies must be")
    timeout: float = setting(120.0, "seconds without a sign of life after which a client asks again")
    kill_after: float = setting(0.0, "kill the server after this many seconds, and start it again; 0: never")


def main_load(task_name: str, config: LoadConfig) -> None:
    task = get_task(task_name)
    records = list(load_records(PROJECT / config.data_path, task, responses=False).values())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = start(task_name, config, port)
    try:
        critic = load_critic(f"served:http://127.0.0.1:{port}", task, timeout=config.timeout)

        def client(number: int) -> list[tuple[float, str]]:
            times = []
            for turn in range(config.requests):
                again, index = divmod(number * config.requests + turn, len(records))
                prompt = task.prompt(records[index])
                response = task.reference(records[index]) or prompt[:200]
                began = time.perf_counter()
                (given,) = critic([prompt], [response[: max(20, len(response) - again)]])  # no two alike
                times.append((time.perf_counter() - began, str(given) if isinstance(given, FeedbackError) else ""))
            return times

        client(0)  # the first request loads what the critic reads once
        began = time.perf_counter()
        with ThreadPoolExecutor(config.clients) as pool:
            answers = [pool.submit(client, number) for number in range(config.clients)]
            if config.kill_after:
                time.sleep(config.kill_after)
                server.send_signal(signal.SIGKILL)
                server.wait()
                server = start(task_name, config, port)
            rows = [row for answer in answers for row in answer.result()]
        report(rows, time.perf_counter() - began, config)
        server.send_signal(signal.SIGTERM)
        print(f"the server ended with {server.wait(60)} on SIGTERM")
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(f"{used.ru_utime + used.ru_stime:.1f} s of processor time for all of it, with the server's start")
    finally:
        server.kill()


def start(task: str, config: LoadConfig, port: int) -> subprocess.Popen:
    """The server in a process of its own; clients wait until it answers."""
    command_line = [sys.executable, "-m", "text2grad.integrations.serve", "--task", task]
    return subprocess.Popen(
        [*command_line, "--critic", config.critic, "--critic_constrained", config.constrained, "--port", str(port)],
        cwd=PROJECT,
        env=os.environ,
        stdout=subprocess.DEVNULL,
    )


def report(rows: list[tuple[float, str]], seconds: float, config: LoadConfig) -> None:
    wanted = config.clients * config.requests
    if len(rows) != wanted:
        raise InputError(f"{len(rows)} of {wanted} requests were answered")
    times = np.array([time for time, _ in rows])
    middle, high, most = np.quantile(times, [0.5, 0.95, 1.0])
    errors = Counter(error for _, error in rows if error)
    failed = errors.total()
    print(
        f"{wanted} requests of {config.clients} clients in {seconds:.1f} s: {wanted / seconds:.3g} a second; "
        f"median {middle * 1000:.0f} ms, 95 % within {high * 1000:.0f} ms, longest {most * 1000:.0f} ms; "
        f"{wanted - failed} with feedback, {failed} with an error, none lost"
    )
    for error, count in errors.most_common(10):
        print(f"{count} x {error}")


@command
def main() -> None:
    chosen, config = parse(TaskConfig, LoadConfig)
    main_load(chosen.task, config)


if __name__ == "__main__":
    main()
