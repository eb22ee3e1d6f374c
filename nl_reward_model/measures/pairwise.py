"""An LLM compares two reward models' feedback on the same responses: with against without chain of thought, say.

    python nl_reward_model/measures/pairwise.py --task slf5k --first cot.json --second no_cot.json \\
        --judge openai:gpt-4o --output_path cot_against_no_cot.json

Both files are what ``2_infer.py`` writes. Each pair is shown in both orders, or with ``--orders one`` in one drawn at
random, so that a judge's liking for a place shows and cancels out. Killed and run again, nothing is asked twice. The
question is ``<task>/prompts/pairwise.txt``. ``docs/reward_model_metrics.md`` defines the figures (Table 1: W : T : L).
"""

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass
from typing import Any, Literal

from text2grad.configs import TASK_HELP, check_values, parse, setting
from text2grad.endpoints.judging import SCHEMA, Judge, JudgeConfig, open_judge, orders_of, read_verdict
from text2grad.errors import InputError, command
from text2grad.feedback import Feedback, FeedbackError
from text2grad.prompts import find_prompt, load_prompt
from text2grad.records import check_output, load_records, save_json
from text2grad.statistics import Estimate, bootstrap
from text2grad.tasks import Record, Task, get_task

_POINTS = {"first": 1.0, "tie": 0.5, "second": 0.0}  # for the feedback shown first


@dataclass
class CompareFeedbackConfig:
    """What is compared."""

    task: str = setting(MISSING, TASK_HELP)
    first: str = setting(MISSING, "one reward model's feedback, as 2_infer.py writes it")
    second: str = setting(MISSING, "the other model's feedback on the same responses")
    output_path: str = setting(MISSING, "figures and verdicts as JSON", "--output_file")
    prompt: str = setting("pairwise", "the question: the task's prompt of this name, or a file", "--prompt_file")
    orders: Literal["both", "one"] = setting("both", "show each pair in both orders, or in one drawn at random")
    seed: int = setting(42, "draws the orders")
    limit: int | None = setting(None, "only the first so many pairs")

    def __post_init__(self) -> None:
        check_values(self)
        if self.limit is not None and self.limit < 1:
            raise InputError(f"--limit {self.limit}: must be at least 1")


@dataclass(frozen=True)
class FeedbackPair:
    """One response and each model's feedback on it; None for what could not be read."""

    record: Record
    first: Feedback | None
    second: Feedback | None


def compare_feedback(judge: Judge, config: CompareFeedbackConfig) -> dict[str, Any]:
    """Have all pairs judged, write ``config.output_path``, and return what it holds."""
    task = get_task(config.task)
    check_output(config.output_path)
    path = find_prompt(task, "reward_model", config.prompt)
    prompt = load_prompt(path, required=("response", "first", "second"))
    pairs = load_pairs(config, task)

    points: dict[str, list[float]] = {}  # the first model's, one for each verdict
    asked = []
    for key, pair in pairs.items():
        if pair.first == pair.second:
            points[key] = [0.5]
        elif pair.first is None or pair.second is None:
            points[key] = [float(pair.first is not None)]
        else:
            asked.append(key)
    orders = orders_of(asked, config.orders, config.seed)
    questions = {}
    for key in asked:
        first, second = (_shown(feedback, task) for feedback in (pairs[key].first, pairs[key].second) if feedback)
        for order in orders[key]:
            shown = {"first": first, "second": second} if order == "ab" else {"first": second, "second": first}
            questions[f"{key}|{order}"] = prompt.fill({**task.prompt_fields(pairs[key].record), **shown})
    outcome = judge.ask(
        questions,
        read_verdict,
        schema=SCHEMA,
        journal=f"{config.output_path}.journal.jsonl",
        settings={"prompt": prompt.fingerprint},
        description="feedback compared",
    )
    verdicts = {
        key: {order: outcome.results[f"{key}|{order}"] for order in orders[key]}
        for key in asked
        if all(f"{key}|{order}" in outcome.results for order in orders[key])
    }
    winners = {key: {order: verdict["winner"] for order, verdict in told.items()} for key, told in verdicts.items()}
    for key, told in winners.items():
        points[key] = [_POINTS[won] if order == "ab" else 1 - _POINTS[won] for order, won in told.items()]
    prompts = {key: task.prompt(pair.record) for key, pair in pairs.items()}
    result = {
        "task": task.name,
        **asdict(config),
        "judge": judge.config.judge,
        "compared": len(points),
        "unread": {side: sum(getattr(pair, side) is None for pair in pairs.values()) for side in ("first", "second")},
        "figures": {name: figure.to_dict() for name, figure in win_rates(points, winners, prompts).items()},
        "cost_usd": judge.client.budget.spent,
        "verdicts": verdicts,
        "failures": outcome.failures,
        **({"changes": outcome.changes} if outcome.changes else {}),
    }
    save_json(config.output_path, result)
    return result


def win_rates(
    points: Mapping[str, list[float]], winners: Mapping[str, Mapping[str, str]], prompts: Mapping[str, str]
) -> dict[str, Estimate]:
    """The first model's record, and the judge's own habits. Intervals are over prompts.

    Args:
        points: the first model's points by pair, 1 for a win and ½ for a tie, one for each verdict.
        winners: the place that won, by pair and order (``ab`` shows the first model first).
    """
    score = {key: sum(values) / len(values) for key, values in points.items()}

    def mean(values: Mapping[str, float]) -> Estimate:
        return bootstrap([(value, 1) for value in values.values()], groups=[prompts[key] for key in values])

    places = {key: list(told.values()) for key, told in winners.items()}
    decided = [(told.count("first"), len(told) - told.count("tie")) for told in places.values()]
    result = {
        "win": mean({key: value > 0.5 for key, value in score.items()}),
        "tie": mean({key: value == 0.5 for key, value in score.items()}),
        "lose": mean({key: value < 0.5 for key, value in score.items()}),
        "score": mean(score),
        "position": bootstrap(decided or [(0, 0)], groups=[prompts[key] for key in places] or [""]),
    }
    both = {key: float(len(set(points[key])) == 1) for key, told in winners.items() if len(told) == 2}
    return result | ({"orders_agree": mean(both)} if both else {})


def load_pairs(config: CompareFeedbackConfig, task: Task) -> dict[str, FeedbackPair]:
    """The responses in both files, by record id.

    Raises:
        InputError: a file without feedback, nothing in common, or other responses under the same ids.
    """
    files = {side: load_records(getattr(config, side), task) for side in ("first", "second")}
    pairs: dict[str, FeedbackPair] = {}
    for key, record in files["first"].items():
        if key not in files["second"]:
            continue
        if task.response(files["second"][key]) != task.response(record):
            raise InputError(f"{config.second}: record {key!r} is about another response than in {config.first}")
        read = [_read(files[side][key], key, getattr(config, side), task) for side in files]
        if any(read):
            pairs[key] = FeedbackPair(record, *read)
    if not pairs:
        raise InputError(f"{config.first} and {config.second} have no response in common; run 2_infer.py on one file")
    return dict(list(pairs.items())[: config.limit])


def _read(record: Record, key: str, path: str, task: Task) -> Feedback | None:
    if "predicted" not in record:
        raise InputError(f"{path}: record {key!r} has no feedback of a model ('predicted'); run 2_infer.py first")
    try:
        return None if record["predicted"] is None else task.fields.from_dict(record["predicted"], "the feedback")
    except FeedbackError:
        return None


def _shown(feedback: Feedback, task: Task) -> str:
    """Feedback as the judge reads it."""
    lines = [feedback.critique or "(no critique)"]
    for slot in ("good", "poor"):
        quotes = [f"- {quote}" if "\n" not in quote else f"-\n{quote}" for quote in getattr(feedback, slot)]
        lines += ["", f"{getattr(task.fields, slot)}:", *(quotes or ["(none)"])]
    return "\n".join(lines)


@command
def main() -> None:
    judge_config, config = parse(JudgeConfig, CompareFeedbackConfig)
    check_output(config.output_path)
    with open_judge(judge_config, config.output_path) as judge:
        result = compare_feedback(judge, config)
    shown = {name: Estimate(**value) for name, value in result["figures"].items() if value["value"] is not None}
    print(f"{config.first} against {config.second}: {result['compared']} responses")
    for name, figure in shown.items():
        print(f"  {name:<13}{figure}")
    if any(result["unread"].values()):
        print(f"  feedback that could not be read: {result['unread']}; it loses against feedback that could")
    if result["failures"]:
        print(f"  {len(result['failures'])} questions failed, e.g. {next(iter(result['failures'].values()))}")
        print("  --retry_failed True asks them again")
    print(f"figures and verdicts: {config.output_path}")


if __name__ == "__main__":
    main()
