"""One check of a file's form where it enters: fields and their types, as a pydantic model describes them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from text2grad.errors import InputError
from text2grad.safety.gate import fault, shown


class Form(BaseModel):
    """Base of the descriptions. Types are strict: the text ``"false"`` is no bool. Further fields are ignored."""

    model_config = ConfigDict(strict=True)


def check_form(form: Any, value: Any, where: str) -> None:
    """Raise ``InputError`` with the first field of a decoded JSON value that a form (``list[SomeForm]``) forbids.

    Args:
        where: the file, and the record in it.
    """
    if problem := fault(value, finite=False):
        raise InputError(f"{where}: {problem}; correct it there")
    try:
        TypeAdapter(form).validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        given = "" if first["type"] == "missing" else f", not {shown(first['input'])}"
        raise InputError(f"{where}: {place}: {first['msg'].lower()}{given}; correct it there") from None
