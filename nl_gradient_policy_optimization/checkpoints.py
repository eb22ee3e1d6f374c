"""Checkpoints at step boundaries: whole or not there at all, found again by the next run, limited in number."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.utils import broadcast_object_list

from text2grad.errors import InputError
from text2grad.journal.checksums import checkpoints, checksums, damaged_file, remove, set_aside
from text2grad.records import fingerprint, save_json
from text2grad.safety.gate import UnreadableError, read_json

STATE = "state.json"


class Checkpoints:
    """``RUN/checkpoint-N``, N the number of finished steps.

    A checkpoint is written beside its place and renamed when it is complete; its ``state.json``, written last, lists
    every file with its checksum. A folder that does not agree with its list is skipped with a warning, and set aside.
    """

    def __init__(self, run: Path, limit: int, accelerator: Accelerator):
        self.run, self.limit, self.accelerator = run, limit, accelerator
        self._found: tuple[Path | None, dict[str, Any], list[Path]] | None = None

    def newest(self) -> tuple[Path, dict[str, Any]] | None:
        """The newest whole checkpoint and its state; the main process looks, and tells the others."""
        if self._found is None:
            found: list[Any] = [self._look()] if self.accelerator.is_main_process else [None]
            self._found = broadcast_object_list(found)[0]
        folder, state, _ = self._found
        return (folder, state) if folder else None

    def finished_steps(self) -> int:
        """The steps that the newest whole checkpoint has; 0 where there is none."""
        found = self.newest()
        return found[1]["step"] if found else 0

    def set_aside(self) -> int:
        """Remove what a killed run left half-written, and rename what is damaged; returns how many are damaged."""
        self.newest()
        damaged = self._found[2] if self._found else []
        if self.accelerator.is_main_process:
            for folder in self.run.glob("checkpoint-*.partial"):
                remove(folder)
            for folder in filter(os.path.lexists, damaged):
                set_aside(folder)
        self.accelerator.wait_for_everyone()
        return len(damaged)

    def _look(self) -> tuple[Path | None, dict[str, Any], list[Path]]:
        """The newest whole checkpoint, its state, and the newer ones, which are damaged."""
        damaged: list[Path] = []
        for folder in reversed(checkpoints(self.run)):
            problem, state = _inspect(folder)
            if problem is None:
                return folder, state, damaged
            damaged.append(folder)
            self.accelerator.print(f"skipping {folder}: {problem}")
        return None, {}, damaged

    @contextmanager
    def write(self, step: int, state: dict[str, Any], size: int) -> Iterator[Path]:
        """Give all ranks a folder to write in; completes it with ``state`` when the block ends well.

        Args:
            size: the bytes it will need, roughly.

        Raises:
            InputError: the disk has no room for it; nothing was written.
        """
        free = shutil.disk_usage(self.run).free
        if free < 1.1 * size:
            raise InputError(
                f"{self.run}: no space for checkpoint-{step}: it needs about {size / 1e6:.0f} MB and the disk has "
                f"{free / 1e6:.0f} MB left; free some, or lower --save_total_limit, and run the same command again"
            )
        final = self.run / f"checkpoint-{step}"
        partial = self.run / f"checkpoint-{step}.partial"
        if self.accelerator.is_main_process:
            remove(partial)
            partial.mkdir(parents=True)
        self.accelerator.wait_for_everyone()
        yield partial
        self.accelerator.wait_for_everyone()
        if self.accelerator.is_main_process:
            for path in _files(partial):
                _sync(path)
            whole = {**state, "step": step, "files": checksums(partial, _files(partial))}
            save_json(partial / STATE, {**whole, "digest": fingerprint(whole)})
            for path in _files(partial):
                shutil.copymode(partial / STATE, path)  # some libraries let only the owner read
            remove(final)
            os.replace(partial, final)
            _sync(self.run)
            for old in checkpoints(self.run)[: -self.limit]:
                remove(old)
        self._found = None
        self.accelerator.wait_for_everyone()


def _inspect(folder: Path) -> tuple[str | None, dict[str, Any]]:
    """What is wrong with a checkpoint (None: nothing), and its state."""
    try:
        state = read_json((folder / STATE).read_bytes())
    except (OSError, UnreadableError) as error:
        return f"its {STATE} cannot be read ({error}); it was not written to the end", {}
    kinds = {"step": int, "files": dict, "kl_coef": int | float, "rollouts": int, "processes": int}
    if not isinstance(state, dict) or any(not isinstance(state.get(name), kind) for name, kind in kinds.items()):
        return f"its {STATE} lacks {', '.join(kinds)}", {}
    if state.pop("digest", None) not in (None, fingerprint(state)):
        return f"its {STATE} is damaged (other content than was written)", {}
    if state["step"] != int(folder.name.partition("-")[2]):
        return f"it is a copy of checkpoint-{state['step']}", {}
    return damaged_file(folder, state["files"]), state


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
