"""Make annotated programs out of correct ones: small faults whose line is known, and whose tests fail.

python rm_data_anno/kodcode/variations.py --data_path solutions_with_tests.json --output_path varied.json
"""

from __future__ import annotations

import ast
import math
import os
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

from rm_data_anno.known_faults import KnownFault, in_turns
from rm_data_anno.kodcode.mutations import mutations, read
from text2grad.configs import check_choices, check_given, check_positive, parse, setting
from text2grad.critics.programs.kodcode.critic import Finding, LineQuotes, improvable, lint
from text2grad.errors import InputError, command
from text2grad.feedback import Feedback
from text2grad.grounding import ground
from text2grad.records import Records, check_output, load_records, save_records
from text2grad.sandbox import Sandbox
from text2grad.sandbox.unit_tests import TestRun, run_tests
from text2grad.tasks import Record, get_task
from text2grad.tasks.kodcode import KodCode

_TRIED = 3  # faults tried for each that is wanted: no test notices some
_LONGEST_SEEN = 80  # characters of an assertion's message
_HEADS = re.compile(r"(?:@|(?:async\s+def|def|class|import|from|else|try|finally)\b)")


@dataclass(kw_only=True)
class ProgramVariationsConfig:
    data_path: str = setting("", "programs with tests; those that fail them are left out", "--dataset_path")
    output_path: str = setting("", "annotated records, ready for stage 2", "--output_file", "--output")
    per_program: int = setting(4, "records from each: the correct program, and versions with one fault", "--per_round")
    critique_style: Literal["worked", "plain"] = setting(
        "worked", "worked judges line by line, which a small model learns from; plain names only the fault"
    )
    linter: bool = setting(True, "quote what the linter finds as improvable, as the programmatic critic does")
    seconds: int = setting(2, "processor time of one program's tests")
    workers: int = setting(os.cpu_count() or 1, "programs whose versions are tested at once")
    seed: int = setting(0, "of all that is drawn")
    allow_unsafe: bool = setting(False, "run without isolation where the system has none: the code may do anything")


@dataclass(frozen=True)
class Made:
    """A correct program, or one made from it with a fault that its tests notice."""

    code: str
    fault: KnownFault | None = None
    run: TestRun | None = None

    @property
    def line(self) -> int:
        """The number of the wrong line, from 1; 0 where none is wrong."""
        if self.fault is None or self.fault.wrong is None:
            return 0
        return len(re.findall(r"\r\n|\r|\n", self.code[: self.fault.wrong[0]])) + 1


def variations(
    records: Mapping[str, Record],
    per_program: int,
    sandbox: Sandbox,
    seed: int = 0,
    critique_style: str = "worked",
    linter: bool = True,
    workers: int = 1,
) -> tuple[dict[str, Record], dict[str, str]]:
    """Annotated records by id, ``RECORD#NUMBER``, and why other records gave none.

    Each program gives itself, which passes its tests, and ``per_program`` − 1 versions with one changed line each,
    which do not. A fault that no test notices is left out: the version may be right.

    Args:
        records: programs with ``test``, a pytest file.
        critique_style: ``worked`` or ``plain``.
        sandbox: its ``seconds`` bound the tests of one version.
    """
    task = KodCode()

    def make(item: tuple[str, Record]) -> list[Made] | str:
        key, record = item
        code, tests = task.code(task.response(record)), str(record.get("test") or "")
        return _versions(code, tests, per_program, sandbox, random.Random(f"{seed}:{key}"))

    with ThreadPoolExecutor(workers) as pool:
        found = dict(zip(records, pool.map(make, records.items()), strict=True))
    made: dict[str, Record] = {}
    left_out: dict[str, str] = {}
    for key, versions in found.items():
        if isinstance(versions, str):
            left_out[key] = versions
            continue
        findings = lint([version.code for version in versions]) if linter else [[] for _ in versions]
        kept = {field: value for field, value in records[key].items() if field not in ("id", "annotation")}
        for number, (version, remarks) in enumerate(zip(versions, findings, strict=True)):
            name = f"{key}#{number}"
            record = task.with_response({**kept, "question_id": name}, version.code)
            made[name] = task.with_feedback(record, _feedback(version, remarks, critique_style), _annotation(version))
    return made, left_out


def _annotation(version: Made) -> dict[str, object]:
    if version.fault is None or version.run is None:
        return {"source": "variations", "kind": "none"}
    failed = version.run.failures[0].name if version.run.failures else ""
    return {
        "source": "variations",
        "kind": version.fault.kind,
        "line": version.line,
        "was": version.fault.was,
        "failed": failed,
    }


def _versions(code: str, tests: str, wanted: int, sandbox: Sandbox, rng: random.Random) -> list[Made] | str:
    """A correct program and versions of it with one fault each; or why there are none."""
    if not code.strip() or read(code) is None:
        return "the solution is no Python program"
    if not tests.strip():
        return "it has no tests"
    if not run_tests(code, tests, sandbox).passed:
        return "it does not pass its tests"
    made = [Made(code)]
    quotable = [fault for fault in mutations(code) if _quotable(fault)]
    for fault in islice(in_turns(quotable, rng), math.ceil(_TRIED * wanted)):
        if len(made) == wanted:
            break
        run = run_tests(fault.text, tests, sandbox)
        if not run.passed and (run.failures or run.result.reason):
            made.append(Made(fault.text, fault, run))
    return made


def _quotable(fault: KnownFault) -> bool:
    """Whether the changed line can be quoted so that no other line is meant."""
    quotes = _quotes(fault.text).of({Made(fault.text, fault).line})
    return len(quotes) == 1 and quotes[0].strip() == fault.now and len(ground(quotes[0], fault.text)) == 1


def _quotes(code: str) -> LineQuotes:
    return LineQuotes(code, [(0, len(code))])


def _feedback(version: Made, findings: list[Finding], style: str) -> Feedback:
    quotes, fault = _quotes(version.code), version.fault
    wrong = {version.line} if fault else set()
    good, remarks = improvable(quotes, findings, wrong)
    parts = []
    if style == "worked":
        parts.append(", ".join(_worked(version)) + ".")
    elif fault:
        parts.append(f"`{fault.now}` is wrong, it should be `{fault.was}`.")
    parts.append(_said(version.run) if version.run else "All tests pass.")
    if remarks:
        parts.append("Could be better: " + " ".join(remarks))
    return Feedback(" ".join(parts), good, quotes.of(wrong))


def _worked(version: Made) -> Iterator[str]:
    """Each line that does something, and whether it is right; of the wrong one, what it should be."""
    for number, text in _acting(version.code):
        if version.fault and number == version.line:
            yield f"`{text}` wrong, should be `{version.fault.was}`"
        else:
            yield f"`{text}` right"


def _acting(code: str) -> list[tuple[int, str]]:
    """The lines on which a statement begins that does something: no definitions, docstrings, comments, imports."""
    program = read(code)
    assert program is not None
    lines = re.split(r"\r\n|\r|\n", code)
    begun = {
        node.lineno
        for node in ast.walk(program.tree)
        if isinstance(node, ast.stmt) and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    }
    texts = [(number, lines[number - 1].strip()) for number in sorted(begun)]
    return [(number, text) for number, text in texts if not _HEADS.match(text)]


def _said(run: TestRun) -> str:
    """What the first failing test said."""
    if run.result.reason:
        return "The tests run out of time." if run.result.reason == "timeout" else f"No test can run: {run.error_type}."
    first = run.failures[0]
    if not first.name:
        return f"No test can run: {first.error}."
    seen = re.sub(r" at 0x[0-9a-f]+", "", first.message.partition("\n")[0]).strip()
    if first.error != "AssertionError" or not seen:
        return f"{first.name} fails with {first.error}."
    return f"{first.name} fails: {seen if len(seen) <= _LONGEST_SEEN else seen[: _LONGEST_SEEN - 3] + '...'}."


@command
def main() -> None:
    config = parse(ProgramVariationsConfig)
    check_choices(config)
    check_given(config, "data_path", "output_path")
    check_positive(config, "per_program", "seconds", "workers")
    check_output(config.output_path)
    records = load_records(config.data_path, get_task("kodcode"))
    made, left_out = variations(
        records,
        config.per_program,
        Sandbox(seconds=config.seconds, allow_unsafe=config.allow_unsafe),
        config.seed,
        config.critique_style,
        config.linter,
        config.workers,
    )
    for reason, count in Counter(left_out.values()).most_common():
        first = next(key for key, why in left_out.items() if why == reason)
        print(f"left out, {reason}: {count}, the first {first}")
    if not made:
        raise InputError(f"{config.data_path}: no program passes its tests; give correct solutions with a 'test' each")
    save_records(config.output_path, Records(made, Path(config.output_path), keyed=False))
    kinds = Counter(str(record["annotation"]["kind"]) for record in made.values())
    print(f"{config.output_path}: {len(made)} programs made from {len(records) - len(left_out)}")
    print(", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items())))


if __name__ == "__main__":
    main()
