"""What the page opens with: the first figure, and one prompt with two responses."""

from itertools import chain, groupby
from operator import attrgetter
from typing import Any

from evaluation.reporting.comparing import best_system, primary
from evaluation.reporting.packs import answer_of, prompt_text, span_words
from evaluation.reporting.runs import Run, is_number
from evaluation.reporting.training import Variant
from evaluation.reporting.wording import method_name, show, show_interval, told, wording
from evaluation.results import grouped


def headline(report: dict[str, Any]) -> dict[str, str]:
    """The first figure of the report: ``title`` with the value before and after, and ``deck``, what was compared."""
    for table in report["tables"]:
        if (metric := primary(table)) and (system := best_system(table, metric)):
            words, change = wording(metric["name"]), table["cells"][system][metric["key"]]["change"]
            title = f"{words.label} {show(change['second'], words.style)} → {show(change['first'], words.style)}"
            deck = f"{table['task']}: {method_name(system)} against {method_name(table['baseline'])}"
            interval = show_interval(change["low"], change["high"], words.style, change=True)
            deck += f" on {change['n']:,} prompts, difference {interval} (95 %), {change['verdict']}"
            if change["verdict"] in ("unclear", "same"):
                title = f"No clear change: {title}"
            return {"title": title, "deck": deck, "task": table["task"]}
    for section in report["training"]:
        for name in ("delta/mean", "reward/mean", *section["ends"]):
            for label, ends in section["ends"].get(name, {}).items():
                words = wording(name)
                title = f"{words.label} {show(ends['first'], words.style)} → {show(ends['last'], words.style)}"
                deck = f"{section['task']}: {label}, first and last tenth of training"
                return {"title": title, "deck": deck, "task": section["task"]}
    return {"title": "Results", "deck": "", "task": ""}


def example(pairs: list[dict[str, Any]], groups: list[Variant]) -> dict[str, Any] | None:
    """The response pair with the median change of mean δ, so that it is not chosen by its looks.

    Responses to evaluation prompts come first. Without them it is the first and the last response of a run to a prompt.

    Returns:
        ``prompt_id``, ``prompt`` (None where no file holds its text), ``of`` (pairs to choose from), ``where``,
        ``words`` for spans, and two ``sides``: ``name``, ``response``, ``critique``, ``mean``, ``measure``,
        ``good`` and ``poor`` (intervals of characters). None where no prompt was answered twice.
    """
    ranked = sorted(groups, key=lambda variant: variant.method != "text2grad")
    tried = chain(map(_of_pair, pairs), (_of_run(run) for variant in ranked for run in variant.runs))
    return next(filter(None, tried), None)


def _of_pair(pair: dict[str, Any]) -> dict[str, Any] | None:
    before, after = pair["before"], pair["after"]
    judged = [key for key in pair["ids"] if all(key in side.get("feedback", {}) for side in (before, after))]
    means = {key: [side["records"][key].get("mean_delta") for side in (before, after)] for key in judged}
    changes = {key: last - first for key, (first, last) in means.items() if is_number(first) and is_number(last)}
    if not changes:
        return None
    key = _median(changes)
    sides = []
    for side, mean in zip((before, after), means[key], strict=True):
        response, critique, _, good, poor, _ = answer_of(side, key)
        sides.append(_side(method_name(side["system"]), response, critique, mean, "δ", good, poor))
    prompt = prompt_text(after, key) or prompt_text(before, key)
    return _example(key, prompt, "evaluation", len(changes), after["task"], sides)


def _of_run(run: Run) -> dict[str, Any] | None:
    measure = run.measure
    judged = [rollout for rollout in run.rollouts if rollout.feedback and rollout.mean(measure) is not None]
    by_prompt = grouped(judged, attrgetter("prompt_id", "prompt"))
    ends = {key: (rollouts[0], max(rollouts, key=attrgetter("step"))) for key, rollouts in by_prompt.items()}
    changes = {
        key: (last.mean(measure) or 0.0) - (first.mean(measure) or 0.0)
        for key, (first, last) in ends.items()
        if last.step > first.step
    }
    if not changes:
        return None
    prompt_id, prompt = key = _median(changes)
    sides = []
    for rollout in ends[key]:
        critique = told(rollout.feedback)
        name, mean = f"Step {rollout.step}", rollout.mean(measure)
        sides.append(_side(name, rollout.response, critique, mean, measure, rollout.good_at, rollout.poor_at))
    return _example(prompt_id, prompt, "training", len(changes), run.task, sides)


def _example(
    prompt_id: str, prompt: str | None, where: str, count: int, task: str, sides: list[dict]
) -> dict[str, Any]:
    about = {"prompt_id": prompt_id, "prompt": prompt, "where": where, "of": count}
    return {**about, "code": task == "kodcode", "words": span_words(task), "sides": sides}


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
