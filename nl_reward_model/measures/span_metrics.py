"""Are they the right spans? Matches and overlap index (paper, Table 6), code segments (7), lengths (18, 19)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from nl_reward_model.measures.paired_feedback import PairedFeedback
from text2grad.feedback import Feedback
from text2grad.statistics import Estimate, bootstrap
from text2grad.tasks import Interval, Task
from text2grad.token_rewards import span_intervals, tokens_in

SLOTS = ("good", "poor")
_NEAR = 0.9


@dataclass(frozen=True)
class Span:
    """A quote and its places: intervals of the response without white space at their ends; [] for nowhere."""

    quote: str
    places: list[Interval]

    @property
    def characters(self) -> set[int]:
        return {position for start, end in self.places for position in range(start, end)}


@dataclass
class Matching:
    """The predicted spans of one record and slot against the true ones.

    Attributes:
        exact: predicted spans at the place of a true span, one to one.
        partial: other predicted spans that share a character with a true one.
        found: true spans that share a character with a predicted one.
        shared, joined: sizes of intersection and union of the characters of predicted and true spans that touch.
        near: predicted spans that share 90 % or more of the longer one's characters with one true span.
        same: predicted spans that are where some true span is (not one to one).
    """

    truth: int = 0
    predicted: int = 0
    grounded: int = 0
    exact: int = 0
    partial: int = 0
    found: int = 0
    shared: int = 0
    joined: int = 0
    near: int = 0
    same: int = 0
    lengths: list[int] = field(default_factory=list)
    true_lengths: list[int] = field(default_factory=list)
    right: list[float] = field(default_factory=list)


def spans_of(quotes: Sequence[str], text: str, task: Task) -> list[Span]:
    """Each quote with its places by the rules of :mod:`text2grad.token_rewards`, as if it were the only one."""
    result = []
    for quote in quotes:
        _, places = span_intervals(Feedback("-", good=[quote]), text, task)
        result.append(Span(quote, [_trimmed(text, *place) for place in places]))
    return result


def match(predicted: Sequence[Span], truth: Sequence[Span]) -> Matching:
    """Compare the spans of one slot."""
    result = Matching(truth=len(truth), predicted=len(predicted), grounded=sum(bool(span.places) for span in predicted))
    free = list(truth)
    touched: set[int] = set()
    ours: set[int] = set()
    for span in predicted:
        equal = [other for other in free if set(span.places) & set(other.places)]
        touching = [index for index, other in enumerate(truth) if span.characters & other.characters]
        if equal:
            free.remove(equal[0])
            result.exact += 1
        elif touching:
            result.partial += 1
        if touching:
            ours |= span.characters
            touched |= set(touching)
        result.same += any(set(span.places) & set(other.places) for other in truth)
        result.near += any(_overlap(a, b) >= _NEAR for other in truth for a in span.places for b in other.places)
    theirs = {position for index in touched for position in truth[index].characters}
    result.found = len(touched)
    result.shared, result.joined = len(ours & theirs), len(ours | theirs)
    return result


def match_record(item: PairedFeedback, task: Task, true_labels: np.ndarray) -> dict[str, Matching]:
    """The good and the poor spans of one record.

    Args:
        true_labels: of the tokens that count (:func:`nl_reward_model.measures.token_metrics.labels`).
    """
    counted = tokens_in(task.rewarded(item.text), item.text, item.tokens)
    label_of = dict(zip(counted, true_labels.tolist(), strict=True))
    result = {}
    for slot in SLOTS:
        truth = spans_of(getattr(item.truth, slot), item.text, task)
        predicted = spans_of(getattr(item.predicted, slot) if item.predicted else [], item.text, task)
        matching = match(predicted, truth)
        wanted = np.sign(getattr(task.values, slot))
        for span in predicted:
            tokens = tokens_in(span.places[:1], item.text, item.tokens)
            if tokens:
                matching.lengths.append(len(tokens))
                matching.right.append(float(np.mean([label_of[token] == wanted for token in tokens])))
        lengths = [len(tokens_in(span.places[:1], item.text, item.tokens)) for span in truth if span.places]
        matching.true_lengths = [length for length in lengths if length]
        result[slot] = matching
    return result


def span_metrics(
    compared: Sequence[dict[str, Matching]], task: Task, groups: Sequence[Hashable] | None = None
) -> dict[str, Any]:
    """All figures on spans, slot by slot under the task's own names; ``docs/reward_model_metrics.md`` defines each."""
    result: dict[str, Any] = {}
    for slot in SLOTS:
        rows = [record[slot] for record in compared]
        share = partial(_share, rows, groups)
        result[getattr(task.fields, slot)] = {
            **{name: sum(getattr(row, name) for row in rows) for name in ("truth", "predicted", "exact", "partial")},
            "exact_recall": share("exact", "truth"),
            "found_recall": share("found", "truth"),
            "oui": share("shared", "joined"),
            **(
                {"exact_match": share("same", "predicted"), "overlap_90": share("near", "predicted")}
                if task.is_code
                else {}
            ),
            "tokens_per_span": {
                "truth": _quartiles([length for row in rows for length in row.true_lengths]),
                "predicted": _quartiles([length for row in rows for length in row.lengths]),
            },
            "accuracy_by_length": _by_length(rows, groups),
        }
    return result


def unmatched_rate(compared: Sequence[dict[str, Matching]], groups: Sequence[Hashable] | None = None) -> Estimate:
    """The share of predicted quotes that are nowhere in the text that can get a reward (paper, Table 15)."""
    rows = [
        (sum(slot.predicted - slot.grounded for slot in record.values()), sum(m.predicted for m in record.values()))
        for record in compared
    ]
    return bootstrap(np.array(rows, dtype=float).reshape(-1, 2), groups=groups)


def _share(
    rows: Sequence[Matching], groups: Sequence[Hashable] | None, part: str, whole: str
) -> dict[str, float | int | None]:
    pairs = [(getattr(row, part), getattr(row, whole)) for row in rows]
    return bootstrap(np.array(pairs, dtype=float).reshape(-1, 2), groups=groups).to_dict()


def _quartiles(lengths: Sequence[int]) -> dict[str, float]:
    """Count, mean and quartiles; {} of nothing."""
    if not lengths:
        return {}
    q1, q2, q3 = np.percentile(lengths, [25, 50, 75]).tolist()
    return {"n": len(lengths), "mean": round(float(np.mean(lengths)), 3), "q1": q1, "q2": q2, "q3": q3}


def _by_length(rows: Sequence[Matching], groups: Sequence[Hashable] | None) -> dict[str, dict[str, float | int | None]]:
    """Share of a predicted span's tokens that truly have its label, averaged over the spans of each length quartile."""
    lengths = [length for row in rows for length in row.lengths]
    if not lengths:
        return {}
    bounds = [-np.inf, *np.percentile(lengths, [25, 50, 75]), np.inf]
    result = {}
    for name, low, high in zip(("0-Q1", "Q1-Q2", "Q2-Q3", "Q3-100%"), bounds, bounds[1:], strict=False):
        chosen = [
            [right for length, right in zip(row.lengths, row.right, strict=True) if low < length <= high]
            for row in rows
        ]
        pairs = np.array([(sum(values), len(values)) for values in chosen], dtype=float)
        result[name] = bootstrap(pairs, groups=groups).to_dict() | {"n": int(pairs[:, 1].sum())}
    return result


def _overlap(a: Interval, b: Interval) -> float:
    """Characters that two intervals share, by those of the longer one."""
    return max(0, min(a[1], b[1]) - max(a[0], b[0])) / max(a[1] - a[0], b[1] - b[0])


def _trimmed(text: str, start: int, end: int) -> Interval:
    piece = text[start:end]
    return start + len(piece) - len(piece.lstrip()), end - (len(piece) - len(piece.rstrip()))
