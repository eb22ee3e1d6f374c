"""Published data as the files of a recipe: one for SFT, reward model, policy and evaluation each, and a manifest.

    python recipes/splits.py --task slf5k --data_path JeremyAlain/SLF5K#train \\
        --evaluation_path JeremyAlain/SLF5K#validation --output_dir runs/slf5k/data
    python recipes/splits.py --task ultrafeedback --data_path HuggingFaceH4/ultrafeedback_binarized#train_prefs \\
        --evaluation_path HuggingFaceH4/ultrafeedback_binarized#test_prefs --output_dir runs/ultrafeedback/data
    python recipes/splits.py --task kodcode --data_path runs/kodcode/tested.json \\
        --policy_path KodCode/KodCode-Light-RL-10K --output_dir runs/kodcode/data

Records are dealt by their prompt, so that all responses to one prompt lie together. What a prompt belongs to depends on
the seed and on which prompts there are, not on their order. ``manifest.json`` holds the hash of every file. The same
command again checks the files against it.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from recipes.published import read_published
from text2grad.configs import TaskConfig, parse, setting
from text2grad.errors import InputError, command
from text2grad.records import check_output, fingerprint, load_json, load_records, save_json
from text2grad.tasks import Record, Task, get_task

PARTS = ("sft", "reward_model", "policy", "evaluation")
MANIFEST = "manifest.json"
DEFAULT_EVALUATION = 500
PAPER: dict[str, tuple[float, ...]] = {"ultrafeedback": (0.3, 0.5, 0.2), "kodcode": (0.2, 0.8)}
"""Section 4.1. SLF5K's posts serve SFT, reward model and policy alike. KodCode's policy has a data set of its own."""


@dataclass
class SplitsConfig(TaskConfig):
    """What is read and how it is dealt."""

    data_path: str = setting(
        MISSING,
        "a file (.json, .jsonl, .csv, .parquet), a folder, or a data set of the hub: owner/name#split",
        "--dataset_path",
    )
    output_dir: str = setting(MISSING, "where the parts and the manifest go", "--save_dir")
    policy_path: str = setting("", "the policy's prompts, where they are a set of their own; as --data_path")
    evaluation_path: str = setting("", "records to evaluate on; without it some of --data_path are held out")
    evaluation_records: int | None = setting(
        None, "prompts to evaluate on, at most; default: 500, and of --data_path no more than a fifth", above=0
    )
    shares: list[float] = setting(
        [], "of the prompts, for SFT, reward model and policy: 0.3 0.5 0.2; default: the paper's (slf5k: all for each)"
    )
    seed: int = setting(42, "decides which prompt belongs to which part")


def split(config: SplitsConfig) -> dict[str, Any]:
    """Write the parts and the manifest, which is returned.

    Raises:
        InputError: the folder holds other files of these names, a part would be empty, or one of them was changed.
    """
    task, folder = get_task(config.task), Path(config.output_dir)
    wanted = 2 if config.policy_path else 3
    shares = tuple(config.shares) or PAPER.get(task.name, ())[:wanted]
    if shares and (any(share < 0 for share in shares) or len(shares) != wanted or sum(shares) <= 0):
        raise InputError(f"--shares {' '.join(map(str, shares))}: give 3 shares, or 2 where there is a --policy_path")
    if not (folder / MANIFEST).is_file():
        for name in PARTS:
            check_output(folder / f"{name}.json")
    sources = {
        name: read_published(path, task)
        for name, path in (("data", config.data_path), ("policy", config.policy_path),
                           ("evaluation", config.evaluation_path)) if path
    }  # fmt: skip
    parts, left_out = deal(sources, task, shares, config)
    about = {
        "task": task.name,
        "settings": {name: value for name, value in asdict(config).items() if name != "output_dir"},
        "sources": {name: {"records": len(rows), "hash": fingerprint(rows)} for name, rows in sources.items()},
        "left_out": left_out,
        "shared": [
            [a, b] for a in PARTS for b in PARTS if a < b and _prompts(parts[a], task) & _prompts(parts[b], task)
        ],
        "parts": {
            name: {
                "file": f"{name}.json",
                "records": len(rows),
                "prompts": len(_prompts(rows, task)),
                "hash": fingerprint(rows),
            }
            for name, rows in parts.items()
        },
    }
    if (folder / MANIFEST).is_file():
        check(folder, about)
        return about
    for name, rows in parts.items():
        save_json(folder / f"{name}.json", rows)
        load_records(folder / f"{name}.json", task, responses=False)
    save_json(folder / MANIFEST, about)
    return about


def deal(
    sources: Mapping[str, list[Record]], task: Task, shares: tuple[float, ...], config: SplitsConfig
) -> tuple[dict[str, list[Record]], dict[str, int]]:
    """The records of each part, and how many prompts were left out of ``data`` because another source has them."""
    own = {name: _prompts(rows, task) for name, rows in sources.items()}
    taken: dict[str, set[str]] = {name: own[name] for name in ("evaluation", "policy") if name in own}
    left_out: dict[str, int] = {name: len(prompts & own["data"]) for name, prompts in taken.items()}
    order = sorted(own["data"].difference(*taken.values()), key=lambda prompt: rank(prompt, config.seed))
    if "evaluation" in taken:
        held_out = sorted(taken["evaluation"], key=lambda prompt: rank(prompt, config.seed))
        held_out = held_out[: config.evaluation_records or DEFAULT_EVALUATION]
    else:
        count = config.evaluation_records or min(DEFAULT_EVALUATION, len(order) // 5)
        held_out, order = order[:count], order[count:]
    chosen = {"evaluation": set(held_out)}
    if shares:
        edges = [round(begun / sum(shares) * len(order)) for begun in accumulate(shares, initial=0.0)]
        chosen |= {name: set(order[low:high]) for name, (low, high) in zip(PARTS, pairwise(edges), strict=False)}
    else:
        chosen |= {name: set(order) for name in PARTS[:3]}
    if "policy" in taken:
        chosen["policy"] = own["policy"] - taken.get("evaluation", set())
    parts = {
        name: [row for row in sources.get(name, sources["data"]) if _key(row, task) in chosen[name]] for name in PARTS
    }
    if empty := [name for name, rows in parts.items() if not rows]:
        raise InputError(f"{config.data_path}: {len(own['data'])} prompts leave none for {', '.join(empty)}; give more")
    return parts, left_out


def check(folder: Path, about: Mapping[str, Any]) -> None:
    """Raise ``InputError`` where the folder's manifest or one of its files is not what ``about`` says."""
    known = load_json(folder / MANIFEST)
    if differing := [name for name in about if about[name] != known.get(name)]:
        raise InputError(
            f"{folder / MANIFEST}: was made with other {', '.join(differing)}; choose another --output_dir, or "
            "delete it"
        )
    for part in about["parts"].values():
        path = folder / part["file"]
        if fingerprint(load_json(path)) != part["hash"]:
            raise InputError(f"{path}: was changed since {MANIFEST} was written; delete both and run again")


def _key(record: Record, task: Task) -> str:
    return " ".join(task.prompt(record).split()).casefold()


def _prompts(rows: Iterable[Record], task: Task) -> set[str]:
    return {_key(row, task) for row in rows}


def rank(prompt: str, seed: int) -> str:
    return hashlib.sha256(f"{seed} {prompt}".encode("utf-8", "surrogatepass")).hexdigest()


@command
def main() -> None:
    config = parse(SplitsConfig)
    about = split(config)
    for name, part in about["parts"].items():
        print(f"{name}: {part['records']} records of {part['prompts']} prompts -> {config.output_dir}/{part['file']}")
    for first, second in about["shared"]:
        print(f"{first} and {second} share prompts, as in the paper; --shares 0.3 0.5 0.2 keeps them apart")
    for name, count in about["left_out"].items():
        if count:
            print(f"{count} prompts of the data were left out, because the {name} set has them")


if __name__ == "__main__":
    main()
