"""Rollouts for the browser: small compressed packs, each unpacked when it is shown."""

import base64
import json
import zlib
from typing import Any

import numpy as np

from evaluation.reporting.runs import LoggedRollout, Run
from evaluation.reporting.training import Variant
from evaluation.reporting.wording import method_name, told
from text2grad.errors import InputError
from text2grad.feedback import FeedbackError
from text2grad.records import prompt_of
from text2grad.tasks import get_task
from text2grad.token_rewards import span_intervals

PACK = 500


def packs(groups: list[Variant], pairs: list[dict[str, Any]], limit: int) -> tuple[dict[str, str], dict[str, Any]]:
    """All that the page's script needs, as base64 text by name, and what was packed.

    - ``index``: the runs, the prompts' ids, and columns with one entry per rollout, to filter and sort by. ``mean`` is
      of δ; in a run without any (a scalar reward's) of the reward, and the run's ``measure`` says so.
    - ``prompts``: the prompts' texts.
    - ``texts-N``: response, critique, error, characters of the spans, and quotes found, of ``PACK`` rollouts.
    - ``numbers-N``: their tokens: characters, δ, reward, advantage, change of log-probability, KL.
    - ``pairs``: responses of two systems to the same evaluation prompts.

    Args:
        limit: of rollouts in all; where there are more, whole steps at even intervals are kept, in each run alike.
    """
    runs = [(run, variant.label) for variant in groups for run in variant.runs]
    total = sum(len(run.rollouts) for run, _ in runs)
    prompts: dict[tuple[str, str], int] = {}
    columns: dict[str, list] = {name: [] for name in ("run", "step", "prompt", "mean", "flags")}
    kept: list[LoggedRollout] = []
    for number, (run, _) in enumerate(runs):
        measure = run.measure
        for rollout in _thinned(run, limit / total if total > limit else 1.0):
            mean = rollout.mean(measure)
            columns["run"].append(number)
            columns["step"].append(rollout.step)
            columns["prompt"].append(prompts.setdefault((rollout.prompt_id, rollout.prompt), len(prompts)))
            columns["mean"].append(mean if mean is None else round(mean, 3))
            columns["flags"].append(_flags(rollout))
            kept.append(rollout)
    index = {
        "runs": [_about(run, label) for run, label in runs],
        "prompts": [prompt_id for prompt_id, _ in prompts],
        "columns": columns,
        "pack": PACK,
        "scales": {
            "delta": 1,
            "reward": 1,
            "advantage": _scale([rollout.advantages for rollout in kept]),
            "shift": _scale([rollout.shift for rollout in kept]),
            "kl": _scale([rollout.kl for rollout in kept]),
        },
    }
    packed = {"index": pack(index), "prompts": pack([text for _, text in prompts])} if kept else {}
    for number, start in enumerate(range(0, len(kept), PACK)):
        part = kept[start : start + PACK]
        packed[f"texts-{number}"] = pack([_texts(rollout) for rollout in part])
        packed[f"numbers-{number}"] = pack([_numbers(rollout) for rollout in part])
    if pairs:
        packed["pairs"] = pack([_pair(pair) for pair in pairs])
    return packed, {"rollouts": total, "shown": len(kept), "prompts": len(prompts), "pairs": len(pairs)}


def pack(value: Any) -> str:
    """JSON, deflated, in base64: safe inside a script element whatever the texts hold."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(zlib.compress(text.encode("utf-8"), 9)).decode("ascii")


def _thinned(run: Run, share: float) -> list[LoggedRollout]:
    if share >= 1:
        return run.rollouts
    steps = sorted({rollout.step for rollout in run.rollouts})
    count = max(2, int(len(steps) * share))
    kept = {steps[index] for index in np.linspace(0, len(steps) - 1, count).round().astype(int)}
    return [rollout for rollout in run.rollouts if rollout.step in kept]


def _scale(series: list[np.ndarray]) -> float:
    """The value of full colour: 98 of 100 tokens are nearer to zero."""
    values = np.abs(np.concatenate(series or [np.zeros(0)]))
    values = values[~np.isnan(values)]
    return _short(np.percentile(values, 98)) or 1 if len(values) else 1


def _about(run: Run, label: str) -> dict[str, Any]:
    about = {"name": run.name, "task": run.task, "label": label, "seed": run.seed, "measure": run.measure}
    return {**about, "spans": span_words(run.task)}


def span_words(name: str) -> dict[str, Any]:
    """What a task calls its spans, and the δ of a good one."""
    task = get_task(name)
    words = task.span_words
    return {"good": words.good, "poor": words.poor, "goodValue": task.values.good, "values": words.values}


def _flags(rollout: LoggedRollout) -> int:
    """Bits: has poor spans, has good spans, the critic failed, cut off."""
    flags = (bool(rollout.poor_at), bool(rollout.good_at), bool(rollout.error), not rollout.finished)
    return sum(1 << bit for bit, is_set in enumerate(flags) if is_set)


def _texts(rollout: LoggedRollout) -> list:
    return [rollout.response, told(rollout.feedback), rollout.error, rollout.good_at, rollout.poor_at, rollout.quotes]


def _numbers(rollout: LoggedRollout) -> list:
    """Characters as the gap before each token and its length; each series with three significant digits."""
    starts, ends = rollout.spans[:, 0], rollout.spans[:, 1]
    gaps = starts - np.concatenate([[0], ends[:-1]])
    series = (rollout.deltas, rollout.rewards, rollout.advantages, rollout.shift, rollout.kl)
    return [gaps.tolist(), (ends - starts).tolist(), *(_rounded(values) for values in series)]


def _rounded(values: np.ndarray) -> list[float | None] | None:
    if len(values) and np.isnan(values).all():
        return None
    return [None if value != value else _short(value) for value in values.tolist()]


def _short(value: float) -> float | int:
    rounded = float(f"{value:.3g}")
    return int(rounded) if rounded == int(rounded) else rounded


def _pair(pair: dict[str, Any]) -> dict[str, Any]:
    before, after = pair["before"], pair["after"]
    return {
        "benchmark": pair["benchmark"],
        "systems": [method_name(before["system"]), method_name(after["system"])],
        "task": before["task"],
        "spans": span_words(before["task"]),
        "ids": pair["ids"],
        "prompts": [prompt_text(after, key) for key in pair["ids"]],
        "before": [answer_of(before, key) for key in pair["ids"]],
        "after": [answer_of(after, key) for key in pair["ids"]],
    }


def prompt_text(result: dict[str, Any], key: str) -> str | None:
    """The prompt of one response, where the result file holds it."""
    found = result.get("prompts", {}).get(prompt_of(key)) or result["records"][key].get("prompt")
    return found if isinstance(found, str) else None


def answer_of(result: dict[str, Any], key: str) -> list:
    """One response of a result file, in the form of :func:`_texts`."""
    response = result["records"][key].get("response")
    response = response if isinstance(response, str) else ""
    stored = result.get("feedback", {}).get(key)
    if not stored:
        return [response, "", "", [], [], [0, 0, 0]]
    try:
        feedback = get_task(result["task"]).fields.from_dict(stored)
    except FeedbackError as error:
        raise InputError(f"{result['path']}: the feedback on {key!r}: {error}; measure the responses again") from None
    poor, good = span_intervals(feedback, response, result["task"])
    return [response, told(feedback), "", good, poor, [0, 0, 0]]
