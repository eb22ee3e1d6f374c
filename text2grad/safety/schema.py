"""One check of a file's form where it is read: its fields and their types, as pydantic knows them."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from text2grad.errors import InputError


class Form(BaseModel):
    """Base of descriptions. Types are strict: the text ``"false"`` is no bool. Further fields are ignored."""

    model_config = ConfigDict(strict=True)


def checked(schema: Any, value: Any, where: str | Path, remedy: str = "correct it there") -> Any:
    """The value as the schema (a type, or a ``TypeAdapter``) reads it.

    Args:
        where: the file, and the record in it.

    Raises:
        InputError: names ``where``, the first field that is wrong, and the remedy.
    """
    adapter = schema if isinstance(schema, TypeAdapter) else TypeAdapter(schema)
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"][:6])
        named = f"{place!r}: " if place else ""
        raise InputError(f"{where}: {named}{first['msg'][:200]}; {remedy}") from None
