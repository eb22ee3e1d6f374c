"""Records to annotate out of policy runs: what a policy wrote while it learnt is what its reward model has to judge.

    python rm_data_anno/rollouts.py --task slf5k --data_path posts.json --runs runs/policy runs/other \\
        --output_path responses.json

A policy looks for what its critic overlooks, so its later rollouts are the hardest records there are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from text2grad.configs import TaskConfig, check_given, parse, setting
from text2grad.errors import InputError, command
from text2grad.journal.run_folder import logged_rows
from text2grad.records import Records, check_output, load_records, save_records
from text2grad.tasks import Record, Task, get_task
from text2grad.tasks.commands import quoted, say_next, stage_command

ROLLOUTS_FILE = "rollouts.jsonl"


@dataclass(kw_only=True)
class RolloutRecordsConfig(TaskConfig):
    data_path: str = setting("", "the prompts that the runs learnt on", "--dataset_path", "--input_file")
    runs: list[str] = setting([], "folders of policy runs, or their rollouts.jsonl")
    output_path: str = setting("", "records with responses, to annotate", "--output_file", "--output")


def rollout_records(prompts: dict[str, Record], runs: Sequence[str | Path], task: Task) -> dict[str, Record]:
    """Each different response of the runs to each prompt, in the order of runs and steps, as ``PROMPT@NUMBER``.

    Args:
        prompts: records by id, as the runs were given them.
        runs: folders of runs, or their logs.

    Raises:
        InputError: a log is missing, is none, or is of other prompts.
    """
    found: dict[str, Record] = {}
    seen: set[tuple[str, str]] = set()
    for run in runs:
        path = Path(run) / ROLLOUTS_FILE if Path(run).is_dir() else Path(run)
        for number, row in logged_rows(path, []):  # the last line of a run that goes on may be half
            if not isinstance(row, dict) or not all(isinstance(row.get(name), str) for name in ("id", "response")):
                raise InputError(f"{path}: line {number} is no rollout; give a policy run's folder or {ROLLOUTS_FILE}")
            key, response = row["id"], row["response"].strip()
            if key not in prompts:
                raise InputError(f"{path}: line {number}: no prompt has the id {key!r}; give the run's own --data_path")
            if response and (key, response) not in seen:
                seen.add((key, response))
                found[f"{key}@{len(seen)}"] = task.with_response(task.training_prompts(prompts[key]), response)
    return found


@command
def main() -> None:
    config = parse(RolloutRecordsConfig)
    check_given(config, "data_path", "runs", "output_path")
    check_output(config.output_path)
    task = get_task(config.task)
    made = rollout_records(load_records(config.data_path, task, responses=False), config.runs, task)
    if not made:
        raise InputError(f"{', '.join(config.runs)}: no rollout has a response")
    save_records(config.output_path, Records(made, Path(config.output_path), keyed=True))
    print(f"{len(made)} different responses of {len(config.runs)} runs -> {config.output_path}")
    say_next(f"annotate them, {stage_command('annotation', task)} --data_path {quoted(config.output_path)}")


if __name__ == "__main__":
    main()
