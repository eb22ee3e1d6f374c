"""Which annotated records a reward model trains on, and which it is measured on: never with a prompt in common."""

import hashlib
from collections import Counter
from collections.abc import Sequence

from text2grad.errors import InputError
from text2grad.records import Records
from text2grad.tasks import Task


def split_by_prompt(records: Records, task: Task, share: float, seed: int) -> tuple[Records, Records]:
    """Training and validation records that have no post or question in common.

    Whole prompts go to one side, in an order that depends on the prompt's text and the seed alone, until validation
    holds ``share`` of the records.

    Raises:
        InputError: too few different prompts to have both sides.
    """
    if share == 0:
        return records, records.like({})
    sizes = Counter(task.prompt(record).strip() for record in records.values())
    if len(sizes) < 2:
        raise InputError(
            f"{records.path}: all records have one prompt, so none can be held out; give --validation_path, "
            "or --validation_share 0"
        )
    missing = max(1, round(share * len(records)))
    held: set[str] = set()
    for prompt in sorted(sizes, key=lambda text: hashlib.sha256(f"{seed}\0{text}".encode()).hexdigest())[:-1]:
        if missing <= 0:
            break
        held.add(prompt)
        missing -= sizes[prompt]

    def side(validation: bool) -> Records:
        chosen = {key: item for key, item in records.items() if (task.prompt(item).strip() in held) == validation}
        return records.like(chosen)

    return side(False), side(True)


def check_disjoint(training: Records, validation: Records, task: Task) -> None:
    """``InputError`` where a prompt is on both sides."""
    seen = {task.prompt(record).strip(): record_id for record_id, record in training.items()}
    for record_id, record in validation.items():
        if (twin := seen.get(task.prompt(record).strip())) is not None:
            raise InputError(
                f"{validation.path}: record {record_id!r} has the prompt of record {twin!r} of {training.path}; "
                "remove one of them, a model is to be measured on prompts it was not trained on"
            )


def spread(items: Sequence, count: int) -> list:
    """``count`` of the items, evenly spread; all where there are fewer."""
    count = min(count, len(items))
    return [items[number * len(items) // count] for number in range(count)]
