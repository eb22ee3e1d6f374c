"""A warm `python`: what it runs is what the real one runs, signals included, and nothing of it is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.text2grad.test_signals import LAUNCHING, WORKER, alive, wait_for
from tests.warm_python import warm_environment

pytestmark = pytest.mark.fast

SCRIPT = """
import json, os, sys
print(json.dumps({
    "words": sys.argv, "folder": os.getcwd(), "set": os.environ.get("SET"), "unset": os.environ.get("UNSET"),
    "read": sys.stdin.read(), "loaded": "wave" in sys.modules, "name": __name__, "beside": sys.path[0],
}))
print("to stderr", file=sys.stderr)
sys.exit(7)
"""


@pytest.fixture(scope="module")
def wave():
    """Commands of a server that has loaded the module `wave` alone."""
    with warm_environment(("wave",)) as commands:
        yield commands


def test_a_script_runs_as_with_the_real_python(tmp_path, wave, monkeypatch):
    monkeypatch.setenv("UNSET", "")
    (tmp_path / "told.py").write_text(SCRIPT)
    environment = {**os.environ, **wave.variables, "SET": "so"}
    del environment["UNSET"]
    warm, real = (
        subprocess.run(
            [python, "told.py", "--a", "b c", "'"],
            cwd=tmp_path, env=environment, input="in", text=True, capture_output=True, timeout=20,
        )
        for python in (wave.path, sys.executable)
    )  # fmt: skip
    assert warm.returncode == real.returncode == 7
    assert warm.stderr == real.stderr == "to stderr\n"
    assert warm.stdout == real.stdout.replace('"loaded": false', '"loaded": true') != real.stdout


def test_an_error_traces_and_a_command_line_works(tmp_path, wave):
    (tmp_path / "wrong.py").write_text("def f():\n    raise KeyError('absent')\nf()\n")
    environment = {**os.environ, **wave.variables}
    wrong = subprocess.run(
        [wave.path, str(tmp_path / "wrong.py")], env=environment, text=True, capture_output=True, timeout=20
    )
    assert wrong.returncode == 1 and "KeyError: 'absent'" in wrong.stderr and 'wrong.py", line 2' in wrong.stderr
    for words in (["-c", "print(6 * 7)"], [], ["-"], ["-W", "error", "-"], ["-Ic", "print(6 * 7)"]):
        said = subprocess.run(
            [wave.path, *words], env=environment, input=b"print(6 * 7)", capture_output=True, timeout=20
        )
        assert said.stdout == b"42\n", words


def test_a_lost_script_is_no_success(tmp_path):
    (tmp_path / "worker.py").write_text(WORKER)
    with warm_environment(("wave",)) as commands:
        command = [commands.path, str(tmp_path / "worker.py"), str(tmp_path)]
        environment = {**os.environ, **commands.variables, "PYTHONPATH": str(ROOT)}
        client = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        (worker,) = wait_for(tmp_path, "begun-*", 1)
        between = int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(between, signal.SIGKILL)
        _, errors = client.communicate(timeout=20)
        assert not alive(worker)
        assert client.returncode == 1 and "lost the script; run it again with TEXT2GRAD_WARM=0" in errors


@pytest.mark.parametrize("obstacle", ["no server", "a long message"])
def test_what_the_server_cannot_take_the_real_python_runs(tmp_path, wave, obstacle):
    (tmp_path / "told.py").write_text(SCRIPT)
    changed = (
        {"TEXT2GRAD_WARM": str(tmp_path / "gone")}
        if obstacle == "no server"
        else {f"V{n}": "x" * 99_000 for n in range(4)}
    )
    done = subprocess.run(
        [wave.path, "told.py"], cwd=tmp_path, env={**os.environ, **wave.variables, **changed}, input="",
        text=True, capture_output=True, timeout=20,
    )  # fmt: skip
    assert done.returncode == 7 and '"loaded": false' in done.stdout


def started(folder: Path, script: str, *words: str, **variables: str) -> subprocess.Popen[str]:
    """A shell script that has sourced the launcher's functions and goes on with ``script``."""
    (folder / "worker.py").write_text(WORKER)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder / "tmp"), **variables}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    (folder / "tmp").mkdir()
    return subprocess.Popen(
        ["bash", "-euc", f". {LAUNCHING}; {script}", "launcher", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_signals_reach_what_a_launcher_started(tmp_path, number):
    process = started(tmp_path, 'warm_up wave; launch python "$@"', str(tmp_path / "worker.py"), str(tmp_path))
    workers = wait_for(tmp_path, "begun-*", 1)
    assert "warm.py" in Path(f"/proc/{workers[0]}/cmdline").read_text()  # a fork of the server
    process.send_signal(number)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 128 + number
    said = signal.SIGTERM if number == signal.SIGHUP else number
    assert f"interrupted ({said.name})" in errors and "Traceback" not in errors
    assert len(list(tmp_path.glob("saved-*"))) == 1
    assert not any(map(alive, workers)) and not list((tmp_path / "tmp").iterdir())


def test_a_run_ends_with_its_caller_and_the_server_with_the_script(tmp_path):
    process = started(tmp_path, 'warm_up wave; python "$@" & wait "$!"', str(tmp_path / "worker.py"), str(tmp_path))
    workers = wait_for(tmp_path, "begun-*", 1)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    (client,) = (int(child) for child in children if "\0ask\0" in Path(f"/proc/{child}/cmdline").read_text())
    os.kill(client, signal.SIGKILL)
    process.communicate(timeout=20)
    for _ in range(100):
        if not any(map(alive, workers)) and not list((tmp_path / "tmp").iterdir()):
            break
        signal.sigtimedwait([], 0.05)
    assert not any(map(alive, workers)) and not list((tmp_path / "tmp").iterdir())


@pytest.mark.parametrize(
    ("module", "variables", "said"),
    [("no_such_module", {}, "No module named 'no_such_module'"), ("wave", {"TEXT2GRAD_WARM": "0"}, "")],
)
def test_without_a_server_scripts_start_as_ever(tmp_path, module, variables, said):
    process = started(
        tmp_path, f'warm_up {module}; launch python -c "import sys; print(sys.argv)"; type -P python', **variables
    )
    output, errors = process.communicate(timeout=20)
    assert process.returncode == 0 and said in errors
    assert output == f"['-c']\n{Path(sys.executable).parent / 'python'}\n"
