"""How good a critic is on held-out responses: F1 of good and poor tokens, and how often it takes one for the other."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from benchmarks.micro.task import PROFILES
from nl_reward_model.measures.paired_feedback import pair_feedback
from nl_reward_model.measures.token_metrics import labels
from text2grad.critics.reward_model.critic import RewardModelCritic
from text2grad.feedback import Feedback, FeedbackError
from text2grad.tasks import Record


def figures(truths: Sequence[np.ndarray], said: Sequence[np.ndarray]) -> dict[str, float | None]:
    """F1 of the +1 and of the −1 tokens; ``flips``: of tokens with a label in both, the share with the other sign;
    ``mean_delta``: the correlation of a response's mean label with the true one. None where there is no such share.
    """
    truth, found = np.concatenate(truths), np.concatenate(said)
    both = (truth != 0) & (np.abs(found) == 1)
    means = [[row.mean() if len(row) else 0.0 for row in rows] for rows in (truths, said)]
    return {
        "f1_good": _f1(truth == 1, found == 1),
        "f1_poor": _f1(truth == -1, found == -1),
        "flips": float((truth[both] != found[both]).mean()) if both.any() else None,
        "mean_delta": float(np.corrcoef(means)[0, 1]) if min(map(np.ptp, means)) > 0 else None,
    }


def _f1(truth: np.ndarray, found: np.ndarray) -> float:
    return 2 * float((truth & found).sum()) / max(int(truth.sum() + found.sum()), 1)


def examine(
    critic: RewardModelCritic, records: Sequence[Record], tokenizer: PreTrainedTokenizerBase | None = None
) -> dict[str, Any]:
    """The figures on all records, and on those of each origin; on a tokenizer's tokens, or on the critic's own."""
    begun = time.process_time()
    replies = critic(
        [PROFILES.prompt(record) for record in records], [record["response"] for record in records], records
    )
    seconds = time.process_time() - begun
    truth, said = label_pairs(records, replies, tokenizer or critic.prompt.tokenizer)
    origins = [record["id"].partition("-")[0] for record in records]
    groups = {}
    for origin in sorted(set(origins)):
        rows = [row for row, name in enumerate(origins) if name == origin]
        groups[origin] = rounded_figures(figures([truth[row] for row in rows], [said[row] for row in rows]))
    return {
        **rounded_figures(figures(truth, said)),
        "origins": groups,
        "responses": len(records),
        "unreadable": sum(not isinstance(reply, Feedback) for reply in replies),
        "seconds_each": round(seconds / len(records), 4),
    }


def label_pairs(
    records: Sequence[Record], replies: Sequence[Feedback | FeedbackError], tokenizer: PreTrainedTokenizerBase
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The true labels of each annotated response's tokens, and those of the replies."""
    items = pair_feedback({record["id"]: {**record, "predicted": None} for record in records}, PROFILES, tokenizer)
    truth, said = [], []
    for item, reply in zip(items, replies, strict=True):
        truth.append(labels(item, item.truth, PROFILES, tokenizer))
        said.append(labels(item, reply if isinstance(reply, Feedback) else None, PROFILES, tokenizer))
    return truth, said


def rounded_figures(values: dict[str, float | None]) -> dict[str, float | None]:
    return {name: None if value is None else round(value, 4) for name, value in values.items()}
