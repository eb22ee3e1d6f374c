"""Which lines of a program its failing tests blame.

In order of what points most directly:

- the program does not parse: the lines that have to go before it does;
- an exception left it: the line that raised; for a ``raise`` also its condition; for endless recursion the recursive
  call and the conditions that should have ended it;
- time ran out: the loops (or the recursive call) it was in;
- a test saw a wrong value: the line through which the call returned it; where that line only names the value, the last
  assignment to the name; where it returns a constant or a name from a branch, the branch's conditions; a function that
  ended without ``return``: the line it ended on. Also lines that only failing calls executed, if they are few
  (spectrum-based fault localisation with the score of Ochiai 1957; Abreu et al. 2007);
- the test asks for a name that is not there: the definitions that are there;
- nothing of this: the body of the function that the failing assertion names.

A test that fails for a reason of its own (it does not parse, it uses names that nobody defines) says nothing.
"""

from __future__ import annotations

import ast
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from text2grad.unit_tests import Call, Test, TestRun, parsed

_FEW = 3  # lines that only failing calls executed, at most, for them to count as evidence
_MOST_PROSE = 60  # lines taken out, at most, in search of a program

Function = ast.FunctionDef | ast.AsyncFunctionDef


def line_intervals(code: str) -> list[tuple[int, int]]:
    """Where each line of a program stands, without its end, as Python counts lines."""
    return [match.span(1) for match in re.finditer(r"([^\r\n]*)(?:\r\n|\r|\n|\Z)", code) if match.end() > match.start()]


@dataclass
class Blame:
    """One reason why lines are wrong. ``lines`` count from 1."""

    lines: set[int]
    reason: str
    test: Test | None = None


class TestsAtFaultError(ValueError):
    """The tests cannot judge the program, whatever it does; the message says why."""


@dataclass
class Source:
    """A program, its syntax tree, and questions about its lines."""

    code: str
    tree: ast.Module
    lines: list[str] = field(init=False)
    statements: list[ast.stmt] = field(init=False)
    functions: list[Function] = field(init=False)
    _parents: dict[ast.AST, ast.AST] = field(init=False)

    def __post_init__(self) -> None:
        self.lines = _lines(self.code)
        nodes = list(ast.walk(self.tree))
        self.statements = [node for node in nodes if isinstance(node, ast.stmt)]
        self.functions = [node for node in nodes if isinstance(node, Function)]
        self._parents = {child: node for node in nodes for child in ast.iter_child_nodes(node)}

    def statement(self, line: int) -> ast.stmt | None:
        """The innermost statement on a line."""
        holding = [node for node in self.statements if node.lineno <= line <= (node.end_lineno or line)]
        return max(holding, key=lambda node: (node.lineno, -(node.end_lineno or line)), default=None)

    def extent(self, line: int) -> set[int]:
        """The lines of the statement on a line; of a compound statement its head alone."""
        node = self.statement(line)
        if node is None:
            return {line}
        body = getattr(node, "body", None)
        end = body[0].lineno - 1 if body and isinstance(body[0], ast.stmt) else node.end_lineno
        if body and line > max(node.lineno, end):
            return {line}  # an `else:` and the like
        return {number for number in range(node.lineno, max(node.lineno, end) + 1) if self.text(number)}

    def text(self, line: int) -> str:
        text = self.lines[line - 1].strip() if 1 <= line <= len(self.lines) else ""
        return "" if text.startswith("#") else text

    def around(self, node: ast.AST | None) -> Iterator[ast.AST]:
        """The nodes around a node, from the inside, within its function."""
        while node is not None and not isinstance(node, Function | ast.Lambda | ast.ClassDef):
            yield node
            node = self._parents.get(node)

    def function(self, line: int) -> Function | None:
        holding = [node for node in self.functions if node.lineno <= line <= (node.end_lineno or line)]
        return max(holding, key=lambda node: node.lineno, default=None)

    def conditions(self, line: int) -> set[int]:
        """Heads of the nearest ``if`` around a line, and of those before it in its chain."""
        found: set[int] = set()
        inner: ast.AST | None = None
        for node in self.around(self.statement(line)):
            if isinstance(node, ast.If) and (not found or node.orelse == [inner]):
                found |= self.extent(node.lineno)
                inner = node
            elif found:
                break
        return found

    def loops(self, line: int) -> set[int]:
        """Heads of the innermost loop around a line."""
        for node in self.around(self.statement(line)):
            if isinstance(node, ast.For | ast.While | ast.AsyncFor):
                return self.extent(node.lineno)
        return set()

    def body(self, function: ast.AST) -> set[int]:
        """The lines of a function or class below its head and docstring."""
        body = function.body
        first = body[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and len(body) > 1:
            first = body[1]
        return {line for line in range(first.lineno, (function.end_lineno or first.lineno) + 1) if self.text(line)}

    def assignments(self, name: str, function: Function | None) -> list[int]:
        """Lines that give a name its value, or change the value in place."""
        scope = ast.walk(function) if function is not None else iter(self.statements)
        return sorted({node.lineno for node in scope if isinstance(node, ast.stmt) and name in _changed(node)})


def _changed(node: ast.stmt) -> set[str]:
    """The names that a statement assigns, or whose items, attributes or contents it changes."""
    targets: list[ast.AST] = []
    if isinstance(node, ast.Assign):
        targets = list(node.targets)
    elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.For | ast.AsyncFor):
        targets = [node.target]
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute):
        targets = [node.value.func.value]  # result.append(…)
    names = set()
    for target in targets:
        for part in target.elts if isinstance(target, ast.Tuple | ast.List) else [target]:
            while isinstance(part, ast.Subscript | ast.Attribute | ast.Starred):
                part = part.value
            if isinstance(part, ast.Name):
                names.add(part.id)
    return names


def _lines(code: str) -> list[str]:
    return [code[start:end] for start, end in line_intervals(code)]


def blame(code: str, tests: str, run: TestRun) -> list[Blame]:
    """The lines that a failed, traced run of the tests speaks against.

    Raises:
        TestsAtFaultError: no failing test says anything about the program.
    """
    tree = parsed(code)
    if tree is None:
        return [_unparsable(code)]
    source = Source(code, tree)
    if not source.statements:
        raise TestsAtFaultError("there is no code in the response")
    if run.result.reason:
        return [_cut_short(source, tests, run)]
    passing = _passing(run)
    found: list[Blame] = []
    faults: list[str] = []
    for test in run.failures:
        try:
            found.append(_blame_for(source, tests, test, passing))
        except TestsAtFaultError as error:
            faults.append(str(error))
    if not found:
        reason = faults[0] if faults else "pytest ran no test"
        raise TestsAtFaultError(reason)
    return found


def _unparsable(code: str) -> Blame:
    """Take out the line that the parser stumbles over, as long as what is left gets further."""
    lines = _lines(code)
    removed: list[int] = []
    reason = ""
    while len(removed) < _MOST_PROSE:
        kept = ["" if number in removed else line for number, line in enumerate(lines, 1)]
        try:
            ast.parse("\n".join(kept))
            break
        except SyntaxError as error:
            number = min(max(error.lineno or 1, 1), len(lines))
            while number > 1 and not kept[number - 1].strip():
                number -= 1  # "expected an indented block" may stand on an empty line
            reason = reason or f"Line {number} is not Python: {error.msg}."
            prose = removed and not lines[removed[0] - 1].startswith((" ", "\t"))  # below prose, indents mean nothing
            if removed and (number <= removed[-1] or (isinstance(error, IndentationError) and not prose)):
                break
            removed.append(number)
        except (ValueError, RecursionError, MemoryError) as error:
            reason = reason or f"The code cannot be read as Python: {error}."
            removed = removed or [number for number, line in enumerate(lines, 1) if line.strip()]
            break
    return Blame(set(removed) or {1}, reason)


def _cut_short(source: Source, tests: str, run: TestRun) -> Blame:
    unfinished = run.failures[-1] if run.failures else None
    said = {"timeout": "did not end in time", "memory": "used up the memory", "output": "printed without end"}
    reason = f"The program {said.get(run.result.reason or '', 'started too many processes')}"
    lines: set[int] = set()
    if run.standing:
        innermost = run.standing[-1]
        lines = source.loops(innermost)
        recursing = [line for line, count in Counter(run.standing).items() if count > 2]
        if recursing:
            lines |= set().union(*map(source.extent, recursing)) | _ends_of_recursion(source, recursing)
        for outer in reversed(run.standing[:-1]):
            lines = lines or source.loops(outer)
        lines = lines or source.extent(innermost)
        reason += f"; it was at line {innermost} `{source.text(innermost)}`"
    if not lines:
        lines = _named(source, tests, unfinished)
    return Blame(lines, reason + ".", unfinished)


def _blame_for(source: Source, tests: str, test: Test, passing: tuple[Counter[int], int]) -> Blame:
    if test.frames and test.frames[-1].in_solution:
        return _raised(source, test)
    if test.error == "SyntaxError":
        raise TestsAtFaultError(f"the test file is not Python: {test.message}")
    if test.error in ("ImportError", "ModuleNotFoundError", "NameError"):
        return _not_there(source, tests, test)
    if test.error == "TypeError" and re.match(r"[\w.]+\(\) (?:missing|takes|got)", test.message):
        called = test.message.split("(")[0].split(".")[-1]
        heads = [line for node in source.functions if node.name == called for line in source.extent(node.lineno)]
        if heads:
            return Blame(set(heads), f"`{called}` cannot be called as the test does: {test.message}.", test)
    if not test.frames and test.outcome == "failed":
        raise TestsAtFaultError(f"the test file cannot be used: {test.message}")
    return _wrong_value(source, tests, test, passing)


def _raised(source: Source, test: Test) -> Blame:
    own = [frame.line for frame in test.frames if frame.in_solution]
    line = own[-1]
    if test.error == "RecursionError":
        repeated = [number for number, count in Counter(own).items() if count > 2] or [line]
        lines = set().union(*map(source.extent, repeated)) | _ends_of_recursion(source, repeated)
        return Blame(lines, f"Line {repeated[0]} `{source.text(repeated[0])}` calls itself without end.", test)
    lines = source.extent(line)
    if isinstance(source.statement(line), ast.Raise):
        lines |= source.conditions(line)
    return Blame(lines, f"Line {line} `{source.text(line)}` raised {test.error}: {_short(test.message)}.", test)


def _ends_of_recursion(source: Source, lines: list[int]) -> set[int]:
    """Conditions, in the functions that recurse, under which they return or raise without recursing."""
    found: set[int] = set()
    for function in {source.function(line) for line in lines} - {None}:
        for node in ast.walk(function):
            if isinstance(node, ast.If) and isinstance(node.body[-1], ast.Return | ast.Raise):
                own = {line for part in node.body for line in range(part.lineno, (part.end_lineno or part.lineno) + 1)}
                if not own & set(lines):
                    found |= source.extent(node.lineno)
    return found


def _not_there(source: Source, tests: str, test: Test) -> Blame:
    wanted = re.search(r"cannot import name '(\w+)'", test.message)
    name = wanted[1] if wanted else test.missing
    top = [node for node in source.tree.body if isinstance(node, Function | ast.ClassDef)]
    from_solution = test.missing == "solution" or (wanted and "'solution'" in test.message)
    used = set(re.findall(r"\w+", tests))
    if not from_solution and (test.error != "NameError" or not top or any(node.name in used for node in top)):
        raise TestsAtFaultError(f"the tests need {name!r}, which neither they nor the question provide")
    heads = set().union(*(source.extent(node.lineno) for node in top)) if top else {1}
    return Blame(heads, f"The tests use `{name}`, which the code does not define.", test)


def _passing(run: TestRun) -> tuple[Counter[int], int]:
    """How many confirmed calls executed each line, and how many there were."""
    counts: Counter[int] = Counter()
    total = 0
    for test in run.tests:
        if test.trace:
            counts.update(test.trace.cleared)
            total += test.trace.cleared_calls
    return counts, total


def _wrong_value(source: Source, tests: str, test: Test, passing: tuple[Counter[int], int]) -> Blame:
    calls = _suspects(test)
    lines: set[int] = set()
    reason = ""
    for call in calls:
        if call.returns:
            lines |= _behind(source, call)
            reason = f"The call returned through line {call.returns[0]} `{source.text(call.returns[0])}`."
    lines |= {line for line in _only_failing(calls, passing) if source.text(line)}
    if lines:
        return Blame(lines, reason, test)
    return Blame(_named(source, tests, test), "No single line stands out.", test)


def _suspects(test: Test) -> list[Call]:
    """The calls that the failing assertion is about: those on its line, else the last before it."""
    calls = test.trace.calls if test.trace else []
    ordinary = [call for call in calls if not call.function.endswith("__init__")] or calls
    at = next((frame.line for frame in reversed(test.frames) if not frame.in_solution), None)
    return [call for call in ordinary if call.test_line == at][-_FEW:] or ordinary[-1:]


def _behind(source: Source, call: Call) -> set[int]:
    """The returning line, and what decided on its value."""
    line = call.returns[0]
    lines = source.extent(line)
    node = source.statement(line)
    if not isinstance(node, ast.Return):
        return lines
    function = source.function(line)
    value = node.value
    if value is None or isinstance(value, ast.Constant | ast.Name):
        lines |= source.conditions(line)
    for name in _names(value):
        written = [number for number in source.assignments(name, function) if number in call.order]
        if written:
            lines |= source.extent(max(written, key=lambda number: call.order[number]))
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        lines |= set().union(*map(source.extent, call.returns[1:2])) if call.returns[1:] else set()
    return lines


def _names(value: ast.expr | None) -> list[str]:
    """The names a value is read from."""
    if value is None:
        return []
    return list(dict.fromkeys(node.id for node in ast.walk(value) if isinstance(node, ast.Name)))


def _only_failing(calls: list[Call], passing: tuple[Counter[int], int]) -> set[int]:
    """Lines of the highest suspicion, e_f / √((e_f + n_f)(e_f + e_p)), where passing calls keep them few."""
    counts, total = passing
    if total == 0 or not calls:
        return set()
    scores: dict[int, float] = {}
    for line in set().union(*(call.lines for call in calls)):
        failed = sum(line in call.lines for call in calls)
        scores[line] = failed / math.sqrt(len(calls) * (failed + counts[line]))
    top = {line for line, score in scores.items() if score > 0.99}
    return top if len(top) <= _FEW else set()


def _named(source: Source, tests: str, test: Test | None) -> set[int]:
    """The body of the function that the failing line (or else the test) names; of all functions where it names none."""
    text = tests.splitlines()
    at = [frame.line for frame in test.frames if not frame.in_solution] if test else []
    used = set(re.findall(r"\w+", text[at[-1] - 1])) if at and 1 <= at[-1] <= len(text) else set()
    if test and not used:
        match = re.search(
            rf"def {re.escape(test.name.split('[')[0].split('::')[-1])}\b.*?(?=\ndef |\nclass |\Z)", tests, re.S
        )
        used = set(re.findall(r"\w+", match[0])) if match else set()
    top = [node for node in source.tree.body if isinstance(node, Function | ast.ClassDef)]
    chosen = [node for node in top if node.name in used] or top
    lines = set().union(*map(source.body, chosen)) if chosen else set()
    return lines or {number for number in range(1, len(source.lines) + 1) if source.text(number)}


def _short(message: str) -> str:
    first = " ".join(message.split())
    return first if len(first) <= 160 else first[:157] + "..."
