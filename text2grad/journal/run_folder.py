"""A run's folder: one process at a time, and one set of settings, with every change on record."""

from __future__ import annotations

import fcntl
import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from text2grad.errors import InputError
from text2grad.records import check_same_settings, check_writable, differing_settings

Settings = Mapping[str, Any]
Change = dict[str, Any]
"""``{"from_step": 3, "settings": {...}}``: what applies from that step on."""


@contextmanager
def claimed(folder: str | Path, rank: int = 0) -> Iterator[None]:
    """Hold a run's folder, each rank by its own lock. The system releases it however the process ends.

    Raises:
        InputError: another run holds it.
    """
    path = Path(folder) / f".lock-{rank}"
    check_writable(path)
    with path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read(200).strip() or "unknown"
            raise InputError(
                f"{folder}: another run is working there ({holder}); wait for it, stop it, or choose another "
                "--output_dir"
            ) from None
        except OSError as error:
            print(f"warning: {path}: cannot be locked here ({error.strerror}); start no second run", file=sys.stderr)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield


def settings_at(begun: Settings, changes: Sequence[Change], step: int | None = None) -> dict[str, Any]:
    """The settings that applied at a step (None: the last ones), later changes over earlier ones."""
    merged = dict(begun)
    for change in changes:
        if step is None or change["from_step"] <= step:
            merged |= change["settings"]
    return merged


def changes_of(
    changes: Sequence[Change], begun: Settings, now: Settings, finished: int, more: bool = True
) -> list[Change]:
    """The changes up to ``finished`` steps, and what differs now, from the next step on.

    Args:
        more: whether there is any step left for it to apply to.
    """
    kept = [change for change in changes if change["from_step"] <= finished]
    differing = differing_settings(settings_at(begun, kept), now)
    if differing and more:
        kept.append({"from_step": finished + 1, "settings": {name: value for name, (_, value) in differing.items()}})
    return kept


def continued(
    path: Path,
    begun: Settings,
    now: Settings,
    finished: int,
    allow_changed: bool,
    fixed: Sequence[str] = (),
    more: bool = True,
) -> dict[str, Any]:
    """What ``run.json`` of a run that was begun before is to hold: the settings as they were, and ``changes``.

    Args:
        path: the file; its folder is named in errors.
        begun: what it holds, in present names.
        finished: steps that are done and will be kept.
        fixed: settings that what is done already depends on, so that nothing can allow them to change.
        more: whether there is any step left.

    Raises:
        InputError: settings differ, and may not.
    """
    changes = begun.get("changes", [])
    then = {name: value for name, value in begun.items() if name != "changes"}
    last, at = settings_at(then, changes), settings_at(then, changes, finished)
    if allow_changed:
        check_fixed(path.parent, at, now, fixed if finished else ())
    elif now not in (last, at):
        remedy = "choose another --output_dir, or add --allow_changed true to continue from here with these"
        check_same_settings(path.parent, last, now, remedy)
    changes = changes_of(changes, then, now, finished, more)
    return then | ({"changes": changes} if changes else {})


def check_fixed(folder: Path, then: Settings, now: Settings, fixed: Sequence[str]) -> None:
    """Raise ``InputError`` where settings differ that the checkpoints in the folder were written with."""
    differing = {name: (then.get(name), now.get(name)) for name in fixed if then.get(name) != now.get(name)}
    if differing:
        told = "; ".join(f"{name}: {old!r} then, {new!r} now" for name, (old, new) in differing.items())
        raise InputError(
            f"{folder}: its checkpoints were written with other settings ({told}), and fit no others; use those, or "
            "choose another --output_dir"
        )


def changes_shown(changes: Sequence[Change]) -> str:
    """Lines for a model card: which settings were changed, and from which step on."""
    return "".join(
        f"\n- changed from step {change['from_step']} on: "
        + ", ".join(f"{name} {value}" for name, value in change["settings"].items())
        for change in changes
    )
