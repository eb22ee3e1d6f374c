"""A `python` that has imported the heavy libraries, for scripts that start many others.

    python text2grad/journal/warm.py serve FOLDER MODULE...    FOLDER/bin/python then starts scripts without the imports

Each start of a script that loads a model costs five to eight seconds of imports. The server imports once, and forks for
each call of FOLDER/bin/python. The fork runs the script with the caller's folder, variables, words and open files. It
gets the caller's signals, ends when the caller ends, and leaves the caller its exit code. The server ends when its
standard input does. ``warm_up`` in `launching.sh` starts one.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import shlex
import shutil
import signal
import socket
import sys
from io import TextIOWrapper
from typing import cast

VARIABLE = "TEXT2GRAD_WARM"
"""The variable with the server's address; ``0`` switches `warm_up` off."""
CALLED = ("python", "torchrun", "deepspeed")
_SOCKET = socket.AF_UNIX, socket.SOCK_SEQPACKET
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)


def ask(command: str, *words: str) -> None:
    """Have the server run what `python`, called as ``command``, would run with these words, and end as it ends."""
    real = [os.path.join(os.path.dirname(sys.executable), os.path.basename(command)), *words]
    first = words[0] if words else "-"
    if os.path.basename(command) == "python" and first.startswith("-") and first not in ("-m", "-u"):
        os.execv(real[0], real)  # it is no script or module, or Python itself shall behave otherwise
    asked = {"command": command, "words": words, "folder": os.getcwd(), "environment": dict(os.environ)}
    with socket.socket(*_SOCKET) as connection:
        try:
            connection.connect(os.environ[VARIABLE])
            socket.send_fds(connection, [json.dumps(asked).encode()], [0, 1, 2])
        except OSError:  # there is no server any more, or the message is too long for one packet
            os.execv(real[0], real)
        process = _number(connection)
        for number in _PASSED_ON:
            signal.signal(number, lambda received, _: os.kill(process, received))
        code = _number(connection, process)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


def _number(connection: socket.socket, process: int = 0) -> int:
    packet = connection.recv(4)
    if not packet:
        if process:
            os.kill(process, signal.SIGKILL)
        sys.exit(f"error: the server of {os.environ[VARIABLE]} lost the script; run it again with {VARIABLE}=0")
    return int.from_bytes(packet, "big", signed=True)


def serve(folder: str, *modules: str) -> None:
    """Write the commands, import the modules, and answer until standard input ends."""
    if os.getpgrp() != os.getpid():
        os.setsid()  # a terminal's Ctrl-C is for the caller, which passes it on
    os.mkdir(os.path.join(folder, "bin"))
    for name in CALLED:
        path = os.path.join(folder, "bin", name)
        client = shlex.join([sys.executable, "-IS", os.path.abspath(__file__), "ask", path])
        with open(path, "w", encoding="utf-8") as file:
            file.write(f'#!/bin/sh\nexec {client} "$@"\n')
        os.chmod(path, 0o755)
    sys.path[0] = os.getcwd()
    for name in modules:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # what is loaded stays shared with the forks
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(*_SOCKET) as listening:
        listening.bind(os.path.join(folder, "starting"))
        listening.listen(64)
        os.rename(os.path.join(folder, "starting"), os.path.join(folder, "server"))
        while 0 not in select.select([listening.fileno(), 0], [], [])[0]:
            connection, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                return _attend(connection)
            connection.close()
    shutil.rmtree(folder)


def _attend(connection: socket.socket) -> None:
    message, files, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    process = os.fork()
    if process == 0:
        connection.close()
        return _run(files=files, **json.loads(message))
    connection.sendall(process.to_bytes(4, "big", signed=True))
    ended = os.pidfd_open(process)
    caller_left = ended not in select.select([ended, connection.fileno()], [], [])[0]
    if caller_left:
        os.kill(process, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if not caller_left:
        connection.sendall(code.to_bytes(4, "big", signed=True))
    os._exit(0)


def _run(command: str, words: list[str], folder: str, environment: dict[str, str], files: list[int]) -> None:
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for stream in (sys.stdout, sys.stderr):
        cast(TextIOWrapper, stream).reconfigure(line_buffering=True)
    called, prefix = os.path.basename(command), os.path.dirname(command)
    if called != "python":
        words = [os.path.join(sys.prefix, "bin", called), *words]
    elif words[0] == "-u":
        words = words[1:]
    if called != "python" or words[0] == "-m":
        sys.executable = os.path.join(prefix, "python")  # a launcher's processes are warm as well
    if words[0] == "-m":
        sys.path[0], sys.argv = folder, words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.path[0], sys.argv = os.path.dirname(os.path.abspath(words[0])), words
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    {"serve": serve, "ask": ask}[sys.argv[1]](*sys.argv[2:])
