"""Shared fixtures."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
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


@pytest.fixture
def run_script():
    """Run an entry script as a user does, from the repository's root."""

    def run(script: str, *args: str, **options) -> subprocess.CompletedProcess:
        command = [sys.executable, str(ROOT / script), *map(str, args)]
        return subprocess.run(command, cwd=ROOT, text=True, capture_output=True, timeout=600, check=False, **options)

    return run
