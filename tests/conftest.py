"""Shared fixtures."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.warm_python import ROOT, Warm, warm_environment

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A script's shell starts what it puts in the background with SIGINT ignored, and programs under test inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # so does nohup with SIGHUP
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real records in the three tasks' formats, where someone has put them; tests that use them skip elsewhere."""
    folder = Path(os.environ.get("TEXT2GRAD_DATA") or ROOT.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip("no folder of real records; set TEXT2GRAD_DATA")
    return folder


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    """Commands that have imported the heavy libraries; one server for each of pytest's workers."""
    with warm_environment() as commands:
        yield commands


@pytest.fixture
def run_script(warm):
    """Run an entry script from the repository's root, as a user does but for the time that imports take."""

    def run(script: str, *args: str, env: dict[str, str] | None = None, **options) -> subprocess.CompletedProcess:
        environment = (os.environ if env is None else env) | warm.variables
        command = [warm.python(environment), str(ROOT / script), *map(str, args)]
        return subprocess.run(
            command, cwd=ROOT, env=environment, text=True, capture_output=True, timeout=600, check=False, **options
        )

    return run
