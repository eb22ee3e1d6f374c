"""An LLM as a judge of two systems' responses, in both orders: win rate, its interval, and the judge's position bias.

    python evaluation/judge.py --task slf5k --data_path text2grad.json --system text2grad \\
        --baseline ppo.json --baseline_system ppo --judge openai:gpt-4o --output_path judge.result.json

Every pair is judged twice, with each system shown first once. ``win_rate`` counts a win in one order and a loss in the
other as half a win. It names the right side, but position bias pulls it towards one half. ``win_rate_order_free``
removes that pull. ``position_bias`` is how much more often the judge took the first response than the second. With
``--orders one`` each pair is judged once, in an order drawn at random: half the price, and the bias is noise instead.
For win-rate curves over training, judge each checkpoint against the same baseline with its ``--step``. An interrupted
run asks nothing twice.
"""

import random
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass
from typing import Any, Literal

from evaluation.results import Figure, load_responses, print_failures, print_metrics, print_next_step, save_result
from text2grad.configs import TASK_HELP, check_values, parse, setting
from text2grad.endpoints.judging import SCHEMA, Judge, JudgeConfig, open_judge, orders_of, read_verdict
from text2grad.errors import InputError, command
from text2grad.prompts import load_prompt, prompt_path
from text2grad.records import check_output
from text2grad.tasks import Task, get_task

_POINTS = {"first": 1.0, "tie": 0.5, "second": 0.0}  # for the answer shown first


@dataclass
class WinRateConfig:
    """What is compared."""

    task: str = setting(MISSING, TASK_HELP)
    data_path: str = setting(
        MISSING,
        "the system's responses, a file of evaluation/generate.py",
        "--responses",
        "--dataset_path",
        "--input_file",
    )
    system: str = setting(MISSING, "the system's name")
    baseline: str = setting(MISSING, "the other system's responses to the same prompts")
    baseline_system: str = setting(MISSING, "the other system's name")
    output_path: str = setting(MISSING, "the result file", "--output_file", "--output")
    judge_prompt: str | None = setting(
        None, "the judge's prompt; by default evaluation/<task>/judge_prompt.txt", "--prompt_file"
    )
    orders: Literal["both", "one"] = setting("both", "show each pair in both orders, or in one drawn at random")
    step: int | None = setting(None, "the checkpoint's training step, for win-rate curves")
    seed: int = setting(42, "draws the orders and the sequence of requests")
    limit: int | None = setting(None, "only the first so many pairs")

    def __post_init__(self) -> None:
        check_values(self)
        if self.limit is not None and self.limit < 1:
            raise InputError(f"--limit {self.limit}: must be at least 1")


def pair_figures(verdicts: Mapping[str, Mapping[str, str]], both: bool) -> dict[str, Figure]:
    """Figures of the system against the baseline.

    Args:
        verdicts: pair id -> order (``ab``, ``ba``) -> the place that won; an empty mapping for two equal texts.
        both: every pair was judged in both orders.
    """
    for_system = {
        key: {order: _POINTS[won] if order == "ab" else 1 - _POINTS[won] for order, won in judged.items()}
        for key, judged in verdicts.items()
    }
    score = {key: sum(points.values()) / len(points) if points else 0.5 for key, points in for_system.items()}
    lead = {"first": 1, "tie": 0, "second": -1}
    bias = {key: (sum(lead[won] for won in judged.values()), len(judged)) for key, judged in verdicts.items() if judged}
    figures = {
        "win_rate": Figure.mean(score),
        "wins": Figure.mean({key: value > 0.5 for key, value in score.items()}),
        "ties": Figure.mean({key: value == 0.5 for key, value in score.items()}),
        "losses": Figure.mean({key: value < 0.5 for key, value in score.items()}),
        "position_bias": Figure(bias),
    }
    if both:
        decided = {key: points for key, points in for_system.items() if points}
        agreed = {key: points["ab"] == points["ba"] for key, points in decided.items()}
        sided = {key: points["ab"] for key, points in decided.items() if agreed[key] and points["ab"] != 0.5}
        rows = {key: (points["ab"], points["ba"], 1) for key, points in decided.items()}
        each = {key: score[key] for key in decided}
        figures |= {
            "win_rate_order_free": Figure(rows, "order_free", each),
            "win_rate_shown_first": Figure.mean({key: points["ab"] for key, points in decided.items()}),
            "win_rate_shown_second": Figure.mean({key: points["ba"] for key, points in decided.items()}),
            "orders_agree": Figure.mean(agreed),
            "win_rate_where_orders_agree": Figure.mean(sided),
        }
    return figures


def compare_pairwise(judge: Judge, config: WinRateConfig) -> dict[str, Any]:
    """Judge every pair, write ``config.output_path``, and return the result."""
    task = get_task(config.task)
    check_output(config.output_path)
    prompt = load_prompt(
        config.judge_prompt or prompt_path(task, "judge"),
        required=("prompt", "first", "second"),
        offered=("prompt", "first", "second"),
    )
    pairs = _pairs(config, task)
    orders = orders_of([key for key, pair in pairs.items() if pair[1] != pair[2]], config.orders, config.seed)
    questions = {}
    for key, (x, own, other) in pairs.items():
        for order in orders.get(key, []):
            first, second = (own, other) if order == "ab" else (other, own)
            questions[f"{key}|{order}"] = prompt.fill({"prompt": x, "first": first, "second": second})
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
    )
    figures["judge_failures"] = Figure.mean({key: key not in complete for key in pairs})
    result = save_result(
        config.output_path,
        task=task.name,
        benchmark=f"judge against {config.baseline_system}",
        system=config.system,
        figures=figures,
        responses={key: own for key, (_, own, _) in pairs.items()},
        settings={**asdict(judge.config), **asdict(config), "judge_prompt": prompt.text},
        extra={
            "baseline": config.baseline_system,
            "step": config.step,
            "cost_usd": judge.client.budget.spent,
            "verdicts": complete,
            "failures": outcome.failures,
            **({"changes": outcome.changes} if outcome.changes else {}),
        },
    )
    title = f"{config.system} against {config.baseline_system} on {len(pairs)} prompts, judged by {judge.config.judge}"
    print_metrics(result["metrics"], f"{title} -> {config.output_path}")
    print_failures(outcome.failures, "judgements")
    print_next_step(config.output_path, task=task)
    return result


def _pairs(config: WinRateConfig, task: Task) -> dict[str, tuple[str, str, str]]:
    """Pair id -> (x, the system's response, the baseline's)."""
    own, other = load_responses(config.data_path, task), load_responses(config.baseline, task)
    by_prompt = {task.prompt(record).strip(): task.response(record) for record in other.values()}
    pairs = {}
    for key, record in own.items():
        x = task.prompt(record).strip()
        against = (
            task.response(other[key]) if key in other and task.prompt(other[key]).strip() == x else by_prompt.get(x)
        )
        if against is not None:
            pairs[key] = (x, task.response(record), against)
    if not pairs:
        raise InputError(f"{config.data_path} and {config.baseline} have no prompt in common; answer the same prompts")
    if len(pairs) < len(own):
        print(f"{len(own) - len(pairs)} of {len(own)} prompts have no answer in {config.baseline} and are left out")
    return dict(list(pairs.items())[: config.limit])


@command
def main() -> None:
    config, judge_config = parse(WinRateConfig, JudgeConfig)
    check_output(config.output_path)
    with open_judge(judge_config, config.output_path) as judge:
        compare_pairwise(judge, config)


if __name__ == "__main__":
    main()
