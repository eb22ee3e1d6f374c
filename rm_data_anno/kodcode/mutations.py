"""Small faults for programs: each changes one place of one line, and leaves every other character as it was."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from rm_data_anno.known_faults import KnownFault
from text2grad.sandbox.unit_tests import parsed
from text2grad.tasks import Interval

_COMPARISONS = {
    "<": ("<=", ">"), "<=": ("<", ">="), ">": (">=", "<"), ">=": (">", "<="), "==": ("!=",), "!=": ("==",),
    "in": ("not in",), "not in": ("in",), "is": ("is not",), "is not": ("is",),
}  # fmt: skip
_OPERATORS = {
    "+": ("-",), "-": ("+",), "*": ("+", "**"), "/": ("//", "*"), "//": ("/", "%"), "%": ("//",), "**": ("*",),
    "&": ("|",), "|": ("&",), "^": ("&",), "<<": (">>",), ">>": ("<<",), "and": ("or",), "or": ("and",),
    "+=": ("-=", "="), "-=": ("+=",), "*=": ("+=",), "/=": ("//=",), "//=": ("/=",), "%=": ("//=",),
}  # fmt: skip
_ORDERED = (ast.Sub, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.LShift, ast.RShift)  # operands that cannot be swapped
_OPPOSITES = """
min max, any all, lower upper, startswith endswith, lstrip rstrip, append insert, keys values, find rfind, ceil floor,
union intersection, add discard, popleft pop, appendleft append, isalpha isdigit, islower isupper, sum len, sum max,
sorted list, set list, extend append, insert append, values keys, items values, index count, title upper, capitalize
title, isalnum isalpha, isdigit isalnum, intersection union, split splitlines, difference union, rfind find, rstrip
lstrip, heappop heappush, int float, round int, ljust rjust, rjust ljust, divmod pow, abs round, reversed list
"""
_PAIRS = [tuple(pair.split()) for pair in _OPPOSITES.split(",")]
_METHODS = {
    name: tuple(dict.fromkeys(b if a == name else a for a, b in _PAIRS if name in (a, b)))
    for name in {name for pair in _PAIRS for name in pair}
}
_WRAPPERS = frozenset(
    ["sorted", "set", "list", "abs", "int", "str", "float", "len", "reversed", "round", "tuple", "sum", "max", "min"]
)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@dataclass(frozen=True)
class Change:
    """Other text for the characters from ``start`` to ``end``."""

    kind: str
    start: int
    end: int
    text: str


class Program:
    """A program, its syntax tree, and where the tree's nodes are in the text."""

    def __init__(self, code: str, tree: ast.Module):
        self.code, self.tree = code, tree
        self._lines = [line.encode() for line in re.split(r"(?<=\n)|(?<=\r)(?!\n)", code)]
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line.decode()))
        self.parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}

    def place(self, node: ast.AST) -> Interval:
        """The characters of an expression or a statement."""
        row, column, end_row, end_column = (
            getattr(node, name) for name in ("lineno", "col_offset", "end_lineno", "end_col_offset")
        )
        return self._offset(row, column), self._offset(end_row, end_column)

    def text(self, node: ast.AST) -> str:
        return self.code[slice(*self.place(node))]

    def _offset(self, row: int, column: int) -> int:
        return self._starts[row - 1] + len(self._lines[row - 1][:column].decode())


def read(code: str) -> Program | None:
    """A program, if it parses and its lines are where Python's own count has them."""
    tree = parsed(code)
    if tree is None or "\f" in code or "\v" in code:
        return None
    return Program(code, tree)


def mutations(code: str) -> list[KnownFault]:
    """Every fault of a program that parses, each once; ``wrong`` is the line that differs, without its margins."""
    program = read(code)
    if program is None:
        return []
    found: dict[str, KnownFault] = {}
    for node in _judged(program):
        for rule in _RULES:
            for change in rule(node, program):
                fault = _applied(change, program)
                if fault and fault.text not in found and parsed(fault.text):
                    found[fault.text] = fault
    found.pop(code, None)
    return list(found.values())


def _applied(change: Change, program: Program) -> KnownFault | None:
    """The program with a change; None where the change reaches over a line's end."""
    code = program.code
    if re.search(r"[\r\n]", code[change.start : change.end] + change.text):
        return None
    new = code[: change.start] + change.text + code[change.end :]
    begin = max(code.rfind("\n", 0, change.start), code.rfind("\r", 0, change.start)) + 1
    was, now = (re.split(r"[\r\n]", text[begin:], maxsplit=1)[0] for text in (code, new))
    begin += len(now) - len(now.lstrip())
    was, now = was.strip(), now.strip()
    return KnownFault(change.kind, new, (begin, begin + len(now)), was) if now and was != now else None


def _judged(program: Program) -> Iterator[ast.AST]:
    """The nodes of what a program does: no annotations, f-strings, decorators or imports."""
    waiting: list[ast.AST] = [program.tree]
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.JoinedStr | ast.Import | ast.ImportFrom):
            continue
        yield node
        for name, value in ast.iter_fields(node):
            if name not in ("annotation", "returns", "decorator_list"):
                waiting += [
                    item for item in (value if isinstance(value, list) else [value]) if isinstance(item, ast.AST)
                ]


def _between(one: ast.AST, other: ast.AST, program: Program) -> tuple[int, str] | None:
    """The operator between two operands, and where it begins."""
    start, end = program.place(one)[1], program.place(other)[0]
    match = re.fullmatch(r"[\s)]*?((?:not\s+in|is\s+not|[a-z]+|[^\s\w()]+))[\s(]*", program.code[start:end])
    return (start + match.start(1), match[1]) if match else None


def comparison(node: ast.AST, program: Program) -> Iterator[Change]:
    """Another operator: at the boundary, or the opposite."""
    if not isinstance(node, ast.Compare):
        return
    operands = [node.left, *node.comparators]
    for one, other in pairwise(operands):
        found = _between(one, other, program)
        if found:
            start, operator = found
            for new in _COMPARISONS.get(" ".join(operator.split()), ()):
                kind = "boundary" if new.strip("=") == operator.strip("=") and new[0] in "<>" else "comparison"
                yield Change(kind, start, start + len(operator), new)


def operator(node: ast.AST, program: Program) -> Iterator[Change]:
    """Another operator between numbers, between conditions, or in an assignment."""
    pairs: list[tuple[ast.AST, ast.AST]] = []
    if isinstance(node, ast.BinOp):
        pairs = [(node.left, node.right)]
    elif isinstance(node, ast.AugAssign):
        pairs = [(node.target, node.value)]
    elif isinstance(node, ast.BoolOp):
        pairs = list(pairwise(node.values))
    for one, other in pairs:
        found = _between(one, other, program)
        if found:
            for new in _OPERATORS.get(found[1], ()):
                yield Change("operator", found[0], found[0] + len(found[1]), new)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield Change("operator", *program.place(node), program.text(node.operand))


def swapped(node: ast.AST, program: Program) -> Iterator[Change]:
    """Two operands, or the two arguments of a call, in the other order."""
    pair: list[ast.expr] = []
    if isinstance(node, ast.BinOp) and isinstance(node.op, _ORDERED):
        pair = [node.left, node.right]
    elif isinstance(node, ast.Call) and len(node.args) == 2 and not node.keywords:
        pair = node.args
    if pair and not any(isinstance(each, ast.Starred) for each in pair):
        (start, middle), (other, end) = map(program.place, pair)
        one, two = map(program.text, pair)
        if one != two:
            yield Change("swapped", start, end, f"{two}{program.code[middle:other]}{one}")


def off_by_one(node: ast.AST, program: Program) -> Iterator[Change]:
    """A number one higher or lower; a range that ends one later or earlier; a ± 1 left out."""
    text = program.text(node) if isinstance(node, ast.expr) else ""
    if isinstance(node, ast.Constant) and type(node.value) is int and text.isdigit():
        for value in (node.value + 1, node.value - 1):
            if value >= 0:
                yield Change("off by one", *program.place(node), str(value))
    is_range = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range"
    arguments = node.args if isinstance(node, ast.Call) and is_range else []
    if 0 < len(arguments) < 3 and not isinstance(arguments[-1], ast.Constant | ast.Starred):
        end = program.place(arguments[-1])[1]
        for more in (" + 1", " - 1"):
            yield Change("off by one", end, end, more)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub) and program.text(node.right) == "1":
        yield Change("off by one", *program.place(node), program.text(node.left))


def condition(node: ast.AST, program: Program) -> Iterator[Change]:
    """A condition negated, or a negation left out; True for False."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield Change("condition", *program.place(node), program.text(node.operand))
    elif isinstance(node, ast.If | ast.While | ast.IfExp) and isinstance(
        node.test, ast.Name | ast.Call | ast.Attribute | ast.Subscript
    ):
        yield Change("condition", *program.place(node.test), f"not {program.text(node.test)}")
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield Change("condition", *program.place(node), str(not node.value))


def branch(node: ast.AST, program: Program) -> Iterator[Change]:
    """A value that is not returned, a loop that ends where it goes on, a further `if` in place of an `elif`."""
    start, end = program.place(node) if isinstance(node, ast.stmt) else (0, 0)
    if isinstance(node, ast.Return) and node.value is not None:
        yield Change("dropped return", start, end, program.text(node.value))
    elif isinstance(node, ast.Break | ast.Continue):
        yield Change("branch", start, end, "continue" if isinstance(node, ast.Break) else "break")
    elif isinstance(node, ast.If) and program.code.startswith("elif", start):
        yield Change("branch", start, start + 4, "if")


def method(node: ast.AST, program: Program) -> Iterator[Change]:
    """Another function or method of the same kind; or one left out, and its argument taken as it is."""
    if not isinstance(node, ast.Call):
        return
    function = node.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    end = program.place(function)[1]
    for other in _METHODS.get(name, ()):
        yield Change("method", end - len(name), end, other)
    bare = not node.keywords and not any(isinstance(argument, ast.Starred) for argument in node.args)
    if isinstance(function, ast.Name) and name in _WRAPPERS and len(node.args) == 1 and bare:
        if not isinstance(node.args[0], ast.GeneratorExp):
            yield Change("left out", *program.place(node), program.text(node.args[0]))
    elif (
        isinstance(function, ast.Attribute)
        and not node.args
        and bare
        and not isinstance(program.parents.get(node), ast.Expr)
    ):
        yield Change("left out", *program.place(node), program.text(function.value))


def variable(node: ast.AST, program: Program) -> Iterator[Change]:
    """Another variable of the same function, assigned on an earlier line or a parameter."""
    parent = program.parents.get(node)
    if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load):
        return
    if isinstance(parent, ast.Call) and parent.func is node:
        return
    function: ast.AST | None = node
    while function is not None and not isinstance(function, _FUNCTIONS):
        function = program.parents.get(function)
    if function is None:
        return
    names: dict[str, None] = {}
    for item in ast.walk(function):
        if isinstance(item, ast.arg):
            names[item.arg] = None
        elif isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store) and item.lineno < node.lineno:
            names[item.id] = None
    if node.id in names:
        for other in names:
            if other not in (node.id, "self", "cls", "_"):
                yield Change("variable", *program.place(node), other)


_RULES: tuple[Callable[[ast.AST, Program], Iterator[Change]], ...] = (
    comparison, operator, swapped, off_by_one, condition, branch, method, variable,
)  # fmt: skip
