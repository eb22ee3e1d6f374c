"""Signals: entry scripts end with 128 + n, launchers pass them on to the processes that do the work and leave none."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.processes import ROOT, all_said, run_command, running, start_command

pytestmark = pytest.mark.fast

LAUNCHING = ROOT / "text2grad" / "journal" / "launching.sh"
WORKER = """
import os, pathlib, sys, time
from text2grad.errors import command

@command
def main():
    folder = pathlib.Path(sys.argv[1])
    try:
        (folder / f"begun-{os.getpid()}").touch()
        time.sleep(60)
    finally:
        time.sleep(0.3)
        (folder / f"saved-{os.getpid()}").touch()

main()
"""
AGENT = """
import subprocess, sys
workers = [subprocess.Popen([sys.executable, *sys.argv[1:]], start_new_session=True) for _ in range(2)]
codes = [worker.wait() for worker in workers]
sys.exit(any(codes))
"""
"""What torchrun does: workers in sessions of their own, no handler for SIGUSR1, its own exit code."""


def wait_for(folder: Path, pattern: str, count: int) -> list[int]:
    """The process numbers in the names of so many files."""
    for _ in range(1000):
        found = [int(path.name.partition("-")[2]) for path in folder.glob(pattern)]
        if len(found) >= count:
            return found
        time.sleep(0.02)
    raise AssertionError(f"{pattern}: {len(found)} of {count}")


def started(folder: Path, *command: str) -> subprocess.Popen:
    (folder / "worker.py").write_text(WORKER)
    (folder / "agent.py").write_text(AGENT)
    return start_command(*command, PYTHONPATH=str(ROOT))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_command_ends_with_the_signals_code(tmp_path, number):
    process = started(tmp_path, sys.executable, str(tmp_path / "worker.py"), str(tmp_path))
    wait_for(tmp_path, "begun-*", 1)
    process.send_signal(number)
    errors = all_said(process, 128 + number, timeout=20)
    assert f"interrupted ({number.name}); run the same command again" in errors and "Traceback" not in errors
    assert list(tmp_path.glob("saved-*"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1, signal.SIGKILL])
def test_a_launcher_passes_signals_on_and_waits(tmp_path, number):
    """SIGKILL hits the agent in between: its workers are not left behind."""
    command = [sys.executable, str(tmp_path / "worker.py"), str(tmp_path)]
    if between := number not in (signal.SIGINT, signal.SIGHUP):
        command.insert(1, str(tmp_path / "agent.py"))
    process = started(tmp_path, "bash", "-euc", f'. {LAUNCHING}; launch "$@"', "launcher", *command)
    workers = wait_for(tmp_path, "begun-*", 2 if between else 1)
    agent = int(Path(f"/proc/{workers[0]}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(agent if number == signal.SIGKILL else process.pid, number)
    all_said(process, 128 + number, timeout=20)
    assert number == signal.SIGKILL or len(list(tmp_path.glob("saved-*"))) == len(workers)
    assert not running(tmp_path / "worker.py")


def test_a_rank_whose_launcher_is_gone_is_asked_to_end(tmp_path):
    child = (
        "import pathlib, time\nfrom text2grad.journal.interruption import Interruption\n"
        "with Interruption() as interruption:\n    before = interruption.asked()\n"
        f"    pathlib.Path({str(tmp_path / 'begun-1')!r}).touch()\n"
        "    while not interruption.asked(): time.sleep(0.02)\n"
        f"pathlib.Path({str(tmp_path)!r}, f'asked-{{before}}{{int(interruption.asked())}}').touch()\n"
    )
    program = "import subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', sys.argv[1]])\ntime.sleep(60)\n"
    launcher = start_command(sys.executable, "-c", program, child, PYTHONPATH=str(ROOT), LOCAL_RANK="0")
    wait_for(tmp_path, "begun-*", 1)
    launcher.kill()
    launcher.wait()
    assert wait_for(tmp_path, "asked-*", 1) == [signal.SIGTERM]


def test_a_script_of_several_commands_ends_with_the_one_that_was_told(tmp_path):
    """As in the scripts of evaluation/."""
    script = f'. {LAUNCHING}; python() {{ launch command {sys.executable} "$@"; }}; python "$@"; echo later'
    arguments = [str(tmp_path / "worker.py"), str(tmp_path)]
    process = started(tmp_path, "bash", "-euc", script, "script", *arguments)
    assert len(wait_for(tmp_path, "begun-*", 1)) == 1
    process.send_signal(signal.SIGTERM)
    assert "later" not in all_said(process, 128 + signal.SIGTERM, timeout=20)
    assert list(tmp_path.glob("saved-*")) and not running(tmp_path / "worker.py")


@pytest.mark.parametrize("code", [0, 2, 7])
def test_the_commands_own_code_is_passed_on(code):
    run_command("bash", "-uc", f'. {LAUNCHING}; launch "$@"', "launcher", "bash", "-c", f"exit {code}", code=code)
