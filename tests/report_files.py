"""Files for the report's tests, made without a model, and a reader of the page's packs."""

import base64
import json
import random
import re
import zlib
from pathlib import Path
from typing import Any

from evaluation.results import Figure, ResultConfig, save_result
from tests.processes import ROOT
from text2grad.feedback import Feedback
from text2grad.records import load_json, save_json
from text2grad.tasks import get_task
from text2grad.token_rewards import rewards_on


def pack_of(page: str, name: str) -> Any:
    """The value of a pack in the page."""
    packed = re.search(f'<script type="text/plain" id="pack-{name}">([^<]*)</script>', page)
    assert packed, name
    return unpack(packed[1])


def unpack(text: str) -> Any:
    """What ``packs.pack`` was given."""
    return json.loads(zlib.decompress(base64.b64decode(text)).decode("utf-8"))


def result_file(
    path: str | Path, system: str, values: dict[str, dict[str, float]], settings: dict | None = None,
    responses: dict[str, str] | None = None, **extra,
) -> str:  # fmt: skip
    names = list(next(iter(values.values())))
    figures = {name: Figure.mean({key: value[name] for key, value in values.items()}) for name in names}
    save_result(
        ResultConfig(system=system, output_path=str(path)), "", task="slf5k", benchmark="held out", figures=figures,
        responses=responses or dict.fromkeys(values, "An answer."), settings=settings, extra=extra,
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
    row = rollout(1, text, Feedback(text, poor=["window.pwned=1"]), prompt=text, id=text)
    failed = {**row, "step": 2, "critique": "", "error": text, "poor": []}
    run = write_run(folder / "<b>run", [row, failed], method=text, critic=text, model=text, config={text: text})
    text = text.replace("\ud83d", "")  # which no result file can hold
    result = result_file(folder / "hostile.json", text, {text: {text: 1.0}}, {"critic": text})
    return run, Path(result)


# Runs and results that look like real ones; only the policy is made up: it tells the story and says what is faulty.

FAULTS = ["Here is a summary of the post.", "They were very happy in the end.", "What do you think about this?"]
CODE_TASK = "Write a function `is_even(n)` that returns True where n is even. 偶数 🙂"
CODE_ANSWER = "🙂 Here it is:\n```python\ndef is_even(n):\n    return n % 2 == 1\n\nprint(is_even(2))\n```\n"
_TOKEN = re.compile(r"\s?\w{1,7}|\s?[^\w\s]|\s")


def answered(record: dict, skill: float, draw: random.Random) -> tuple[str, Feedback]:
    """A response of ``skill`` from 0 to 1, and what a critic says of it."""
    good, poor = [record["ideal_human_summary"]], [] if draw.random() < skill else [draw.choice(FAULTS)]
    return " ".join([*poor, *good, "and then"]), Feedback(f"It has {len(poor)} faults.", good, poor)


def rollout(step: int, text: str, feedback: Feedback, task: str = "slf5k", **about) -> dict:
    """One row of ``rollouts.jsonl``. Tokens are words, or less; each emoji is two tokens."""
    matches = [match for match in _TOKEN.finditer(text) for _ in range(1 + ("🙂" in match.group()))]
    deltas = rewards_on(text, [match.span() for match in matches], feedback, task).values
    row = hand_made(step, response=text, spans=[list(match.span()) for match in matches], deltas=deltas)
    row |= {"critique": feedback.critique, "good": feedback.good, "poor": feedback.poor}
    row |= {"tokens": [match.group() for match in matches], "rewards": deltas, "old_logprobs": [-1.0] * len(matches)}
    row |= {"advantages": [0.5 * delta + 0.125 for delta in deltas], "kl": [0.25] * len(matches)}
    moved = [0.5 * delta - 1.125 for delta in deltas] if step % 5 else None  # logged at some steps only
    return {**row, "new_logprobs": moved, "ref_logprobs": row["old_logprobs"], **about}


def write_learning_run(folder: Path, method: str, seed: int, steps: int, per_step: int) -> Path:
    """A run whose answers get better; ``method`` is text2grad or ppo_scalar."""
    draw, records = random.Random(f"{method}-{seed}"), list(posts("train").items())
    rollouts, cycles = [], []
    for step in range(1, steps + 1):
        skill = (0.9 if method == "text2grad" else 0.7) * step / steps
        for key, record in draw.sample(records, per_step):
            about = {"id": key, "prompt": record["post"], "finished": draw.random() < 0.5 + skill / 2}
            if draw.random() < 0.04:
                about |= {"critique": "", "good": [], "poor": [], "deltas": None, "error": "the JSON is cut off"}
            rollouts.append(rollout(step, *answered(record, skill, draw), **about))
        timed = {"seconds/rollout": draw.random(), "seconds/update": 7.0}
        cycles.append({"step": step, "delta/mean": skill, "entropy": 2.1 - skill * draw.random(), "lr": 5e-4, **timed})
    config = {"seed": seed, "learning_rate": 5e-4, "output_dir": str(folder)}
    write_run(folder, rollouts, method=method, seed=seed, model="smollm2", config=config)
    save_json(folder / "metrics.jsonl", cycles)
    return folder


def posts(split: str) -> dict[str, dict]:
    return load_json(ROOT / "quickstart" / "data" / f"posts_{split}.json")


def write_result(path: Path, system: str, skill: float, seed: int = 1) -> str:
    """A result file on the validation posts."""
    draw = random.Random(f"{system}-{seed}")
    made = {key: answered(record, skill, draw) for key, record in posts("validation").items()}
    values = {key: {"rougeL": len(text) / 1000, "mean_delta": 1.0 - len(f.poor)} for key, (text, f) in made.items()}
    feedback = {key: get_task("slf5k").fields.to_dict(said) for key, (_, said) in made.items()}
    responses = {key: text for key, (text, _) in made.items()}
    return result_file(path, system, values, {"critic": "programmatic"}, responses, feedback=feedback)


def write_code_run(folder: Path) -> Path:
    """A kodcode run whose every answer is the same."""
    feedback = Feedback("It is true of odd numbers.", ["print(is_even(2))"], ["return n % 2 == 1"])
    row = rollout(1, CODE_ANSWER, feedback, "kodcode", prompt=CODE_TASK, id="kod#1")
    return write_run(folder, [{**row, "step": step} for step in (1, 2)], task="kodcode")
