"""Other wordings of a program that do the same: its own variables renamed, its docstrings and comments left out."""

from __future__ import annotations

import ast
import builtins
import io
import keyword
import random
import re
import tokenize

from rm_data_anno.kodcode.mutations import Program, read

_NAMES = """
a b c d e f g h k m n p q r s t u v w x y z i j aa bb xs ys nums items values data result res out ans total count acc
idx index pos left right lo hi low high start end first last cur curr prev nxt temp tmp val value item elem key word
words text line chars char left_part size length limit step best seen found stack queue table memo grid row col node
target other current previous number numbers entries entry pairs pair output answer so_far bound part parts
"""
_DOCUMENTED = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def reworded(code: str, tests: str, rng: random.Random) -> str:
    """The program with half of its variables renamed, and by chance without docstrings and comments.

    What cannot be told without running it is left as it is; run the result's tests all the same.
    """
    if rng.random() < 0.5:
        code = bare(code)
    return renamed(code, tests, rng)


def bare(code: str) -> str:
    """The program without docstrings and comments."""
    program = read(code)
    if program is None:
        return code
    gone: list[tuple[int, int]] = []
    for node in ast.walk(program.tree):
        if isinstance(node, _DOCUMENTED) and len(node.body) > 1 and ast.get_docstring(node, clean=False) is not None:
            gone.append(program.place(node.body[0]))
    starts = [0]
    for line in io.StringIO(code, newline=""):
        starts.append(starts[-1] + len(line))
    try:
        for token in tokenize.generate_tokens(io.StringIO(code, newline="").readline):
            if token.type == tokenize.COMMENT:
                start, end = (starts[row - 1] + column for row, column in (token.start, token.end))
                gone.append((start, end))
    except (tokenize.TokenError, IndentationError):
        return code
    for start, end in sorted(gone, reverse=True):
        code = f"{code[:start]}\0{code[end:]}"
    # a line that held nothing else goes with it
    return re.sub(r"[ \t]*\0", "", re.sub(r"(?m)^[ \t]*\0[ \t]*(?:\r\n|\n|\r|\Z)", "", code))


def renamed(code: str, tests: str, rng: random.Random) -> str:
    """The program with each of its functions' own variables renamed by a chance of one half."""
    program = read(code)
    if program is None:
        return code
    used = {word for text in (code, tests) for word in re.findall(r"[^\W\d]\w*", text)}
    free = [name for name in _NAMES.split() if name not in used and not keyword.iskeyword(name)]
    names = [name for name in _own(program, tests) if rng.random() < 0.5]
    new = dict(zip(names, rng.sample(free, min(len(free), len(names))), strict=False))
    places = []
    for node in ast.walk(program.tree):
        if isinstance(node, ast.Name) and node.id in new:
            places.append((*program.place(node), new[node.id]))
        elif isinstance(node, ast.arg) and node.arg in new:
            start = program.place(node)[0]
            places.append((start, start + len(node.arg), new[node.arg]))
    for start, end, text in sorted(places, reverse=True):
        code = code[:start] + text + code[end:]
    return code


def _own(program: Program, tests: str) -> list[str]:
    """Names of parameters and variables of functions that mean nothing else anywhere, in order."""
    local: dict[str, None] = {}
    barred = set(dir(builtins)) | {"self", "cls", "_"} | set(re.findall(r"(\w+)\s*=(?!=)", tests))
    for node in ast.walk(program.tree):
        if isinstance(node, ast.arg):
            local[node.arg] = None
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            local[node.id] = None
        elif isinstance(node, ast.JoinedStr):  # where its names are, Python 3.11 does not say
            barred |= {item.id for item in ast.walk(node) if isinstance(item, ast.Name)}
        else:
            for name in ("name", "attr", "arg", "asname", "module", "rest"):
                if isinstance(value := getattr(node, name, None), str):
                    barred.add(value)
            if isinstance(node, ast.Global | ast.Nonlocal):
                barred |= set(node.names)
    barred |= {
        item.id
        for statement in program.tree.body
        if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        for item in ast.walk(statement)
        if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store)
    }
    return [name for name in local if name not in barred]
