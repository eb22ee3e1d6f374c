"""HumanEval(+) and MBPP(+) by EvalPlus' own command line, run inside the sandbox: pass@k with intervals.

    python evaluation/kodcode/evalplus_score.py --dataset humaneval --base_only true --samples samples.jsonl \\
        --system base --output_path humaneval.result.json

EvalPlus 0.3.1 silently takes an existing result file for that of other samples. Here its verdicts are kept under a name
that holds a hash of samples and problems, and are reused only for the same ones. Its figures are left as they are, to
be compared with published ones: it counts right programs for HumanEval/32 as wrong.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

from evaluation.kodcode.evalplus_data import OVERRIDES, Dataset, load_problems
from evaluation.kodcode.pass_at_k import check_k, pass_figures
from evaluation.optional_packages import optional_package
from evaluation.results import ResultConfig, print_next_step, save_result
from text2grad.configs import parse, setting
from text2grad.errors import InputError, command
from text2grad.records import check_output, fingerprint, load_json, save_json
from text2grad.safety.gate import UnreadableError, read_json
from text2grad.sandbox import BOX, REPORT_VARIABLE, Sandbox

_EVALPLUS = f"""
import os, shutil, subprocess, sys
report = int(os.environ.pop("{REPORT_VARIABLE}"))
os.set_inheritable(report, False)  # the programs that EvalPlus starts have no hand in it
box, (place, *flags) = os.path.dirname(os.path.abspath(__file__)), sys.argv[1:]
os.environ[place] = box + "/problems.jsonl"
shutil.copy(box + "/samples.jsonl", "samples.jsonl")
done = subprocess.run([sys.executable, "-m", "evalplus.evaluate", "--samples", "samples.jsonl", *flags])
if done.returncode == 0:
    with open("samples_eval_results.json", "rb") as results:
        with os.fdopen(report, "wb") as report:
            shutil.copyfileobj(results, report)
sys.exit(done.returncode)
"""


@dataclass(kw_only=True)
class EvalPlusScoreConfig(ResultConfig):
    """What is scored, and how."""

    dataset: Dataset = setting(MISSING, "the benchmark")
    samples: str = setting(MISSING, "programs in EvalPlus' format: lines of task_id and solution")
    data_path: str | None = setting(None, "the problems in EvalPlus' format (see the README)", "--dataset_path")
    base_only: bool = setting(False, "without the additional tests of HumanEval+ and MBPP+")
    k: list[int] = setting([1], "report pass@k for these k")
    workers: int | None = setting(None, "programs tested in parallel; by default one per core")
    memory_mb: int = setting(8192, "memory of all of them together")
    seconds: float | None = setting(None, "for all; by default 120 and 8 for each program")
    allow_unsafe: bool = setting(False, "run where the system offers no isolation")


@command
def main() -> None:
    config = parse(EvalPlusScoreConfig)
    check_output(config.output_path)
    optional_package("evalplus")
    problems = load_problems(config.dataset, config.data_path, config.base_only)
    samples = load_samples(config.samples, problems)
    check_k(samples, config.k)
    key = fingerprint([samples, problems, config.base_only])
    kept = Path(f"{config.output_path}.evalplus-{key}.json")
    if kept.exists():
        print(f"the same programs were tested before: verdicts from {kept}")
    else:
        save_json(kept, run_evalplus(config, samples, problems), indent=None)
    verdicts = read_verdicts(load_json(kept), samples)
    figures = pass_figures({task: [row["base"] for row in rows] for task, rows in verdicts.items()}, config.k)
    if not config.base_only:
        both = {task: [row["base"] and row["plus"] for row in rows] for task, rows in verdicts.items()}
        figures |= pass_figures(both, config.k, "plus_")
    save_result(
        config,
        f"on {len(samples)} of {len(problems)} problems",
        task="kodcode",
        benchmark=config.dataset,
        figures=figures,
        responses={task: programs[0] for task, programs in samples.items()},
        settings={"problems": len(problems), "attempted": len(samples)},
        extra={"verdicts": verdicts},
    )
    print_next_step(config.output_path)


def load_samples(path: str, problems: Mapping[str, Any]) -> dict[str, list[str]]:
    """Programs by task id, in the order of the problems."""
    rows = load_json(path)
    samples: dict[str, list[str]] = {}
    for number, row in enumerate(rows if isinstance(rows, list) else [], 1):
        if not isinstance(row, dict) or not all(isinstance(row.get(name), str) for name in ("task_id", "solution")):
            raise InputError(f"{path}: line {number} lacks task_id or a solution that is a text; see EvalPlus' format")
        if row["task_id"] not in problems:
            raise InputError(f"{path}: line {number}: there is no problem {row['task_id']!r} in this dataset")
        samples.setdefault(row["task_id"], []).append(row["solution"])
    if not samples:
        raise InputError(f"{path}: holds no programs")
    return {task: samples[task] for task in problems if task in samples}


def run_evalplus(
    config: EvalPlusScoreConfig, samples: Mapping[str, Sequence[str]], problems: Mapping[str, dict]
) -> dict[str, Any]:
    """EvalPlus' result file for these programs; problems without one are left out of its dataset."""
    workers, count = config.workers or os.cpu_count() or 1, sum(map(len, samples.values()))
    sandbox = Sandbox(
        config.seconds or 120 + 8 * count,
        config.memory_mb,
        processes=32 + 8 * workers,
        file_mb=256,
        output_kb=1 << 18,
        allow_unsafe=config.allow_unsafe,
    )
    print(f"EvalPlus tests {count} programs ({sandbox.protection}) …", flush=True)
    files = {
        "run.py": _EVALPLUS,
        "samples.jsonl": _lines(
            {"task_id": task, "solution": code} for task, codes in samples.items() for code in codes
        ),
        "problems.jsonl": _lines(problems[task] for task in samples),
    }
    flags = ["--dataset", config.dataset, "--parallel", str(workers), *(["--base-only"] if config.base_only else [])]
    outcome = sandbox.run(files, [sandbox.python, f"{BOX}/run.py", OVERRIDES[config.dataset], *flags])
    if outcome.returncode or not outcome.report:
        why = f"the sandbox ended it ({outcome.reason}; see --seconds and --memory_mb)" if outcome.reason else ""
        raise InputError(f"EvalPlus did not finish: {why or outcome.stderr[-1500:]}")
    try:
        results = read_json(outcome.report)
        read_verdicts(results, samples)
    except (UnreadableError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"EvalPlus' results cannot be read ({type(error).__name__}: {error}); test again") from None
    return results


def read_verdicts(results: dict[str, Any], samples: Mapping[str, Sequence[str]]) -> dict[str, list[dict[str, bool]]]:
    """Task id -> one ``{"base", "plus"}`` per program."""
    return {
        task: [
            {"base": row["base_status"] == "pass", "plus": row["plus_status"] == "pass"}
            for row in results["eval"][task]
        ]
        for task in samples
    }


def _lines(rows) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    main()
