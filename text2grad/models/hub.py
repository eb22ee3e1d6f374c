"""Uploads to the hub: one commit of a policy, a reward model or annotated data, with its card."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from text2grad.errors import InputError
from text2grad.safety.redaction import redacted

PUSH_HELP = "also upload to this repository of the hub, owner/name (HF_TOKEN); a new one is private"
_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def check_repository(name: str) -> None:
    """Raise ``InputError`` where a name cannot be a repository's. Call it before long work."""
    if name and not _NAME.fullmatch(name):
        raise InputError(f"--push_to_hub {name}: names no repository; write owner/name")


def folder_files(folder: str | Path) -> dict[str, Path]:
    """The files of a model's folder, by their names there; checkpoints and subfolders are left out."""
    return {path.name: path for path in sorted(Path(folder).iterdir()) if path.is_file() and path.name[0] != "."}


def publish(files: Mapping[str, Path], repository: str, kind: Literal["model", "dataset"], message: str) -> str:
    """Upload files as one commit; returns the repository's address.

    Args:
        files: by their paths in the repository.

    Raises:
        InputError: the hub refused or was not reached. The files stay where they are.
    """
    from huggingface_hub import CommitOperationAdd, HfApi
    from huggingface_hub.errors import HfHubHTTPError

    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"))
    try:
        address = api.create_repo(repository, repo_type=kind, private=True, exist_ok=True)
        operations = [CommitOperationAdd(name, str(path)) for name, path in files.items()]
        api.create_commit(repository, operations, commit_message=message, repo_type=kind)
    except (HfHubHTTPError, OSError, ValueError) as error:
        reason = redacted(" ".join(str(error).split()))[:200]
        raise InputError(
            f"--push_to_hub {repository}: the upload failed ({reason}); the files are kept. Check HF_TOKEN and the "
            "network, and run the same command again"
        ) from None
    print(f"uploaded {len(files)} files to {address}")
    return str(address)
