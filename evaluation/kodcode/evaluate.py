"""How many of a system's KodCode programs pass their unit tests: pass@k on a held-out split, in the sandbox.

    python evaluation/kodcode/evaluate.py --data_path answers.json --system base --output_path base.result.json

``answers.json`` is written by ``evaluation/generate.py`` (with ``--num_samples`` for k above 1), or is any KodCode file
whose records carry their ``test``. Killed and run again, no program is tested twice.
"""

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from evaluation.kodcode.pass_at_k import check_k, pass_figures
from evaluation.measuring import (
    MeasureConfig,
    compare_and_save,
    critic_figures,
    load_measured_responses,
    share_finished,
)
from evaluation.results import grouped
from text2grad.configs import parse, setting
from text2grad.errors import InputError, command
from text2grad.journal import map_records
from text2grad.records import prompt_of
from text2grad.sandbox import Sandbox
from text2grad.sandbox.unit_tests import VERDICTS, run_tests
from text2grad.tasks import Record
from text2grad.tasks.kodcode import KodCode


@dataclass(kw_only=True)
class ProgramEvaluationConfig(MeasureConfig):
    """What is measured."""

    k: list[int] = setting([1], "report pass@k for these k")
    seconds: float = setting(10.0, "time for one program's tests")
    memory_mb: int = setting(1024, "memory for one program's tests")
    workers: int | None = setting(None, "programs tested in parallel; by default one per core")
    allow_unsafe: bool = setting(False, "run where the system offers no isolation")


def run_unit_tests(
    records: Mapping[str, Record], config: ProgramEvaluationConfig, sandbox: Sandbox
) -> dict[str, dict[str, Any]]:
    """What the unit tests say about each record's program: ``passed`` and ``error_type``.

    ``weaker`` says why a program that sets out to cheat could have passed, where it could have.
    """
    task = KodCode()
    for key, record in records.items():
        if not isinstance(test := record.get("test"), str) or not test.strip():
            raise InputError(f"{config.data_path}: record {key!r} has no test; pass@k needs the questions' unit tests")
    print(f"programs run in: {sandbox.protection}", flush=True)

    def work(_: list[str], batch: list[dict[str, str]]) -> list[dict[str, Any]]:
        (pair,) = batch
        run = run_tests(pair["code"], pair["test"], sandbox)
        weaker = {"weaker": list(run.weaker)} if run.weaker else {}
        return [{"passed": run.passed, "error_type": run.error_type, **weaker}]

    pairs = {key: {"code": task.code(task.response(record)), "test": record["test"]} for key, record in records.items()}
    first: dict[tuple[str, ...], str] = {}  # a quarter of a policy's programs or more are the same
    for key, pair in pairs.items():
        first.setdefault(tuple(pair.values()), key)
    outcome = map_records(
        {key: pairs[key] for key in first.values()},
        work,
        journal=f"{config.output_path}.tests.journal.jsonl",
        settings={"seconds": config.seconds, "memory_mb": config.memory_mb, "verdicts": VERDICTS},
        workers=config.workers or os.cpu_count() or 1,
        description="unit tests",
    )
    found = outcome.whole().results
    return {key: found[first[tuple(pair.values())]] for key, pair in pairs.items()}


def evaluate_programs(config: ProgramEvaluationConfig) -> dict[str, Any]:
    """Measure, write ``config.output_path``, and return the result."""
    task = KodCode()
    records = load_measured_responses(config, task)
    samples = grouped(records, prompt_of)
    check_k(samples, config.k)
    sandbox = Sandbox(config.seconds, config.memory_mb, allow_unsafe=config.allow_unsafe)
    tested = run_unit_tests(records, config, sandbox)
    figures = pass_figures({name: [tested[key]["passed"] for key in keys] for name, keys in samples.items()}, config.k)
    by_critic, extra = critic_figures(config, records, task, sandbox)
    for name, figure in {"finished": share_finished(records), **by_critic}.items():
        shown = {problem: figure.each[keys[0]] for problem, keys in samples.items() if keys[0] in figure.each}
        figures[name] = replace(figure.by_prompt(), each=shown)  # beside the first sample stands its own value
    errors = Counter(row["error_type"] for row in tested.values() if not row["passed"])
    extra |= {
        "errors": dict(errors.most_common()),
        "verdicts": {name: [{"id": key, **tested[key]} for key in keys] for name, keys in samples.items()},
    }
    if feedback := extra.get("feedback"):
        extra["feedback"] = {name: feedback[keys[0]] for name, keys in samples.items() if keys[0] in feedback}
    first = {name: records[keys[0]] for name, keys in samples.items()}
    result = compare_and_save(config, task, figures, first, extra)
    if errors:
        print("  failures: " + ", ".join(f"{name} {count}" for name, count in errors.most_common()))
    return result


@command
def main() -> None:
    evaluate_programs(parse(ProgramEvaluationConfig))


if __name__ == "__main__":
    main()
