"""Train the reward models of a study, unless they exist, and measure how well they know the program's feedback."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.micro.methods import Learnt
from benchmarks.micro.nl_reward_model import annotated_records, load_reward_model, train_nl_reward_model
from benchmarks.micro.scalar_reward_model import make_pairs, pairs_file, train_scalar_reward_model
from benchmarks.micro.task import PROFILES
from benchmarks.pages import markdown_table
from nl_gradient_policy_optimization.baselines.preferences import Pair, load_pairs
from nl_gradient_policy_optimization.baselines.scalar_model import load_scalar_model
from nl_reward_model.measures.paired_feedback import pair_feedback
from nl_reward_model.measures.token_metrics import labels, token_metrics
from text2grad.feedback import Feedback

_FOLDERS = {"scalar": "reward_model", "critique": "nl_reward_model", "spans": "nl_reward_model-no_critique"}
_LABELS = {"scalar": "one number", "critique": "a critique, then quotes", "spans": "quotes, no critique"}


def train_reward_models(
    folder: Path, base: str, learnt: Sequence[Learnt], pairs: int, max_response_tokens: int, steps: int
) -> dict[Learnt, str]:
    """The folder of each. Models with the same number of pairs learn from the same pairs.

    Args:
        pairs: the number for those that name none.
        steps: updates of those that write feedback, for any number of pairs.
    """
    models = {}
    for model in learnt:
        suffix = f"-{model.pairs}" if model.pairs else ""
        path = pairs_file(folder / f"reward_model{suffix}-pairs.json", base, model.pairs or pairs, max_response_tokens)
        place = folder / f"{_FOLDERS[model.kind]}{suffix}"
        if model.kind == "scalar":
            models[model] = train_scalar_reward_model(place, base, path)
        else:
            models[model] = train_nl_reward_model(
                place, base, load_pairs(path).values(), model.kind == "critique", steps
            )
    return models


def evaluate_reward_models(
    models: Mapping[Learnt, str], learnt_from: int, base: str, count: int, max_response_tokens: int
) -> list[dict[str, Any]]:
    """How well each reward model agrees with the program on the starting policy's responses to prompts not used before.

    Args:
        learnt_from: the number of pairs for those that name none.
        count: pairs to evaluate them on.

    Returns:
        For each: ``ranked``, the share of pairs that it ranks as the program does (by its number, or by Σδ of what it
        writes; a tie counts half); ``tokens``, precision, recall and F1 of the +1 and −1 tokens (None for a number);
        ``unreadable`` replies; and processor milliseconds per response.
    """
    pairs = make_pairs(base, count, max_response_tokens, seed="held-out judgements")
    return [
        {"kind": model.kind, "learnt_from": model.pairs or learnt_from, **_evaluate(model.kind, folder, pairs)}
        for model, folder in models.items()
    ]


def _evaluate(kind: str, folder: str, pairs: Sequence[Pair]) -> dict[str, Any]:
    begun = time.process_time()
    if kind == "scalar":
        scorer, _ = load_scalar_model(folder, PROFILES)
        records = annotated_records(pairs)
        scores = scorer([PROFILES.prompt(record) for record in records], [record["response"] for record in records])
        found: dict[str, Any] = {"ranked": ranked(scores), "tokens": None, "unreadable": 0}
    else:
        found = _evaluate_text_model(folder, pairs)
    return found | {"milliseconds": round(1000 * (time.process_time() - begun) / (2 * len(pairs)), 2)}


def _evaluate_text_model(folder: str, pairs: Sequence[Pair]) -> dict[str, Any]:
    critic, records = load_reward_model(folder), annotated_records(pairs)
    tokenizer = critic.prompt.tokenizer
    replies = critic(
        [PROFILES.prompt(record) for record in records], [record["response"] for record in records], records
    )
    items = pair_feedback({record["id"]: {**record, "predicted": None} for record in records}, PROFILES, tokenizer)
    said = [reply if isinstance(reply, Feedback) else None for reply in replies]
    predicted = [labels(item, reply, PROFILES, tokenizer) for item, reply in zip(items, said, strict=True)]
    truth = [labels(item, item.truth, PROFILES, tokenizer) for item in items]
    groups = [record["id"].rpartition("-")[0] for record in records]
    totals = [0.0 if reply is None else float(row.sum()) for reply, row in zip(said, predicted, strict=True)]
    figures = token_metrics(truth, predicted, PROFILES, groups)["labels"]
    tokens = {
        name: {metric: figures[name][metric]["value"] for metric in ("precision", "recall", "f1")}
        for name in ("+1", "-1")
    }
    return {"ranked": ranked(totals), "tokens": tokens, "unreadable": said.count(None)}


def ranked(scores: Sequence[float]) -> float:
    """The share of pairs (chosen, rejected, chosen, …) in which the chosen one has the greater score; ties: half."""
    chosen, rejected = scores[::2], scores[1::2]
    return sum((a > b) + (a == b) / 2 for a, b in zip(chosen, rejected, strict=True)) / len(chosen)


def reward_models_table(rows: Sequence[Mapping[str, Any]]) -> str:
    header = [
        "what it writes about a response",
        "learnt from",
        "pairs ranked right",
        "good tokens: precision, recall, F1",
        "poor tokens: precision, recall, F1",
        "unreadable",
        "ms per response",
    ]
    shown = []
    for row in rows:
        tokens = [_shown(row["tokens"][name]) if row["tokens"] else "–" for name in ("+1", "-1")]
        figures = [f"{row['learnt_from']} pairs", f"{100 * row['ranked']:.1f} %", *tokens]
        shown.append([_LABELS[row["kind"]], *figures, str(row["unreadable"]), f"{row['milliseconds']:.1f}"])
    return markdown_table(header, shown)


def _shown(figures: Mapping[str, float | None]) -> str:
    """A precision without any prediction is a dash."""
    return ", ".join("–" if value is None else f"{value:.2f}" for value in figures.values())
