"""A program and its pytest file, run in the sandbox: the verdict, a record's log, and each test's fate.

The program runs in one box, its tests in another. Only plain values cross between them, so that what the tests expect
and what they conclude is out of the program's reach. Test files that need the program in their own process are run
with it; then it can fail (``TestRun.failures``) but not pass (``TestRun.undecided``).
"""

import ast
import contextlib
import os
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from text2grad.sandbox.box import BOX, PATIENCE, Result, Sandbox
from text2grad.sandbox.verdict import TestRun, read_report
from text2grad.tasks import Record, Task, get_task

# How verdicts are made: for journals, in which verdicts of different kinds must not mix.
VERDICTS = "solution apart, else undecided; arrays, counters and the tests' objects cross whole; local names"

_KODCODE = get_task("kodcode")
_BOXED = Path(__file__).with_name("boxed")
_APART = ("wire.py", "following.py", "solution_side.py")
_OUTSIDE = ("tests_side.py", "remotes.py", "names.py", "pytest_recorder.py")
_TOGETHER = ("following.py", "pytest_recorder.py")
_SOLUTION_GONE, _SOLUTION_FORGES = 71, 72  # exit codes of the tests' box (``tests_side.py``)
_UNSEEN_PLUGINS = (
    "cacheprovider", "doctest", "faulthandler", "junitxml", "pastebin", "setuponly", "setupplan", "stepwise",
    "threadexception", "unraisableexception",
)  # fmt: skip
_NAMED = re.compile(r"^solution\.py:([1-9]\d{0,5}): in .*", re.MULTILINE)
_INTROSPECTION = {
    "inspect", "importlib", "subprocess", "multiprocessing", "threading", "asyncio", "mock", "monkeypatch", "capfd",
    "caplog", "recwarn", "tmp_path", "tmpdir", "tempfile", "tracemalloc", "builtins", "patch", "MagicMock", "pickle",
    "weakref", "gc", "signal", "types", "open", "exec", "eval", "globals", "__import__", "warns", "settrace",
}  # fmt: skip
"""Names in a test file that reach for the process, the files or the inner life of the solution."""
_CROSSING = sys.stdlib_module_names | {"solution", "pytest", "numpy", ""}
"""Modules whose objects cross between the boxes; relative imports have no name."""


def run_tests(code: str, tests: str, sandbox: Sandbox, trace: bool = False) -> TestRun:
    """Run ``tests`` (a pytest file) against ``code``, which it finds as the module ``solution``.

    The tests see all the solution's names, as if they stood in one file with it: many of KodCode's count on that.

    Args:
        trace: follow what each test executes (``Test.trace``), at the price of a slower run.
    """
    reason = needs_one_process(tests)
    if not reason:
        run = _run_apart(code, tests, sandbox, trace)
        reason = run.unsupported
    if reason:
        run = _run_together(code, tests, sandbox, trace, reason)
    return replace(run, result=_quoting(run.result, code.split("\n")))


def _quoting(result: Result, lines: list[str]) -> Result:
    """The output with the code of the solution's lines that ``pytest_recorder.py`` names, as pytest shows a test's."""

    def quoted(place: re.Match[str]) -> str:
        return "\n    ".join([place[0], *(line.strip() for line in lines[int(place[1]) - 1 :][:1])])

    return replace(result, stdout=_NAMED.sub(quoted, result.stdout))


def with_log(record: Record, sandbox: Sandbox, task: Task = _KODCODE) -> Record:
    """A task's record whose ``log`` is filled: its tests are run where the log is empty and there are tests.

    Where it is undecided, ``log_weaker`` says why, in place of what it said of an earlier run.
    """
    if record.get("log") or not str(record.get("test") or "").strip():
        return record
    run = run_tests(task.code(task.response(record)), str(record["test"]), sandbox)
    weaker = {"log_weaker": list(run.weaker)} if run.weaker or record.get("log_weaker") else {}
    return {**record, "log": run.log, **weaker}


def parsed(code: str) -> ast.Module | None:
    """The syntax tree of a program, where it has one."""
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def needs_one_process(tests: str) -> str:
    """Why a test file needs the solution in its own process; "" where it does not, or is no Python at all."""
    tree = parsed(tests)
    for node in ast.walk(tree) if tree else ():
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module != "solution":
            names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Name | ast.arg):
            names = [node.id if isinstance(node, ast.Name) else node.arg]
        elif isinstance(node, ast.AsyncFunctionDef):
            return "the tests are coroutines"
        for name in names:
            parts = name.split(".")
            if found := _INTROSPECTION & set(parts):
                return f"the tests use {min(found)}"
            if isinstance(node, ast.Import | ast.ImportFrom) and parts[0] not in _CROSSING:
                return f"the tests use {parts[0]}, whose objects do not cross"
    return ""


def _run_apart(code: str, tests: str, sandbox: Sandbox, trace: bool) -> TestRun:
    """The verdict made outside the solution's process."""
    above, files = with_names(tests)
    files |= {name: (_BOXED / name).read_text("utf-8") for name in (*_APART, *_OUTSIDE)}
    solution = {"solution.py": code, **{name: files[name] for name in _APART}}
    environment = _tracing(sandbox) if trace else {}
    to_solution, to_tests, over = os.pipe(), os.pipe(), os.pipe()
    theirs, ours = (to_solution[0], to_tests[1]), (to_tests[0], to_solution[1])
    with contextlib.ExitStack() as stack:
        for number in over:
            stack.callback(os.close, number)
        pool = stack.enter_context(ThreadPoolExecutor(1))
        there = pool.submit(
            sandbox.run,
            solution,
            [sandbox.python, f"{BOX}/solution_side.py"],
            environment | _pipes(theirs),
            pipes=theirs,
            stop=over[0],
        )
        try:
            here = sandbox.run(files, _pytest(sandbox, trace), environment | _pipes(ours), pipes=ours)
        finally:
            os.write(over[1], b".")
        other = there.result()
    return replace(read_report(_merged(here, other), above), standing=read_report(other, above).standing)


def _run_together(code: str, tests: str, sandbox: Sandbox, trace: bool, reason: str) -> TestRun:
    above, files = with_names(tests)
    files |= {"solution.py": code, **{name: (_BOXED / name).read_text("utf-8") for name in _TOGETHER}}
    result = sandbox.run(files, _pytest(sandbox, trace), _tracing(sandbox) if trace else {})
    return replace(read_report(result, above), weaker=(reason,))


def _merged(here: Result, there: Result) -> Result:
    """One result of the tests' box and the solution's: where the solution ended, it says how."""
    gone = here.returncode in (_SOLUTION_GONE, _SOLUTION_FORGES) and here.reason is None
    return replace(
        here,
        returncode=(there.returncode or here.returncode) if gone else here.returncode,
        stderr=here.stderr + there.stderr,
        seconds=max(here.seconds, there.seconds),
        reason=here.reason if there.reason == "stopped" else there.reason or here.reason,
    )


def with_names(tests: str) -> tuple[int, dict[str, str]]:
    """The test file with all of the solution's names, and the number of lines above the line that was put in.

    Imports from the future must stay first in their file.
    """
    tests = tests.removeprefix("\ufeff")
    tree = parsed(tests)
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)] if tree else []
    above = max((node.end_lineno or 0 for node in imports if node.module == "__future__"), default=0)
    lines = tests.split("\n")
    lines.insert(above, "from solution import *")
    return above, {"test_solution.py": "\n".join(lines)}


def _pytest(sandbox: Sandbox, trace: bool) -> list[str]:
    """Without the plugins that this Python happens to have, and those of pytest's own that tests do not see."""
    command = [sandbox.python, "-m", "pytest", "--disable-plugin-autoload", "-p", "pytest_recorder"]
    for name in _UNSEEN_PLUGINS:
        command += ["-p", f"no:{name}"]
    command += ["-q", "--no-header", "--tb=short", "--color=no", f"--rootdir={BOX}", f"{BOX}/test_solution.py"]
    return [*command, *(["-o", "enable_assertion_pass_hook=true"] if trace else [])]


def _tracing(sandbox: Sandbox) -> dict[str, str]:
    """A program says where it stands some seconds before its time is up: on a busy machine it needs them."""
    longest = PATIENCE * sandbox.seconds
    margin = max(0.1 * longest, min(4.0, 0.4 * longest))
    return {"T2G_TRACE": "1", "T2G_ALARM": str(time.time() + longest - margin)}


def _pipes(ends: tuple[int, int]) -> dict[str, str]:
    return {"T2G_IN": str(ends[0]), "T2G_OUT": str(ends[1])}
