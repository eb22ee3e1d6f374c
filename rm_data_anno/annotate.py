"""Stage 1: a critic over a file of responses (paper, section 3.3 and algorithm 2). Any critic will do."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rm_data_anno import fidelity
from rm_data_anno.validation import validate
from text2grad.critics import Critic, load_critic
from text2grad.errors import InputError
from text2grad.feedback import FeedbackError
from text2grad.records import (
    Outcome,
    Records,
    check_writable,
    load_records,
    map_records,
    save_json,
    save_records,
    save_text,
)
from text2grad.tasks import Record, Task, get_task

Prepare = Callable[[Record], Record]


@dataclass
class AnnotateConfig:
    data_path: str = field(metadata={"help": "responses to annotate, in the task's format"})
    output_path: str | None = field(default=None, metadata={"help": "default: beside the data, named .annotated.json"})
    annotator: str = field(default="programmatic", metadata={"help": "who judges: programmatic, or a critic's spec"})
    batch_size: int = field(default=8, metadata={"help": "records judged at once by a critic in this process"})
    retry_failed: bool = field(default=False, metadata={"help": "try the records again that failed in earlier runs"})


def annotate(task_name: str, config: AnnotateConfig, prepare: Prepare | None = None) -> None:
    """Annotate a file: every record ends in the output with its feedback, or in ``<output>.failed.json`` with a reason.

    Beside the output: ``.journal.jsonl`` (what makes a second run go on), ``.report.json`` and ``.report.md``.

    Args:
        prepare: completes a record before it is judged (runs a solution's tests); what it adds goes into the output.

    Raises:
        InputError: before anything is written.
        SystemExit: code 1 where records failed.
    """
    task = get_task(task_name)
    records = load_records(config.data_path, task)
    output = _output_path(config, records)
    critic = load_critic(config.annotator, task)
    outcome = map_records(
        records,
        lambda _, batch: _annotate(task, critic, prepare, batch),
        journal=output.with_name(f"{output.name}.journal.jsonl"),
        settings={"stage": "annotation", "task": task.name, "annotator": config.annotator},
        batch_size=config.batch_size,
        retry_failed=config.retry_failed,
        description=f"annotating {task.name}",
    )
    _write(task, records, outcome, output)


def _output_path(config: AnnotateConfig, records: Records) -> Path:
    data = Path(config.data_path)
    output = Path(config.output_path) if config.output_path else data.with_name(f"{data.stem}.annotated.json")
    if output.resolve() == data.resolve():
        raise InputError(f"{output}: is the input as well; choose another --output_path")
    if output.suffix not in (".json", ".jsonl"):
        raise InputError(f"{output}: name the output .json or .jsonl")
    if output.suffix == ".jsonl" and records.keyed:
        raise InputError(f"{output}: {data} holds an object, not a list; name the output .json")
    check_writable(output)
    return output


def _annotate(task: Task, critic: Critic, prepare: Prepare | None, batch: list[Record]) -> list[dict | Exception]:
    """The fields that annotation adds to each record, or why it could not."""
    prepared = [prepare(record) if prepare else record for record in batch]
    prompts, responses = [task.prompt(record) for record in prepared], [task.response(record) for record in prepared]
    judged = critic(prompts, responses, prepared)
    results: list[dict | Exception] = []
    for before, record, response, feedback in zip(batch, prepared, responses, judged, strict=True):
        if isinstance(feedback, FeedbackError):
            results.append(feedback)
            continue
        checked = validate(feedback, response, task)
        annotation = {"annotator": critic.name, "validation": checked.to_dict()}
        after = task.with_feedback(record, checked.feedback, annotation)
        results.append({key: value for key, value in after.items() if key not in before or before[key] != value})
    return results


def _write(task: Task, records: Records, outcome: Outcome, output: Path) -> None:
    annotated = {record_id: {**records[record_id], **added} for record_id, added in outcome.results.items()}
    if annotated:
        save_records(output, records.like(annotated))
    failed = output.with_name(f"{output.name}.failed.json")
    if outcome.failures:
        save_json(failed, outcome.failures)
    else:
        failed.unlink(missing_ok=True)
    report = fidelity.report(task, annotated, outcome.failures)
    save_json(output.with_name(f"{output.name}.report.json"), report)
    table = fidelity.table({output.name: report})
    save_text(output.with_name(f"{output.name}.report.md"), table)
    print(table)
    print(f"{len(annotated)} of {len(records)} records annotated: {output}")
    if outcome.failures:
        _complain(outcome.failures, failed)


def _complain(failures: Mapping[str, str], path: Path) -> None:
    print(f"{len(failures)} records failed (run with --retry_failed to try them again): {path}", file=sys.stderr)
    raise SystemExit(1)
