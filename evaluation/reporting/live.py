"""A page that follows runs while they train: rebuilt when a file changed, until every run has ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from text2grad.errors import InputError

REST = 10
"""A rebuild is followed by a pause this many times as long, so that watching takes little from training."""
Stamp = tuple[tuple[str, int, int], ...]


def has_begun(folder: str | Path) -> bool:
    """Whether a run has logged its first step."""
    log = Path(folder) / "metrics.jsonl"
    return (Path(folder) / "run.json").exists() and log.exists() and log.stat().st_size > 0


def has_ended(folder: str | Path) -> bool:
    """Whether a run has written its policy after its last step."""
    policy, log = Path(folder) / "policy", Path(folder) / "metrics.jsonl"
    return policy.exists() and log.exists() and policy.stat().st_mtime >= log.stat().st_mtime


def stamp(paths: list[Path]) -> Stamp:
    """Sizes and times of the files that are there."""
    there = [(path, path.stat()) for path in paths if path.exists()]
    return tuple((str(path), about.st_size, about.st_mtime_ns) for path, about in there)


def watch(folders: list[str], files: list[str], build: Callable[[bool], None], every: float) -> None:
    """Build the page whenever a run has gone on, and once more when all have ended.

    Args:
        files: other files that the page shows.
        build: writes the page; True for a page that refreshes itself.
        every: seconds between two looks at the files.

    Raises:
        InputError: nothing to watch.
    """
    if not folders:
        raise InputError("--watch: no run folder is given; name the --output_dir of a training run")
    paths = [Path(folder) / name for folder in folders for name in ("run.json", "metrics.jsonl", "rollouts.jsonl")]
    paths += [Path(name) for name in files]
    seen: Stamp | None = None
    waiting = [folder for folder in folders if not has_begun(folder)]
    if waiting:
        print(f"waiting for the first step of {', '.join(waiting)}", flush=True)
    while True:
        pause = every
        ended = all(map(has_ended, folders))
        now = stamp(paths)
        if all(map(has_begun, folders)) and (ended or now != seen):
            started = time.monotonic()
            build(not ended)
            pause = max(every, REST * (time.monotonic() - started))
            seen = now
            if ended:
                return
        time.sleep(pause)
