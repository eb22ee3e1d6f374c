"""An LLM as a judge of two systems, in both orders: win rate, its interval, and the judge's position bias.

    python evaluation/judge.py --task slf5k --data_path text2grad.json --system text2grad \\
        --baseline ppo.json --baseline_system ppo --judge openai:gpt-4o --output_path judge.result.json

Every pair is judged twice, with each system shown first once. ``win_rate`` counts a win in one order and a loss in the
other as half a win. It names the right side, but position bias pulls it towards one half. ``win_rate_order_free``
removes that pull. ``position_bias`` is how much more often the judge took the first response than the second. With
``--orders one`` each pair is judged once, in an order drawn at random: half the price, and the bias is noise instead.
For win-rate curves over training, judge each checkpoint against the same baseline with its ``--step``. An interrupted
run asks nothing twice.

With ``--feedback true`` the systems are reward models, and what is compared is their feedback on the same responses
(paper, Table 1, W : T : L): both files are what ``2_infer.py`` writes, and the question is the task's ``pairwise.txt``.
Feedback that could not be read loses against feedback that could.
"""

import random
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass
from itertools import cycle
from typing import Any, Literal

from evaluation.results import (
    Figure,
    ResultConfig,
    grouped,
    load_responses,
    print_failures,
    print_next_step,
    save_result,
)
from text2grad.configs import TaskConfig, parse, setting
from text2grad.endpoints.judging import SCHEMA, Judge, JudgeConfig, open_judge, orders_of, read_verdict
from text2grad.errors import InputError, command
from text2grad.feedback import Feedback, FeedbackError
from text2grad.prompts import Prompt, find_prompt, load_prompt, prompt_path
from text2grad.records import load_records, predicted_of, prompt_of
from text2grad.tasks import Record, Task, get_task

_POINTS = {"first": 1.0, "tie": 0.5, "second": 0.0}  # for the answer shown first


@dataclass(kw_only=True)
class WinRateConfig(ResultConfig, TaskConfig):
    """What is compared."""

    data_path: str = setting(
        MISSING,
        "the system's responses, a file of evaluation/generate.py",
        "--responses",
        "--dataset_path",
        "--input_file",
    )
    baseline: str = setting(MISSING, "the other system's responses to the same prompts")
    baseline_system: str = setting(MISSING, "the other system's name")
    judge_prompt: str | None = setting(
        None,
        "the judge's prompt; by default evaluation/<task>/judge_prompt.txt, for feedback pairwise.txt",
        "--prompt_file",
    )
    feedback: bool = setting(False, "compare two reward models' feedback on the same responses (2_infer.py writes it)")
    orders: Literal["both", "one"] = setting("both", "show each pair in both orders, or in one drawn at random")
    step: int | None = setting(None, "the checkpoint's training step, for win-rate curves")
    seed: int = setting(42, "draws the orders and the sequence of requests")
    limit: int | None = setting(None, "only the first so many pairs")


@dataclass(frozen=True)
class Pair:
    """What the judge compares.

    Attributes:
        fields: of the prompt, besides the two texts.
        own, other: the system's text and the baseline's; None for feedback that could not be read.
    """

    fields: Mapping[str, str]
    own: str | None
    other: str | None

    @property
    def settled(self) -> float | None:
        """The system's points where there is nothing to ask."""
        if self.own == self.other:
            return 0.5
        return float(self.other is None) if self.own is None or self.other is None else None


def pair_figures(
    verdicts: Mapping[str, Mapping[str, str]], both: bool, settled: Mapping[str, float] | None = None
) -> dict[str, Figure]:
    """Figures of the system against the baseline.

    Args:
        verdicts: pair id -> order (``ab``, ``ba``) -> the place that won; an empty mapping for a pair that is settled.
        both: every pair was judged in both orders.
        settled: the system's points in those; ½ by default.
    """
    for_system = {
        key: {order: _POINTS[won] if order == "ab" else 1 - _POINTS[won] for order, won in judged.items()}
        for key, judged in verdicts.items()
    }
    score = {
        key: sum(points.values()) / len(points) if points else (settled or {}).get(key, 0.5)
        for key, points in for_system.items()
    }
    leads = {key: [2 * _POINTS[won] - 1 for won in judged.values()] for key, judged in verdicts.items() if judged}
    figures = {
        "win_rate": Figure.mean(score),
        "wins": Figure.mean({key: value > 0.5 for key, value in score.items()}),
        "ties": Figure.mean({key: value == 0.5 for key, value in score.items()}),
        "losses": Figure.mean({key: value < 0.5 for key, value in score.items()}),
        "position_bias": Figure({key: (sum(lead), len(lead)) for key, lead in leads.items()}),
    }
    if both:
        decided = {key: points for key, points in for_system.items() if points}
        agreed = {key: points["ab"] == points["ba"] for key, points in decided.items()}
        sided = {key: points["ab"] for key, points in decided.items() if agreed[key] and points["ab"] != 0.5}
        # What is settled is so in either order: without it, equal answers would count in the one win rate alone.
        rows = {key: [*(each.get(order, score[key]) for order in ("ab", "ba")), 1] for key, each in for_system.items()}
        figures |= {
            "win_rate_order_free": Figure(rows, "order_free", score),
            "win_rate_shown_first": Figure.mean({key: points["ab"] for key, points in decided.items()}),
            "win_rate_shown_second": Figure.mean({key: points["ba"] for key, points in decided.items()}),
            "orders_agree": Figure.mean(agreed),
            "win_rate_where_orders_agree": Figure.mean(sided),
        }
    return figures


def compare_pairwise(judge: Judge, config: WinRateConfig) -> dict[str, Any]:
    """Judge every pair, write ``config.output_path``, and return the result."""
    task = get_task(config.task)
    prompt = _prompt(config, task)
    pairs = (_feedback_pairs if config.feedback else _response_pairs)(config, task)
    orders = orders_of([key for key, pair in pairs.items() if pair.settled is None], config.orders, config.seed)
    questions = {}
    for key, pair in pairs.items():
        for order in orders.get(key, []):
            first, second = (pair.own, pair.other) if order == "ab" else (pair.other, pair.own)
            questions[f"{key}|{order}"] = prompt.fill({**pair.fields, "first": first or "", "second": second or ""})
    sequence = list(questions)
    random.Random(config.seed).shuffle(sequence)
    outcome = judge.ask(
        {key: questions[key] for key in sequence},
        read_verdict,
        schema=SCHEMA,
        journal=f"{config.output_path}.journal.jsonl",
        settings={"prompt": prompt.fingerprint},
        description=f"{config.system} against {config.baseline_system}",
    )
    complete = {
        key: {order: outcome.results[f"{key}|{order}"] for order in orders.get(key, [])}
        for key in pairs
        if all(f"{key}|{order}" in outcome.results for order in orders.get(key, []))
    }
    figures = pair_figures(
        {key: {order: verdict["winner"] for order, verdict in verdicts.items()} for key, verdicts in complete.items()},
        config.orders == "both",
        {key: points for key, pair in pairs.items() if (points := pair.settled) is not None},
    )
    figures["judge_failures"] = Figure.mean({key: key not in complete for key in pairs})
    result = save_result(
        config,
        f"against {config.baseline_system}, {len(pairs)} pairs, judged by {judge.config.judge}",
        task=task.name,
        benchmark=f"judge against {config.baseline_system}",
        figures=figures,
        responses={key: pair.own or "" for key, pair in pairs.items()},
        settings={**asdict(judge.config), "judge_prompt": prompt.text},
        extra={
            "baseline": config.baseline_system,
            "step": config.step,
            "cost_usd": judge.client.budget.spent,
            "verdicts": complete,
            "failures": outcome.failures,
            **({"changes": outcome.changes} if outcome.changes else {}),
        },
    )
    print_failures(outcome.failures, "judgements")
    print_next_step(config.output_path, task=task)
    return result


def _prompt(config: WinRateConfig, task: Task) -> Prompt:
    if config.feedback:
        path = find_prompt(task, "reward_model", config.judge_prompt or "pairwise")
        return load_prompt(path, required=("response", "first", "second"))
    names = ("prompt", "first", "second")
    return load_prompt(config.judge_prompt or prompt_path(task, "judge"), required=names, offered=names)


def _response_pairs(config: WinRateConfig, task: Task) -> dict[str, Pair]:
    """Both systems' responses to the same prompts; the baseline's to one prompt take turns."""
    own, other = load_responses(config.data_path, task), load_responses(config.baseline, task)
    by_prompt = grouped(other.values(), lambda record: task.prompt(record).strip())
    against = {x: cycle(map(task.response, records)) for x, records in by_prompt.items()}
    pairs = {}
    for key, record in own.items():
        x = task.prompt(record).strip()
        if x in against:
            pairs[key] = Pair({"prompt": x}, task.response(record), next(against[x]))
    if not pairs:
        raise InputError(f"{config.data_path} and {config.baseline} have no prompt in common; answer the same prompts")
    if len(pairs) < len(own):
        print(f"{len(own) - len(pairs)} of {len(own)} prompts have no answer in {config.baseline} and are left out")
    return dict(list(pairs.items())[: config.limit])


def _feedback_pairs(config: WinRateConfig, task: Task) -> dict[str, Pair]:
    """Both reward models' feedback on the same responses; ids say which are about responses to one prompt.

    Raises:
        InputError: a file without feedback, nothing in common, or other responses under the same ids.
    """
    own, other = load_records(config.data_path, task), load_records(config.baseline, task)
    pairs: dict[str, Pair] = {}
    names: dict[str, str] = {}
    for number, (key, record) in enumerate(own.items()):
        if key not in other:
            continue
        if task.response(other[key]) != task.response(record):
            raise InputError(f"{config.baseline}: record {key!r} is about another response than in {config.data_path}")
        texts = _read(record, key, config.data_path, task), _read(other[key], key, config.baseline, task)
        name = names.setdefault(task.prompt(record).strip(), prompt_of(key))
        if texts != (None, None):
            pairs[f"{name}@{number}"] = Pair(task.prompt_fields(record), *texts)
    if not pairs:
        raise InputError(f"{config.data_path} and {config.baseline} have no response in common; run 2_infer.py on one")
    return dict(list(pairs.items())[: config.limit])


def _read(record: Record, key: str, path: str, task: Task) -> str | None:
    """A record's feedback as the judge reads it."""
    predicted = predicted_of(record, f"{path}: record {key!r}")
    try:
        return None if predicted is None else _shown(task.fields.from_dict(predicted), task)
    except FeedbackError:
        return None


def _shown(feedback: Feedback, task: Task) -> str:
    lines = [feedback.critique or "(no critique)"]
    for slot in ("good", "poor"):
        quotes = [f"- {quote}" if "\n" not in quote else f"-\n{quote}" for quote in getattr(feedback, slot)]
        lines += ["", f"{getattr(task.fields, slot)}:", *(quotes or ["(none)"])]
    return "\n".join(lines)


@command
def main() -> None:
    config, judge_config = parse(WinRateConfig, JudgeConfig)
    with open_judge(judge_config, config.output_path) as judge:
        compare_pairwise(judge, config)


if __name__ == "__main__":
    main()
