"""Prompt files: plain text with ``${prompt}``, ``${response}``, … (``$$`` for a dollar sign)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from string import Template

from text2grad.errors import InputError
from text2grad.records import fingerprint
from text2grad.safety.gate import regular
from text2grad.tasks import Task, get_task

FIXED_DATE = "26 Jul 2024"
"""For chat templates that print today's date (Llama 3.2's does): what a model reads must not change over night."""


POLICY_PROMPT = "policy_prompt.txt"
"""In a policy's folder: the words that it was asked with in training, where they are not the task's."""


@dataclass(frozen=True)
class Prompt:
    """A prompt file's text and the placeholders in it."""

    text: str
    names: frozenset[str]
    source: str

    @property
    def fingerprint(self) -> str:
        """Changes with any change of the text."""
        return fingerprint(self.text)

    def fill(self, fields: Mapping[str, str]) -> str:
        """The text with every placeholder replaced; what replaces it is not looked into."""
        absent = self.names - set(fields)
        if absent:
            raise InputError(f"{self.source}: names {_shown(absent)}; it may name {_shown(fields)}")
        return Template(self.text).substitute(fields)

    def bound(self, name: str, text: str) -> Prompt:
        """The prompt with one placeholder replaced for good, where it has that placeholder."""
        escaped = text.replace("$", "$$")
        whole = Template.pattern.sub(lambda found: escaped if name in found.groups() else found[0], self.text)
        return Prompt(whole, self.names - {name}, self.source)


def load_prompt(
    path: str | Path, required: Collection[str] = ("prompt", "response"), offered: Collection[str] | None = None
) -> Prompt:
    """Read and check a prompt file.

    Args:
        required: placeholders that it must hold.
        offered: all placeholders that it may hold; any, where None.

    Raises:
        InputError: a missing or empty file, a lone ``$``, a required placeholder that is missing or an unknown one.
    """
    path = Path(path)
    try:
        text = regular(path).read_text(encoding="utf-8-sig").strip()
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: the prompt file is not UTF-8 text at byte {error.start}") from None
    except (OSError, ValueError) as error:
        told = f"the prompt file cannot be read ({getattr(error, 'strerror', error)})"
        raise InputError(f"{path}: {told}; check the path") from None
    if not text:
        raise InputError(f"{path}: the prompt file is empty")
    for match in Template.pattern.finditer(text):
        if match["invalid"] is not None:
            line = text.count("\n", 0, match.start()) + 1
            raise InputError(f"{path}: a lone $ in line {line}; write $$ for a dollar sign")
    names = set(Template(text).get_identifiers())
    missing = set(required) - names
    if missing:
        raise InputError(f"{path}: lacks {_shown(missing)}; put it where that text belongs")
    unknown = names - set(offered) if offered is not None else set()
    if unknown:
        raise InputError(f"{path}: names {_shown(unknown)}; it may name {_shown(offered or ())}")
    return Prompt(text, frozenset(names), str(path))


def prompt_path(task: Task, kind: str, name: str = "") -> Path:
    """The task's own prompt file of a kind (``Task.places``), else the general one of the task ``plain``.

    Raises:
        InputError: the task has none, and the general one asks for other fields than this task's feedback has.
    """
    own, general = task.place(kind, name), get_task("plain")
    if own.is_file():
        return own
    named = replace(task.fields, with_critique=True, with_verdict=True)  # whichever of them z has
    same_fields = named == general.fields or kind in ("judge", "reflect", "teacher")
    if same_fields and general.place(kind, name).is_file():
        return general.place(kind, name)
    what = f"{kind} prompt {name!r}" if name else f"{kind} prompt"
    raise InputError(f"{task.name} has no {what}: {own} does not exist; write it, or name another prompt file")


def asking(task: Task, path: str) -> Task:
    """The task with another file's words for the policy; the task itself where none is named.

    Raises:
        InputError: the file cannot be read, or has no place for the prompt.
    """
    if not path:
        return task
    load_prompt(path, required=("prompt",), offered=("prompt",))
    other = copy(task)
    other.places = {**task.places, "policy": str(Path(path).resolve())}
    return other


def carried_words(model: str) -> str:
    """The file of the words that a policy was trained with, where its folder has one; else nothing."""
    file = Path(model) / POLICY_PROMPT
    return str(file) if file.is_file() else ""


def variant_asked(variant: str | None, critique: bool, replaced: Collection[str] = ()) -> str | None:
    """The prompt's variant by the two settings that decide it: its name, and ``--critique``.

    Args:
        replaced: variants that are replaced by ``spans`` where no critique is wanted.

    Raises:
        InputError: the two contradict each other.
    """
    if critique and variant == "spans":
        raise InputError("spans: is the prompt without a critique; give --critique false in place of its name")
    if not critique and variant and variant not in ("spans", *replaced):
        raise InputError(f"--critique false: asks for spans only, and the prompt {variant} for more; leave one out")
    return variant if critique else "spans"


def find_prompt(task: Task, kind: str, wanted: str, critique: bool = True) -> Path:
    """The prompt file that a setting names: a variant of the task's (``cot``), or a file.

    Args:
        critique: false takes the variant ``spans`` in place of ``cot`` and ``no_cot``.
    """
    if "." in wanted or "/" in wanted:
        return Path(wanted)
    return prompt_path(task, kind, variant_asked(wanted, critique, ("cot", "no_cot")) or wanted)


def _shown(names: Collection[str]) -> str:
    return ", ".join(f"${{{name}}}" for name in sorted(names))
