"""What a test file says of its solution's names."""

import ast
import builtins
import importlib
import symtable
import sys
from collections.abc import Iterator
from types import ModuleType

_HOOKS = ("_", "pytest", "test", "setup", "teardown")
_COMMON = (
    "math", "collections", "itertools", "functools", "statistics", "copy", "re", "json", "random", "decimal",
    "fractions", "datetime",
)  # fmt: skip
_PACKAGES = {"np": "numpy", "numpy": "numpy"}


class Names:
    """What the test file says of the solution's names.

    Attributes:
        explicit: those that it imports from the solution, or asks the solution for by ``solution.NAME``.
        bound: those that it imports from elsewhere, defines or assigns itself.
        used: all that it looks up outside of its functions' own variables.
    """

    def __init__(self, source: str):
        nodes = list(ast.walk(ast.parse(source)))
        modules = set()
        self.explicit: set[str] = set()
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and node.module == "solution":
                self.explicit |= {alias.name for alias in node.names} - {"*"}
            elif isinstance(node, ast.Import):
                modules |= {alias.asname or alias.name for alias in node.names if alias.name == "solution"}
        for node in nodes:
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
                self.explicit.add(node.attr)
        table = symtable.symtable(source, "test_solution.py", "exec")
        own = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
        self.bound = own - self.explicit
        self.used = set(_looked_up(table))

    def offers(self, name: str) -> bool:
        """Whether ``import *`` may give the tests this name: none that Python, pytest or they themselves have."""
        hook = name.lower().startswith(_HOOKS) and name != "pytest"
        reserved = name in self.bound or hasattr(builtins, name) or hook or not name.isidentifier()
        return name in self.explicit or not reserved

    def doubtful(self, name: str) -> bool:
        """Whether the tests use a name of the solution's that they may take for a library's."""
        if name in self.explicit or name not in self.used:
            return False
        return (
            bool(self.explicit)
            or name in _PACKAGES
            or any(hasattr(importlib.import_module(module), name) for module in _COMMON)
        )


def _looked_up(table: symtable.SymbolTable) -> Iterator[str]:
    for symbol in table.get_symbols():
        if symbol.is_referenced() and (table.get_type() == "module" or symbol.is_global()):
            yield symbol.get_name()
    for inner in table.get_children():
        yield from _looked_up(inner)


def lent(name: str, module: str) -> tuple[ModuleType | None, bool]:
    """The module that tests get for one that the solution imports as ``name``, and whether the name is its own.

    Only numpy and top-level modules of the standard library are lent.
    """
    if module not in sys.stdlib_module_names and module != "numpy":
        return None, False
    return importlib.import_module(module), name == module or _PACKAGES.get(name) == module
