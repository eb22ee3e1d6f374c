"""How good annotations are: fidelity of the spans, their number and length, label balance, tokens and cost.

    python rm_data_anno/fidelity.py --task slf5k --data_path spans.json dense.json

prints one column for each annotated file, as the paper's tables 12, 14, 15 and 18 do.
"""

import re
import statistics
from collections import Counter
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from typing import Any

from tabulate import tabulate

from text2grad.configs import TaskConfig, parse, setting
from text2grad.errors import InputError, command
from text2grad.feedback import FeedbackError
from text2grad.records import annotation_of, load_records
from text2grad.tasks import Interval, Record, Task, get_task
from text2grad.token_rewards import rewards_on, span_intervals

_COUNTED = ("corrected", "repeated", "unscored", "unjudged", "contradicted")


def annotation_report(
    task: Task, records: Mapping[str, Record], failures: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Figures of a set of annotated records. Rates are shares of 1, lengths are in white-space separated words.

    The unmatched rate is that of first replies (table 15); the dropped rate is what is left of it after asking again.

    Args:
        records: annotated records; those without feedback are refused.
        failures: reasons by id of the records that could not be annotated.
    """
    failures = failures or {}
    good, poor = task.fields.good, task.fields.poor
    rows = [_row(task, record_id, record) for record_id, record in records.items()]
    checks = [row["validation"] for row in rows]
    first = [check.get("first", check) for check in checks]
    kept = sum(len(row["good"]) + len(row["poor"]) for row in rows)
    characters = sum(row["characters"] for row in rows)
    return {
        "records": {
            "annotated": len(rows),
            "failed": len(failures),
            "asked_again": sum("first" in check for check in checks),
        },
        "spans": {
            "offered": _count(checks, "offered"),
            "kept": kept,
            "unmatched_rate": _rate(_count(first, "unmatched"), _count(first, "offered")),
            "dropped_rate": _rate(_count(checks, "unmatched"), _count(checks, "offered")),
            **{name: _count(checks, name) for name in _COUNTED},
            "unsupported_rate": _rate(_count(checks, "unsupported"), kept),
        },
        **{
            name: {
                "per_record": _quartiles([len(row[slot]) for row in rows]),
                "words": _quartiles([len(span.split()) for row in rows for span in row[slot]]),
            }
            for slot, name in (("good", good), ("poor", poor))
        },
        "labels": {
            f"characters_{good}": _rate(sum(row["good_characters"] for row in rows), characters),
            f"characters_{poor}": _rate(sum(row["poor_characters"] for row in rows), characters),
            "records_with_both": _rate(sum(bool(row["good"] and row["poor"]) for row in rows), len(rows)),
            f"records_{good}_only": _rate(sum(bool(row["good"] and not row["poor"]) for row in rows), len(rows)),
            f"records_{poor}_only": _rate(sum(bool(row["poor"] and not row["good"]) for row in rows), len(rows)),
            "records_without_spans": _rate(sum(not (row["good"] or row["poor"]) for row in rows), len(rows)),
        },
        "critique_words": _quartiles([row["critique_words"] for row in rows if row["critique_words"]]),
        "usage": _usage([row["usage"] for row in rows]),
        "failures": dict(Counter(kind_of(reason) for reason in failures.values()).most_common()),
    }


def kind_of(reason: str) -> str:
    """A failure's reason without what differs from record to record (quotes and numbers)."""
    return re.sub(r"\d+", "N", re.sub(r"(['\"(]).*", r"\1…", reason, flags=re.DOTALL)).strip(" '\"(…")[:80]


def _row(task: Task, record_id: str, record: Record) -> dict[str, Any]:
    try:
        feedback = task.feedback(record)
    except FeedbackError as error:
        raise InputError(f"record {record_id!r}: {error}; annotate it again or remove it") from None
    if feedback is None:
        raise InputError(
            f"record {record_id!r} carries no feedback ({task.fields.critique!r}); annotate the file first"
        )
    response = task.response(record)
    judged = _positions(task.rewarded(response))
    if feedback.scores:
        places = [(at, at + 1) for at in range(len(response))]
        values = rewards_on(response, places, feedback, task, "dense").values
        poor, good = ({at for at, value in enumerate(values) if value * sign > 0} for sign in (-1, 1))
    else:
        poor, good = (_positions(intervals) for intervals in span_intervals(feedback, response, task))
    made = annotation_of(record)
    return {
        "good": feedback.good,
        "poor": feedback.poor,
        "characters": len(judged),
        "good_characters": len((good - poor) & judged),
        "poor_characters": len(poor & judged),
        "critique_words": len(feedback.critique.split()),
        "validation": _counts(made.get("validation")),
        "usage": _counts(made.get("usage")),
    }


def _positions(intervals: list[Interval]) -> set[int]:
    return {position for start, end in intervals for position in range(start, end)}


def _counts(written: Any) -> dict[str, Any]:
    """An object's numbers and lists, and those of the first answer; another program may write anything there."""
    if not isinstance(written, dict):
        return {}
    counts = {name: value for name, value in written.items() if isinstance(value, int | float | list)}
    return {**counts, "first": _counts(written["first"])} if "first" in written else counts


def _usage(rows: list[dict[str, float]]) -> dict[str, Any]:
    """Totals and means per record of what the critic counted; empty where it counted nothing."""
    names = ("requests", "prompt_tokens", "completion_tokens", "cost_usd") if any(rows) else ()
    totals = {name: round(sum(row.get(name) or 0 for row in rows), 6) for name in names}
    return {**totals, **{f"{name}_per_record": _rate(total, len(rows)) for name, total in totals.items()}}


def _count(checks: list[dict], name: str) -> int:
    """Sum over records of a number, or of a list's length."""
    items = [check.get(name, 0) for check in checks]
    return sum(len(item) if isinstance(item, list) else item for item in items)


def _rate(part: float, whole: float) -> float:
    return round(part / whole, 6) if whole else 0.0


def _quartiles(values: list[int]) -> dict[str, float]:
    """Mean, extremes and quartiles (inclusive method); empty for no values."""
    if not values:
        return {}
    low, median, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    figures = {"min": min(values), "q1": low, "median": median, "q3": high, "max": max(values)}
    return {"mean": round(statistics.fmean(values), 3), **figures}


def report_table(columns: Mapping[str, dict[str, Any]]) -> str:
    """Reports side by side as a Markdown table, one column each; what is 0 in all of them is left out."""
    flat = {name: _flat(value) for name, value in columns.items()}
    names = list(dict.fromkeys(row for column in flat.values() for row in column))
    rows = [[name, *(column.get(name, "–") for column in flat.values())] for name in names]
    rows = [row for row in rows if set(row[1:]) - {"0", "0.00 %", "0 [0 0 0 0 0]", "–"}]
    return tabulate(rows, ["", *flat], tablefmt="github", disable_numparse=True) + "\n"


def _flat(value: dict[str, Any], prefix: str = "") -> dict[str, str]:
    rows: dict[str, str] = {}
    for name, item in value.items():
        label = f"{prefix}{name}".replace("_", " ")
        if isinstance(item, dict) and "median" in item:
            shown = {key: _number(key, figure) for key, figure in item.items()}
            rows[label] = "{mean} [{min} {q1} {median} {q3} {max}]".format_map(shown)
        elif isinstance(item, dict):
            rows |= _flat(item, f"{label}: ")
        else:
            rows[label] = _number(name, item)
    return rows


def _number(name: str, value: object) -> str:
    if not isinstance(value, float | int):
        return str(value)
    if name.endswith("_rate") or name.startswith(("characters_", "records_")):
        return f"{100 * value:.2f} %"
    if "usd" in name:
        return f"${value:.5f}"
    return f"{value:.4g}" if isinstance(value, float) else f"{value}"


@dataclass
class FidelityConfig(TaskConfig):
    """Which files are compared."""

    data_path: list[str] = setting(MISSING, "annotated files; one column of the table each", "--input_file")


@command
def main() -> None:
    config = parse(FidelityConfig)
    task = get_task(config.task)
    reports = {}
    for path in config.data_path:
        records = load_records(path, task)
        try:
            reports[path] = annotation_report(task, records)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
    print(report_table(reports), end="")


if __name__ == "__main__":
    main()
