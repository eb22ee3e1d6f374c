"""What a test file says of its solution's names."""

from __future__ import annotations

import ast
import builtins
import importlib

from wire import BORROWED, lent

_HOOKS = ("_", "pytest", "test", "setup", "teardown")
_COMMON = (
    "math", "collections", "itertools", "functools", "statistics", "copy", "re", "json", "random", "decimal",
    "fractions", "datetime",
)  # fmt: skip
_SHORT = ("np", "pd", "plt")  # how programs call packages


class Names:
    """What the test file says of the solution's names."""

    def __init__(self, source: str):
        tree = ast.parse(source)
        nodes = list(ast.walk(tree))
        own = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module == "solution"]
        modules = {
            alias.asname or alias.name
            for node in nodes
            if isinstance(node, ast.Import)
            for alias in node.names
            if alias.name == "solution"
        }
        self.explicit = {alias.name for node in own for alias in node.names} - {"*"}
        for node in nodes:
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
                self.explicit.add(node.attr)
        self.used = {node.id for node in nodes if isinstance(node, ast.Name)}
        self.bound = {name for node in nodes if node not in own for name in _bound(node)} - self.explicit

    def offers(self, name: str) -> bool:
        """Whether ``import *`` may give the tests this name: none that Python, pytest or they themselves have."""
        hook = name.lower().startswith(_HOOKS) and name != "pytest"
        reserved = name in self.bound or hasattr(builtins, name) or hook
        return name in self.explicit or not reserved


def _bound(node: ast.AST) -> list[str]:
    """The names that a statement of the tests gives a meaning."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [(alias.asname or alias.name).partition(".")[0] for alias in node.names]
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    return []


def is_common(name: str) -> bool:
    """Whether tests that use a name without importing it mean a library's."""
    if name in BORROWED or name in _SHORT:
        return True
    return any(hasattr(importlib.import_module(module), name) for module in _COMMON)


def borrowed(name: str, module: str | None, told: object) -> object:
    """What the tests use because the solution imports it: the real thing, not what the solution says it is."""
    if isinstance(told, list) and told[0] == "m":
        return importlib.import_module(told[1]) if lent(name, str(told[1])) else None
    return getattr(importlib.import_module(module), name, None) if module in BORROWED else None
