"""One way to read settings: dataclasses, filled from a YAML file (``--config``) and the command line, which wins."""

from __future__ import annotations

import inspect
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import yaml

from text2grad.errors import InputError

_USAGE = "python SCRIPT [--config FILE] [--SETTING VALUE ...]"


def setting(default: Any, text: str, *aliases: str) -> Any:
    """A dataclass field that is a flag.

    Args:
        default: its default; a list is copied for each instance.
        text: what ``--help`` says.
        aliases: further spellings (``--name``), on the command line and (without dashes) in YAML.
    """
    metadata = {"help": text.replace("%", "%%"), "aliases": list(aliases)}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


TASK_HELP = "slf5k, kodcode, ultrafeedback, plain, or your own: my_task.py or package.module:OBJECT"
"""What ``--task`` may be, wherever it is offered."""


@dataclass
class TaskConfig:
    """Which task; for scripts that serve any."""

    task: str = setting(MISSING, TASK_HELP)


def parse(*dataclasses: type, args: Sequence[str] | None = None, default_config: str | Path | None = None) -> Any:
    """The filled dataclasses (a single one bare), through TRL's ``TrlParser``.

    Args:
        dataclasses: field names are the flags; :func:`setting` documents a field. ``Literal`` fields have choices.
        args: the command line; ``sys.argv[1:]`` by default.
        default_config: the YAML file that is read where the command line names none; a line on the screen says so.

    Raises:
        InputError: a config file that is missing or not YAML, a setting that does not exist, or no choice of its own.
        SystemExit: code 2 for an unknown flag or a value of the wrong type (argparse prints which).
    """
    args = list(sys.argv[1:] if args is None else args)
    if {"-h", "--help", "--help_all"} & set(args):
        print(help_text(*dataclasses, everything="--help_all" in args, default_config=default_config))
        raise SystemExit(0)
    from trl import TrlParser  # seconds, which --help need not wait for

    path, args = _config_path(args)
    if path is None and default_config is not None:
        path = Path(default_config)
        if os.environ.get("RANK", "0") == "0":
            print(f"settings: {_shown_path(path)}; --config reads another file")
    parser = TrlParser(dataclass_types=list(dataclasses), add_help=False, usage=_USAGE)
    if path is not None:
        parser.set_defaults_with_config(**_read_config(path, dataclasses))
    try:
        values = parser.parse_args_and_config(args)
    except ValueError as error:
        raise InputError(f"command line: {error}; --help lists the settings") from None
    for value in values:
        check_choices(value)
    _check_outputs({each.name: getattr(value, each.name) for value in values for each in fields(value)})
    return values[0] if len(dataclasses) == 1 else values


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


def current_names(kind: type, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Stored settings under their present names: an alias of a dataclass field becomes the field's name."""
    aliases = {alias.lstrip("-"): each.name for each in fields(kind) for alias in _aliases(each)}
    return {aliases.get(name, name): value for name, value in settings.items()}


def check_choices(config: Any) -> None:
    """Raise ``InputError`` where a ``Literal`` field holds none of its choices."""
    hints = get_type_hints(type(config))
    for name, choices in ((each.name, _choices(hints[each.name])) for each in fields(config)):
        value = getattr(config, name)
        if choices and value not in choices:
            raise InputError(f"--{name} {value!r} does not exist; choose one of {', '.join(_names_of(choices))}")


def check_given(config: Any, *names: str) -> None:
    """Raise ``InputError`` where one of these settings is empty."""
    for name in names:
        if not getattr(config, name):
            raise InputError(f"--{name} is missing; see --help")


def check_positive(config: Any, *names: str) -> None:
    """Raise ``InputError`` where one of these settings is not a number above 0."""
    for name in names:
        if not getattr(config, name) > 0:
            raise InputError(f"--{name} must be above 0, not {getattr(config, name)}")


def help_text(*dataclasses: type, everything: bool = False, default_config: str | Path | None = None) -> str:
    """What ``--help`` prints: how to run the script, its own settings explained, inherited ones by name.

    Args:
        everything: explain the settings that a dataclass inherits from a library too.
    """
    parts = [f"usage: {_USAGE}", "", (getattr(sys.modules["__main__"], "__doc__", None) or "").strip(), "", "settings:"]
    read = f" (default: {_shown_path(default_config)})" if default_config else ""
    parts += [f"  --config FILE             a YAML file of settings{read}; flags on the command line win"]
    inherited: dict[str, list[Field]] = {}
    for kind in dataclasses:
        hints = get_type_hints(kind)
        for each in _own_first(kind):
            library = _library_of(kind, each.name)
            if library and not everything:
                inherited.setdefault(library, []).append(each)
            else:
                parts += _explained(each, hints[each.name])
    for library, unexplained in inherited.items():
        names = ", ".join(f"--{each.name}" for each in unexplained)
        width = shutil.get_terminal_size((100, 24)).columns
        parts += ["", f"settings of {library} (--help_all explains them):"]
        parts += textwrap.wrap(names, width, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join(parts)


def _explained(each: Field, hint: Any) -> list[str]:
    choices = _choices(hint)
    name = f"--{each.name}" + (
        f" {{{','.join(str(choice) for choice in choices if choice is not None)}}}" if choices else ""
    )
    default = each.default_factory() if each.default_factory is not MISSING else each.default
    shown = " ".join(map(str, default)) if isinstance(default, list | tuple) else default
    text = str(each.metadata.get("help", "")).replace("%%", "%")
    text += f" (default: {shown})" if default is not MISSING and shown not in ("", None) else ""
    text += f" (also {', '.join(_aliases(each))})" if _aliases(each) else ""
    width = max(40, shutil.get_terminal_size((100, 24)).columns - 28)
    lines = textwrap.wrap(text, width, break_on_hyphens=False) or [""]
    head = f"  {name:<26}"
    first = [head + lines.pop(0)] if len(head) <= 28 else [head.rstrip()]
    return [*first, *(" " * 28 + line for line in lines)]


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


def _own_first(kind: type) -> Iterator[Field]:
    yield from sorted(fields(kind), key=lambda each: bool(_library_of(kind, each.name)))


def _library_of(kind: type, name: str) -> str:
    """The library class that brought a field in; empty for a field of this project."""
    for base in kind.__mro__:
        if name in inspect.get_annotations(base):
            root = base.__module__.partition(".")[0]
            return f"{root}.{base.__name__}" if root in ("trl", "transformers") else ""
    return ""


def _config_path(args: list[str]) -> tuple[Path | None, list[str]]:
    """The file that ``--config`` names, and the other arguments."""
    split = [part for arg in args for part in (arg.split("=", 1) if arg.startswith("--config=") else [arg])]
    if "--config" not in split:
        return None, split
    index = split.index("--config")
    if index + 1 == len(split):
        raise InputError("--config: names no file; give the path of a YAML file")
    if split.count("--config") > 1:
        raise InputError("--config: is given twice; name one file, and give other settings as flags")
    return Path(split[index + 1]), split[:index] + split[index + 2 :]


def _read_config(path: Path, dataclasses: Sequence[type]) -> dict[str, Any]:
    """The file's settings by field name."""
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give the path of a YAML file") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # bytes, numbers and depth that YAML cannot hold
        raise InputError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(value, dict):
        raise InputError(f"{path}: holds no settings; write one `name: value` a line")
    names = {each.name: each.name for kind in dataclasses for each in fields(kind)}
    for kind in dataclasses:
        for each in fields(kind):
            names |= {alias.lstrip("-"): each.name for alias in _aliases(each)}
    for key in value:
        if key not in names:
            close = get_close_matches(str(key), names, n=1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise InputError(f"{path}: there is no setting {key!r}; {hint}--help lists the settings")
    return {names[key]: item for key, item in value.items()}
