"""The packages of ``requirements-eval.txt``, which only some benchmarks need."""

import importlib
import importlib.util
from collections.abc import Iterable
from types import ModuleType

from text2grad.errors import InputError

INSTALL = "pip install --no-deps -r requirements-eval.txt"


def optional_package(module: str) -> ModuleType:
    """The module; ``InputError`` says how to install its package where it is missing."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise InputError(
            f"the package {_package(module)} is missing ({error}); run `{INSTALL}` in the repository's root"
        ) from None


def missing_packages(modules: Iterable[str]) -> list[str]:
    """The packages of those modules that are not installed."""
    return [_package(module) for module in modules if importlib.util.find_spec(module) is None]


def _package(module: str) -> str:
    return module.partition(".")[0].replace("_", "-")
