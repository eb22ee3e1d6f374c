"""Files for the report's tests, made without a model, and a reader of the page's packs."""

import base64
import json
import random
import re
import zlib
from pathlib import Path
from typing import Any

from evaluation.judge import pair_figures
from evaluation.results import Figure, save_result
from tests.processes import ROOT
from text2grad.feedback import Feedback
from text2grad.records import load_json, save_json
from text2grad.tasks import get_task
from text2grad.token_rewards import span_intervals, tokens_in


def pack_of(page: str, name: str) -> Any:
    """The value of a pack in the page."""
    packed = re.search(f'<script type="text/plain" id="pack-{name}">([^<]*)</script>', page)
    assert packed, name
    return unpack(packed[1])


def unpack(text: str) -> Any:
    """What ``packs.pack`` was given."""
    return json.loads(zlib.decompress(base64.b64decode(text)).decode("utf-8"))


def result_file(path: Path, system: str, values: dict[str, dict[str, float]], settings: dict | None = None) -> str:
    names = list(next(iter(values.values())))
    figures = {name: Figure.mean({key: value[name] for key, value in values.items()}) for name in names}
    save_result(
        path, task="slf5k", benchmark="held out", system=system, figures=figures,
        responses=dict.fromkeys(values, "An answer."), settings=settings or {},
    )  # fmt: skip
    return str(path)


def hand_made(step: int, **changes) -> dict:
    """A rollout of three tokens."""
    row = {"step": step, "id": "t3_1", "prompt": "A post.", "response": "Good bad", "critique": "Half and half."}
    row |= {"good": ["Good"], "poor": ["bad"], "error": None, "matched": 2, "unmatched": 0, "conflicts": 0}
    row |= {"tokens": ["Good", " bad", "<eos>"], "spans": [[0, 4], [4, 8], [8, 8]]}
    row |= {"deltas": [1, -1, 0], "rewards": [1, -1, -6]}
    row |= {"advantages": [0.5, -0.5, 0.1], "old_logprobs": [-1, -1, -1], "new_logprobs": [-0.9, -1.2, -1]}
    return {**row, "ref_logprobs": [-1, -1, -1], "kl": [0, 0, 0], "finished": True, **changes}


def write_run(folder: Path, rollouts: list[dict], **about) -> Path:
    folder.mkdir(parents=True)
    settled = {"task": "slf5k", "method": "text2grad", "seed": 1, "critic": "programmatic", "model": "m", "config": {}}
    (folder / "run.json").write_text(json.dumps({**settled, **about}))
    cycles = [{"step": step, "delta/mean": 0.0} for step in sorted({row["step"] for row in rollouts})]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(cycle) + "\n" for cycle in cycles))
    (folder / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rollouts))
    return folder


HOSTILE = "</script><script>window.pwned=1</script><img src=x onerror=window.pwned=1> & \u2028 \ud83d x \x00"


def write_hostile(folder: Path) -> tuple[Path, Path]:
    text = HOSTILE
    spans = [[i, i + 1] for i in range(len(text))]
    numbers = [0.0] * len(text)
    row = hand_made(
        1, prompt=text, response=text, critique=text, good=[], poor=["window.pwned=1"], id=text, spans=spans
    )
    row |= dict.fromkeys(("deltas", "rewards", "advantages", "old_logprobs", "new_logprobs", "kl"), numbers)
    failed = {**row, "step": 2, "critique": "", "error": text, "poor": []}
    run = write_run(folder / "<b>run", [row, failed], method=text, critic=text, model=text, config={text: text})
    text = text.replace("\ud83d", "")  # which no result file can hold
    result = result_file(folder / "hostile.json", text, {text: {text: 1.0}}, {"critic": text})
    return run, Path(result)


# Runs and results that look like real ones; only the policy is made up: it tells the story or says what is faulty.

FAULTS = [
    "Here is a summary of the post.",
    "They were very happy in the end and went to Spain.",
    "What do you think about this?",
]
_TOKEN = re.compile(r"\s?\w{1,7}|\s?[^\w\s]|\s")


def posts(split: str = "train") -> dict[str, dict]:
    return load_json(ROOT / "quickstart" / "data" / f"posts_{split}.json")


def answered(record: dict, skill: float, draw: random.Random) -> dict:
    """A response of ``skill`` from 0 to 1: its text, quotes, tokens' characters, and their δ."""
    parts = re.split(r"(?<=[.?!])\s+", record["ideal_human_summary"])
    good = parts if draw.random() < skill else parts[:1]
    poor = [] if draw.random() < 0.9 * skill else draw.sample(FAULTS, draw.randint(1, 2))
    finished = draw.random() < 0.55 + 0.42 * skill
    text = " ".join([*poor, *good, *([] if finished else ["and then"])])
    spans = [list(match.span()) for match in _TOKEN.finditer(text)] + ([[len(text)] * 2] if finished else [])
    value = {quote: sign for sign, quotes in ((1.0, good), (-1.0, poor)) for quote in quotes}
    places = [(text.find(quote), text.find(quote) + len(quote), sign) for quote, sign in value.items()]
    deltas = [sum(sign for low, high, sign in places if low < end <= high and end > start) for start, end in spans]
    row = {"response": text, "critique": f"It has {len(poor)} faults.", "good": good, "poor": poor, "spans": spans}
    return row | {"finished": finished, "deltas": [float(delta) for delta in deltas], "error": None}


def rollout(step: int, key: str, record: dict, skill: float, scalar: bool, draw: random.Random) -> dict:
    """One row of ``rollouts.jsonl``."""
    row = {"step": step, "id": key, "prompt": record["post"], **answered(record, skill, draw)}
    count, deltas = len(row["spans"]), row["deltas"]
    row["tokens"] = [row["response"][start:end] or "<eos>" for start, end in row["spans"]]
    row["rewards"] = [0.0] * (count - 1) + [sum(deltas)] if scalar else deltas
    row["advantages"] = [round(reward + draw.gauss(0, 0.3), 6) for reward in row["rewards"]]
    row["kl"] = [round(abs(draw.gauss(0.1, 0.05)), 6) for _ in range(count)]
    row["old_logprobs"] = [round(-abs(draw.gauss(0.9, 0.8)), 6) for _ in range(count)]
    moved = [round(old + 0.05 * a, 6) for old, a in zip(row["old_logprobs"], row["advantages"], strict=True)]
    row["new_logprobs"] = moved if step == 1 or step % 5 == 0 else None
    row["ref_logprobs"] = row["old_logprobs"]
    row |= {"matched": len(row["good"]) + len(row["poor"]), "unmatched": int(draw.random() < 0.02), "conflicts": 0}
    if draw.random() < 0.004:
        nothing = {"critique": "", "good": [], "poor": [], "matched": 0, "unmatched": 0, "deltas": None}
        row |= nothing | {"error": "the JSON is cut off at character 212", "rewards": [0.0] * count}
    return row


def write_learning_run(folder: Path, method: str, seed: int, steps: int, per_step: int) -> Path:
    """A run whose answers get better; ``method`` is text2grad or ppo_scalar."""
    draw, records = random.Random(f"{method}-{seed}"), list(posts().items())
    rollouts, cycles = [], []
    for step in range(1, steps + 1):
        skill = (0.9 if method == "text2grad" else 0.7) * step / steps
        made = [
            rollout(step, *records[(step * per_step + n) % len(records)], skill, method != "text2grad", draw)
            for n in range(per_step)
        ]
        deltas = [delta for row in made for delta in row["deltas"] or []]
        cycles.append({
            "step": step, "delta/mean": sum(deltas) / max(len(deltas), 1), "entropy": 2.1 - skill, "lr": 5e-4,
            "reward/mean": sum(sum(row["rewards"]) for row in made) / per_step,
            "spans/matched": sum(row["matched"] for row in made), "spans/unmatched": 1 + step % 2,
            "kl/full": sum(sum(row["kl"]) for row in made) / per_step, "seconds/rollout": abs(draw.gauss(5.0, 0.3)),
            "length/finished": sum(row["finished"] for row in made) / per_step, "seconds/update": 7.0 + step % 3,
        })  # fmt: skip
        rollouts += made
    config = {"seed": seed, "learning_rate": 5e-4, "output_dir": str(folder)}
    write_run(folder, rollouts, method=method, seed=seed, model="smollm2", config=config)
    save_json(folder / "metrics.jsonl", cycles)
    return folder


def write_result(path: Path, system: str, skill: float, seed: int = 1) -> Path:
    """A result file on the validation posts."""
    draw = random.Random(f"{system}-{seed}")
    made = {key: answered(record, skill, draw) for key, record in posts("validation").items()}
    counts = {key: (sum(row["deltas"]), len(row["deltas"])) for key, row in made.items()}
    poor = {key: (row["deltas"].count(-1.0), len(row["deltas"])) for key, row in made.items()}
    figures = {
        "rougeL": Figure.mean({key: len(row["good"]) / (1 + len(row["poor"])) / 3 for key, row in made.items()}),
        "finished": Figure.mean({key: float(row["finished"]) for key, row in made.items()}),
        "mean_delta": Figure(counts), "poor_tokens": Figure(poor),
    }  # fmt: skip
    feedback = {
        key: {"textual_feedback": row["critique"], "good_spans": row["good"], "poor_spans": row["poor"]}
        for key, row in made.items()
    }
    about = {"task": "slf5k", "benchmark": "slf5k", "system": system, "settings": {"critic": "programmatic"}}
    responses = {key: row["response"] for key, row in made.items()}
    save_result(path, figures=figures, responses=responses, extra={"feedback": feedback}, **about)
    return path


def write_judgement(path: Path, system: str, baseline: str, edge: float, step: int | None = None) -> Path:
    """Pairwise judgements by a made-up judge that likes the first answer a little more than it should."""
    draw, verdicts = random.Random(f"{system}-{baseline}-{step}"), {}
    for key in posts("validation"):
        leads = {order: sign * edge + 0.15 + draw.gauss(0, 0.6) for order, sign in (("ab", 1), ("ba", -1))}
        verdicts[key] = {
            order: "tie" if abs(lead) < 0.15 else "first" if lead > 0 else "second" for order, lead in leads.items()
        }
    save_result(
        path, task="slf5k", benchmark=f"judge against {baseline}", system=system, settings={"judge": "openai:gpt-4o"},
        figures=pair_figures(verdicts, both=True), responses=dict.fromkeys(verdicts, "-"),
        extra={"baseline": baseline, "step": step, "verdicts": verdicts},
    )  # fmt: skip
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
    return write_run(folder, [hand_made(step, **row) for step in range(1, 7)], task="kodcode")
