"""What a run's and an evaluation's files must look like, checked once where a file is read.

Whoever forges or damages a file gets one sentence with the file, the place and the remedy. Numbers are bounded, so that
sums, squares and float32 copies of them stay finite.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired

from pydantic import AfterValidator, ConfigDict, Field, Strict, TypeAdapter, with_config
from typing_extensions import TypedDict

from text2grad.errors import InputError
from text2grad.tasks import task_of

Number = Annotated[float, Strict(), Field(ge=-1e30, le=1e30, allow_inf_nan=False)]
Count = Annotated[int, Strict(), Field(ge=0, le=10**9)]
Text = Annotated[str, Strict()]
Name = Annotated[str, Strict(), Field(min_length=1)]
Series = list[Number | None] | None
COLUMNS = {"ratio": 2, "exp_ratio": 2, "bleu": 10, "order_free": 3}
"""Numbers in a row of sums, by how the summed rows become a figure (``evaluation.results.COMBINE``)."""


@with_config(ConfigDict(extra="allow"))
class MetricsRow(TypedDict):
    """A line of ``metrics.jsonl``. Values that are no finite numbers are gaps in their curves."""

    step: Count


class RolloutRow(TypedDict):
    """A line of ``rollouts.jsonl``; lists of numbers have one entry per token."""

    step: Count
    prompt: Text
    response: Text
    spans: list[tuple[Count, Count]]
    rewards: list[Number]
    id: NotRequired[Text | int | None]
    critique: NotRequired[Text | None]
    good: NotRequired[list[Text] | None]
    poor: NotRequired[list[Text] | None]
    missing: NotRequired[list[Text] | None]
    verdict: NotRequired[Number | None]
    verdict_source: NotRequired[Text | None]
    error: NotRequired[Text | None]
    matched: NotRequired[Count | None]
    unmatched: NotRequired[Count | None]
    conflicts: NotRequired[Count | None]
    finished: NotRequired[bool | None]
    deltas: NotRequired[Series]
    advantages: NotRequired[Series]
    kl: NotRequired[Series]
    old_logprobs: NotRequired[Series]
    new_logprobs: NotRequired[Series]


class Metric(TypedDict):
    value: Number | None
    low: Number | None
    high: Number | None
    n: Count | None


class Statistic(TypedDict):
    combine: Literal["ratio", "exp_ratio", "bleu", "order_free"]
    rows: dict[str, Text]


def _whole_rows(statistic: Statistic) -> Statistic:
    wanted = COLUMNS[statistic["combine"]]
    for key, row in statistic["rows"].items():
        if len([float(number) for number in row.split()]) != wanted:
            raise ValueError(f"the row of {key!r} must hold {wanted} numbers")
    return statistic


class RecordChange(TypedDict):
    from_record: Count
    settings: dict[str, Any]


@with_config(ConfigDict(extra="allow"))
class ResultFile(TypedDict):
    """A result file (``evaluation.results.save_result``)."""

    task: Name
    benchmark: Name
    system: Name
    metrics: dict[str, Metric]
    records: dict[str, dict[str, Text | Number | None]]
    settings: NotRequired[dict[str, Any]]
    statistics: NotRequired[dict[str, Annotated[Statistic, AfterValidator(_whole_rows)]]]
    n: NotRequired[Count | None]
    trivial: NotRequired[dict[str, dict[str, Metric]]]
    models: NotRequired[list[Text]]
    prompts: NotRequired[dict[str, Text]]
    feedback: NotRequired[dict[str, dict[str, Any]]]
    changes: NotRequired[list[RecordChange] | None]
    baseline: NotRequired[Text | None]
    step: NotRequired[Count | None]


METRICS: TypeAdapter = TypeAdapter(MetricsRow)
ROLLOUT: TypeAdapter = TypeAdapter(RolloutRow)
RESULT: TypeAdapter = TypeAdapter(ResultFile)


def check_task(about: dict[str, Any], where: str | Path) -> None:
    """That a file's task is known. A file never names code to run: a user's own task is named on the command line."""
    try:
        task_of(about)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
