"""Checkpoints at step boundaries: whole or not there at all, found again by the next run, limited in number."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from text2grad.errors import InputError
from text2grad.records import save_json

_NAME = re.compile(r"checkpoint-(\d+)")
STATE = "state.json"


class Checkpoints:
    """``RUN/checkpoint-N``, N the number of finished steps.

    A checkpoint is written beside its place and renamed when it is complete; its ``state.json``, written last, lists
    every file with its size. A folder that does not agree with its list (half copied, say) is skipped with a warning.
    """

    def __init__(self, run: Path, limit: int, accelerator: Accelerator):
        self.run, self.limit, self.accelerator = run, limit, accelerator

    def newest(self) -> tuple[Path, dict[str, Any]] | None:
        """The newest complete checkpoint and its state."""
        for folder in reversed(self._all()):
            problem, state = _inspect(folder)
            if problem is None:
                return folder, state
            self.accelerator.print(f"skipping {folder}: {problem}")
        return None

    def finished_steps(self) -> int:
        """The steps that the newest complete checkpoint has; 0 where there is none."""
        complete = (state["step"] for problem, state in map(_inspect, reversed(self._all())) if problem is None)
        return next(complete, 0)

    @contextmanager
    def write(self, step: int, state: dict[str, Any], size: int) -> Iterator[Path]:
        """Give all ranks a folder to write in; completes it with ``state`` when the block ends well.

        Args:
            size: the bytes it will need, roughly.

        Raises:
            InputError: the disk has no room for it; nothing was written.
        """
        self._make_room(step, size)
        final = self.run / f"checkpoint-{step}"
        partial = self.run / f"checkpoint-{step}.partial"
        if self.accelerator.is_main_process:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
        self.accelerator.wait_for_everyone()
        yield partial
        self.accelerator.wait_for_everyone()
        if self.accelerator.is_main_process:
            files = {str(path.relative_to(partial)): path.stat().st_size for path in _files(partial)}
            for path in _files(partial):
                _sync(path)
            save_json(partial / STATE, {**state, "step": step, "files": files})
            shutil.rmtree(final, ignore_errors=True)
            os.replace(partial, final)
            _sync(self.run)
            for old in self._all()[: -self.limit]:
                shutil.rmtree(old)
        self.accelerator.wait_for_everyone()

    def clear_partial(self) -> None:
        """Remove what a killed run left half-written."""
        if self.accelerator.is_main_process:
            for folder in self.run.glob("checkpoint-*.partial"):
                shutil.rmtree(folder)
        self.accelerator.wait_for_everyone()

    def _all(self) -> list[Path]:
        found = [path for path in self.run.glob("checkpoint-*") if _NAME.fullmatch(path.name)]
        return sorted(found, key=lambda path: int(path.name.partition("-")[2]))

    def _make_room(self, step: int, size: int) -> None:
        free = shutil.disk_usage(self.run).free
        if free < 1.1 * size:
            raise InputError(
                f"{self.run}: no room for checkpoint-{step}: it needs about {size / 1e6:.0f} MB and the disk has "
                f"{free / 1e6:.0f} MB left; free some, or lower --save_total_limit, and run the same command again"
            )


def _inspect(folder: Path) -> tuple[str | None, dict[str, Any]]:
    """What is wrong with a checkpoint (None: nothing), and its state."""
    try:
        state = json.loads((folder / STATE).read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        return f"its {STATE} cannot be read ({error}); it was not written to the end", {}
    for name, size in state["files"].items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != size:
            return f"its file {name} is missing or cut off", {}
    return None, state


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
