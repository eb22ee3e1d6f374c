"""An annotator of programs that needs no model: it runs the tests and follows what they blame.

Wrong (−1): the lines that :mod:`text2grad.critics.programs.kodcode.blame` finds when tests fail. Improvable (0): lines
about which a chosen set of the ruff linter's rules has something to say; style alone is not among them. All other
code: +1.

The verdict is the share of tests that pass, mapped to −1..1. What no quote can hold is ``missing``: names that the
tests import and the program does not define.

A response that its tests cannot judge is a ``FeedbackError``: there are none, they are broken themselves, or they pass
in a way that a wrong program could have brought about (``TestRun.undecided``).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from text2grad.critics.programs.kodcode.blame import Blame, TestsAtFaultError, blame, line_intervals, lines_of
from text2grad.errors import InputError
from text2grad.feedback import Feedback, FeedbackError
from text2grad.sandbox import Sandbox
from text2grad.sandbox.unit_tests import parsed, run_tests
from text2grad.sandbox.verdict import ADDRESS, TestRun
from text2grad.tasks import Record
from text2grad.tasks.kodcode import KodCode

RULES = {
    "F": "what pyflakes finds: unused imports and variables, redefinitions, comparisons with literals by `is`",
    "E711,E712,E713,E714,E721": "comparisons that go wrong for some types",
    "E722,E741": "bare `except`, names that read like digits",
    "B": "likely bugs: mutable defaults, unused loop variables, late binding",
    "A001,A002": "names that hide built-ins",
    "C4": "comprehensions that build what they need not",
    "SIM": "conditions and loops that have a simpler form",
    "RET501,RET502,RET503,RET505,RET506,RET507,RET508": "inconsistent returns, `else` after `return`",
    "PERF": "loops slower than what they spell out",
    "PLR1711,PLR1714,PLR1730,PLR5501,PLW": "useless returns, repeated comparisons, shadowed loop variables",
    "PIE": "placeholders and arguments without use",
}
IGNORED = "B905,B904,SIM108,PLW2901"  # matters of taste in short programs
MOST_FINDINGS = 4
MOST_FAILURES = 3  # failing tests that the critique tells of
MOST_NAMED = 6  # lines, beside those in the reasons
LONGEST_SEEN = 240  # characters of an assertion's message
_NOISE = re.compile(rf"{ADDRESS}|\s*Use -v to get more diff|\n  [-+?] .*")  # texts compared by character


@dataclass(frozen=True)
class Finding:
    """What the linter says: lines from ``first`` to ``last``, counted from 1."""

    first: int
    last: int
    rule: str
    message: str


class CodeCritic:
    """Judges programs by their unit tests and a linter.

    Args:
        sandbox: where programs run, one a core; by default one with the default limits.
    """

    name = "programmatic"

    def __init__(self, sandbox: Sandbox | None = None):
        self.sandbox = sandbox or Sandbox()
        self.task = KodCode()

    def __call__(
        self, prompts: Sequence[str], responses: Sequence[str], records: Sequence[Record] | None = None
    ) -> list[Feedback | FeedbackError]:
        """Judge responses; each record's ``test`` is a pytest file that imports from ``solution``.

        A log that says ``passed`` is believed; any other response is run, so that the lines can be traced.
        """
        if len(prompts) != len(responses) or (records is not None and len(records) != len(responses)):
            raise InputError(f"{len(prompts)} prompts and {len(responses)} responses; give one of each")
        codes = [self.task.code(response) for response in responses]
        findings = lint([code if parsed(code) else "" for code in codes])
        about: Sequence[Record] = records or [{} for _ in responses]
        jobs = zip(responses, codes, about, findings, strict=True)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return list(pool.map(lambda job: self._feedback_on(*job), jobs))

    def _feedback_on(self, response: str, code: str, record: Record, found: list[Finding]) -> Feedback | FeedbackError:
        tests = str(record.get("test") or "")
        if not tests.strip():
            return FeedbackError("a program is judged by its tests; give records that have a 'test'")
        if not code.strip():
            return FeedbackError("the response holds no code")
        quotes = LineQuotes(response, self.task.rewarded(response))
        log = record.get("log")
        if isinstance(log, Mapping) and log.get("passed") is True:
            return _approved("The tests pass", quotes, found)
        run = run_tests(code, tests, self.sandbox, trace=True)
        if run.passed:
            count = sum(test.outcome == "passed" for test in run.tests)
            return _approved(f"All {count} tests pass" if count > 1 else "The test passes", quotes, found)
        if run.undecided:
            return FeedbackError(f"its tests pass, but a wrong program could have made them: {'; '.join(run.weaker)}")
        try:
            return _rejected(run, tests, *blame(code, tests, run), quotes, found)
        except TestsAtFaultError as error:
            return FeedbackError(f"its tests cannot judge it: {error}")


def _approved(verdict: str, quotes: LineQuotes, findings: list[Finding]) -> Feedback:
    good, remarks = improvable(quotes, findings, set())
    ending = " No improvements needed." if not remarks else " Could be better: " + " ".join(remarks)
    return Feedback(f"Right. {verdict}.{ending}", good=good, poor=[], score=1.0)


def _rejected(
    run: TestRun, tests: str, lines: set[int], blames: list[Blame], quotes: LineQuotes, findings: list[Finding]
) -> Feedback:
    every = {number for number in range(1, len(quotes.places) + 1) if quotes.line(number)}
    lines = lines & every or every  # the program says itself where it failed
    good, remarks = improvable(quotes, findings, lines)
    # One word for all failures: of "1 of 5", "2 of 5" and "pass", greedy writing picks the last, however many fail.
    parts = ["Wrong.", _count(run) if blames[0].test else "No test can run.", *_reasons(blames, tests)]
    unnamed = [line for line in sorted(lines) if f"`{quotes.line(line)}`" not in " ".join(parts)]
    if unnamed and blames[0].test and len(unnamed) <= MOST_NAMED:
        parts.append("What led there: " + ", ".join(f"`{quotes.line(line)}`" for line in unnamed) + ".")
    if remarks:
        parts.append("Besides: " + " ".join(remarks))
    missing = dict.fromkeys(f"a definition of {found.missing}" for found in blames if found.missing)
    return Feedback(" ".join(parts), good, quotes.of(lines), missing=list(missing), score=_score(run))


def _score(run: TestRun) -> float:
    """The share of tests that pass, mapped to −1..1; −1 where the run was cut short, or a pass would prove nothing."""
    passed = sum(test.outcome == "passed" for test in run.tests)
    return round(2 * passed / len(run.tests) - 1, 2) if run.complete and not run.forged and not run.weaker else -1.0


def _count(run: TestRun) -> str:
    total, failed = len(run.tests), len(run.failures)
    if total == 1:
        return "The test fails."
    return f"{failed} of {total} tests {'fails' if failed == 1 else 'fail'}."


def _reasons(blames: list[Blame], tests: str) -> Iterator[str]:
    """What the first few failures say, each reason once."""
    told: set[str] = set()
    for found in blames[:MOST_FAILURES]:
        yield from (text for text in (_said(found, tests), found.reason) if text and text not in told)
        told |= {found.reason}


def _said(found: Blame, tests: str) -> str:
    """Which test failed, at which assertion, and what pytest saw."""
    test = found.test
    if test is None:
        return ""
    at = [frame.line for frame in test.frames if not frame.in_solution]
    lines = lines_of(tests)
    source = f" at `{lines[at[-1] - 1].strip()}`" if at and 1 <= at[-1] <= len(lines) else ""
    said = f"{test.name or 'The test file'} fails{source}"
    if test.error == "AssertionError" and test.message:
        seen = " ".join(re.sub(r"\s*\n \+ +(?=where |and )", ", ", _NOISE.sub("", test.message)).split())
        said += f": {seen if len(seen) <= LONGEST_SEEN else seen[: LONGEST_SEEN - 3] + '...'}"
    elif test.error and not found.reason:
        said += f" with {test.error}"
    return said + "."


def improvable(quotes: LineQuotes, findings: list[Finding], wrong: set[int]) -> tuple[list[str], list[str]]:
    """Quotes of the lines that the linter speaks about, and what it says; not about lines that are wrong already."""
    taken = set(wrong)
    spans: list[str] = []
    remarks: list[str] = []
    for finding in findings:
        about = set(range(finding.first, finding.last + 1))
        if not about & taken and len(remarks) < MOST_FINDINGS:
            taken |= about
            spans += quotes.of(about)
            remarks.append(f"line {finding.first}, {finding.message.rstrip('.')} ({finding.rule}).")
    return spans, remarks


def lint(codes: Sequence[str]) -> list[list[Finding]]:
    """What the linter says about each program, in line order; nothing about one that does not parse.

    ruff reads the programs and does not run them. Settings files and ``noqa`` comments are not obeyed.
    """
    found: list[list[Finding]] = [[] for _ in codes]
    with tempfile.TemporaryDirectory(prefix="lint-") as folder:
        for index, code in enumerate(codes):
            path = Path(folder) / f"program_{index}.py"
            path.write_text(code, encoding="utf-8", errors="replace", newline="")
        command = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--exit-zero", "--ignore-noqa"]
        command += ["--quiet", "--output-format", "json", "--select", ",".join(RULES), "--ignore", IGNORED, folder]
        done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False, cwd=folder)
        if done.returncode:
            raise RuntimeError(f"the linter ended with {done.returncode}: {done.stderr.strip()}")
    for item in json.loads(done.stdout):
        index = int(Path(item["filename"]).stem.removeprefix("program_"))
        if item["code"] and not item["code"].startswith("invalid"):
            first, last = item["location"]["row"], item["end_location"]["row"]
            finding = Finding(first, first if last - first > 3 else last, item["code"], item["message"])
            found[index].append(finding)
    return [sorted(findings, key=lambda finding: (finding.first, finding.rule)) for findings in found]


class LineQuotes:
    """Quotes of a response for lines of the program in it.

    Args:
        blocks: the intervals of the response whose texts, joined with line breaks, are the program.
    """

    def __init__(self, response: str, blocks: Sequence[tuple[int, int]]):
        self.response = response
        self.places: list[tuple[int, int, int]] = []  # of each line: its block, its interval without margins
        for block, (begin, end) in enumerate(blocks):
            text = response[begin:end] + "\n" * (block < len(blocks) - 1)  # a block may end with a line break itself
            for start, stop in line_intervals(text):
                line = text[start:stop]
                left = begin + start + len(line) - len(line.lstrip())
                self.places.append((block, left, max(left, begin + start + len(line.rstrip()))))

    def of(self, lines: set[int]) -> list[str]:
        """One quote for each run of lines; it reads the same nowhere else in the response, if that can be had.

        Lines without text join runs, and begin none.
        """
        written = [index for index in range(len(self.places)) if self._text(index, index)]
        runs = groupby(written, key=lambda index: (index + 1 in lines, self._block(index)))
        chosen = [list(run) for (asked, _), run in runs if asked]
        return [self._alone(run[0], run[-1]) for run in chosen]

    def line(self, number: int) -> str:
        """The text of a line, counted from 1."""
        return self._text(number - 1, number - 1)

    def _alone(self, first: int, last: int) -> str:
        """The lines' text, with as little around it as makes it unique, if something does."""
        for text in self._longer(first, last):
            if self.response.find(text, self.response.find(text) + 1) == -1:
                return text
        return self._text(first, last)

    def _longer(self, first: int, last: int) -> Iterator[str]:
        """The lines' text, then with its margins, then with ever more lines before and after."""
        start, end = self.places[first][1], self.places[last][2]
        margin = self.response.rfind("\n", 0, start) + 1
        line_end = self.response.find("\n", end) + 1 or len(self.response)
        yield from (self.response[start:end], self.response[margin:end], self.response[margin:line_end])
        for extra in range(1, 4):
            for before in range(extra + 1):
                begin, stop = first - before, last + extra - before
                if begin >= 0 and stop < len(self.places) and self._block(begin) == self._block(stop):
                    yield self._text(begin, stop)

    def _block(self, index: int) -> int:
        return self.places[index][0]

    def _text(self, first: int, last: int) -> str:
        return self.response[self.places[first][1] : self.places[last][2]]
