"""People grade a reward model's feedback (paper, appendix M): forms to fill in, and how far the graders agree.

    python nl_reward_model/measures/human_eval.py prepare --task slf5k --data_path feedback.json --output_dir forms
    python nl_reward_model/measures/human_eval.py agree --output_dir forms --answers forms/*.answers.json

``prepare`` writes one HTML file for each annotator, which needs neither server nor network, and ``sample.json``, which
``agree`` needs. All annotators see the same feedback, each in a different order. ``docs/reward_model_metrics.md``
defines the figures. Cohen's and Fleiss' κ are computed in ``text2grad.statistics``: two short formulas, and no package
that is needed for anything else has both.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from text2grad.configs import TASK_HELP, help_text, parse, setting
from text2grad.errors import InputError, command
from text2grad.feedback import Feedback, FeedbackError
from text2grad.records import check_writable, fingerprint, load_json, load_records, save_json, save_text
from text2grad.statistics import Estimate, bootstrap, cohen_kappa, fleiss_kappa
from text2grad.tasks import Interval, Record, Task, get_task
from text2grad.tasks.commands import say_next
from text2grad.token_rewards import span_intervals

SLOTS = ("good", "poor")
_QUESTIONS = {
    False: {
        "critique": "Does the critique say rightly what is good and what is poor about the response?",
        "good": "Marked as good. Does it deserve to be encouraged?",
        "poor": "Marked as poor. Does it deserve to be discouraged?",
    },
    True: {
        "critique": "Does the critique say rightly what is wrong with the code, or that nothing is?",
        "good": "Marked as working but improvable. Is it?",
        "poor": "Marked as wrong. Is it?",
    },
}


@dataclass
class PrepareConfig:
    """What people are shown."""

    task: str = setting(MISSING, TASK_HELP)
    data_path: str = setting(MISSING, "feedback, as 2_infer.py writes it, or annotated records", "--input_file")
    output_dir: str = setting(MISSING, "the folder of the forms")
    count: int = setting(100, "responses to sample")
    annotators: list[str] = setting(["annotator-1", "annotator-2", "annotator-3"], "their names")
    seed: int = setting(42, "draws the sample and each annotator's order")

    def __post_init__(self) -> None:
        if self.count < 1:
            raise InputError(f"--count {self.count}: must be at least 1")
        if len(set(self.annotators)) < len(self.annotators) or not self.annotators:
            raise InputError("--annotators: give each a name of their own")
        for name in self.annotators:
            if not name or set(name) & set('/\\:*?"<>|'):
                raise InputError(f"--annotators {name!r}: is used in a file name; use letters, digits and dashes")


@dataclass
class AgreeConfig:
    """Whose answers are read."""

    output_dir: str = setting(MISSING, "the folder of the forms")
    answers: list[str] = setting(MISSING, "the files that the annotators exported")


def write_forms(config: PrepareConfig) -> list[Path]:
    """Sample feedback and write the forms; returns their paths."""
    task, folder = get_task(config.task), Path(config.output_dir)
    sample, left_out = draw_sample(config, task)
    value = {"task": task.name, "input_file": config.data_path, "left_out": left_out, "items": sample}
    form = fingerprint(sample)
    check_writable(folder / "sample.json")
    save_json(folder / "sample.json", {"form": form, **value})
    template = Path(__file__).with_suffix(".html").read_text(encoding="utf-8")
    paths = []
    for name in config.annotators:
        items = list(sample)
        random.Random(f"{config.seed}:{name}").shuffle(items)
        data = {
            "form": form,
            "annotator": name,
            "code": task.is_code,
            "response": "Solution" if task.is_code else "Response",
            "questions": _QUESTIONS[task.is_code],
            "items": items,
        }
        text = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")  # nothing in it may end the script
        paths.append(folder / f"{name}.html")
        save_text(paths[-1], template.replace("${data}", text))
    return paths


def draw_sample(config: PrepareConfig, task: Task) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """The responses with their feedback as the forms show them, and how much could not be shown.

    Raises:
        InputError: nothing to show.
    """
    records = load_records(config.data_path, task)
    left_out = {"unread": 0, "quotes not in the response": 0}
    items: list[dict[str, Any]] = []
    order = list(records)
    random.Random(config.seed).shuffle(order)
    for key in order:
        if len(items) == config.count:
            break
        try:
            feedback = _feedback_of(records[key], task)
        except FeedbackError:
            feedback = None
        if feedback is None:
            left_out["unread"] += 1
            continue
        item, lost = form_item(key, records[key], feedback, task)
        left_out["quotes not in the response"] += lost
        items.append(item)
    if not items:
        raise InputError(f"{config.data_path}: holds no feedback that can be read; run 2_infer.py first")
    return items, left_out


def _feedback_of(record: Record, task: Task) -> Feedback | None:
    """What the reward model wrote; the annotation where no model was asked."""
    if "predicted" not in record:
        return task.feedback(record)
    return None if record["predicted"] is None else task.fields.from_dict(record["predicted"], "the feedback")


def form_item(key: str, record: Record, feedback: Feedback, task: Task) -> tuple[dict[str, Any], int]:
    """One response with its feedback for the form, and how many quotes are not in the response.

    ``pieces`` is the response cut where spans begin and end: ``[text, ids of the spans it belongs to]``.
    """
    response = task.response(record)
    fields = task.prompt_fields(record)
    context = [{"title": "Task" if task.is_code else "Post or request", "text": fields["prompt"], "code": False}]
    context += [
        {"title": title, "text": fields[name], "code": True}
        for name, title in (("test", "Tests"), ("log", "Log of the tests"))
        if fields.get(name)
    ]
    spans: list[dict[str, str]] = []
    places: dict[str, list[Interval]] = {}
    quotes = [(slot, quote) for slot in SLOTS for quote in getattr(feedback, slot)]
    for slot, quote in quotes:
        found = span_intervals(Feedback("-", good=[quote]), response, task)[1]
        if found:
            span = f"{slot}:{len(spans)}"
            spans.append({"id": span, "quote": quote})
            places[span] = found
    edges = sorted({0, len(response), *(edge for found in places.values() for place in found for edge in place)})
    pieces = [
        [
            response[start:end],
            [span for span, found in places.items() if any(a <= start and end <= b for a, b in found)],
        ]
        for start, end in pairwise(edges)
    ]
    item = {
        "id": key,
        "prompt": fingerprint(task.prompt(record)),
        "context": context,
        "pieces": pieces,
        "critique": feedback.critique,
        "spans": spans,
    }
    return item, len(quotes) - len(spans)


def measure_agreement(config: AgreeConfig) -> dict[str, Any]:
    """Read the answers, write ``agreement.json`` beside the forms, and return it."""
    folder = Path(config.output_dir)
    sample = load_json(folder / "sample.json")
    answers: dict[str, dict[str, Any]] = {}
    for path in config.answers:
        value = load_json(path)
        if not isinstance(value, dict) or not {"form", "annotator", "answers"} <= set(value):
            raise InputError(f"{path}: is no export of a form; press 'Export answers' in the form")
        if value["form"] != sample["form"]:
            raise InputError(
                f"{path}: belongs to other forms than those of {folder}/sample.json; was prepare run again since?"
            )
        if value["annotator"] in answers:
            raise InputError(f"{path}: {value['annotator']} has answered twice; give one export of each annotator")
        answers[value["annotator"]] = value["answers"]
    result = {
        "task": sample["task"],
        "responses": len(sample["items"]),
        "left_out": sample["left_out"],
        "annotators": list(answers),
        "figures": {
            kind: agreement(*table_of(sample["items"], answers, kind)) for kind in ("critique", "spans", *SLOTS)
        },
        "comments": {
            f"{name}: {key}": given["comment"]
            for name, all_given in answers.items()
            for key, given in all_given.items()
            if given.get("comment")
        },
    }
    save_json(folder / "agreement.json", result)
    return result


def table_of(
    items: Sequence[Mapping[str, Any]], answers: Mapping[str, Mapping[str, Any]], kind: str
) -> tuple[dict[str, list[bool | None]], list[str]]:
    """Each annotator's answers to all questions of a kind, None where there is none; and each question's prompt.

    Args:
        kind: ``critique``, ``good``, ``poor``, or ``spans`` for both.
    """
    questions: list[tuple[str, str | None]] = []
    prompts: list[str] = []
    for item in items:
        spans = [span["id"] for span in item["spans"] if kind == "spans" or span["id"].startswith(f"{kind}:")]
        asked = [None] if item["critique"] else []  # spans may come without a critique
        for span in asked if kind == "critique" else spans:
            questions.append((item["id"], span))
            prompts.append(item["prompt"])
    table: dict[str, list[bool | None]] = {}
    for name, given in answers.items():
        table[name] = []
        for key, span in questions:
            own = given.get(key) or {}
            value = own.get("critique") if span is None else own.get("spans", {}).get(span)
            if value not in (True, False, None):
                raise InputError(f"the answers of {name} to {key!r} hold {value!r}, which is neither right nor wrong")
            table[name].append(value)
    return table, prompts


def agreement(table: Mapping[str, Sequence[bool | None]], prompts: Sequence[str]) -> dict[str, Any]:
    """How often the feedback is right, and how far annotators agree about it. Intervals are over prompts."""

    def accuracy(values: Sequence[bool | None]) -> dict[str, float | int | None]:
        given = [(float(value), prompt) for value, prompt in zip(values, prompts, strict=True) if value is not None]
        return bootstrap(
            np.array([(value, 1.0) for value, _ in given]).reshape(-1, 2), groups=[prompt for _, prompt in given]
        ).to_dict()

    columns = list(zip(*table.values(), strict=True))
    common = [column for column in columns if None not in column]
    votes = [[value for value in column if value is not None] for column in columns]
    majority = [None if 2 * sum(vote) == len(vote) else 2 * sum(vote) > len(vote) for vote in votes]
    pairs = {}
    for first, second in combinations(table, 2):
        both = [pair for pair in zip(table[first], table[second], strict=True) if None not in pair]
        pairs[f"{first}, {second}"] = _number(cohen_kappa(*zip(*both, strict=True)) if both else float("nan"))
    counts = [[sum(column), len(column) - sum(column)] for column in common]
    return {
        "questions": len(columns),
        "unanswered": {name: sum(value is None for value in values) for name, values in table.items()},
        "accuracy": {**{name: accuracy(values) for name, values in table.items()}, "majority": accuracy(majority)},
        "answered_by_all": len(common),
        "all_agree": round(sum(len(set(column)) == 1 for column in common) / len(common), 6) if common else None,
        "cohen_kappa": pairs,
        "fleiss_kappa": _number(fleiss_kappa(counts) if common and len(table) > 1 else float("nan")),
    }


def _number(value: float) -> float | None:
    return None if np.isnan(value) else round(value, 6)


def agreement_table(result: Mapping[str, Any]) -> str:
    """The figures as Markdown."""
    names = result["annotators"]
    lines = [
        f"{result['responses']} responses, {len(names)} annotators; share graded right, 95 % intervals in brackets",
        "",
        f"| | questions | {' | '.join(names)} | majority | all agree | Fleiss' κ | Cohen's κ |",
        f"| --- | ---: |{' --- |' * (len(names) + 1)} ---: | ---: | --- |",
    ]
    for kind, row in result["figures"].items():
        shares = [_shown(row["accuracy"][name]) for name in (*names, "majority")]
        kappas = ", ".join(_plain(value) for value in row["cohen_kappa"].values())
        cells = [str(row["questions"]), *shares, _plain(row["all_agree"]), _plain(row["fleiss_kappa"]), kappas or "–"]
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    missing = {name: sum(row["unanswered"][name] for row in result["figures"].values()) for name in names}
    if any(missing.values()):
        lines += ["", f"unanswered: {', '.join(f'{name} {count}' for name, count in missing.items() if count)}"]
    return "\n".join(lines) + "\n"


def _shown(figure: Mapping[str, Any]) -> str:
    return "–" if figure["value"] is None else str(Estimate(**figure))


def _plain(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


@command
def main() -> None:
    action, args = (sys.argv[1], sys.argv[2:]) if len(sys.argv) > 1 else ("", [])
    if action == "prepare":
        config = parse(PrepareConfig, args=args)
        for path in write_forms(config):
            print(path)
        say_next(f"human_eval.py agree --output_dir {config.output_dir} --answers FILES_THAT_THE_FORMS_EXPORT")
    elif action == "agree":
        config = parse(AgreeConfig, args=args)
        print(agreement_table(measure_agreement(config)), end="")
        print(f"figures: {Path(config.output_dir) / 'agreement.json'}")
    elif action in ("-h", "--help", "--help_all"):
        print(f"{__doc__.strip()}\n\nprepare:\n{help_text(PrepareConfig)}\n\nagree:\n{help_text(AgreeConfig)}")
        raise SystemExit(0)
    else:
        raise InputError("say what to do: human_eval.py prepare … or human_eval.py agree … (--help after either)")


if __name__ == "__main__":
    main()
