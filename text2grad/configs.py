"""One way to read settings: dataclasses, filled from a YAML file (``--config``) and the command line, which wins."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from text2grad.errors import InputError


def parse(*dataclasses: type, args: Sequence[str] | None = None) -> Any:
    """The filled dataclasses (a single one bare), through TRL's ``TrlParser``.

    Args:
        dataclasses: field names are the flags; a field's ``metadata={"help": …}`` documents it.
        args: the command line; ``sys.argv[1:]`` by default.

    Raises:
        InputError: a config file that is missing, not YAML, or sets a field that does not exist.
        SystemExit: code 2 for an unknown flag or a value of the wrong type (argparse prints which).
    """
    from trl import TrlParser

    args = list(sys.argv[1:] if args is None else args)
    path = _config_path(args)
    if path is not None:
        _check_config(path)
    try:
        values = TrlParser(dataclass_types=list(dataclasses)).parse_args_and_config(args)
    except ValueError as error:
        raise InputError(f"{path or 'command line'}: {error}; --help lists the settings") from None
    return values[0] if len(dataclasses) == 1 else values


def _config_path(args: list[str]) -> Path | None:
    for index, arg in enumerate(args):
        if arg.startswith("--config="):
            args[index : index + 1] = ["--config", arg.partition("=")[2]]
    if "--config" not in args:
        return None
    index = args.index("--config")
    if index + 1 == len(args):
        raise InputError("--config: names no file; give the path of a YAML file")
    return Path(args[index + 1])


def _check_config(path: Path) -> None:
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give the path of a YAML file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(value, dict):
        raise InputError(f"{path}: holds no settings; write one `name: value` a line")
