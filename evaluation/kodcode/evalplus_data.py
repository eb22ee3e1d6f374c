"""The problems of HumanEval(+) and MBPP(+), as EvalPlus' own files hold them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

from evaluation.kodcode.human_eval_data import human_eval_problems
from evaluation.optional_packages import optional_package
from text2grad.errors import InputError
from text2grad.records import load_json

Dataset = Literal["humaneval", "mbpp"]
OVERRIDES = {"humaneval": "HUMANEVAL_OVERRIDE_PATH", "mbpp": "MBPP_OVERRIDE_PATH"}
"""The environment variables by which EvalPlus itself is told where a dataset lies."""

_FIELDS = ("task_id", "prompt", "entry_point", "canonical_solution", "contract", "base_input", "plus_input", "atol")


def load_problems(dataset: str, path: str | None = None, base_only: bool = False) -> dict[str, dict[str, Any]]:
    """Problems by task id, in the file's order.

    Args:
        dataset: ``humaneval`` or ``mbpp``.
        path: a file in EvalPlus' format; else the one that the environment names; else HumanEval's base problems come
            from the package human-eval (``base_only``), and all else from EvalPlus' release on the net.

    Raises:
        InputError: an unknown dataset, another format, additional inputs asked of a file without them, or no net.
    """
    if dataset not in OVERRIDES:
        raise InputError(f"--dataset {dataset}: must be humaneval or mbpp")
    path = path or os.environ.get(OVERRIDES[dataset])
    if path is None and dataset == "humaneval" and base_only:
        rows, source = human_eval_problems(), "human-eval"
    else:
        source = path or _released(dataset)
        rows = load_json(source)
    problems = {}
    for number, row in enumerate(rows, 1):
        missing = [name for name in _FIELDS if not isinstance(row, dict) or name not in row]
        if missing:
            raise InputError(f"{source}: problem {number} lacks {', '.join(missing)}; give a file in EvalPlus' format")
        problems[row["task_id"]] = row
    if not problems:
        raise InputError(f"{source}: holds no problems")
    if not base_only and not any(row["plus_input"] for row in problems.values()):
        raise InputError(
            f"{source}: has no additional inputs (plus_input); add --base_only true, or give EvalPlus' release"
        )
    return problems


def _released(dataset: str) -> str:
    """EvalPlus' own copy of its release, fetched on first use."""
    data = optional_package("evalplus.data")
    if dataset == "humaneval":
        url, path = data.utils.get_dataset_metadata("HumanEvalPlus", data.humaneval.HUMANEVAL_PLUS_VERSION, False)
    else:
        url, path = data.utils.get_dataset_metadata("MbppPlus", data.mbpp.MBPP_PLUS_VERSION, False)
    if not Path(path).exists():
        try:
            data.utils.make_cache(url, path)
        except OSError as error:
            raise InputError(
                f"{dataset} cannot be fetched from {url} ({error}); download and unpack it on another machine, "
                f"and name the file by --data_path or ${OVERRIDES[dataset]}; "
                "HumanEval's base tests need no network (--base_only true)"
            ) from None
    return path
