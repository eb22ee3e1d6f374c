"""Checksums of a folder's files: damage that keeps the sizes is found, too. What is damaged is set aside."""

import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from text2grad.records import save_json
from text2grad.safety.gate import UnreadableError, read_json

CHECKSUMS = "checksums.json"
CHECKPOINT = re.compile(r"checkpoint-(\d+)")
WEIGHTS = ("*.safetensors", "*.bin", "*.pt")


def checkpoints(run: Path) -> list[Path]:
    """Whatever has a checkpoint's name in a run's folder, by step."""
    found = [path for path in run.glob("checkpoint-*") if CHECKPOINT.fullmatch(path.name)]
    return sorted(found, key=lambda path: int(path.name.partition("-")[2]))


def checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checksums(folder: Path, files: Iterable[Path]) -> dict[str, str]:
    """The checksum of each file, by its path inside the folder."""
    return {str(path.relative_to(folder)): checksum(path) for path in sorted(files)}


def save_checksums(folder: str | Path, *patterns: str) -> None:
    """Write ``checksums.json`` about a folder's files; its README.md is for people, who may edit it.

    Args:
        patterns: which files; its weights by default. They get the usual mode.
    """
    folder = Path(folder)
    files = {path for pattern in patterns or WEIGHTS for path in folder.glob(pattern)}
    files = {path for path in files if path.is_file() and path.name not in (CHECKSUMS, "README.md")}
    save_json(folder / CHECKSUMS, checksums(folder, files))
    for path in files:
        shutil.copymode(folder / CHECKSUMS, path)  # libraries that write a temporary file first let only its owner read


def damage(folder: str | Path) -> str | None:
    """Which file is not what ``checksums.json`` says was written; None where all are, or there is no list."""
    folder = Path(folder)
    path = folder / CHECKSUMS
    if not path.is_file():
        return None
    try:
        listed = read_json(path.read_bytes())
    except (OSError, UnreadableError) as error:
        return f"its {CHECKSUMS} cannot be read ({error})"
    return damaged_file(folder, listed)


def damaged_file(folder: Path, listed: Any) -> str | None:
    """Which of the files, listed with their checksums by path, is missing, cut off or changed."""
    if not isinstance(listed, Mapping):
        return "its list of files is not one"
    for name, expected in listed.items():
        path = folder / name
        try:
            if not path.is_file():
                return f"its file {name} is missing"
            if checksum(path) != expected:
                return f"its file {name} is damaged (other content than was written)"
        except OSError as error:  # a disk that fails, a name that is none
            return f"its file {name[:100]} cannot be read ({error.strerror})"
    return None


def remove(path: Path) -> None:
    """A folder, or what stands in the place of one: a link, a file, nothing."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def set_aside(path: Path) -> None:
    """Rename what is damaged; an earlier one of that name goes."""
    aside = path.with_name(f"{path.name}.damaged")
    remove(aside)
    os.rename(path, aside)
