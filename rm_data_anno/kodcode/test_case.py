"""Prepare KodCode records for annotation: pick them, run each solution against its tests, keep a balanced set.

    python rm_data_anno/kodcode/test_case.py --data_path solutions.json --output_path tested.json
    python rm_data_anno/kodcode/test_case.py --data_path KodCode/KodCode-V1-SFT-4o --output_path kodcode.json \
        --easy_samples 4000 --medium_samples 4000 --hard_samples 4000 --train_samples 8000 --target_total_size 10000

Each record gains ``log``: ``passed``, ``stdout``, ``stderr``, ``return_code``, ``error_type`` and ``missing_modules``.
Where a solution that sets out to cheat could have passed, ``log_weaker`` says why.
Solutions run in a sandbox (docs/sandbox.md). A killed run goes on where it was when the same command is given again.
"""

import random
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

from tabulate import tabulate

from text2grad.configs import check_values, parse, setting
from text2grad.errors import InputError, command
from text2grad.journal import map_records
from text2grad.records import Records, load_records, output_for, save_failures, save_records
from text2grad.sandbox import Sandbox
from text2grad.sandbox.unit_tests import VERDICTS, with_log
from text2grad.tasks import Record
from text2grad.tasks.commands import quoted, say_next, stage_command
from text2grad.tasks.kodcode import KodCode

DIFFICULTIES = ("easy", "medium", "hard")
COPIED = (
    "version", "style", "subset", "question_id", "question",
    "gpt_pass_trial_num", "gpt_difficulty", "gpt_pass_percentage",
)  # fmt: skip
TASK = KodCode()


@dataclass
class TestCaseConfig:
    """Which records are drawn, how their tests are run, and which are kept."""

    data_path: str = setting(
        MISSING, "a KodCode file (.json, .jsonl), or the name or folder of a `datasets` set", "--dataset_path"
    )
    output_path: str | None = setting(None, "default: the data's name, ending .tested.json", "--output_file")
    easy_samples: int | None = setting(None, "easy records to draw (split `incorrect` of a set)", at_least=0)
    medium_samples: int | None = setting(None, "medium records to draw, likewise", at_least=0)
    hard_samples: int | None = setting(None, "hard records to draw, likewise", at_least=0)
    train_samples: int | None = setting(
        None, "further records of any difficulty to draw (split `train` of a set)", at_least=0
    )
    target_total_size: int | None = setting(
        None, "records to keep, half of them passed, evenly over difficulties; default: all", at_least=1
    )
    seed: int = setting(42, "of the draws")
    workers: int = setting(2, "solutions run at the same time", at_least=1)
    seconds: float = setting(10.0, "processor time of one solution's tests")
    memory_mb: int = setting(1024, "memory limit of one solution's tests")
    retry_failed: bool = setting(False, "try the records again that could not be run")
    max_failures: float = setting(
        0.0, "share of records that may fail before the exit code is 1", at_least=0, at_most=1
    )
    allow_unsafe: bool = setting(False, "run without isolation where the system has none: the code may do anything")

    def __post_init__(self) -> None:
        check_values(self)

    @property
    def wanted(self) -> dict[str, int]:
        """Records to draw of each difficulty, and of any (``train``); empty where all are taken."""
        numbers = {name: getattr(self, f"{name}_samples") for name in (*DIFFICULTIES, "train")}
        if all(number is None for number in numbers.values()):
            return {}
        return {name: number or 0 for name, number in numbers.items()}


def prepare(config: TestCaseConfig) -> None:
    """Draw, run, balance and save; prints what was found.

    Raises:
        InputError: before anything is run.
        SystemExit: code 1 where more records could not be run than ``max_failures`` allows.
    """
    output = output_for(config.data_path, config.output_path, "tested")
    sandbox = Sandbox(seconds=config.seconds, memory_mb=config.memory_mb, allow_unsafe=config.allow_unsafe)
    records = draw(config)
    print(f"{len(records)} records; {sandbox.protection}")
    outcome = map_records(
        records,
        lambda _, batch: [_tested(record, sandbox) for record in batch],
        journal=output.with_name(f"{output.name}.journal.jsonl"),
        settings={"stage": "tests", "seconds": config.seconds, "memory_mb": config.memory_mb, "verdicts": VERDICTS},
        workers=config.workers,
        retry_failed=config.retry_failed,
        result_type=dict,
        description="running tests",
    ).whole()
    tested = {record_id: {**records[record_id], **added} for record_id, added in outcome.results.items()}
    kept = balanced(tested, config.target_total_size, random.Random(config.seed))
    save_records(output, records.like(kept))
    print(statistics({"run": tested, "kept": kept} if len(kept) < len(tested) else {"run": tested}))
    print(f"{len(kept)} records written to {output}")
    failed = save_failures(output, outcome.failures)
    if outcome.failures:
        print(f"{len(outcome.failures)} records could not be run: {failed}", file=sys.stderr)
    if len(outcome.failures) / len(records) > config.max_failures:
        raise SystemExit(1)
    say_next(f"annotate them, {stage_command('annotation', TASK)} --data_path {quoted(output)}")


def _tested(record: Record, sandbox: Sandbox) -> dict[str, Any] | Exception:
    """What running its tests adds to a record."""
    tests = record.get("test")
    if not isinstance(tests, str) or not tests.strip():
        return InputError("it has no 'test' to run")
    done = with_log({**record, "log": ""}, sandbox)
    return {name: done[name] for name in ("log", "log_weaker") if name in done}


def draw(config: TestCaseConfig) -> Records:
    """The records to run, by id: all of a local file, or as many of each difficulty as the flags say."""
    path = Path(config.data_path)
    if path.suffix in (".json", ".jsonl", ".csv", ".parquet") or path.is_file():
        records = load_records(path, TASK)
        return records.like(_drawn(records, records, config)) if config.wanted else records
    if not config.wanted:
        raise InputError(f"{config.data_path}: say how many records to draw, for example --easy_samples 1000")
    splits = _load_set(config.data_path)
    return Records(_drawn(splits.get("incorrect", splits["train"]), splits["train"], config), path, keyed=False)


def _load_set(name: str) -> dict[str, Any]:
    import datasets

    try:
        splits = dict(datasets.load_dataset(name))
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        raise InputError(f"{name}: is no file, and `datasets` cannot load it ({error}); check the name") from None
    if "train" not in splits:
        raise InputError(f"{name}: has no split 'train' but {', '.join(splits)}; save it as a .json file and give that")
    return splits


def _drawn(graded: Any, ungraded: Any, config: TestCaseConfig) -> dict[str, Record]:
    """Draw from ``graded`` by difficulty, then from ``ungraded``; both are mappings of records or `datasets` splits."""
    rng = random.Random(config.seed)
    picked: dict[str, Record] = {}
    levels = [(key, str(difficulty).lower()) for key, difficulty in _difficulties(graded)]
    for name in DIFFICULTIES:
        keys = [key for key, level in levels if level == name]
        _add(picked, graded, rng.sample(keys, len(keys)), config.wanted[name], name)
    keys = [key for key, _ in _difficulties(ungraded)]
    _add(picked, ungraded, rng.sample(keys, len(keys)), config.wanted["train"], "train")
    if not picked:
        raise InputError("no record is left to run; ask for more than 0 --easy_samples, --train_samples, …")
    return picked


def _difficulties(source: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(source, Mapping):
        return ((key, record.get("gpt_difficulty")) for key, record in source.items())
    return enumerate(source["gpt_difficulty"] if "gpt_difficulty" in source.column_names else [None] * len(source))


def _add(picked: dict[str, Record], source: Any, keys: list, wanted: int, name: str) -> None:
    """Take records in the order of ``keys``, none twice, until there are as many as are wanted."""
    taken = 0
    for key in keys:
        if taken == wanted:
            return
        if isinstance(source, Mapping):
            record_id, record = key, source[key]
        else:
            record = from_row(source[key])
            record_id = TASK.id_of(record)
        if record_id not in picked:
            picked[record_id] = record
            taken += 1
    if taken < wanted:
        print(f"only {taken} of the {wanted} {name} records asked for are there", file=sys.stderr)


def from_row(row: Mapping[str, Any]) -> Record:
    """A KodCode record from a row of the published sets: the solution is GPT-4o's where there is one."""
    return {
        **{name: row[name] for name in COPIED if name in row},
        "solution": row.get("4o_solution") or row.get("solution") or "",
        "test": row.get("test") or row.get("test_code") or "",
        "log": "",
    }


def balanced(records: Mapping[str, Record], size: int | None, rng: random.Random) -> dict[str, Record]:
    """``size`` of the records, in their order: half passed and half failed, each half evenly over the difficulties.

    Where one half has too few, the other fills up.
    """
    if size is None or size >= len(records):
        return dict(records)
    passed = _evenly([key for key, record in records.items() if record["log"]["passed"]], records, rng)
    failed = _evenly([key for key, record in records.items() if not record["log"]["passed"]], records, rng)
    of_passed = min(len(passed), max(size // 2, size - len(failed)))
    chosen = {*passed[:of_passed], *failed[: size - of_passed]}
    return {key: record for key, record in records.items() if key in chosen}


def _evenly(keys: list[str], records: Mapping[str, Record], rng: random.Random) -> list[str]:
    """The keys in an order in which the difficulties take turns."""
    groups: dict[str, list[str]] = {}
    for key in rng.sample(keys, len(keys)):
        groups.setdefault(str(records[key].get("gpt_difficulty")), []).append(key)
    turns = [(place, number, key) for number, group in enumerate(groups.values()) for place, key in enumerate(group)]
    return [key for _, _, key in sorted(turns)]


def statistics(sets: Mapping[str, Mapping[str, Record]]) -> str:
    """Tables for people: verdicts by difficulty, kinds of errors, modules that solutions miss."""
    rows = []
    for name, records in sets.items():
        verdicts: dict[str, list[bool]] = {}
        for record in records.values():
            verdicts.setdefault(str(record.get("gpt_difficulty") or "?"), []).append(record["log"]["passed"])
        levels = sorted(verdicts, key=lambda level: (*DIFFICULTIES, level).index(level))
        verdicts["all"] = [passed for level in levels for passed in verdicts[level]]
        for level in [*levels, "all"]:
            passed, count = sum(verdicts[level]), len(verdicts[level])
            rows.append((name, level, passed, count - passed, f"{passed / max(1, count):.0%}"))
    lines = [tabulate(rows, ("records", "difficulty", "passed", "failed", "share passed"), tablefmt="plain")]
    logs = [record["log"] for record in next(iter(sets.values())).values()]
    for title, counts in {
        "errors": Counter(log["error_type"] for log in logs if log["error_type"]),
        "missing modules": Counter(module for log in logs for module in log["missing_modules"]),
    }.items():
        if counts:
            lines.append(f"{title}: " + ", ".join(f"{name} {count}" for name, count in counts.most_common(12)))
    return "\n".join(lines)


@command
def main() -> None:
    prepare(parse(TestCaseConfig))


if __name__ == "__main__":
    main()
