"""Shared fixtures."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

from tests.processes import ROOT, flags, run_command, run_forked

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):  # no test sees the keys of whoever runs it
    os.environ.pop(name, None)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A script's shell starts what it puts in the background with SIGINT ignored, and programs under test inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # so does nohup with SIGHUP
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
settings.register_profile("gate", deadline=None)  # on a busy machine any example may take long
settings.load_profile("gate")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real records in the three tasks' formats, where someone has put them; tests that use them skip elsewhere."""
    folder = Path(os.environ.get("TEXT2GRAD_DATA") or ROOT.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip("no folder of real records; set TEXT2GRAD_DATA")
    return folder


@pytest.fixture
def run_script():
    """Run an entry script as a user does: see :func:`~tests.processes.run_forked`."""
    return run_forked


@pytest.fixture
def refused(monkeypatch, capsys):
    """What a program's ``main``, called in this process, says of arguments that it refuses with exit code 2."""

    def refused(main, *args: object, **settings: object) -> str:
        program = sys.modules[main.__module__].__file__
        monkeypatch.setattr(sys, "argv", [program, *map(str, args), *flags(**settings)])
        capsys.readouterr()
        with pytest.raises(SystemExit, match=r"^2$"):
            main()
        return capsys.readouterr().err

    return refused


@pytest.fixture
def started(tmp_path):
    """The command that a script starts, by stand-ins that only say it."""
    for program in ("python", "torchrun", "deepspeed"):
        (tmp_path / program).write_text(f"#!/bin/sh\necho {program} $*\n")
        (tmp_path / program).chmod(0o755)

    def run(script: Path, *arguments: str, processes: str = "1") -> str:
        path = f"{tmp_path}:{os.environ['PATH']}"
        return run_command("bash", script, *arguments, PATH=path, PROCESSES=processes).stdout.strip()

    return run


@pytest.fixture
def without_isolation(monkeypatch):
    """A system on which no program can be isolated."""
    from text2grad.sandbox import box

    monkeypatch.setattr(box, "_problem", lambda backend: "namespaces are forbidden")
    box._working_backend.cache_clear()
    yield
    box._working_backend.cache_clear()


@pytest.fixture
def packs(monkeypatch) -> list[int]:
    """As many as rows were really laid end to end."""
    from text2grad.models import packed

    calls: list[int] = []
    original = packed.hidden_states
    monkeypatch.setattr(packed, "hidden_states", lambda *args: calls.append(1) or original(*args))
    return calls


@pytest.fixture
def small_disk(tmp_path):
    """A file system of some megabytes, which can be filled."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mounted(megabytes: int) -> Path:
        command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("only root may mount a small disk")
        return folder

    yield mounted
    subprocess.run(["umount", "-l", folder], capture_output=True, check=False)
