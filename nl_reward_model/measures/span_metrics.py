"""Are they the right spans? Matches and overlap index (paper, Table 6), code segments (7), lengths (18, 19)."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nl_reward_model.measures.paired_feedback import PairedFeedback
from text2grad.feedback import Feedback
from text2grad.grounding import trimmed
from text2grad.statistics import Estimate, bootstrap
from text2grad.tasks import Interval, Task
from text2grad.token_rewards import span_intervals, tokens_in

SLOTS = ("good", "poor")
_NEAR = 0.9


Places = list[Interval]
"""Of a quote: intervals of the response without white space at their ends; [] for nowhere."""


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


def places_of(quotes: Sequence[str], text: str, task: Task) -> list[Places]:
    """The places of each quote by the rules of :mod:`text2grad.token_rewards`, as if it were the only one."""
    found = (span_intervals(Feedback("-", good=[quote]), text, task)[1] for quote in quotes)
    return [[trimmed(text, *place) for place in places] for places in found]


def match(predicted: Sequence[Places], truth: Sequence[Places]) -> Matching:
    """Compare the spans of one slot."""
    result = Matching(truth=len(truth), predicted=len(predicted), grounded=sum(map(bool, predicted)))
    true_characters = [_characters(places) for places in truth]
    free = list(truth)
    touched: set[int] = set()
    ours: set[int] = set()
    for places in predicted:
        characters = _characters(places)
        touching = [index for index, other in enumerate(true_characters) if characters & other]
        equal = [other for other in free if set(places) & set(other)]
        if equal:
            free.remove(equal[0])
            result.exact += 1
        elif touching:
            result.partial += 1
        if touching:
            ours |= characters
            touched |= set(touching)
        result.same += any(set(places) & set(other) for other in truth)
        result.near += any(_overlap(a, b) >= _NEAR for other in truth for a in places for b in other)
    theirs = set().union(*(true_characters[index] for index in touched))
    result.found = len(touched)
    result.shared, result.joined = len(ours & theirs), len(ours | theirs)
    return result


def match_record(item: PairedFeedback, task: Task, true_labels: np.ndarray) -> dict[str, Matching]:
    """The good and the poor spans of one record.

    Args:
        true_labels: of the tokens that count (:func:`nl_reward_model.measures.token_metrics.labels`).
    """
    label_of = dict(zip(item.counted, true_labels.tolist(), strict=True))
    result = {}
    for slot in SLOTS:
        truth = places_of(getattr(item.truth, slot), item.text, task)
        predicted = places_of(getattr(item.predicted, slot) if item.predicted else [], item.text, task)
        matching = match(predicted, truth)
        wanted = np.sign(getattr(task.values, slot))
        for places in predicted:
            if tokens := tokens_in(places[:1], item.text, item.tokens):
                matching.lengths.append(len(tokens))
                matching.right.append(float(np.mean([label_of[token] == wanted for token in tokens])))
        for places in truth:
            if tokens := tokens_in(places[:1], item.text, item.tokens):
                matching.true_lengths.append(len(tokens))
        result[slot] = matching
    return result


def span_metrics(compared: Sequence[dict[str, Matching]], task: Task, groups: Sequence[Hashable]) -> dict[str, Any]:
    """All figures on spans, slot by slot under the task's own names; ``docs/reward_model_metrics.md`` defines each."""
    result: dict[str, Any] = {}
    for slot in SLOTS:
        rows = [record[slot] for record in compared]

        def share(part: str, whole: str, rows: Sequence[Matching] = rows) -> dict[str, float | int | None]:
            return bootstrap([(getattr(row, part), getattr(row, whole)) for row in rows], groups=groups).to_dict()

        figures: dict[str, Any] = {
            name: sum(getattr(row, name) for row in rows) for name in ("truth", "predicted", "exact", "partial")
        }
        figures["exact_recall"] = share("exact", "truth")
        figures["found_recall"] = share("found", "truth")
        figures["oui"] = share("shared", "joined")
        if task.is_code:
            figures["exact_match"] = share("same", "predicted")
            figures["overlap_90"] = share("near", "predicted")
        figures["tokens_per_span"] = {
            "truth": _quartiles([length for row in rows for length in row.true_lengths]),
            "predicted": _quartiles([length for row in rows for length in row.lengths]),
        }
        figures["accuracy_by_length"] = _by_length(rows, groups)
        result[getattr(task.fields, slot)] = figures
    return result


def unmatched_rate(compared: Sequence[dict[str, Matching]], groups: Sequence[Hashable]) -> Estimate:
    """The share of predicted quotes that are nowhere in the text that can get a reward (paper, Table 15)."""
    rows = []
    for record in compared:
        predicted = sum(slot.predicted for slot in record.values())
        rows.append((predicted - sum(slot.grounded for slot in record.values()), predicted))
    return bootstrap(rows, groups=groups)


def _quartiles(lengths: Sequence[int]) -> dict[str, float]:
    """Count, mean and quartiles; {} of nothing."""
    if not lengths:
        return {}
    q1, q2, q3 = np.percentile(lengths, [25, 50, 75]).tolist()
    return {"n": len(lengths), "mean": round(float(np.mean(lengths)), 3), "q1": q1, "q2": q2, "q3": q3}


def _by_length(rows: Sequence[Matching], groups: Sequence[Hashable]) -> dict[str, dict[str, float | int | None]]:
    """Share of a predicted span's tokens that truly have its label, averaged over the spans of each length quartile."""
    lengths = [length for row in rows for length in row.lengths]
    if not lengths:
        return {}
    bounds = [-np.inf, *np.percentile(lengths, [25, 50, 75]), np.inf]
    result = {}
    for name, low, high in zip(("0-Q1", "Q1-Q2", "Q2-Q3", "Q3-100%"), bounds, bounds[1:], strict=False):
        pairs = []
        for row in rows:
            chosen = [right for length, right in zip(row.lengths, row.right, strict=True) if low < length <= high]
            pairs.append((sum(chosen), len(chosen)))
        result[name] = bootstrap(pairs, groups=groups).to_dict() | {"n": sum(count for _, count in pairs)}
    return result


def _characters(places: Places) -> set[int]:
    return {position for start, end in places for position in range(start, end)}


def _overlap(a: Interval, b: Interval) -> float:
    """Characters that two intervals share, by those of the longer one."""
    return max(0, min(a[1], b[1]) - max(a[0], b[0])) / max(a[1] - a[0], b[1] - b[0])
