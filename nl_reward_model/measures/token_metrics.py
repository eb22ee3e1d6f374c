"""Do the tokens get the right label? Precision, recall and F1 of +1, 0 and −1, against chance (paper, Table 1).

Everything follows from one count per record: how many tokens with each true label got each predicted label.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from nl_reward_model.measures.paired_feedback import PairedFeedback
from text2grad.feedback import Feedback
from text2grad.statistics import Combine, bootstrap, paired_difference
from text2grad.tasks import Task
from text2grad.token_rewards import rewards_on, scheme_of

LABELS = (1, 0, -1)
NO_LABEL = 2
"""What every token gets from feedback that could not be read: it is missed, and predicted as nothing."""
_TRUE = ("+1", "0", "-1")
_PREDICTED = (*_TRUE, "none")

PLACEMENTS = 20  # of the shuffled spans of each record
_ROUNDING = 1e-12  # a variance below this share of the mean square is none


def labels(item: PairedFeedback, feedback: Feedback | None, task: Task) -> np.ndarray:
    """The label of each token that can get a reward; int, [tokens]. The others are left out."""
    if feedback is None:
        return np.full(len(item.counted), NO_LABEL)
    values = rewards_on(item.text, item.tokens, feedback, task, scheme_of(feedback)).values
    return np.sign([values[token] for token in item.counted]).astype(int)


def confusion(truth: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """Counts [3, 4]: true labels in the order of ``LABELS``, predicted ones likewise and then ``NO_LABEL``."""
    columns = (*LABELS, NO_LABEL)
    return np.array([[np.sum((truth == row) & (predicted == column)) for column in columns] for row in LABELS])


def shuffled(predicted: np.ndarray, default: int, rng: np.random.Generator) -> np.ndarray:
    """The predicted spans, each as long as it is, in random order at random places: chance with the same balance."""
    edges = np.flatnonzero(np.diff(predicted)) + 1
    blocks: list[np.ndarray] = []
    for run in np.split(predicted, edges):
        blocks += [run] if len(run) and run[0] not in (default, NO_LABEL) else np.split(run, len(run) or 1)
    return np.concatenate([blocks[index] for index in rng.permutation(len(blocks))])


def token_metrics(
    truths: Sequence[np.ndarray],
    predictions: Sequence[np.ndarray],
    task: Task,
    groups: Sequence[Hashable] | None = None,
) -> dict[str, Any]:
    """All figures on tokens; ``docs/reward_model_metrics.md`` defines each.

    Args:
        truths, predictions: labels of the tokens that count, record by record.
        groups: which records belong together (:mod:`text2grad.statistics`).
    """
    rng, default = np.random.default_rng(42), int(np.sign(task.values.default))
    counts = np.zeros((len(truths), 3, 4))
    moved = np.zeros_like(counts)
    for record, (truth, predicted) in enumerate(zip(truths, predictions, strict=True)):
        counts[record] = confusion(truth, predicted)
        for _ in range(PLACEMENTS):
            moved[record] += confusion(truth, shuffled(predicted, default, rng)) / PLACEMENTS
    rows, moved_rows = counts.reshape(-1, 12), moved.reshape(-1, 12)
    total = counts.sum(axis=0).astype(int)

    def interval(rows: np.ndarray, figure: Combine) -> dict[str, float | int | None]:
        return bootstrap(rows, figure, groups).to_dict()

    def by_label(rows: np.ndarray) -> dict[str, Any]:
        sums = _table(rows.sum(axis=0))
        found = {}
        for index, name in enumerate(_TRUE):
            figures = {figure.__name__: interval(rows, _of(figure, index)) for figure in (precision, recall, f1)}
            found[name] = {**figures, "true": round(sums[index].sum()), "predicted": round(sums[:, index].sum())}
        return found

    above = {
        name: paired_difference(rows, moved_rows, _of(f1, at), groups)[0].to_dict() for at, name in enumerate(_TRUE)
    }
    return {
        "labels": by_label(rows),
        "accuracy": interval(rows, accuracy),
        "flip_rate": interval(rows, flip_rate),
        "mean_delta_correlation": interval(_mean_deltas(counts), correlation),
        "macro_f1": interval(rows, macro_f1),
        "chance": {
            "random": {name: {"share": interval(rows, _of(share, index))} for index, name in enumerate(_TRUE)},
            "shuffled": by_label(moved_rows),
            "f1_above_shuffled": above,
        },
        "confusion": {
            name: dict(zip(_PREDICTED, row, strict=True)) for name, row in zip(_TRUE, total.tolist(), strict=True)
        },
    }


def precision(table: np.ndarray, index: int) -> np.ndarray:
    """Of the tokens predicted to have the label, the share that has it. Takes counts ``[..., 3, 4]``, gives [...]."""
    return _divide(table[..., index, index], table[..., index].sum(-1))


def recall(table: np.ndarray, index: int) -> np.ndarray:
    """Of the tokens that have the label, the share predicted to have it."""
    return _divide(table[..., index, index], table[..., index, :].sum(-1))


def f1(table: np.ndarray, index: int) -> np.ndarray:
    """Harmonic mean of precision and recall: twice the hits by all that have or were given the label."""
    return _divide(2 * table[..., index, index], table[..., index].sum(-1) + table[..., index, :].sum(-1))


def share(table: np.ndarray, index: int) -> np.ndarray:
    """Of all tokens, the share that has the label: what random labels score."""
    return _divide(table[..., index, :].sum(-1), table.sum((-2, -1)))


def _of(figure: Callable[[np.ndarray, int], np.ndarray], index: int) -> Combine:
    """A label's figure as a function of sums ``[..., 12]``."""
    return lambda sums: figure(_table(sums), index)


def accuracy(sums: np.ndarray) -> np.ndarray:
    """The share of tokens with the right label. Takes sums ``[..., 12]``, gives [...]."""
    return _divide(np.trace(_table(sums)[..., :3], axis1=-2, axis2=-1), sums.sum(-1))


def macro_f1(sums: np.ndarray) -> np.ndarray:
    """The mean F1 of the labels that occur, in truth or prediction."""
    values = np.stack([f1(_table(sums), index) for index in range(3)])
    defined = ~np.isnan(values)
    return _divide(np.where(defined, values, 0).sum(0), defined.sum(0))


def flip_rate(sums: np.ndarray) -> np.ndarray:
    """Of the tokens that have +1 or −1 in truth and in prediction, the share with opposite signs."""
    table = _table(sums)
    flipped = table[..., 0, 2] + table[..., 2, 0]
    return _divide(flipped, flipped + table[..., 0, 0] + table[..., 2, 2])


def correlation(sums: np.ndarray) -> np.ndarray:
    """Pearson's r from the sums ``[..., 6]`` of 1, x, y, x², y² and xy; NaN where x or y does not vary."""
    n, x, y, xx, yy, xy = np.moveaxis(sums, -1, 0)
    varies = [(n * square - one * one, n * square) for one, square in ((x, xx), (y, yy))]
    # of equal values, rounding leaves a little, or a little less than nothing
    (x_varies, y_varies) = (np.where(of > _ROUNDING * whole, of, np.nan) for of, whole in varies)
    return (n * xy - x * y) / np.sqrt(x_varies * y_varies)


def moments(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """What :func:`correlation` sums up, for each record's two values: ``[R]`` and ``[R]`` to ``[R, 6]``."""
    return np.stack([np.ones_like(x), x, y, x * x, y * y, x * y], axis=1)


def _mean_deltas(counts: np.ndarray) -> np.ndarray:
    """Moments of each record's mean δ, true and predicted, from its counts ``[R, 3, 4]``; unread feedback has none."""
    lengths = np.maximum(counts.sum(axis=(1, 2)), 1)
    true, predicted = (by_label[:, 0] - by_label[:, 2] for by_label in (counts.sum(2), counts.sum(1)))
    return moments(true / lengths, predicted / lengths) * (counts[:, :, 3].sum(1) == 0)[:, None]


def _table(sums: np.ndarray) -> np.ndarray:
    return sums.reshape(*sums.shape[:-1], 3, 4)


def _divide(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return part / whole
