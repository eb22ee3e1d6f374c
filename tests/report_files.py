"""Files for the report's tests, made by hand, and a reader of the page's packs."""

from __future__ import annotations

import base64
import json
import re
import zlib
from pathlib import Path
from typing import Any

from evaluation.results import Figure, save_result


def pack_of(page: str, name: str) -> Any:
    """The value of a pack in the page."""
    packed = re.search(f'<script type="text/plain" id="pack-{name}">([^<]*)</script>', page)
    assert packed, name
    return unpack(packed[1])


def unpack(text: str) -> Any:
    """What ``packs.pack`` was given."""
    return json.loads(zlib.decompress(base64.b64decode(text)).decode("utf-8"))


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def result_file(path: Path, system: str, values: dict[str, dict[str, float]], settings: dict | None = None) -> str:
    names = list(next(iter(values.values())))
    figures = {name: Figure.mean({key: value[name] for key, value in values.items()}) for name in names}
    save_result(
        path,
        task="slf5k",
        benchmark="held out",
        system=system,
        figures=figures,
        responses=dict.fromkeys(values, "An answer."),
        settings=settings or {},
    )
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
