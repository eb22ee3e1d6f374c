"""A `python` that has imported the heavy libraries, for tests that start many scripts.

Every start of a script that trains costs six seconds of imports. A warm environment has the form of a virtual
environment. Its commands ask a server, which forks: the fork runs the script with the caller's folder, variables and
files. The slow tests start the same scripts without it.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PRELOADED = (
    "torch.distributed.run", "nl_gradient_policy_optimization.optimize", "nl_reward_model.train_rm",
    "nl_gradient_policy_optimization.baselines.dpo", "deepspeed", "scipy.stats", "sklearn.metrics", "matplotlib.pyplot",
)  # fmt: skip
COMMANDS = ("python", "torchrun", "deepspeed")


@dataclass(frozen=True)
class Warm:
    """The path of the warm `python`, the variables that it and the project's shell scripts need, and the hub's."""

    path: str
    variables: dict[str, str]
    hub: dict[str, str]

    def python(self, environment: Mapping[str, str]) -> str:
        """The warm `python`; the real one for other variables of the hub, which its library reads when it is loaded."""
        return self.path if hub_variables(environment) == self.hub else sys.executable


def hub_variables(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith("HF_")}


@contextmanager
def warm_environment() -> Iterator[Warm]:
    """Warm commands for as long as the block lasts."""
    real = Path(sys.executable).parent.parent
    with tempfile.TemporaryDirectory(prefix="warm-") as name:
        folder = Path(name)
        commands = folder / "bin"
        commands.mkdir()
        for command in COMMANDS:
            client = [sys.executable, "-IS", str(Path(__file__).with_name("warm_client.py")), str(commands / command)]
            (commands / command).write_text(f'#!/bin/sh\nexec {" ".join(client)} "$@"\n')
            (commands / command).chmod(0o755)
        (commands / "activate").write_text(f'PATH="{commands}:{real / "bin"}:$PATH"\n')
        shutil.copy(real / ".installed", folder)  # env.sh: nothing to install
        address = folder / "server"
        server = subprocess.Popen(
            [sys.executable, __file__, str(address)],
            cwd=ROOT,
            env={**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        try:
            while not address.exists():
                assert server.poll() is None, "the warm server did not start; its error is above"
                time.sleep(0.05)
            variables = {"VENV": os.path.relpath(folder, ROOT), "WARM_PYTHON": str(address)}
            yield Warm(str(commands / "python"), variables, hub_variables(os.environ))
        finally:
            server.kill()
            server.wait()


def serve(address: str) -> None:
    sys.path[0] = str(ROOT)  # not this folder: its packages have the names of the stages
    for name in PRELOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # what is loaded stays shared with the forks
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen(64)
        while True:
            connection, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                return attend(connection)
            connection.close()


def attend(connection: socket.socket) -> None:
    """Run what a client asks for, in a process that ends with the client, and tell the client its exit code."""
    message, files, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    process = os.fork()
    if process == 0:
        connection.close()
        return run(files=files, **json.loads(message))
    connection.sendall(process.to_bytes(4, "big"))
    ended = os.pidfd_open(process)
    if connection in select.select([ended, connection], [], [])[0]:
        os.kill(process, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    connection.sendall(code.to_bytes(4, "big", signed=True))
    os._exit(0)


def run(command: str, words: list[str], folder: str, environment: dict[str, str], files: list[int]) -> None:
    """What `python` does with these words, in this process."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)
    called = Path(command)
    if called.name != "python":
        words = [str(Path(sys.prefix) / "bin" / called.name), *words]
    elif words[0] == "-u":
        words = words[1:]
    if called.name != "python" or words[0] == "-m":
        sys.executable = str(called.with_name("python"))  # a launcher's processes are warm as well
    if words[0] == "-m":
        sys.path[0], sys.argv = folder, words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.path[0], sys.argv = str(Path(words[0]).resolve().parent), words
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    serve(sys.argv[1])
