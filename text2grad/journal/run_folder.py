"""A run's folder: one process at a time, and one set of settings, with every change on record."""

import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import Field

from text2grad.errors import InputError
from text2grad.journal import locked
from text2grad.records import check_own_file, check_same_settings, check_writable, differing_settings, load_json
from text2grad.safety.gate import UnreadableError, read_json, regular, storable_value
from text2grad.safety.schema import Form, checked

RUN_FILE = "run.json"
_KINDS = {"policy": "a policy's run (stage 3)", "reward_model": "a reward model (stage 2)"}
STAGE_3 = "give a folder that stage 3 wrote"
Settings = Mapping[str, Any]
_WITHOUT_RUN = {
    "checkpoint-*": "checkpoints",
    "reward_model.json": "a reward model",
    "adapter_config.json": "an adapter",
    "config.json": "a model",
}
_WRITTEN = {
    "policy": ("metrics.jsonl", "rollouts.jsonl", "policy", "policies"),
    "model": ("README.md", "reward_prompt.txt", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"),
}
"""What a run writes beside its ``run.json``, and a user may have there."""
FREE = {
    "output_dir", "allow_changed", "save_every", "save_total_limit", "keep_policies", "log_rollouts_every", "report_to",
    "critic_concurrency", "critic_timeout", "critic_retries", "critic_max_cost_usd", "vllm_url", "vllm_timeout",
    "audit_critic", "audit_share", "audit_prompt",
}  # fmt: skip
"""Settings of stage 3 that do not change what is learnt."""
LENGTH = {"epochs", "max_steps", "kl_limit", "max_critic_failures", "audit_flip_limit", "audit_gap_limit"}
"""Those that decide when a run ends: they may change, as long as the run does not become shorter."""
Change = dict[str, Any]
"""``{"from_step": 3, "settings": {...}}``: what applies from that step on."""


class _Change(Form):
    from_step: int = Field(ge=0)
    settings: dict[str, Any]


class _Run(Form):
    changes: list[_Change] = Field(default=[])


class PolicyRun(_Run):
    """``run.json`` of stage 3 and its baselines."""

    task: str = Field(min_length=1)
    method: str = Field(min_length=1)
    seed: int
    critic: str | None = None
    model: str | None = None
    config: dict[str, Any] = Field(default={})
    weights: str = ""
    data: dict[str, Any] = Field(default={})
    versions: dict[str, Any] = Field(default={})


@contextmanager
def claimed(folder: str | Path, kind: str) -> Iterator[None]:
    """Hold a run's folder: the first rank locks it. The system releases it however the process ends.

    Args:
        kind: ``policy``, ``reward_model``, or the method of another training.

    Raises:
        InputError: another run holds it, or it holds something else.
    """
    check_kind(folder, kind)
    if not first_rank():
        yield
        return
    path = check_own_file(Path(folder) / ".lock")
    check_writable(path)
    with path.open("a+", encoding="utf-8") as file:
        if not locked(file, path):
            file.seek(0)
            holder = file.read(200).strip() or "unknown"
            raise InputError(
                f"{folder}: another run is working there ({holder}); wait for it, stop it, or choose another "
                "--output_dir"
            )
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield


def first_rank() -> bool:
    """Whether this process is the first of those that train together, or trains by itself.

    A ``RANK`` without a ``WORLD_SIZE`` above 1 was left in the environment by something else.
    """
    rank, processes = _number("RANK", 0), _number("WORLD_SIZE", 1)
    if processes > 1 and not os.environ.get("MASTER_ADDR"):
        raise InputError(f"WORLD_SIZE={processes}: is set without MASTER_ADDR; unset it or use torchrun")
    return processes < 2 or rank == 0


def _number(variable: str, default: int) -> int:
    text = os.environ.get(variable) or str(default)
    if not text.isdecimal() or len(text) > 9:
        raise InputError(f"{variable}={text[:40]}: is not a number; unset the variable, or start with torchrun")
    return int(text)


def check_kind(folder: str | Path, kind: str) -> None:
    """Raise ``InputError`` where a folder holds something else than a run of this kind, or what one would overwrite."""
    path = Path(folder) / RUN_FILE
    if path.is_file():
        run = load_json(path)
        holds = _kind_of(run)
        if holds != kind:
            raise InputError(f"{folder}: holds {_KINDS.get(holds, f'a run of {holds}')}; choose another --output_dir")
        checked(PolicyRun if kind == "policy" else _Run, run, path, "put the file back as it was written")
        return
    for pattern, what in _WITHOUT_RUN.items():
        if any(Path(folder).glob(pattern)):
            raise InputError(f"{folder}: holds {what} and no {RUN_FILE}; put that back, or choose another --output_dir")
    for name in _WRITTEN["policy" if kind == "policy" else "model"]:
        if (found := Path(folder) / name).is_dir() or (found.is_file() and found.stat().st_size):
            raise InputError(f"{folder}: holds {name}, which this run would overwrite; choose another --output_dir")


def _kind_of(run: Any) -> str:
    """The kind of run that a ``run.json`` is of."""
    if not isinstance(run, dict):
        return "another program"
    if "config" in run:
        return "policy"
    return "reward_model" if "prompt" in run else str(run.get("method", "another program"))


def settings_at(begun: Settings, changes: Sequence[Change], step: int | None = None) -> dict[str, Any]:
    """The settings that applied at a step (None: the last ones), later changes over earlier ones."""
    merged = dict(begun)
    for change in changes:
        if step is None or change["from_step"] <= step:
            merged |= change["settings"]
    return merged


def continued(
    path: Path,
    begun: Settings,
    now: Settings,
    finished: int,
    allow_changed: bool,
    fixed: Sequence[str] = (),
    more: bool = True,
    compared: Callable[[Settings, Settings], tuple[Settings, Settings]] = lambda last, now: (last, now),
) -> dict[str, Any]:
    """What ``run.json`` of a run that was begun before is to hold: the settings as they were, and ``changes``.

    Args:
        path: the file; its folder is named in errors.
        begun: what it holds.
        finished: steps that are done and will be kept.
        fixed: settings that what is done already depends on, so that nothing can allow them to change.
        more: whether there is any step left for what differs now to apply to.
        compared: what has to be the same of the settings that applied last and of those of now.

    Raises:
        InputError: settings differ, and may not.
    """
    changes = begun.get("changes", [])
    then = {name: value for name, value in begun.items() if name != "changes"}
    last, at = settings_at(then, changes), settings_at(then, changes, finished)
    if allow_changed and finished:
        held, wanted = ({name: settings.get(name) for name in fixed} for settings in (at, now))
        remedy = "choose another --output_dir (its checkpoints fit no other settings)"
        check_same_settings(path.parent, held, wanted, remedy)
    elif not allow_changed and now not in (last, at):
        remedy = "choose another --output_dir, or add --allow_changed true to continue from here with these"
        check_same_settings(path.parent, *compared(last, now), remedy)
    kept = [change for change in changes if change["from_step"] <= finished]
    differing = differing_settings(at, now)
    if differing and more:
        kept.append({"from_step": finished + 1, "settings": {name: value for name, (_, value) in differing.items()}})
    return then | ({"changes": kept} if kept else {})


def lasting_name(name: str) -> str:
    """A name under which a model or file is found again from any folder."""
    return str(Path(name).resolve()) if name and Path(name).exists() else name


def changes_shown(changes: Sequence[Change]) -> str:
    """Lines for a model card: which settings were changed, and from which step on."""
    return "".join(
        f"\n- changed from step {change['from_step']} on: "
        + ", ".join(f"{name} {value}" for name, value in change["settings"].items())
        for change in changes
    )


def logged_rows(path: Path, notes: list[str]) -> Iterator[tuple[int, Any]]:
    """(line number, value) of a log that may still grow; an unfinished last line is noted and left out."""
    try:
        file = regular(path).open("rb")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); {STAGE_3}") from None
    with file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                value = read_json(line)
            except UnreadableError as error:
                if not line.endswith(b"\n"):
                    notes.append(f"the last line of {path.name} is not finished and was left out")
                    return
                what = str(error).removeprefix("it is ").removeprefix("not JSON: ")
                raise InputError(f"{path}: line {number} is not JSON: {what}; repair or remove it") from None
            yield number, storable_value(value) if b"\\u" in line or b"\xed" in line else value
