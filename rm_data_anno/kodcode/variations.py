"""Make thousands of annotated programs out of few correct ones: small faults whose line is known, and whose tests fail.

python rm_data_anno/kodcode/variations.py --data_path solutions_with_tests.json --output_path varied.json
"""

from __future__ import annotations

import ast
import math
import os
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

from rm_data_anno.kodcode.mutations import Mutation, mutations, read
from rm_data_anno.kodcode.wordings import reworded
from text2grad.configs import check_choices, check_given, check_positive, parse, setting
from text2grad.critics.programs.kodcode.critic import Finding, LineQuotes, improvable, lint
from text2grad.errors import InputError, command
from text2grad.feedback import Feedback
from text2grad.grounding import ground
from text2grad.records import Records, check_output, load_records, save_records
from text2grad.sandbox import Sandbox
from text2grad.sandbox.versions import Verdict, run_versions
from text2grad.tasks import Record, get_task
from text2grad.tasks.kodcode import KodCode

_SPARE = 1.5  # mutations tried for each that is wanted: some pass all tests
_LONGEST_SEEN = 80  # characters of an assertion's message
_HEADS = re.compile(r"(?:@|(?:async\s+def|def|class|import|from|else|try|finally)\b)")


@dataclass(kw_only=True)
class ProgramVariationsConfig:
    data_path: str = setting("", "programs with tests; those that fail them are left out", "--dataset_path")
    output_path: str = setting("", "annotated records, ready for stage 2", "--output_file", "--output")
    rounds: int = setting(8, "wordings of each program: the first as it is, the others with variables renamed")
    per_round: int = setting(4, "records from each wording: the correct program, and programs with one fault")
    critique_style: Literal["worked", "plain"] = setting(
        "worked", "worked judges line by line, which a small model learns from; plain names the fault alone"
    )
    linter: bool = setting(True, "quote what the linter finds as improvable, as the programmatic critic does")
    seconds: int = setting(2, "processor time of one program's tests")
    workers: int = setting(os.cpu_count() or 1, "programs whose variations are tested at once")
    seed: int = setting(0, "of all that is drawn")
    allow_unsafe: bool = setting(False, "run without isolation where the system has none: the code may do anything")


@dataclass(frozen=True)
class Made:
    """A program made from a correct one; without a mutation it is correct itself."""

    code: str
    round: int
    mutation: Mutation | None = None
    verdict: Verdict | None = None


def variations(
    records: Mapping[str, Record],
    rounds: int,
    per_round: int,
    sandbox: Sandbox,
    seed: int = 0,
    critique_style: str = "worked",
    linter: bool = True,
    workers: int = 1,
) -> tuple[dict[str, Record], dict[str, str]]:
    """Annotated records by id, ``RECORD~ROUND#NUMBER``, and why other records gave none.

    Each wording of a program gives the program itself, which passes its tests, and ``per_round`` − 1 programs with one
    changed line each, which do not. A mutation that no test notices is left out: it may be right or wrong.

    Args:
        records: programs with ``test``, a pytest file.
        critique_style: ``worked`` or ``plain``.
        sandbox: its ``seconds`` bound the tests of one program.
    """
    task = KodCode()

    def make(item: tuple[str, Record]) -> list[Made] | str:
        key, record = item
        rng = random.Random(f"{seed}:{key}")
        return _programs(
            task.code(task.response(record)), str(record.get("test") or ""), rounds, per_round, sandbox, rng
        )

    with ThreadPoolExecutor(workers) as pool:
        found = list(pool.map(make, records.items()))
    found_by_key = dict(zip(records, found, strict=True))
    left_out = {key: programs for key, programs in found_by_key.items() if isinstance(programs, str)}
    made: dict[str, Record] = {}
    for key, programs in found_by_key.items():
        if isinstance(programs, str):
            continue
        findings = lint([program.code for program in programs]) if linter else [[] for _ in programs]
        numbers: Counter[int] = Counter()
        for program, remarks in zip(programs, findings, strict=True):
            name = f"{key}~{program.round}#{numbers[program.round]}"
            numbers[program.round] += 1
            kept = {field: value for field, value in records[key].items() if field not in ("id", "annotation")}
            record = task.with_response({**kept, "question_id": name}, program.code)
            feedback = _feedback(program, str(record["test"]), remarks, critique_style)
            made[name] = task.with_feedback(record, feedback, _annotation(program))
    return made, left_out


def _annotation(program: Made) -> dict[str, object]:
    told: dict[str, object] = {"source": "variations", "kind": program.mutation.kind if program.mutation else "none"}
    if program.mutation and program.verdict:
        told |= {"line": program.mutation.line, "was": program.mutation.was, "failed": program.verdict.test}
    return told


def _programs(
    code: str, tests: str, rounds: int, per_round: int, sandbox: Sandbox, rng: random.Random
) -> list[Made] | str:
    """What is made of one program; or why nothing can be."""
    if not code.strip() or read(code) is None:
        return "the solution is no Python program"
    if not tests.strip():
        return "it has no tests"
    wordings = list(dict.fromkeys([code, *(reworded(code, tests, rng) for _ in range(rounds - 1))]))
    passed = [verdict is not None and verdict.passed for verdict in run_versions(wordings, tests, sandbox)]
    if not passed[0]:
        return "it does not pass its tests"
    made = {number: [Made(wordings[number], number)] for number, fine in enumerate(passed) if fine}
    seen: set[str] = set(wordings)
    waiting = {number: _drawn(_quotable(wordings[number]), rng) for number in made}
    while waiting:
        tried = []
        for number, candidates in list(waiting.items()):
            spare = math.ceil(_SPARE * (per_round - len(made[number])))
            some = list(islice((each for each in candidates if each.code not in seen), spare))
            seen |= {each.code for each in some}
            tried += [(number, each) for each in some]
            if len(some) < spare or not spare:
                del waiting[number]
        for (number, each), verdict in zip(
            tried, run_versions([each.code for _, each in tried], tests, sandbox), strict=True
        ):
            if verdict is not None and not verdict.passed and len(made[number]) < per_round:
                made[number].append(Made(each.code, number, each, verdict))
    return [program for programs in made.values() for program in programs]


def _quotable(code: str) -> list[Mutation]:
    """The mutations whose changed line can be quoted so that no other line is meant."""
    found = []
    for mutation in mutations(code):
        quotes = _quotes(mutation.code).of({mutation.line})
        if len(quotes) == 1 and quotes[0].strip() == mutation.now and len(ground(quotes[0], mutation.code)) == 1:
            found.append(mutation)
    return found


def _quotes(code: str) -> LineQuotes:
    return LineQuotes(code, [(0, len(code))])


def _drawn(found: Sequence[Mutation], rng: random.Random) -> Iterator[Mutation]:
    """All of them, in an order by chance in which the kinds take turns."""
    kinds: dict[str, list[Mutation]] = {}
    for mutation in rng.sample(found, len(found)):
        kinds.setdefault(mutation.kind, []).append(mutation)
    while kinds:
        for kind in rng.sample(list(kinds), len(kinds)):
            yield kinds[kind].pop()
            if not kinds[kind]:
                del kinds[kind]


def _feedback(program: Made, tests: str, findings: list[Finding], style: str) -> Feedback:
    quotes, mutation = _quotes(program.code), program.mutation
    wrong = {mutation.line} if mutation else set()
    good, remarks = improvable(quotes, findings, wrong)
    parts = []
    if style == "worked":
        parts.append(", ".join(_worked(program.code, mutation)) + ".")
    elif mutation:
        parts.append(f"`{mutation.now}` is wrong, it should be `{mutation.was}`.")
    parts.append(_said(program.verdict) if mutation and program.verdict else "All tests pass.")
    if remarks:
        parts.append("Could be better: " + " ".join(remarks))
    return Feedback(" ".join(parts), good, quotes.of(wrong))


def _worked(code: str, mutation: Mutation | None) -> Iterator[str]:
    """Each line that does something, and whether it is right; of the wrong one, what it should be."""
    for number, text in _acting(code):
        if mutation and number == mutation.line:
            yield f"`{text}` wrong, should be `{mutation.was}`"
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


def _said(verdict: Verdict) -> str:
    """What the first failing test said."""
    if verdict.error == "TimeoutError" and not verdict.test:
        return "The tests run out of time."
    if not verdict.test:
        return f"No test can run: {verdict.error}."
    seen = re.sub(r" at 0x[0-9a-f]+", "", verdict.message.partition("\n")[0]).strip()
    if verdict.error != "AssertionError" or not seen:
        return f"{verdict.test} fails with {verdict.error}."
    return f"{verdict.test} fails: {seen if len(seen) <= _LONGEST_SEEN else seen[: _LONGEST_SEEN - 3] + '...'}."


@command
def main() -> None:
    config = parse(ProgramVariationsConfig)
    check_choices(config)
    check_given(config, "data_path", "output_path")
    check_positive(config, "rounds", "per_round", "seconds", "workers")
    check_output(config.output_path)
    records = load_records(config.data_path, get_task("kodcode"))
    made, left_out = variations(
        records,
        config.rounds,
        config.per_round,
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
