"""The JSON files between stages: read with clear errors, written atomically, mapped over so that kills cost nothing."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from text2grad.errors import InputError
from text2grad.tasks.base import Record, Task


class StopRunError(Exception):
    """Raised by the work of ``map_records``: end the run here (a budget is spent), keep what is done, fail nothing."""


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
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; check the path (it is relative to {Path.cwd()})") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text at byte {error.start}; save it as UTF-8 JSON") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give a readable JSON file") from None

    def unique(pairs: list[tuple[str, Any]]) -> dict:
        value = dict(pairs)
        if len(value) != len(pairs):
            keys = [key for key, _ in pairs]
            double = next(key for key in keys if keys.count(key) > 1)
            raise InputError(f"{path}: the id or key {double!r} stands twice in one object; make each one unique")
        return value

    try:
        if path.suffix == ".jsonl":
            rows = []
            for number, line in enumerate(text.split("\n"), 1):
                if line.strip():
                    try:
                        rows.append(json.loads(line, object_pairs_hook=unique))
                    except json.JSONDecodeError as error:
                        raise InputError(f"{path}: line {number} is not JSON: {error.msg}; mend or remove it") from None
            return rows
        return json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        remedy = "if it holds one object a line, name it .jsonl" if error.msg == "Extra data" else "mend it there"
        raise InputError(f"{path}: not JSON: {error.msg} at line {error.lineno}; {remedy}") from None


def load_records(path: str | Path, task: Task, responses: bool = True) -> Records:
    """A task's records by id, each checked against the task's format.

    Args:
        path: ``{id: record}`` or a list of records, as JSON or JSONL.
        responses: False where only prompts matter (stage 3): responses may be missing, and the first record of each
            prompt is kept.

    Raises:
        InputError: names the file, the record and the remedy.
    """
    path = Path(path)
    value = load_json(path)
    if not isinstance(value, dict | list):
        raise InputError(f"{path}: holds {type(value).__name__}; a {task.name} file is an object or a list of records")
    if not value:
        raise InputError(f"{path}: holds no records; give a file with at least one")
    pairs = value.items() if isinstance(value, dict) else ((None, record) for record in value)
    records: dict[str, Record] = {}
    prompts: set[str] = set()
    for index, (key, record) in enumerate(pairs):
        where = f"{path}: record {key!r}" if key is not None else f"{path}: record {index}"
        if not isinstance(record, dict):
            hint = "; is this one record rather than a file of them?" if key is not None else ""
            raise InputError(f"{where} is not an object but {type(record).__name__}{hint}")
        try:
            if responses:
                task.check(record)
            elif not task.prompt(record).strip():
                raise InputError("its prompt is empty")
            elif task.prompt(record) in prompts:
                continue
            prompts.add(task.prompt(record))
            if key is None:
                key = task.id_of(record) if responses else f"prompt-{index}"
        except InputError as error:
            raise InputError(f"{where}: {error}; see the {task.name} format in README.md") from None
        if key in records:
            raise InputError(f"{where}: the id {key!r} stands twice; remove one of the two records")
        records[str(key)] = record
    return Records(records, path, isinstance(value, dict))


def save_records(path: str | Path, records: Records) -> None:
    """Write records atomically, in the shape (object or list) they were read in."""
    save_json(path, dict(records) if records.keyed else list(records.values()))


def save_json(path: str | Path, value: Any, indent: int | None = 1) -> None:
    """Write JSON (JSONL for a list and a ``.jsonl`` name) atomically: the whole file or none of it."""
    path = Path(path)
    if path.suffix == ".jsonl":
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in value)
    else:
        text = json.dumps(value, ensure_ascii=False, indent=indent) + "\n"
    save_text(path, text)


def save_text(path: str | Path, text: str) -> None:
    """Write text atomically."""
    path = Path(path)
    check_writable(path)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def check_writable(path: str | Path) -> None:
    """Make the parent folder; ``InputError`` where ``path`` cannot become a file. Call it before long work."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path}: its folder cannot be made ({error.strerror}); choose another output path") from None
    if path.is_dir():
        raise InputError(f"{path}: is a folder; give the path of a file to write")
    target = path if path.exists() else path.parent
    if not os.access(target, os.W_OK):
        raise InputError(f"{path}: cannot be written (no permission on {target}); choose another output path")
    try:
        with tempfile.TemporaryFile(dir=path.parent):  # files are written beside their place, then moved there
            pass
    except OSError as error:
        raise InputError(
            f"{path}: cannot be written ({error.strerror} in {path.parent}); choose another output path"
        ) from None


def fingerprint(value: Any) -> str:
    """A short, stable hash of any JSON value."""
    canonical = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


class Journal:
    """An append-only JSONL file of finished and failed records.

    The first line holds the settings of the run; a journal begun with other settings is refused. Each further line is
    ``{"id", "input", "result"}`` or ``{"id", "input", "error"}``, on disk before the call returns. A last line cut off
    by a kill is dropped.
    """

    def __init__(self, path: str | Path, settings: dict[str, Any]):
        self.path = Path(path)
        self.results: dict[str, tuple[str, Any]] = {}
        self.errors: dict[str, tuple[str, str]] = {}
        self._lock = threading.Lock()
        check_writable(self.path)
        self._file = self.path.open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise InputError(f"{self.path}: another run is writing it; wait for that run or stop it") from None
        self._read(settings)

    def _read(self, settings: dict[str, Any]) -> None:
        self._file.seek(0)
        content = self._file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._file.truncate(len(whole))
        lines = whole.splitlines()
        if len(lines) < 2:  # nothing was finished yet, so that a slip in the settings costs nothing
            self._file.truncate(0)
            self._append({"settings": settings})
            return
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                raise InputError(f"{self.path}: line {number} is broken; remove that line and run again") from None
            if number == 1:
                begun = row.get("settings")
                if begun != settings:
                    keys = sorted(set(begun or {}) | set(settings))
                    differing = ", ".join(
                        f"{key}: {(begun or {}).get(key)!r} then, {settings.get(key)!r} now"
                        for key in keys
                        if (begun or {}).get(key) != settings.get(key)
                    )
                    self._file.close()
                    raise InputError(
                        f"{self.path}: begun with other settings ({differing}); "
                        "use those, choose another output path, or delete the journal to start over"
                    )
            elif "error" in row:
                self.errors[row["id"]] = (row["input"], row["error"])
            else:
                self.results[row["id"]] = (row["input"], row["result"])
                self.errors.pop(row["id"], None)

    def _append(self, row: dict[str, Any]) -> None:
        line = json.dumps(row, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
        with self._lock:
            self._file.write(line)
            self._file.flush()
            os.fsync(self._file.fileno())

    def add(self, record_id: str, input_hash: str, result: Any) -> None:
        self.results[record_id] = (input_hash, result)
        self.errors.pop(record_id, None)
        self._append({"id": record_id, "input": input_hash, "result": result})

    def fail(self, record_id: str, input_hash: str, error: str) -> None:
        self.errors[record_id] = (input_hash, error)
        self._append({"id": record_id, "input": input_hash, "error": error})

    def close(self) -> None:
        self._file.close()


@dataclass
class Outcome:
    """What became of each record: a JSON result, or the reason of its failure. Both in input order.

    ``stopped`` says why the run ended before all records had their turn; it is empty where they had.
    """

    results: dict[str, Any] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    resumed: int = 0
    stopped: str = ""


def map_records(
    records: Mapping[str, Any],
    work: Callable[[list[str], list[Any]], Sequence[Any]],
    *,
    journal: str | Path,
    settings: dict[str, Any],
    batch_size: int = 1,
    workers: int = 1,
    retry_failed: bool = False,
    description: str = "",
    status: Callable[[], dict[str, Any]] | None = None,
) -> Outcome:
    """Apply ``work`` to all records, remembering every result at once, so that a second run does only what is missing.

    Args:
        records: JSON values by id; order them so that batches suit you (by length, for a model).
        work: ``(ids, values) -> results``, one JSON value for each; an ``Exception`` instance for a record that
            failed, None for one that is left to a later run. An exception it raises ends the run (what is finished
            stays finished): ``StopRunError`` with an outcome, any other by passing through.
        journal: the file that remembers; see :class:`Journal`.
        settings: whatever must be equal for results to be compatible (model, prompt, temperature, …).
        workers: threads that call ``work`` at the same time.
        retry_failed: try the records again that an earlier run gave up on; they stay failed otherwise.
        description, status: label and figures of the progress bar.
    """
    hashes = {record_id: fingerprint(value) for record_id, value in records.items()}
    book = Journal(journal, settings)

    def kept(rows: dict[str, tuple[str, Any]]) -> dict[str, Any]:
        return {
            record_id: rows[record_id][1] for record_id in records if rows.get(record_id, ("",))[0] == hashes[record_id]
        }

    done, failed = kept(book.results), kept(book.errors)
    todo = [record_id for record_id in records if record_id not in done and (retry_failed or record_id not in failed)]

    def run(batch: list[str]) -> int:
        results = work(batch, [records[record_id] for record_id in batch])
        if len(results) != len(batch):
            raise RuntimeError(f"{len(batch)} records went in, {len(results)} results came out")
        for record_id, result in zip(batch, results, strict=True):
            if isinstance(result, Exception):
                book.fail(record_id, hashes[record_id], str(result) or type(result).__name__)
            elif result is not None:
                book.add(record_id, hashes[record_id], result)
        return len(batch)

    batches = iter([todo[start : start + batch_size] for start in range(0, len(todo), batch_size)])
    stopped = ""
    try:
        with tqdm(total=len(records), initial=len(records) - len(todo), desc=description, unit="record") as bar:
            for finished in _in_threads(run, batches, workers):
                bar.update(finished)
                if status:
                    bar.set_postfix(status())
    except StopRunError as stop:
        stopped = str(stop)
    finally:
        book.close()
    return Outcome(kept(book.results), kept(book.errors), resumed=len(records) - len(todo), stopped=stopped)


def _in_threads(run: Callable[[list[str]], int], batches: Iterator[list[str]], workers: int) -> Iterator[int]:
    """Results of ``run`` as they come. Only ``workers`` batches are ever in flight."""
    if workers == 1:
        yield from map(run, batches)
        return
    with _cancelling(ThreadPoolExecutor(workers)) as pool:
        running = {pool.submit(run, batch) for batch in islice(batches, workers)}
        while running:
            finished, running = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                yield future.result()
            running |= {pool.submit(run, batch) for batch in islice(batches, len(finished))}


@contextmanager
def _cancelling(pool: ThreadPoolExecutor) -> Iterator[ThreadPoolExecutor]:
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
