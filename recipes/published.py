"""Published data sets as records in the tasks' formats: SLF5K, UltraFeedback-binarized and KodCode, files or hub."""

from collections.abc import Callable, Mapping
from typing import Any

from rm_data_anno.kodcode.test_case import from_row
from text2grad.errors import InputError
from text2grad.records import each_record
from text2grad.tasks import Record, Task


def read_published(source: str, task: Task) -> list[Record]:
    """The rows of a file, or of a data set (``owner/name#split``; ``train`` by default), each as the task's records.

    Raises:
        InputError: there is no such file or set, or a row has not the fields of its data set; names the row.
    """
    convert = READERS.get(task.name, lambda row: [row])
    records: list[Record] = []
    for where, key, row in each_record(source, task):
        try:
            found = convert(row if key is None else {"id": key, **row})
            for record in found:
                if not task.prompt(record).strip():
                    raise InputError("its prompt is empty")
        except (InputError, KeyError, TypeError, AttributeError) as error:
            problem = f"has no field {error}" if isinstance(error, KeyError) else str(error)
            raise InputError(f"{where}: {problem}; {task.format_help}") from None
        records += found
    return records


def slf5k(row: Mapping[str, Any]) -> list[Record]:
    """SLF5K: the summary that got feedback is the response. Records in the task's own format stay as they are."""
    record = {name: value for name, value in row.items() if value is not None}
    if "generated_summary" not in record and record.get("generated_summary_for_feedback"):
        record["generated_summary"] = record["generated_summary_for_feedback"]
    return [record]


def ultrafeedback(row: Mapping[str, Any]) -> list[Record]:
    """UltraFeedback-binarized: a row's chosen and rejected conversation are two records."""
    if "chosen" not in row:
        return [dict(row)]
    scores = {"score_chosen": row["score_chosen"], "score_rejected": row["score_rejected"]}
    about = {"prompt": row["prompt"], "prompt_id": row["prompt_id"], **scores}
    return [
        {
            **about,
            "response": [{"content": turn["content"], "role": turn["role"]} for turn in row[kind]],
            "is_chosen": kind == "chosen",
            "score": row[f"score_{kind}"],
            "critique": "",
        }
        for kind in ("chosen", "rejected")
        if row[kind] and row[kind][-1]["content"].strip()
    ]


def kodcode(row: Mapping[str, Any]) -> list[Record]:
    """KodCode: GPT-4o's solution where a row has one. Records whose tests were run keep their log."""
    return [dict(row) if "log" in row else from_row(row)]


READERS: dict[str, Callable[[Mapping[str, Any]], list[Record]]] = {
    "slf5k": slf5k,
    "ultrafeedback": ultrafeedback,
    "kodcode": kodcode,
}
