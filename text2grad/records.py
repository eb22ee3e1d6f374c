"""The files between stages (JSON; a user's own may be CSV, Parquet or a data set): read with clear errors, written
atomically.
"""

from __future__ import annotations

import csv
import errno
import hashlib
import io
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from text2grad.errors import InputError
from text2grad.safety.gate import UnreadableError, fault, read_json, regular, shown, unique_keys
from text2grad.tasks.base import Record, Task, content_id
from text2grad.tasks.loading import fault_of_task

_FILES = (".json", ".jsonl", ".csv", ".parquet")
_OTHERS = (".gz", ".zst", ".zip", ".xlsx", ".tsv")
_LEDGER = ".text2grad.jsonl"
_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*(#[\w.-]+)?")
_SAMPLE = re.compile(r"@\d+$")


class Records(dict[str, Record]):
    """Records by id, in file order; remembers the file and its shape (object or list), so that output keeps both."""

    def __init__(self, items: Mapping[str, Record], path: Path, keyed: bool):
        super().__init__(items)
        self.path, self.keyed = path, keyed

    def like(self, items: Mapping[str, Record]) -> Records:
        """Other records in this file's shape."""
        return Records(items, self.path, self.keyed)


def load_json(path: str | Path) -> Any:
    """The value in a JSON or JSONL file. ``InputError`` where the file is missing, not JSON, or names a key twice."""
    path = Path(path)
    text, where = _read_text(path), str(path)
    try:
        if _suffix(path) == ".jsonl":
            rows = []
            for number, line in enumerate(text.split("\n"), 1):
                where = f"{path}: line {number}"
                if line.strip():
                    rows.append(read_json(line, unique_keys))
            return rows
        return read_json(text, unique_keys)
    except UnreadableError as error:
        remedy = "if it holds one object a line, name it .jsonl" if "Extra data" in str(error) else "correct it there"
        raise InputError(f"{where}: {error}; {remedy}") from None


def load_csv(path: str | Path) -> list[Record]:
    """The rows of a CSV file with a header, as texts by column; an empty cell is left out of its row.

    Raises:
        InputError: the file is missing or not UTF-8, a column has no name or another's, or a row has too many cells.
    """
    path = Path(path)
    text = _read_text(path)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows = []
    longest = csv.field_size_limit(len(text) + 1)
    try:
        header = [name.strip() for name in next(reader, [])]
        if not all(header) or len(set(header)) < len(header):
            raise InputError(f"{path}: its first line must name each column once; it holds {shown(header, 200)}")
        if len(header) == 1 and ";" in header[0]:
            raise InputError(f"{path}: its columns are separated by ; and not by commas; save it with commas")
        for cells in reader:
            if len(cells) > len(header):
                raise InputError(
                    f"{path}: line {reader.line_num} has {len(cells)} cells where the header has {len(header)}; "
                    "put texts that hold a comma in double quotes"
                )
            if any(cell.strip() for cell in cells):
                rows.append({name: cell for name, cell in zip(header, cells, strict=False) if cell.strip()})
    except csv.Error as error:
        raise InputError(f"{path}: line {reader.line_num} is not CSV: {error}; correct it there") from None
    finally:
        csv.field_size_limit(longest)
    return rows


def _suffix(path: str | Path) -> str:
    """``.csv`` for ``posts.CSV``."""
    return Path(path).suffix.lower()


def is_data_set(path: str | Path) -> bool:
    """Whether a path is a folder, or a name on the hub: ``owner/name`` or ``owner/name#split``."""
    return os.path.isdir(str(path).partition("#")[0]) or (
        bool(_HUB_NAME.fullmatch(str(path))) and _suffix(path) not in _FILES + _OTHERS and not os.path.exists(path)
    )


def load_data_set(name: str) -> list[Record]:
    """The rows of a data set: of the hub, or a folder of data files or of ``save_to_disk``. ``#split`` after the name.

    Raises:
        InputError: there is none, it cannot be reached, or a script makes it.
    """
    from datasets import Dataset, load_dataset, load_from_disk
    from datasets.exceptions import DatasetsError

    place, _, split = name.partition("#")
    try:
        if (Path(place) / "state.json").is_file() or (Path(place) / "dataset_dict.json").is_file():
            found = load_from_disk(place)
            if split and isinstance(found, Dataset):
                raise ValueError("it has no splits")
            return (found if isinstance(found, Dataset) else found[split or "train"]).to_list()
        return load_dataset(place, split=split or "train").to_list()
    except RuntimeError as error:
        if "scripts are no longer supported" not in str(error):
            raise
        raise InputError(
            f"{name}: is made by a script, which `datasets` no longer runs; download its files "
            f"(hf download {place} --repo-type dataset --local-dir FOLDER) and give one, .jsonl say"
        ) from None
    except (OSError, ValueError, KeyError, OverflowError, DatasetsError) as error:
        reason = " ".join(str(error.__cause__ or error).split())[:200]
        raise InputError(
            f"{name}: no .json, .jsonl, .csv or .parquet file and no data set ({reason}); check the name, and the "
            "split after #"
        ) from None


def load_parquet(path: str | Path) -> list[Record]:
    """The rows of a Parquet file. ``InputError`` where it is missing or is none."""
    from pyarrow import ArrowException, parquet

    if not Path(path).is_file():
        raise _no_such_file(path)
    try:
        return parquet.ParquetFile(path).read().to_pylist()
    except (OSError, ValueError, OverflowError, ArrowException) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{path}: no Parquet file that can be read ({reason})") from None


def _filled(rows: list[Record], where: str | Path) -> list[Record]:
    """Rows of a table without their empty fields: a table has every column in every row."""
    for number, row in enumerate(rows):
        try:
            json.dumps(row)
        except TypeError as error:
            raise InputError(f"{where}: record {number}: {error}; records hold what JSON can hold") from None
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


def load_rows(path: str | Path) -> Any:
    """What a file, folder or data set holds, unchanged; empty fields of tables are left out."""
    if is_data_set(path):
        return _filled(load_data_set(str(path)), path)
    suffix = _suffix(path)
    if suffix in _OTHERS:
        raise InputError(f"{path}: {suffix} is not read; unpack it, or save it as .json, .jsonl, .csv or .parquet")
    if suffix == ".parquet":
        return _filled(load_parquet(path), path)
    return load_csv(path) if suffix == ".csv" else load_json(path)


def each_record(path: str | Path, task: Task) -> Iterator[tuple[str, str | None, Record]]:
    """Of each record of a file: where it is, in words, its key (None in a list), and the record.

    Raises:
        InputError: there are none, or one is no object that a file can hold.
    """
    value = load_rows(path)
    if not isinstance(value, dict | list):
        raise InputError(f"{path}: holds {type(value).__name__}; a {task.name} file is an object or a list of records")
    if not value:
        raise InputError(f"{path}: holds no records; give a file with at least one")
    pairs = value.items() if isinstance(value, dict) else ((None, record) for record in value)
    for index, (key, record) in enumerate(pairs):
        where = f"{path}: record {shown(key)}" if key is not None else f"{path}: record {index}"
        if not isinstance(record, dict):
            hint = "is this one record rather than a file of them?" if key is not None else "write each as an object"
            raise InputError(f"{where} is not an object but {type(record).__name__}; {hint}")
        if problem := fault({key: record} if key is not None else record):
            raise InputError(f"{where}: {problem}; correct or remove that record")
        yield where, key, record


def load_records(path: str | Path, task: Task, responses: bool | None = True) -> Records:
    """A task's records by id, each checked against the task's format.

    Args:
        path: ``{id: record}`` or a list of records, as JSON or JSONL; CSV or Parquet, whose columns are the records'
            fields; or a data set, of the hub or a folder (:func:`load_data_set`).
        responses: False where only prompts matter (stage 3): responses may be missing, and the first record of each
            prompt is kept, by its prompt's id. None where references or comparisons may stand in for them: responses
            may be missing, and every record is kept.

    Raises:
        InputError: names the file, the record and the remedy.
    """
    records: dict[str, Record] = {}
    prompts: set[str] = set()
    keyed = False
    for where, key, record in each_record(path, task):
        keyed = key is not None
        try:
            if responses is None:
                task.reference(record)  # raises where it is no text
            if responses or (responses is None and (task.response_if_any(record) or "").strip()):
                task.check(record)
            elif not task.prompt(record).strip():
                raise InputError("its prompt is empty")
            elif responses is False and task.prompt(record) in prompts:
                continue
            prompts.add(task.prompt(record))
            if key is None and responses is False:
                key = str(task.prompt_id(record))
                if key in records:  # one id for two prompts
                    key = content_id(key, task.prompt(record))
            elif key is None:
                own = str(record.get("id"))  # of a numbered answer, whatever field the task has for its prompts' ids
                key = own if _SAMPLE.search(own) else task.id_of(record)
        except InputError as error:
            missing = responses and task.response_if_any(record) is None
            remedy = f"{task.format_help}; evaluation/generate.py writes responses" if missing else task.format_help
            raise InputError(f"{where}: {error}; {remedy}") from None
        except Exception as error:
            raise InputError(f"{where}: {fault_of_task(error, task)}") from error
        if key in records:
            remedy = "remove one of the two records"
            if _SAMPLE.search(str(key)):
                remedy += ", or rename both: an id that ends in @ and a number is that of one answer"
            raise InputError(f"{where}: the id {key!r} is there twice; {remedy}")
        records[str(key)] = record
    return Records(records, Path(path), keyed)


def generation_of(record: Record) -> dict[str, Any]:
    """What ``evaluation/generate.py`` noted of how the response was made; empty where nothing did."""
    made = record.get("generation")
    return made if isinstance(made, dict) else {}


def annotation_of(record: Record) -> dict[str, Any]:
    """How the feedback was made; empty where nothing says so, or another program says it in other words."""
    made = record.get("annotation")
    return made if isinstance(made, dict) else {}


def predicted_of(record: Record, where: str) -> dict[str, Any] | None:
    """A model's feedback on the response, as ``2_infer.py`` writes it; None where its text could not be read.

    Raises:
        InputError: the record has none.
    """
    if not isinstance(found := record.get("predicted", ""), dict | None):
        raise InputError(f"{where} has no feedback of a model ('predicted'); run 2_infer.py first")
    return found


def prompt_of(record_id: str) -> str:
    """The prompt of a record: ``evaluation/generate.py`` numbers several answers to one as ``ID@0``, ``ID@1``, …"""
    return _SAMPLE.sub("", record_id)


def save_records(path: str | Path, records: Records) -> None:
    """Write records atomically, in the shape (object or list) they were read in; in JSONL each row has its id."""
    if records.keyed and _suffix(path) == ".jsonl":
        save_json(path, [{**record, "id": key} for key, record in records.items()])
    else:
        save_json(path, dict(records) if records.keyed else list(records.values()))


def save_failures(output: Path, failures: Mapping[str, str]) -> Path:
    """Write why each of these records failed to ``OUTPUT.failed.json``; where none did, an earlier call's goes."""
    path = output.with_name(f"{output.name}.failed.json")
    if failures:
        save_json(path, failures)
    else:
        path.unlink(missing_ok=True)
    return path


def save_json(path: str | Path, value: Any, indent: int | None = 1) -> None:
    """Write JSON (JSONL for a list and a ``.jsonl`` name) atomically: the whole file or none of it."""
    path = Path(path)
    if _suffix(path) == ".jsonl":
        if isinstance(value, dict):
            raise InputError(f"{path}: a .jsonl file holds rows, and this is one object; name it .json")
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in value)
    else:
        text = json.dumps(value, ensure_ascii=False, indent=indent) + "\n"
    save_text(path, text)


def save_text(path: str | Path, text: str) -> None:
    """Write text atomically."""
    save_bytes(path, text.encode())


def save_bytes(path: str | Path, content: bytes) -> None:
    """Write a file atomically."""
    path = Path(path)
    check_writable(path)
    temporary = path.with_name(f".{path.name}.{uuid4().hex[:8]}")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if path.absolute() in _outputs:
            _remember(path, content)  # before it is in place: a kill between the two loses nothing
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            remedy = "free some space" if full else "look at the disk and its limits"
            raise InputError(f"{path}: cannot be written ({error.strerror}); {remedy} and run again") from None
        raise


def check_writable(path: str | Path) -> None:
    """Make the parent folder; ``InputError`` where ``path`` cannot become a file. Call it before long work."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (OSError, RecursionError) as error:
        reason = getattr(error, "strerror", "") or "too many folders"
        raise InputError(f"{path}: its folder cannot be made ({reason}); choose another output path") from None
    if os.path.isdir(path):
        raise InputError(f"{path}: is a folder; give the path of a file to write")
    target = path if os.path.exists(path) else path.parent
    if not os.access(target, os.W_OK):
        raise InputError(f"{path}: cannot be written (no permission on {target}); choose another output path")
    try:
        # Files are written next to their place, then moved there; the temporary name is longer than the final one.
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", suffix=".report.json"):
            pass
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", error)
        raise InputError(f"{path}: cannot be written ({reason} in {path.parent}); choose another output path") from None


def check_own_file(path: Path) -> Path:
    """The path of a file that only this program writes; ``InputError`` where a link, a pipe or a folder is there."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise InputError(f"{path}: was not written by this program; move it")
    return path


def check_folder(path: str | Path, empty: bool = False) -> None:
    """``InputError`` where something else than a folder has this place, or, with ``empty``, a folder that holds files.

    Call it before long work that fills the folder.
    """
    path = Path(path)
    if os.path.lexists(path) and not path.is_dir():
        raise InputError(f"{path}: is not a folder; move it, or choose another output folder")
    if empty and path.is_dir() and any(path.iterdir()):
        raise InputError(f"{path}: holds files already; delete it, or choose another output folder")


_outputs: set[Path] = set()


def output_for(data: str, output: str | None, ending: str) -> Path:
    """Where a stage's output goes: by default beside its data, as ``NAME.ENDING.json``; of a data set, in this folder.

    Raises:
        InputError: it is neither .json nor .jsonl, or :func:`check_output` refuses it.
    """
    source = Path(data)
    folder, name = (Path(), source.name) if is_data_set(data) else (source.parent, source.stem)
    path = Path(output) if output else folder / f"{name}.{ending}.json"
    if _suffix(path) not in (".json", ".jsonl"):
        raise InputError(f"{path}: name the output .json or .jsonl")
    check_output(path)
    return path


def check_output(path: str | Path) -> None:
    """Call it before long work that ends in a file of the user's choice: nothing is replaced that another wrote.

    ``.text2grad.jsonl`` in its folder remembers what :func:`save_text` writes there from now on, so that this program
    may replace it.

    Raises:
        InputError: ``path`` cannot be written, names a table, or holds what this program did not write.
    """
    path = Path(path)
    if _suffix(path) in (".csv", ".parquet"):
        raise InputError(f"{path}: outputs are JSON; name it .json or .jsonl")
    check_writable(path)
    _outputs.add(path.absolute())
    known = _ledger(path).splitlines()
    if not os.path.lexists(path):
        return
    if path.is_symlink() or not path.is_file():
        raise InputError(f"{path}: is not a regular file; choose another output path")
    content = path.read_bytes()
    if content and _ledger_row(path, content) not in known:
        raise InputError(
            f"{path}: was not written by {Path(sys.argv[0]).name}, or has changed since; move or delete it, or choose "
            "another output path"
        )


def _remember(path: Path, content: bytes) -> None:
    row = _ledger_row(path, content)
    if row not in _ledger(path).splitlines():
        with check_own_file(path.with_name(_LEDGER)).open("a", encoding="utf-8") as file:
            file.write(f"{row}\n")


def _ledger(path: Path) -> str:
    ledger = check_own_file(path.with_name(_LEDGER))
    return ledger.read_text(encoding="utf-8", errors="replace") if ledger.is_file() else ""


def _ledger_row(path: Path, content: bytes) -> str:
    digest = hashlib.sha256(content).hexdigest()
    return json.dumps({"file": path.name, "program": Path(sys.argv[0]).name, "sha256": digest})


def fingerprint(value: Any) -> str:
    """A short, stable hash of any JSON value."""
    canonical = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def differing_settings(begun: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """``(then, now)`` by name, of the settings that differ; None where one side has no such setting."""
    names = sorted(set(begun) | set(now))
    return {name: (begun.get(name), now.get(name)) for name in names if begun.get(name) != now.get(name)}


def check_same_settings(
    path: str | Path, begun: Mapping[str, Any], now: Mapping[str, Any], remedy: str = "choose another --output_dir"
) -> None:
    """Raise ``InputError`` where work that was begun with other settings would be continued with those of ``now``.

    Args:
        path: the file or folder of that work.
        remedy: what to do, other than to use the old settings.
    """
    differing = differing_settings(begun, now)
    if differing:
        told = "; ".join(f"{name}: {shown(then)} then, {shown(value)} now" for name, (then, value) in differing.items())
        raise InputError(f"{path}: begun with other settings ({told}); use those, or {remedy}")


def _no_such_file(path: str | Path) -> InputError:
    where = "" if Path(path).is_absolute() else f" (it is relative to {Path.cwd()})"
    return InputError(f"{path}: no such file; check the path{where}")


def _read_text(path: Path) -> str:
    try:
        return regular(path).read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise _no_such_file(path) from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text at byte {error.start}; save it as UTF-8") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", error)
        raise InputError(f"{shown(str(path), 300)}: cannot be read ({reason}); give a readable file") from None
