"""Run folders and result files that look like real ones, made without a model, to test the report with.

The prompts are the quickstart's posts and the critiques are the programmatic critic's; only the policy is made up: it
answers with a mixture of faulty and fair sentences that gets better with training, in a scalar run more slowly.
"""

from __future__ import annotations

import json
import math
import random
import re
from functools import cache, lru_cache
from pathlib import Path

from evaluation.results import Figure, save_result
from tests import report_files
from text2grad.critics import load_critic
from text2grad.feedback import Feedback
from text2grad.records import load_json
from text2grad.tasks import get_task
from text2grad.token_rewards import span_intervals, tokens_in

ROOT = Path(__file__).parent.parent
FAULTS = [
    "Here is a summary of the post.",
    "The author should talk to them and be honest about it.",
    "This post is about a range of emotions.",
    "They were very happy in the end and went to Spain.",
    "What do you think about this?",
]
_TOKEN = re.compile(r"\s?\w{1,7}|\s?[^\w\s]|\s")


@lru_cache(maxsize=1)
def critic():
    return load_critic("programmatic", "slf5k")


@cache
def judge(post: str, response: str) -> Feedback:
    return critic()([post], [response])[0]


def posts(split: str = "train") -> dict[str, dict]:
    return load_json(ROOT / "quickstart" / "data" / f"posts_{split}.json")


def answer(record: dict, skill: float, draw: random.Random) -> tuple[str, bool]:
    """A response, and whether it was finished. ``skill`` from 0 to 1."""
    reference = record["ideal_human_summary"]
    parts = [part for part in re.split(r"(?<=[.?!])\s+", reference) if part]
    told = parts if draw.random() < skill else parts[: draw.randint(0, 1)]
    faults = [] if draw.random() < 0.9 * skill else draw.sample(FAULTS, draw.randint(1, 2))
    if draw.random() < 0.25 * (1 - skill):
        faults.append(" ".join(record["post"].split()[: draw.choice((9, 16))]))
    pieces = faults + told if draw.random() < 0.7 else told + faults
    text = " ".join(pieces or [draw.choice(FAULTS)])
    finished = draw.random() < 0.55 + 0.42 * skill
    if not finished:
        text = text[: max(12, int(len(text) * draw.choice((0.5, 0.65, 0.8))))]
    return text, finished


def rollout(step: int, key: str, record: dict, skill: float, scalar: bool, rescored: bool, draw: random.Random) -> dict:
    """One row of ``rollouts.jsonl``."""
    response, finished = answer(record, skill, draw)
    feedback = judge(record["post"], response)
    spans = [list(match.span()) for match in _TOKEN.finditer(response)] + ([[len(response)] * 2] if finished else [])
    intervals = [(start, end) for start, end in spans]
    poor_at, good_at = span_intervals(feedback, response, "slf5k")
    poor, good = set(tokens_in(poor_at, response, intervals)), set(tokens_in(good_at, response, intervals))
    count = len(spans)
    deltas = [-1.0 if t in poor else 1.0 if t in good else 0.0 for t in range(count)]
    rewards = [0.0] * (count - 1) + [sum(deltas)] if scalar else deltas
    kl = [max(0.0, draw.gauss(0.02 + 0.12 * skill, 0.05)) for _ in range(count)]
    advantages = [reward + draw.gauss(0, 0.3) for reward in rewards]
    old = [-abs(draw.gauss(0.9, 0.8)) for _ in range(count)]
    new = [o + 0.05 * a + draw.gauss(0, 0.05) for o, a in zip(old, advantages, strict=True)]
    failed = draw.random() < 0.004
    short = lambda values: [round(value, 6) for value in values]  # noqa: E731
    return {
        "step": step,
        "id": key,
        "prompt": record["post"],
        "response": response,
        "critique": "" if failed else feedback.critique,
        "good": [] if failed else feedback.good,
        "poor": [] if failed else feedback.poor,
        "error": "the JSON is cut off at character 212" if failed else None,
        "matched": 0 if failed else len(feedback.good) + len(feedback.poor),
        "unmatched": 0 if failed else int(draw.random() < 0.02),
        "conflicts": len(poor & good),
        "tokens": [response[start:end] or "<eos>" for start, end in spans],
        "spans": spans,
        "deltas": None if failed else deltas,
        "rewards": [0.0] * count if failed else rewards,
        "finished": finished,
        "advantages": [0.0] * count if failed else short(advantages),
        "old_logprobs": short(old),
        "new_logprobs": short(new) if rescored else None,
        "ref_logprobs": short([o - k for o, k in zip(old, kl, strict=True)]),
        "kl": short(kl),
    }


def cycle_metrics(step: int, rows: list[dict], skill: float, draw: random.Random) -> dict:
    """One row of ``metrics.jsonl``."""
    deltas = [delta for row in rows for delta in row["deltas"] or []]
    return {
        "step": step,
        "delta/mean": sum(deltas) / max(len(deltas), 1),
        "reward/mean": sum(sum(row["rewards"]) for row in rows) / len(rows),
        "spans/matched": sum(row["matched"] for row in rows),
        "spans/unmatched": sum(row["unmatched"] for row in rows),
        "kl/full": sum(sum(row["kl"]) for row in rows) / len(rows),
        "entropy": 2.1 - 0.9 * skill + draw.gauss(0, 0.03),
        "length/finished": sum(row["finished"] for row in rows) / len(rows),
        "lr": 5e-4,
        "seconds/rollout": abs(draw.gauss(5.0, 0.3)),
        "seconds/update": abs(draw.gauss(7.0, 0.4)),
    }


def write_run(folder: Path, method: str, seed: int, steps: int, per_step: int) -> Path:
    """A run folder; ``method`` is text2grad or ppo_scalar."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(f"{method}-{seed}")
    scalar = method != "text2grad"
    records = list(posts().items())
    speed, ceiling = (0.10, 0.72) if scalar else (0.05, 0.93)
    about = {
        "task": "slf5k",
        "method": method,
        "seed": seed,
        "critic": "programmatic",
        "model": "smollm2",
        "config": {"seed": seed, "learning_rate": 5e-4, "output_dir": str(folder)},
        "versions": {"text2grad": "0.1.0", "torch": "2.13.0", "transformers": "5.23.0"},
    }
    (folder / "run.json").write_text(json.dumps(about))
    seen = 0
    with (folder / "metrics.jsonl").open("w") as metrics, (folder / "rollouts.jsonl").open("w") as log:
        for step in range(1, steps + 1):
            progress = step / steps
            skill = ceiling / (1 + math.exp(-(progress - 0.35 - speed) * 9)) + draw.gauss(0, 0.02)
            rows = []
            for _ in range(per_step):
                key, record = records[seen % len(records)]
                seen += 1
                rescored = step == 1 or step % 5 == 0
                rows.append(rollout(step, key, record, min(max(skill, 0.02), 1), scalar, rescored, draw))
            log.write("".join(json.dumps(row) + "\n" for row in rows))
            metrics.write(json.dumps(cycle_metrics(step, rows, skill, draw)) + "\n")
    return folder


def write_result(path: Path, system: str, skill: float, seed: int = 1) -> Path:
    """A result file on the validation posts."""
    draw = random.Random(f"{system}-{seed}")
    delta, poor, length, finished, overlap, responses, feedback = {}, {}, {}, {}, {}, {}, {}
    for key, record in posts("validation").items():
        text, ended = answer(record, skill, draw)
        judged = judge(record["post"], text)
        spans = [match.span() for match in _TOKEN.finditer(text)]
        poor_at, good_at = span_intervals(judged, text, "slf5k")
        bad, fine = set(tokens_in(poor_at, text, spans)), set(tokens_in(good_at, text, spans))
        responses[key], finished[key], length[key] = text, float(ended), len(text.split())
        delta[key], poor[key] = (len(fine - bad) - len(bad), len(spans)), (len(bad), len(spans))
        own, reference = set(text.lower().split()), set(record["ideal_human_summary"].lower().split())
        overlap[key] = len(own & reference) / len(own | reference)
        feedback[key] = {"textual_feedback": judged.critique, "good_spans": judged.good, "poor_spans": judged.poor}
    figures = {
        "rougeL": Figure.mean(overlap),
        "words": Figure.mean(length),
        "finished": Figure.mean(finished),
        "mean_delta": Figure(delta),
        "poor_tokens": Figure(poor),
    }
    about = {"task": "slf5k", "benchmark": "slf5k", "system": system, "settings": {"critic": "programmatic"}}
    save_result(path, figures=figures, responses=responses, extra={"feedback": feedback}, **about)
    return path


def write_judgement(path: Path, system: str, baseline: str, edge: float, step: int | None = None) -> Path:
    """Pairwise judgements by a made-up judge that likes the first answer a little more than it should."""
    from evaluation.judge import pair_figures

    draw = random.Random(f"{system}-{baseline}-{step}")
    verdicts: dict[str, dict[str, str]] = {}
    for key in posts("validation"):
        verdicts[key] = {}
        for order in ("ab", "ba"):
            lead = (edge if order == "ab" else -edge) + 0.15 + draw.gauss(0, 0.6)
            verdicts[key][order] = "tie" if abs(lead) < 0.15 else "first" if lead > 0 else "second"
    save_result(
        path,
        task="slf5k",
        benchmark=f"judge against {baseline}",
        system=system,
        figures=pair_figures(verdicts, both=True),
        responses=dict.fromkeys(verdicts, "-"),
        settings={"judge": "openai:gpt-4o"},
        extra={"baseline": baseline, "step": step, "verdicts": verdicts},
    )
    return path


CODE_TASK = "Write a function `is_even(n)` that returns True where n is even. 偶数 🙂"
CODE_ANSWER = "Here it is:\n```python\ndef is_even(n):\n    return n % 2 == 1\n\nprint(is_even(2))\n```\n"


def write_code_run(folder: Path, answer: str = CODE_ANSWER) -> Path:
    """A kodcode run whose every answer is the same; its tokens cut an emoji in two."""
    feedback = Feedback("It is true of odd numbers.", ["print(is_even(2))"], ["return n % 2 == 1"])
    spans = []
    for match in _TOKEN.finditer(answer):
        spans += [list(match.span())] * (2 if "🙂" in match.group() else 1)
    poor, good = span_intervals(feedback, answer, "kodcode")
    intervals = [(start, end) for start, end in spans]
    wrong, improvable = set(tokens_in(poor, answer, intervals)), set(tokens_in(good, answer, intervals))
    code = set(tokens_in(get_task("kodcode").rewarded(answer), answer, intervals))
    rewards = [-1.0 if t in wrong else float(t in code and t not in improvable) for t in range(len(spans))]
    row = {"prompt": CODE_TASK, "response": answer, "spans": spans, "deltas": rewards, "rewards": rewards}
    row |= {"critique": feedback.critique, "good": feedback.good, "poor": feedback.poor, "advantages": rewards}
    row |= {"old_logprobs": [-1.0] * len(spans), "new_logprobs": None, "kl": None, "id": "kod#1"}
    return report_files.write_run(folder, [report_files.hand_made(step, **row) for step in range(1, 7)], task="kodcode")
