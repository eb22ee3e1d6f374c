"""What the page opens with: one prompt, its response before and after training, and the critique of each."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from evaluation.reporting.runs import LoggedRollout, Run
from evaluation.reporting.training import Variant
from evaluation.reporting.viewer import answer_of, prompt_text, reward_measure, span_words
from evaluation.reporting.wording import method_name


def example(pairs: list[dict[str, Any]], groups: list[Variant]) -> dict[str, Any] | None:
    """The response pair whose change in mean δ is the median of all, so that nobody chose it by its looks.

    Responses to evaluation prompts come first. Without them it is the first and the last response of a run to a prompt.

    Returns:
        ``prompt_id``, ``prompt`` (None where no file holds its text), ``of`` (pairs to choose from), ``where``,
        ``rule``, ``words`` for spans, and two ``sides``: ``name``, ``response``, ``critique``, ``mean``, ``measure``,
        ``good`` and ``poor`` (intervals of characters). None where nothing was answered twice.
    """
    for pair in pairs:
        found = _of_pair(pair)
        if found:
            return found
    ranked = sorted(groups, key=lambda variant: variant.method != "text2grad")
    return next((found for variant in ranked for run in variant.runs if (found := _of_run(run))), None)


def _of_pair(pair: dict[str, Any]) -> dict[str, Any] | None:
    before, after = pair["before"], pair["after"]
    judged = [key for key in pair["ids"] if all(key in (side.get("feedback") or {}) for side in (before, after))]
    means = {key: [_mean_delta(side, key) for side in (before, after)] for key in judged}
    changes = {key: last - first for key, (first, last) in means.items() if first is not None and last is not None}
    if not judged:
        return None
    key = _median(changes) if changes else judged[0]
    sides = []
    for side, mean in zip((before, after), means[key], strict=True):
        response, critique, _, good, poor, _ = answer_of(side, key)
        sides.append(_side(method_name(side["system"]), response, critique, mean, "δ", good, poor))
    rule = "median" if changes else "first"
    about = {"prompt_id": key, "prompt": prompt_text(after, key) or prompt_text(before, key)}
    words = span_words(after["task"])
    about |= {"where": "evaluation", "rule": rule, "of": len(changes or judged), "code": after["task"] == "kodcode"}
    return {**about, "words": words, "sides": sides}


def _mean_delta(result: dict[str, Any], key: str) -> float | None:
    """Of one response: from its record, or from the sums that a rate per token is kept as."""
    value = result["records"][key].get("mean_delta")
    if value is not None:
        return float(value)
    row = ((result.get("statistics") or {}).get("mean_delta") or {}).get("rows", {}).get(key)
    total, count = map(float, row.split()) if row else (0.0, 0.0)
    return total / count if count else None


def _of_run(run: Run) -> dict[str, Any] | None:
    measure = reward_measure(run)
    ends: dict[tuple[str, str], list[LoggedRollout]] = {}
    for rollout in run.rollouts:
        if rollout.feedback and _mean(rollout, measure) is not None:
            pair = ends.setdefault((rollout.prompt_id, rollout.prompt), [rollout, rollout])
            if rollout.step > pair[1].step:
                pair[1] = rollout
    ends = {key: pair for key, pair in ends.items() if pair[1].step > pair[0].step}
    if not ends:
        return None
    key = _median(
        {key: (_mean(last, measure) or 0) - (_mean(first, measure) or 0) for key, (first, last) in ends.items()}
    )
    sides = [
        _side(
            f"Step {rollout.step}",
            rollout.response,
            rollout.feedback.critique if rollout.feedback else "",
            _mean(rollout, measure),
            measure,
            rollout.good_at,
            rollout.poor_at,
        )
        for rollout in ends[key]
    ]
    about = {"prompt_id": key[0], "prompt": key[1], "where": "training", "rule": "median", "of": len(ends)}
    return {**about, "code": run.task == "kodcode", "words": span_words(run.task), "sides": sides}


def _mean(rollout: LoggedRollout, measure: str) -> float | None:
    return rollout.mean_delta if measure == "δ" else rollout.mean_reward


def _median(changes: dict[Any, float]) -> Any:
    """The key of the median; of an even number, of the lower one in the middle."""
    ranked = sorted(changes, key=lambda key: changes[key])
    return ranked[(len(ranked) - 1) // 2]


def _side(name: str, response: str, critique: str, mean: float | None, measure: str, good: list, poor: list) -> dict:
    places = {"good": [list(at) for at in good], "poor": [list(at) for at in poor]}
    return {"name": name, "response": response, "critique": critique, "mean": mean, "measure": measure, **places}


def pieces(side: dict[str, Any]) -> list[tuple[str, str]]:
    """The response cut where its label changes: (good, poor or the empty text; the characters). Criticism wins."""
    labels = [""] * len(side["response"])
    for name in ("good", "poor"):
        for start, end in side[name]:
            labels[start:end] = [name] * (end - start)
    cut = groupby(zip(labels, side["response"], strict=True), key=lambda item: item[0])
    return [(label, "".join(character for _, character in members)) for label, members in cut]
