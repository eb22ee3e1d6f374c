"""Which lines of a program its failing tests blame.

In order of what points most directly:

- the program does not parse: the lines that have to go before it does;
- an exception left it, or a test saw a wrong value: the line that raised, or through which the call returned, and of
  what led there (the dynamic slice of Korel and Laski 1988: last assignments, conditions, loops) the ``MOST_LINES``
  of the highest suspicion: those in many failing tests' slices that few passing calls executed (Ochiai's coefficient;
  Abreu, Zoeteweij and van Gemund 2007), the nearest first;
- it recursed without end: the recursive call and the conditions that should have ended it;
- time ran out: the loops, or the recursive call, that it was in;
- the test asks for a name that is not there: the definitions that are there;
- nothing of this: the body of the function that the failing assertion names.

A test that fails for a reason of its own (it does not parse, it uses names that nobody defines) says nothing.
"""

import ast
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from text2grad.sandbox.unit_tests import parsed
from text2grad.sandbox.verdict import Call, Test, TestRun

MOST_LINES = 4  # statements blamed by slices
_FARTHEST = 3  # steps from the line at fault back to what led to it
_SUSPECTS = 3  # calls on the failing line that are looked at, the last ones
_MOST_PROSE = 60  # lines taken out, at most, in search of a program

Function = ast.FunctionDef | ast.AsyncFunctionDef


def _read(node: ast.stmt | None) -> list[str]:
    """The names whose values a statement uses; of a compound statement, its head."""
    part: ast.AST | None = node
    if isinstance(node, ast.For | ast.AsyncFor):
        part = node.iter
    elif isinstance(node, ast.If | ast.While):
        part = node.test
    elif part is None or isinstance(node, Function | ast.ClassDef):
        return []
    return list(dict.fromkeys(item.id for item in ast.walk(part) if isinstance(item, ast.Name)))


def line_intervals(code: str) -> list[tuple[int, int]]:
    """Where each line of a program is, without its end, as Python counts lines."""
    return [match.span(1) for match in re.finditer(r"([^\r\n]*)(?:\r\n|\r|\n|\Z)", code) if match.end() > match.start()]


def lines_of(code: str) -> list[str]:
    return [code[start:end] for start, end in line_intervals(code)]


@dataclass
class Blame:
    """One reason why lines, counted from 1, are wrong.

    Attributes:
        slice: lines that led there -> how many steps before.
        missing: the name that the tests use and the program does not define.
    """

    lines: set[int]
    reason: str
    test: Test | None = None
    slice: dict[int, int] = field(default_factory=dict)
    missing: str = ""


class TestsAtFaultError(ValueError):
    """The tests cannot judge the program, whatever it does; the message says why."""


class Source:
    """A program, its syntax tree, and questions about its lines."""

    def __init__(self, code: str, tree: ast.Module):
        self.tree, self.lines = tree, lines_of(code)
        nodes = list(ast.walk(tree))
        self.statements = [node for node in nodes if isinstance(node, ast.stmt)]
        self.functions = [node for node in nodes if isinstance(node, Function)]
        self.returns = {  # of each function, by name
            function.name: [node.lineno for node in ast.walk(function) if isinstance(node, ast.Return)]
            for function in self.functions
        }
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
        end = body[0].lineno - 1 if body and isinstance(body[0], ast.stmt) else node.end_lineno or node.lineno
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

    def before(self, line: int, order: Mapping[int, int]) -> Iterator[int]:
        """One step back: the conditions and loops around a line, and where each value it reads came from.

        Args:
            order: lines that were executed -> a number that grows with time, of their last execution.
        """
        node = self.statement(line)
        for outer in list(self.around(node))[1:]:
            if isinstance(outer, ast.If | ast.While | ast.For | ast.AsyncFor):
                yield outer.lineno
        for name in _read(node):
            places = [*self.assignments(name, self.function(line)), *self.returns.get(name, [])]
            written = [place for place in places if place in order and place != line]
            if written:
                yield max(written, key=lambda place: order[place])

    def loops(self, line: int) -> set[int]:
        """Heads of the innermost loop around a line."""
        for node in self.around(self.statement(line)):
            if isinstance(node, ast.For | ast.While | ast.AsyncFor):
                return self.extent(node.lineno)
        return set()

    def body(self, function: Function | ast.ClassDef) -> set[int]:
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


def blame(code: str, tests: str, run: TestRun) -> tuple[set[int], list[Blame]]:
    """The lines that a failed, traced run of the tests speaks against, and the reasons, one for each failing test.

    Raises:
        TestsAtFaultError: no failing test says anything about the program.
    """
    tree = parsed(code)
    if tree is None:
        found = _unparsable(code)
        return found.lines, [found]
    source = Source(code, tree)
    if not source.statements:
        raise TestsAtFaultError("there is no code in the response")
    if run.result.reason:
        found = _cut_short(source, tests, run)
        return found.lines, [found]
    blames: list[Blame] = []
    faults: list[str] = []
    for test in run.failures:
        try:
            blames.append(_blame_for(source, tests, test))
        except TestsAtFaultError as error:
            faults.append(str(error))
    # Where it exited, or sent what no program sends; else tests fail or end by themselves.
    if not blames and not run.complete:
        blames.append(Blame(_named(source, tests, None), "The program ended its tests."))
    if not blames:
        raise TestsAtFaultError(faults[0] if faults else "pytest ran no test")
    return set().union(_likeliest(source, blames, run), *(found.lines for found in blames)), blames


def _unparsable(code: str) -> Blame:
    """Take out the line that the parser stumbles over, as long as what is left gets further."""
    lines = lines_of(code)
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
                number -= 1  # "expected an indented block" may be on an empty line
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


def _blame_for(source: Source, tests: str, test: Test) -> Blame:
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
    return _wrong_value(source, tests, test)


def _raised(source: Source, test: Test) -> Blame:
    own = [frame.line for frame in test.frames if frame.in_solution]
    line = own[-1]
    if test.error == "RecursionError":
        repeated = [number for number, count in Counter(own).items() if count > 2] or [line]
        lines = set().union(*map(source.extent, repeated)) | _ends_of_recursion(source, repeated)
        return Blame(lines, f"Line {repeated[0]} `{source.text(repeated[0])}` calls itself without end.", test)
    calls = test.trace.calls[-1:] if test.trace else []
    reason = f"Line {line} `{source.text(line)}` raised {test.error}: {_short(test.message)}."
    return Blame(source.extent(line), reason, test, _slice(source, [(line, call.order) for call in calls]))


def _ends_of_recursion(source: Source, lines: list[int]) -> set[int]:
    """Conditions, in the functions that recurse, under which they return or raise without recursing."""
    found: set[int] = set()
    functions = {function for line in lines if (function := source.function(line)) is not None}
    for function in functions:
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
    return Blame(heads, f"The tests use `{name}`, which the code does not define.", test, missing=name or "")


def _wrong_value(source: Source, tests: str, test: Test) -> Blame:
    returned = [(call.returned, call.order) for call in _suspects(test) if call.returned]
    if not returned:
        return Blame(_named(source, tests, test), "No single line stands out.", test)
    line = returned[-1][0]
    reason = f"The call returned through line {line} `{source.text(line)}`."
    lines = set().union(*(source.extent(start) for start, _ in returned))
    return Blame(lines, reason, test, _slice(source, returned))


def _slice(source: Source, starts: list[tuple[int, Mapping[int, int]]]) -> dict[int, int]:
    """The lines behind each start, by their distance to the nearest."""
    nearest: dict[int, int] = {}
    for start, order in starts:
        distance = {start: 0}
        waiting = [start]
        for line in waiting:  # grows while it is walked
            nearest[line] = min(distance[line], nearest.get(line, _FARTHEST))
            if distance[line] < _FARTHEST:
                for earlier in source.before(line, order):
                    if earlier not in distance:
                        distance[earlier] = distance[line] + 1
                        waiting.append(earlier)
    return nearest


def _likeliest(source: Source, blames: list[Blame], run: TestRun) -> set[int]:
    """The lines of highest suspicion in the slices: Ochiai's e_f / √((e_f + n_f)(e_f + e_p))."""
    passing: Counter[int] = Counter()
    for test in run.tests:
        if test.trace:
            passing.update(test.trace.cleared)
    slices = [found.slice for found in blames if found.slice]
    failing = Counter(line for lines in slices for line in lines)

    def rank(line: int) -> tuple[float, int]:
        suspicion = failing[line] / math.sqrt(len(slices) * (failing[line] + passing[line]))
        return -suspicion, min(lines[line] for lines in slices if line in lines)

    return set().union(*map(source.extent, sorted(failing, key=rank)[:MOST_LINES]))


def _suspects(test: Test) -> list[Call]:
    """The calls that the failing assertion is about: those on its line, else the last before it."""
    calls = test.trace.calls if test.trace else []
    ordinary = [call for call in calls if not call.function.endswith("__init__")] or calls
    at = next((frame.line for frame in reversed(test.frames) if not frame.in_solution), None)
    return [call for call in ordinary if call.test_line == at][-_SUSPECTS:] or ordinary[-1:]


def _named(source: Source, tests: str, test: Test | None) -> set[int]:
    """The body of the function that the failing line (or else the test) names; of all functions where it names none."""
    text = lines_of(tests)
    at = [frame.line for frame in test.frames if not frame.in_solution] if test else []
    used = set(re.findall(r"\w+", text[at[-1] - 1])) if at and 1 <= at[-1] <= len(text) else set()
    if test and not used:
        name = re.escape(test.name.split("[")[0].split("::")[-1])
        match = re.search(rf"def {name}\b.*?(?=\ndef |\nclass |\Z)", tests, re.S)
        used = set(re.findall(r"\w+", match[0])) if match else set()
    top = [node for node in source.tree.body if isinstance(node, Function | ast.ClassDef)]
    chosen = [node for node in top if node.name in used] or top
    lines = set().union(*map(source.body, chosen)) if chosen else set()
    return lines or {number for number in range(1, len(source.lines) + 1) if source.text(number)}


def _short(message: str) -> str:
    first = " ".join(message.split())
    return first if len(first) <= 160 else first[:157] + "..."
