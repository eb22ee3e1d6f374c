"""Deal a task's records by their prompts: some to make training data of, the others to measure on.

python benchmarks/learnt_faults.py --task kodcode --data_path solutions_with_tests.json --output_dir runs/learnt_faults
"""

from __future__ import annotations

import random
from dataclasses import MISSING, dataclass
from pathlib import Path

from text2grad.configs import TASK_HELP, parse, setting
from text2grad.errors import InputError, command
from text2grad.records import Records, load_records, save_records
from text2grad.tasks import get_task


@dataclass(kw_only=True)
class DealConfig:
    task: str = setting(MISSING, TASK_HELP)
    data_path: str = setting(MISSING, "records with responses", "--dataset_path")
    output_dir: str = setting(MISSING, "where training.json and held_out.json go", "--save_dir")
    held_out_share: float = setting(0.25, "share of the prompts to measure on")
    seed: int = setting(0, "of the draw")


def deal(records: Records, task: str, share: float, seed: int) -> tuple[Records, Records]:
    """Records to train on and records held out, all of a prompt in one of them.

    Raises:
        InputError: one of them would be empty.
    """
    prompt = get_task(task).prompt
    prompts = sorted({prompt(record) for record in records.values()})
    random.Random(seed).shuffle(prompts)
    held_out = set(prompts[: round(share * len(prompts))])
    if not 0 < len(held_out) < len(prompts):
        raise InputError(f"{records.path}: {len(prompts)} prompts at --held_out_share {share} leave one part empty")
    parts = [{key: each for key, each in records.items() if (prompt(each) in held_out) is out} for out in (False, True)]
    return records.like(parts[0]), records.like(parts[1])


@command
def main() -> None:
    config = parse(DealConfig)
    records = load_records(config.data_path, get_task(config.task))
    for name, part in zip(
        ("training", "held_out"), deal(records, config.task, config.held_out_share, config.seed), strict=True
    ):
        path = Path(config.output_dir) / f"{name}.json"
        save_records(path, part)
        print(f"{path}: {len(part)} records")


if __name__ == "__main__":
    main()
