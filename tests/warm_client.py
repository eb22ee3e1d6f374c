"""A command of a warm environment (see ``warm_python.py``): has the server run it, and ends as it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys


def main(command: str, *words: str) -> None:
    """``command`` is the path that was called. The real `python` runs what is no file and no module."""
    if words and words[0] in ("-c", "-", "-V", "--version"):
        os.execv(sys.executable, [sys.executable, *words])
    asked = {"command": command, "words": words, "folder": os.getcwd(), "environment": dict(os.environ)}
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ["WARM_PYTHON"])
        socket.send_fds(connection, [json.dumps(asked).encode()], [0, 1, 2])
        process = int.from_bytes(connection.recv(4), "big")
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP):
            signal.signal(number, lambda received, _: os.kill(process, received))
        code = int.from_bytes(connection.recv(4), "big", signed=True)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main(*sys.argv[1:])
