"""``run.json``: what a run was begun with, and which settings applied from which step.

It is written once. A run that is continued with other settings is refused where they decide its result; with
``--allow_changed`` they are added under ``changes``, and what was written before stays.
"""

import importlib.metadata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nl_gradient_policy_optimization.algorithms.teacher import load_teacher_prompt
from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.schedule import total_steps
from text2grad.critics import Critic, version_of
from text2grad.errors import InputError
from text2grad.journal import run_folder
from text2grad.journal.run_folder import FREE, LENGTH, Settings, lasting_name
from text2grad.models import weights_fingerprint
from text2grad.records import fingerprint, load_json
from text2grad.safety.redaction import redacted
from text2grad.tasks import Record, Task

_FIXED = ("lora_r", "lora_alpha", "lora_target_modules", "optimizer", "algorithm", "deepspeed")
"""Settings that a checkpoint's files depend on."""
_PATHS = ("model", "policy_prompt", "critic", "critic_prompt", "deepspeed", "reward_model", "teacher_prompt")
"""Settings that may name a file or folder, beside a word before or after a colon."""


def describe(
    task: Task, config: PolicyConfig, prompts: Mapping[str, Record], critic: str, judge: Critic | None = None
) -> dict[str, Any]:
    """``run.json`` of a run that begins.

    Args:
        critic: the name of what gives the feedback.
        judge: the critic itself, where it is one: a file of code or words, or a server, may hold another by now.
    """
    packages = ("torch", "transformers", "peft", "accelerate", "text2grad")
    given = config.flat()
    paths = {name: _lasting(given[name]) for name in _PATHS if name in given}
    some = task.prompt(next(iter(prompts.values()))).strip()
    words = {"policy_prompt": "\n".join(each["content"].replace(some, "") for each in task.messages(some))}
    if "teacher_prompt" in given:
        words["teacher_prompt"] = load_teacher_prompt(task, given["teacher_prompt"]).text
    texts = {f"{name} (its text)": fingerprint(text) for name, text in words.items()}
    if judge:
        about = {"name": _lasting(redacted(judge.name)), **version_of(judge)}
        texts |= {f"critic (its {name.removeprefix('critic_')})": value for name, value in about.items()}
    if given.get("reward_model"):
        texts["critic (its weights)"] = weights_fingerprint(given["reward_model"])
    return {
        "task": task.name,
        **({"task_source": task.source} if task.source else {}),
        "method": config.method,
        "seed": config.seed,
        "critic": redacted(critic),
        "model": config.model,
        "weights": weights_fingerprint(config.model),
        "data": {
            "path": redacted(config.data_path),
            "prompts": len(prompts),
            "hash": fingerprint([(key, fingerprint(task.with_response(each, ""))) for key, each in prompts.items()]),
        },
        "texts": texts,
        "config": redacted(given),
        "paths": redacted(paths),
        "versions": {name: importlib.metadata.version(name) for name in packages},
    }


def continued(path: Path, now: dict[str, Any], finished: int, ranks: int) -> dict[str, Any]:
    """``run.json`` of a run that was begun before, with what is changed from the next step on.

    Args:
        now: what :func:`describe` says of this start.
        finished: steps that the newest checkpoint has.

    Raises:
        InputError: settings differ that decide the result, and ``--allow_changed`` was not given; or the file's are of
            other types than were written.
    """

    def compared(last: Settings, wanted: Settings) -> tuple[Settings, Settings]:
        then, here = ({name: value for name, value in each.items() if name not in LENGTH} for each in (last, wanted))
        before, after = (_steps(each, now, ranks) for each in (last, wanted))
        return (then | {"steps": before}, here | {"steps": after}) if after < before else (then, here)

    try:
        begun = load_json(path)
        try:
            own = _settings(begun)
        except InputError as error:  # another version wrote it, with settings that this one does not have
            made = begun["versions"]["text2grad"]
            raise InputError(f"{path}: was begun by text2grad {made} ({error}); choose another --output_dir") from None
        wanted, changes = _settings(now), begun.get("changes", [])
        allowed, more = now["config"]["allow_changed"], finished < _steps(wanted, now, ranks)
        made = run_folder.continued(path, own | {"changes": changes}, wanted, finished, allowed, _FIXED, more, compared)
        changes = made.get("changes", [])
        return {**begun, "changes": changes} if changes or "changes" in begun else begun
    except InputError:
        raise
    except (TypeError, ValueError, AttributeError, LookupError) as error:
        raise InputError(f"{path}: its settings are not as they were written ({error}); put the file back") from None


def changed_at(about: Mapping[str, Any], step: int) -> bool:
    """Whether a run's settings changed at a step in more than its length, by its ``run.json``."""
    return any(each["from_step"] == step and each["settings"].keys() - LENGTH for each in about.get("changes", []))


def _settings(about: dict[str, Any]) -> dict[str, Any]:
    """What decides a run's result, by name; settings that the file does not know yet have their defaults."""
    given = config_of(about).flat()
    free = {*FREE, "data_path"}  # of data, the content is compared
    settings = {name: value for name, value in given.items() if name not in free}
    own = {"task": about["task"], "data": about["data"]["hash"], "weights": about["weights"]}
    return {**settings, **own, **about.get("paths", {}), **about.get("texts", {})}


def config_of(about: Mapping[str, Any]) -> PolicyConfig:
    """The settings that a ``run.json`` holds.

    Raises:
        InputError: the run was begun with a setting that this version does not have.
    """
    return PolicyConfig.of(**about.get("config", {}))


def _lasting(name: str) -> str:
    return ":".join(map(lasting_name, name.split(":")))


def _steps(settings: Settings, now: dict[str, Any], ranks: int) -> int:
    config = PolicyConfig.of(**{name: value for name, value in settings.items() if name in now["config"]})
    return total_steps(config, now["data"]["prompts"], ranks)
