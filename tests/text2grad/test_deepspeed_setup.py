"""DeepSpeed on a CPU after a run that was killed while it compiled."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from tests.conftest import ROOT

BEGIN = """
from text2grad.models.deepspeed_setup import prepare_deepspeed
prepare_deepspeed(on_cpu=True)
import deepspeed
deepspeed.init_distributed("gloo")
print(deepspeed.comm.get_world_size())
"""


def test_a_killed_runs_lock_stops_nobody(tmp_path):
    """The lock is the one that torch's compiler of extensions leaves behind."""
    folder = tmp_path / "deepspeed_shm_comm"
    folder.mkdir()
    (folder / "lock").touch()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    variables = {"TORCH_EXTENSIONS_DIR": str(tmp_path), "DS_ACCELERATOR": "cpu", "MASTER_ADDR": "127.0.0.1"}
    variables |= {"MASTER_PORT": port, "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    variables["PATH"] = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    command = [sys.executable, "-c", BEGIN]
    variables = {**os.environ, **variables}
    done = subprocess.run(command, cwd=ROOT, env=variables, text=True, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split()[-1] == "1"
