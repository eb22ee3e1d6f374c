"""Many versions of one program against one test file, in one box: for data whose programs a program of ours made.

The versions share a process with their tests, one after another. So a version that sets out to cheat could pass:
what a model wrote is judged by :func:`text2grad.sandbox.unit_tests.run_tests`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from text2grad.safety.gate import UnreadableError, read_json
from text2grad.sandbox.box import BOX, Sandbox
from text2grad.sandbox.unit_tests import with_names

_DRIVER = Path(__file__).with_name("boxed") / "many.py"
_START = 30.0  # seconds for all that is not a version's own


@dataclass(frozen=True)
class Verdict:
    """Whether a version passes its tests; of the first test that it fails, its name, its line, and what it raised.

    ``test`` is empty where the failure is outside any test. Where processor time ran out, the error is TimeoutError.
    """

    passed: bool
    test: str = ""
    line: int = 0
    error: str = ""
    message: str = ""


def run_versions(codes: Sequence[str], tests: str, sandbox: Sandbox) -> list[Verdict | None]:
    """A verdict on each of ``codes``, which the tests find as the module ``solution``.

    None where there is no verdict, since the version ended its process or slept.

    Args:
        sandbox: its ``seconds`` are the processor time of each version, at most.
    """
    if not codes:
        return []
    seconds = math.ceil(sandbox.seconds)
    whole = replace(sandbox, seconds=_START + seconds * len(codes))
    above, files = with_names(tests)
    files |= {"many.py": _DRIVER.read_text("utf-8")}
    files |= {f"version_{number}/solution.py": code for number, code in enumerate(codes)}
    result = whole.run(files, [sandbox.python, f"{BOX}/many.py", str(len(codes)), str(seconds)])
    verdicts: list[Verdict | None] = [None] * len(codes)
    for line in result.report.splitlines():
        try:
            event = read_json(line)
            verdicts[event["version"]] = _verdict(event, above)
        except (UnreadableError, KeyError, IndexError, TypeError):
            continue  # a version wrote into the report: what it says there is no verdict
    return verdicts


def _verdict(event: dict[str, Any], above: int) -> Verdict:
    if event["passed"] is True:
        return Verdict(True)
    line = int(event.get("line", 0))
    return Verdict(
        False,
        str(event.get("test", "")),
        line - 1 if line > above else line,
        str(event.get("error", "")),
        str(event.get("message", "")),
    )
