"""One way to read settings: dataclasses, filled from a YAML file (``--config``) and the command line, which wins."""

import inspect
import math
import operator
import os
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import yaml

from text2grad.errors import InputError
from text2grad.safety.gate import regular, shown
from text2grad.safety.redaction import is_misplaced
from text2grad.tasks.commands import flag_values

_VALUE_NAMES = {bool: "BOOL", int: "N", float: "X"}
_USUAL: dict[str, dict[str, float]] = {
    "per_device_train_batch_size": {"above": 0}, "batch_size": {"above": 0}, "limit": {"above": 0},
    "workers": {"above": 0},
    "max_new_tokens": {"above": 0}, "max_prompt_tokens": {"above": 0},
    "seed": {"at_least": 0, "below": 2**32}, "learning_rate": {"at_least": 0}, "temperature": {"at_least": 0},
    "seeds": {"at_least": 0, "below": 2**32}, "k": {"above": 0},
    "top_p": {"above": 0, "at_most": 1}, "lora_r": {"at_least": 0, "at_most": 9999},
    "lora_alpha": {"above": 0}, "lora_dropout": {"at_least": 0, "below": 1}, "micro_batch_size": {"above": 0},
    "num_samples": {"above": 0, "at_most": 9999}, "rollouts_per_device": {"above": 0, "at_most": 99999},
}  # fmt: skip
"""Bounds of settings that several commands have, or a library brings; a field's own come before them."""
_LIMITS = {"above": operator.gt, "at_least": operator.ge, "below": operator.lt, "at_most": operator.le}


_ELSEWHERE = {
    "lr": "learning_rate",
    "batch_size": "per_device_train_batch_size",
    "per_device_train_batch_size": "micro_batch_size",
    "gradient_accumulation_steps": "micro_batch_size",
    "num_generations": "rollouts_per_prompt",
    "dataset_name": "data_path",
    "epsilon": "clip_range",
    "use_peft": "lora_r",
}
"""What other libraries call a setting, and its name here, where no spelling leads there."""

program = ""
"""What ``--help`` calls the program; by default its script."""


def _usage() -> str:
    """``%`` is doubled, as argparse wants it."""
    return f"{program or 'python ' + _shown_path(sys.argv[0])} [--config FILE] [--SETTING VALUE ...]".replace("%", "%%")


class _Help(str):
    """What ``--help`` says of a setting, and its bounds: further metadata would be passed to argparse."""

    limits: Mapping[str, float]


def setting(default: Any, text: str, *aliases: str, **limits: float) -> Any:
    """A dataclass field that is a flag.

    Args:
        default: its default; a list or a dict is copied for each instance.
        text: what ``--help`` says.
        aliases: further spellings (``--name``), on the command line and (without dashes) in YAML.
        limits: what a number must be: ``above``, ``at_least``, ``below`` or ``at_most`` a bound.
    """
    shown = _Help(text.replace("%", "%%"))
    shown.limits = limits
    metadata = {"help": shown, "aliases": list(aliases)}
    if isinstance(default, list | dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


TASK_HELP = "slf5k, kodcode, ultrafeedback, plain, or your own: my_task.py or package.module:OBJECT"
"""What ``--task`` may be, wherever it is offered."""


@dataclass
class TaskConfig:
    """Which task; for scripts that serve any."""

    task: str = setting(MISSING, TASK_HELP)


def parse(
    *dataclasses: type, args: Sequence[str] | None = None, default_config: str | Path | None = None, because: str = ""
) -> Any:
    """The filled dataclasses (a single one bare), through TRL's ``TrlParser``.

    Args:
        dataclasses: field names are the flags; :func:`setting` documents a field. ``Literal`` fields have choices.
        args: the command line; ``sys.argv[1:]`` by default.
        default_config: the YAML file that is read where the command line names none; a line on the screen says so.
        because: why that file was chosen, for the same line.

    Raises:
        InputError: a config file that is missing or not YAML, an unknown setting, or a value that is no choice.
        SystemExit: code 2 for an unknown flag or a value of the wrong type (argparse prints which).

    A dataclass that is put together from others has ``flags()``, a flat dataclass of all of their fields, and
    ``of(**flags)``, which makes one of them. Its ``overruled(args)`` names settings of the file that give way to others
    on the command line.
    """
    args = list(sys.argv[1:] if args is None else args)
    check_no_key("command line:", args)
    if {"-h", "--help", "--help_all"} & set(args):
        shown = [kind.shown_flags(args) if hasattr(kind, "shown_flags") else kind for kind in dataclasses]
        print(help_text(*shown, everything="--help_all" in args, default_config=default_config))
        raise SystemExit(0)
    composed, dataclasses = dataclasses, tuple(kind.flags() if hasattr(kind, "flags") else kind for kind in dataclasses)
    from trl import TrlParser  # seconds, which --help need not wait for

    path, args = _config_path(args)
    if path is None and default_config is not None:
        path = Path(default_config)
        if os.environ.get("RANK", "0") == "0":
            print(f"settings: {_shown_path(path)}{f', {because}' if because else ''}; --config reads another file")
    _check_names(args, dataclasses)
    parser = TrlParser(dataclass_types=list(dataclasses), add_help=False, usage=_usage())
    if path is not None:
        held = _read_config(path, dataclasses)
        for name in chain.from_iterable(kind.overruled(args) for kind in composed if hasattr(kind, "overruled")):
            held.pop(name, None)
        hints = {name: hint for kind in dataclasses for name, hint in get_type_hints(kind).items()}
        parser.set_defaults_with_config(**{name: _typed(path, name, held[name], hints[name]) for name in held})
    try:
        *values, unread = parser.parse_args_and_config(args, return_remaining_strings=True)
    except ValueError as error:
        read = "command line" if path is None else f"command line and {_shown_path(path)}"
        raise InputError(f"{read}: {error}; --help lists the settings") from None
    if unread:
        triples = zip(args, args[1:], args[2:], strict=False)  # what is left over comes after a flag and its value
        flag = next((name for name, value, arg in triples if arg == unread[0] and not value.startswith("--")), "")
        takes = f"{flag} takes one value" if flag else "settings begin with --"
        raise InputError(f"command line: {unread[0]!r} is left over: {takes}, in quotes if it has spaces")
    for value in values:
        check_values(value)
    _check_outputs({each.name: getattr(value, each.name) for value in values for each in fields(value)})
    made = [
        kind.of(**{each.name: getattr(value, each.name) for each in fields(value)}) if hasattr(kind, "of") else value
        for kind, value in zip(composed, values, strict=True)
    ]
    return made[0] if len(made) == 1 else tuple(made)


def parse_for(task: str, kind: type, **options: Any) -> tuple[str, Any]:
    """A script's task, where it has none that of ``--task``, and the filled dataclass; ``options`` of :func:`parse`."""
    if task:
        return task, parse(kind, **options)
    chosen, config = parse(TaskConfig, kind, **options)
    return chosen.task, config


def _check_names(args: Sequence[str], dataclasses: Sequence[type]) -> None:
    """Raise ``InputError`` for a flag that does not exist, with what to write in its place."""
    names = _names(dataclasses)
    for name in (arg[2:].partition("=")[0].replace("-", "_") for arg in args if arg.startswith("--")):
        if name and name not in names:  # argparse would complete it, unlike what looks for a flag before argparse does
            raise InputError(f"command line: {_unknown(name, names)}")


def _names(dataclasses: Sequence[type]) -> dict[str, str]:
    """Every spelling of the settings, and the field's name."""
    settings = [each for kind in dataclasses for each in fields(kind)]
    aliases = {alias.lstrip("-"): each.name for each in settings for alias in _aliases(each)}
    return {each.name: each.name for each in settings} | aliases


def _unknown(name: str, names: Mapping[str, str]) -> str:
    """What to say of a setting that does not exist."""
    close = [_ELSEWHERE[name]] if _ELSEWHERE.get(name) in names else get_close_matches(name, names, n=1)
    return f"there is no setting {name!r}; {f'did you mean {close[0]}? ' if close else ''}--help lists the settings"


def _check_outputs(settings: Mapping[str, Any]) -> None:
    """Raise ``InputError`` where an output is the same file or folder as anything else that is named."""
    named = {
        name: [item for item in (value if isinstance(value, list) else [value]) if item and isinstance(item, str)]
        for name, value in settings.items()
    }
    for output in (name for name in named if name.startswith("output") and named[name]):
        for name, paths in named.items():
            if name != output and any(_same(path, named[output][0]) for path in paths):
                raise InputError(f"--{output} {named[output][0]}: is --{name} as well; choose another --{output}")


def _same(first: str, second: str) -> bool:
    try:
        return os.path.samefile(first, second)
    except (OSError, ValueError):  # one of them does not exist, or is no path
        return False


def check_values(config: Any) -> None:
    """Raise ``InputError`` for a value that is none of its field's choices, not finite, out of bounds, or a key."""
    hints = get_type_hints(type(config))
    for each in fields(config):
        name, value, choices = each.name, getattr(config, each.name), _choices(hints[each.name])
        check_no_key(f"--{name}", value)
        if choices and value not in choices:
            raise InputError(f"--{name} {value!r} does not exist; choose one of {', '.join(_names_of(choices))}")
        limits = getattr(each.metadata.get("help"), "limits", {}) or _USUAL.get(name, {})
        for number in value if isinstance(value, list) else [value]:
            if not isinstance(number, int | float):
                continue
            if not math.isfinite(number):
                raise InputError(f"--{name} {number}: must be a finite number")
            for limit, bound in limits.items():
                if not _LIMITS[limit](number, bound):
                    raise InputError(f"--{name} must be {limit.replace('_', ' ')} {bound:g}, not {number}")


def check_no_key(name: str, value: Any) -> None:
    """Raise ``InputError`` for a key in a setting: settings are stored and shown."""
    if is_misplaced(value):
        raise InputError(f"{name} holds an API key; keys go into the environment (OPENAI_API_KEY, HF_TOKEN)")


def check_used(config: Any, *settings: tuple[str, str, object]) -> None:
    """Raise ``InputError`` for a setting in vain: its name, what it takes, whether that is there."""
    for name, needed, there in settings:
        if getattr(config, name) and not there:
            raise InputError(f"--{name} does nothing without {needed}; add that, or leave --{name} out")


def check_given(config: Any, *names: str) -> None:
    """Raise ``InputError`` where one of these settings is empty."""
    for name in names:
        if not getattr(config, name):
            raise InputError(f"--{name} is missing; see --help")


def help_text(*dataclasses: type, everything: bool = False, default_config: str | Path | None = None) -> str:
    """What ``--help`` prints: how to run the script, its own settings explained, inherited ones by name.

    Args:
        everything: explain the settings that a dataclass inherits from a library too.
    """
    about = getattr(sys.modules["__main__"], "__doc__", None)
    parser = ArgumentParser(
        usage=_usage(), description=about, formatter_class=RawDescriptionHelpFormatter, add_help=False
    )
    settings = parser.add_argument_group("settings")
    read = f" (default: {_shown_path(default_config)})".replace("%", "%%") if default_config else ""
    settings.add_argument("--config", metavar="FILE", help=f"a YAML file of settings; flags win over it{read}")
    inherited: dict[str, list[str]] = {}
    for each in (item for kind in dataclasses for item in described(kind)):
        if each.library and not everything:
            inherited.setdefault(each.library, []).append(f"--{each.name}")
            continue
        given = f" (default: {each.default})" if each.default else ""
        text = (each.text + given).replace("%", "%%")
        settings.add_argument(f"--{each.name}", *each.aliases, metavar=each.value, help=text)
    for library, flags in inherited.items():
        parser.add_argument_group(f"settings of {library} (--help_all explains them)", ", ".join(flags))
    return parser.format_help()


class Described(NamedTuple):
    """A setting as a reader sees it; ``library`` is the class of TRL or transformers that brought it in, if one did."""

    name: str
    aliases: list[str]
    value: str
    default: str
    text: str
    library: str


def described(kind: type) -> Iterator[Described]:
    """Every setting of a dataclass, in its order."""
    hints = get_type_hints(kind)
    for each in fields(kind):
        text = str(each.metadata.get("help", "")).replace("%%", "%")
        value, default, library = _value_name(hints[each.name]), _default_shown(each), _library_of(kind, each.name)
        yield Described(each.name, _aliases(each), value, default, text, library)


def _value_name(hint: Any) -> str:
    """How ``--help`` writes a setting's value: its choices, or what kind of value it is."""
    if names := _names_of(_choices(hint)):
        return f"{{{','.join(names)}}}"
    kinds = {hint, *get_args(hint)}
    return next((name for kind, name in _VALUE_NAMES.items() if kind in kinds), "TEXT")


def _default_shown(each: Field) -> str:
    default = each.default_factory() if each.default_factory is not MISSING else each.default
    shown = " ".join(map(str, default)) if isinstance(default, list | tuple) else default
    return "" if shown in (MISSING, None) else str(shown)


def _shown_path(path: str | Path) -> str:
    """Relative to the working directory where it is inside."""
    path = Path(path).resolve()
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _aliases(each: Field) -> list[str]:
    aliases = each.metadata.get("aliases", [])  # HfArgumentParser takes one as a string, too
    return [aliases] if isinstance(aliases, str) else aliases


def _choices(hint: Any) -> tuple:
    """The values of a ``Literal``, optional or not; None is one of an optional one's."""
    if get_origin(hint) is Literal:
        return get_args(hint)
    of_members = [_choices(member) for member in get_args(hint)] if get_origin(hint) in (Union, UnionType) else []
    return (*chain.from_iterable(of_members), None) if any(of_members) else ()


def _names_of(choices: tuple) -> list[str]:
    return [str(choice) for choice in choices if choice is not None]


def _library_of(kind: type, name: str) -> str:
    """The library class that brought a field in; empty for a field of this project."""
    base = next(base for base in kind.__mro__ if name in inspect.get_annotations(base))
    root = base.__module__.partition(".")[0]
    return f"{root}.{base.__name__}" if root in ("trl", "transformers") else ""


def _config_path(args: list[str]) -> tuple[Path | None, list[str]]:
    """The file that ``--config`` names, and the other arguments."""
    files, others = flag_values(args, "--config")
    if "" in files:
        raise InputError("--config: names no file; give the path of a YAML file")
    if len(files) > 1:
        raise InputError("--config: is given twice; name one file, and give other settings as flags")
    return Path(files[0]) if files else None, others


class _Settings(yaml.SafeLoader):
    """Refuses a name that stands twice in a file: YAML's own loader keeps the last value and says nothing."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in names:
                raise yaml.MarkedYAMLError(problem=f"{shown(key.value)} stands twice", problem_mark=key.start_mark)
            names.add(key.value)
        return super().construct_mapping(node, deep)


def _loaded(path: Path) -> Any:
    """What a YAML file holds, over what the file holds that its ``extends`` names, relative to its own folder."""
    value = yaml.load(regular(path).read_text(encoding="utf-8"), _Settings)  # noqa: S506: a safe loader
    if not isinstance(value, dict) or "extends" not in value:
        return value
    base = path.parent / str(value.pop("extends"))
    if not base.is_file():
        raise InputError(f"{path}: extends {base}, which does not exist")
    inherited = _loaded(base)
    return {**inherited, **value} if isinstance(inherited, dict) else inherited


def _read_config(path: Path, dataclasses: Sequence[type]) -> dict[str, Any]:
    """The file's settings by field name."""
    try:
        value = _loaded(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give the path of a YAML file") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # bytes, numbers and depth that YAML cannot hold
        raise InputError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(value, dict):
        raise InputError(f"{path}: holds no settings; write one `name: value` a line")
    names = _names(dataclasses)
    for key, item in value.items():
        if key not in names:
            raise InputError(f"{path}: {_unknown(str(key), names)}")
        check_no_key(f"{path}: {key}", item)
    return {names[key]: item for key, item in value.items()}


def _typed(path: Path, name: str, value: Any, hint: Any) -> Any:
    """A file's value as it is typed on the command line: text, which becomes what the setting is, or a list."""
    members = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    kinds = {get_origin(kind) or kind: kind for kind in members}
    if value is None and NoneType not in kinds:
        raise InputError(f"{path}: {name} has no value; give one, or leave the line out")
    if list in kinds and str not in kinds and value is not None:
        return _items(path, name, value if isinstance(value, list) else [value], *get_args(kinds[list]))
    if isinstance(value, list | dict) and type(value) not in kinds:
        wanted = "names with values" if dict in kinds else "one value"
        raise InputError(f"{path}: {name} is {wanted}, not {type(value).__name__}")
    return value if isinstance(value, list | dict | None) else str(value)


def _items(path: Path, name: str, items: list, kind: type) -> list:
    """A file's list, each item as the command line would make it of a word: argparse converts no list of a file's."""
    try:
        if any(isinstance(item, list | dict | None) for item in items):
            raise ValueError
        return [kind(str(item)) for item in items]
    except ValueError:
        raise InputError(f"{path}: {name} is a list of {kind.__name__} values, and holds {shown(items)}") from None
