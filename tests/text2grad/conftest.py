"""The sandbox with each backend that works here, and hostile programs in it."""

import secrets
from dataclasses import replace

import pytest

import text2grad.sandbox.box as module
from tests.processes import running
from text2grad.sandbox import Result, Sandbox

LONG = 60.0  # seconds for programs that do not use up their time


@pytest.fixture(params=["bubblewrap", "namespaces"])
def sandbox(request) -> Sandbox:
    problem = module._problem(request.param)
    if problem is not None:
        pytest.skip(f"{request.param} does not work here: {problem}")
    return Sandbox(seconds=LONG, memory_mb=256, processes=24, file_mb=4, output_kb=64, backend=request.param)


@pytest.fixture(scope="session")
def box() -> Sandbox:
    """The backend that users get, for what does not depend on it."""
    return Sandbox(seconds=LONG)


@pytest.fixture
def attack(sandbox):
    """Run a program; then see that nothing of it is left and that the next program runs as if nothing had been."""

    def run(program: str, *arguments: str, seconds: float = LONG) -> Result:
        token = secrets.token_hex(8)
        command = [sandbox.python, "-I", "-S", "/box/program.py", token, *arguments]
        result = replace(sandbox, seconds=seconds).run({"program.py": program}, command)
        assert result.seconds < module.PATIENCE * seconds + 10
        assert not running(token)
        after = sandbox.run({"next.py": "print('fine')"}, [sandbox.python, "-I", "-S", "/box/next.py"])
        assert (after.stdout, after.returncode, after.reason) == ("fine\n", 0, None)
        return result

    return run
