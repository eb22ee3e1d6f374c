"""Work that a kill does not undo: an append-only journal of results, and a map over records that resumes from it."""

import fcntl
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, Any

from tqdm.auto import tqdm

from text2grad.errors import InputError, StopRunError
from text2grad.records import check_same_settings, check_writable, differing_settings, fingerprint
from text2grad.safety.gate import UnreadableError, as_storable, fault, read_json

_ROOM = 2 << 20  # bytes that a disk must have left before more is paid for


def locked(file: IO, path: Path) -> bool:
    """Hold a file for this process until it is closed; False where another does. A warning where none can be held."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        print(f"warning: {path}: cannot be locked here ({error.strerror}); start no second run", file=sys.stderr)
    return True


class LockedLog:
    """An append-only JSONL file that one process at a time writes; a last line cut off by a kill is dropped.

    Args:
        to_disk: each row is on the disk, not only with the operating system, before :meth:`append` returns.
        headed: without its first line the others mean nothing.
    """

    def __init__(self, path: str | Path, to_disk: bool = True, headed: bool = False):
        self.path, self._to_disk, self._headed = Path(path), to_disk, headed
        self._lock = threading.Lock()
        check_writable(self.path)
        if self.path.exists() and not self.path.is_file():
            raise InputError(f"{self.path}: is not a regular file; choose another output path")
        try:
            self._file = self.path.open("a+b", buffering=0)
        except OSError as error:
            raise InputError(f"{self.path}: cannot be opened ({error.strerror}); choose another output path") from None
        if not locked(self._file, self.path):
            self._file.close()
            raise InputError(f"{self.path}: another run is writing it; wait for that run or stop it")

    def rows(self) -> list[dict[str, Any]]:
        """What the file holds; ``InputError`` names a line that is no JSON object. A file of another kind is kept."""
        self._file.seek(0)
        content = self._file.read()
        whole = content[: content.rfind(b"\n") + 1]
        rest = content[len(whole) :]
        rows: list[dict[str, Any]] = []
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                rows.append(read_json(line))
            except UnreadableError as error:
                raise self.broken(number, str(error)) from None
            if not isinstance(rows[-1], dict):
                raise self.broken(number, "it is no object")
        if rest and not rows:
            with suppress(UnreadableError):  # a first line that a kill cut off begins like a row, and is none yet
                if rest.startswith(b'{"'):
                    read_json(rest)
                raise self.foreign()
        if rest and rows:
            with suppress(UnreadableError):  # no part of an object is one: only the end of its line is missing
                if isinstance(row := read_json(rest), dict):
                    self._file.write(b"\n")
                    return [*rows, row]
        if rest:
            self._file.truncate(len(whole))
        return rows

    def broken(self, number: int, why: str = "") -> InputError:
        """Close the file; the error says which line cannot be used."""
        self._file.close()
        reason = f" ({why})" if why else ""
        head = self._headed and number == 1
        remedy = "restore it, or move the file and begin anew" if head else "remove that line and run again"
        return InputError(f"{self.path}: line {number} is broken{reason}; {remedy}")

    def foreign(self) -> InputError:
        """Close the file; it was never a log."""
        self._file.close()
        return InputError(f"{self.path}: is another file than this program's log; move it, or choose another output")

    def clear(self) -> None:
        self._file.truncate(0)

    def append(self, row: dict[str, Any], patience: float = 0.0) -> None:
        """Add a row: the whole of it or nothing.

        Args:
            patience: seconds to wait for room on a full disk, for a row that was paid for.

        Raises:
            StopRunError: the disk is full, or fails.
        """
        line = json.dumps(row, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
        until, told = time.monotonic() + patience, False
        with self._lock:
            while (problem := self._written(line)) is not None:
                if time.monotonic() >= until:
                    raise StopRunError(f"{self.path}: cannot be written ({problem}); free some space and run again")
                if not told:
                    tqdm.write(f"{self.path}: cannot be written ({problem}); waiting for space", file=sys.stderr)
                    told = True
                time.sleep(1.0)

    def check_room(self) -> None:
        """``StopRunError`` where the disk has no room for what is about to be paid for."""
        disk = os.statvfs(self.path.parent)
        if disk.f_bavail * disk.f_frsize < _ROOM:
            raise StopRunError(f"{self.path}: the disk is full; free some space and run again")

    def _written(self, line: bytes) -> str | None:
        """Why a line could not be written; None where it is."""
        start = os.fstat(self._file.fileno()).st_size
        view = memoryview(line)
        try:
            while view:
                view = view[self._file.write(view) or 0 :]
            if self._to_disk:
                os.fsync(self._file.fileno())
        except OSError as error:
            self._file.truncate(start)
            return error.strerror
        return None

    def close(self) -> None:
        self._file.close()


class Journal:
    """A log of finished and failed records.

    The first line holds the settings of the run; a journal begun with other settings is refused. Each further line is
    ``{"id", "input", "result"}`` or ``{"id", "input", "error"}``, on disk before the call returns.

    Args:
        allow_changed: go on with other settings; a further line of settings says where they begin to apply. None:
            the caller has no flag for it that an error could name.
        result_type: of every result, as Python decodes it.

    Attributes:
        changes: ``{"from_record", "settings"}`` of each such line: which record came next, and what was changed.
    """

    def __init__(
        self, path: str | Path, settings: dict[str, Any], allow_changed: bool | None = None, result_type: type = object
    ):
        self.path, self._result_type = Path(path), result_type
        self.changes: list[dict[str, Any]] = []
        self._allow_changed = allow_changed
        self.results: dict[str, tuple[str, Any]] = {}
        self.errors: dict[str, tuple[str, str]] = {}
        self.passing: set[str] = set()  # of the errors, those that a later run may not meet again
        self._log = LockedLog(path, headed=True)
        self._read(settings)

    def _read(self, settings: dict[str, Any]) -> None:
        rows = self._log.rows()
        if len(rows) == 1 and "settings" not in rows[0]:
            raise self._log.foreign()
        if len(rows) < 2:  # nothing was finished yet, so that a slip in the settings costs nothing
            self._log.clear()
            self._log.append({"settings": settings})
            return
        last: dict[str, Any] = {}
        for number, row in enumerate(rows, 1):
            try:
                _check_row(row, number == 1, self._result_type)
            except UnreadableError as error:
                raise self._log.broken(number, str(error)) from None
            if "settings" in row:
                if number > 1:
                    self._changed(last, row["settings"])
                last = row["settings"]
            elif "error" in row:
                self.errors[row["id"]] = (row["input"], row["error"])
                (self.passing.add if row.get("passing") is True else self.passing.discard)(row["id"])
            else:
                self.results[row["id"]] = (row["input"], row["result"])
                self.errors.pop(row["id"], None)
        if differing_settings(last, settings):
            if not self._allow_changed:
                self._log.close()
                keeping = "add --allow_changed true to keep what is done, " if self._allow_changed is False else ""
                remedy = f"choose another output path, {keeping}or delete the journal to start over"
                check_same_settings(self.path, last, settings, remedy)
            self._changed(last, settings)
            self._log.append({"settings": settings})

    def _changed(self, then: dict[str, Any], now: dict[str, Any]) -> None:
        differing = {name: value for name, (_, value) in differing_settings(then, now).items()}
        self.changes.append({"from_record": len(self.results) + len(self.errors) + 1, "settings": differing})

    def add(self, record_id: str, input_hash: str, result: Any) -> None:
        self.results[record_id] = (input_hash, result)
        self.errors.pop(record_id, None)
        self._log.append({"id": record_id, "input": input_hash, "result": result})

    def fail(self, record_id: str, input_hash: str, error: str, passing: bool = False) -> None:
        self.errors[record_id] = (input_hash, error)
        row = {"id": record_id, "input": input_hash, "error": error}
        self._log.append(row | ({"passing": True} if passing else {}))

    def close(self) -> None:
        self._log.close()


def _check_row(row: dict[str, Any], first: bool, result_type: type) -> None:
    """Raise ``UnreadableError`` where a row is none of a journal."""
    about_settings = first or "settings" in row
    kinds = {"settings": dict} if about_settings else {"id": str, "input": str}
    if any(not isinstance(row.get(name), kind) for name, kind in kinds.items()):
        raise UnreadableError(f"it lacks {' or '.join(kinds)}")
    if about_settings and not first and not row["settings"]:
        raise UnreadableError("it holds no settings")
    if about_settings or isinstance(row.get("error"), str):
        return
    result = row.get("result")
    if result is None or not isinstance(result, result_type):
        raise UnreadableError("it holds neither a result nor an error")


@dataclass
class Outcome:
    """Each record's result (JSON), or the reason of its failure. Both in input order.

    ``stopped`` says why the run ended early; it is empty where all records had their turn.
    """

    results: dict[str, Any] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    resumed: int = 0
    stopped: str = ""
    changes: list[dict[str, Any]] = field(default_factory=list)
    """The settings that were changed on the way; see :class:`Journal`."""

    def whole(self) -> "Outcome":
        """Itself; ``InputError`` where the run ended early."""
        if self.stopped:
            done = f"{len(self.results)} records are done and kept"
            raise InputError(f"{self.stopped}; {done}, run the same command again to continue")
        return self


def map_records(
    records: Mapping[str, Any],
    work: Callable[[list[str], list[Any]], Sequence[Any]],
    *,
    journal: str | Path,
    settings: dict[str, Any],
    batch_size: int = 1,
    workers: int = 0,
    retry_failed: bool = False,
    allow_changed: bool | None = None,
    result_type: type = object,
    description: str = "",
    status: Callable[[], dict[str, Any]] | None = None,
) -> Outcome:
    """Apply ``work`` to all records, remembering every result at once, so that a second run does only what is missing.

    Args:
        records: JSON values by id; order them so that batches suit you (by length, for a model).
        work: ``(ids, values) -> results``, one JSON value for each; an ``Exception`` instance for a record that
            failed, None for one that is left to a later run. Where the exception has a true ``passing``, a later run
            tries that record again, after all others. An exception it raises ends the run (what is finished
            stays finished): ``StopRunError`` with an outcome, any other by passing through.
        journal: the file that remembers; see :class:`Journal`.
        settings: whatever must be equal for results to be compatible (model, prompt, temperature, …).
        workers: threads that call ``work``; what is in flight there is waited for when the run is asked to end. 0: this
            thread calls it, and a signal ends it at once, which suits work that costs no money.
        retry_failed: try the records again that an earlier run gave up on; they stay failed otherwise.
        allow_changed: go on with other settings than the journal was begun with; see :class:`Journal`.
        result_type: of every result; a journal that holds another is refused.
        description, status: label and figures of the progress bar.
    """
    hashes = {record_id: fingerprint(value) for record_id, value in records.items()}
    book = Journal(journal, settings, allow_changed, result_type)

    done, failed = _current(book.results, hashes), _current(book.errors, hashes)
    todo = [record_id for record_id in records if record_id not in done and (retry_failed or record_id not in failed)]
    if not retry_failed:
        todo += [record_id for record_id in failed if record_id in book.passing]

    def run(batch: list[str]) -> int:
        _remember(book, hashes, batch, work(batch, [records[record_id] for record_id in batch]))
        return len(batch)

    batches = iter([todo[start : start + batch_size] for start in range(0, len(todo), batch_size)])
    resumed, stopped = len(records) - len(todo), ""
    try:
        with (
            tqdm(desc=description, total=len(records), initial=resumed, unit="record", leave=False) as bar,
            closing(_in_threads(run, batches, workers)) as results,  # also where a signal comes in this block
        ):
            for finished in results:
                bar.update(finished)
                if status:
                    bar.set_postfix(status())
    except StopRunError as stop:
        stopped = str(stop)
    finally:
        book.close()
    return Outcome(_current(book.results, hashes), _current(book.errors, hashes), resumed, stopped, book.changes)


def _current(rows: Mapping[str, tuple[str, Any]], hashes: Mapping[str, str]) -> dict[str, Any]:
    """What a journal holds of the records as they are now, in their order."""
    return {record_id: rows[record_id][1] for record_id, own in hashes.items() if rows.get(record_id, ("",))[0] == own}


def _remember(book: Journal, hashes: Mapping[str, str], batch: Sequence[str], results: Sequence[Any]) -> None:
    """Put a batch's results into the journal: what cannot be stored has failed, and None is left to a later run."""
    if len(results) != len(batch):
        raise RuntimeError(f"{len(batch)} records went in, {len(results)} results came out")
    for record_id, result in zip(batch, results, strict=True):
        if not isinstance(result, Exception) and (problem := fault(result, finite=False)):
            result = UnreadableError(f"its result cannot be stored: {problem}")
        if isinstance(result, Exception):
            reason, passing = as_storable(str(result)) or type(result).__name__, getattr(result, "passing", False)
            book.fail(record_id, hashes[record_id], reason, passing)
        elif result is not None:
            book.add(record_id, hashes[record_id], result)


def _in_threads(run: Callable[[list[str]], int], todo: Iterator[list[str]], workers: int) -> Generator[int, None, None]:
    """Results of ``run`` as they come. Only ``workers`` batches are ever in flight, and all of them end before this."""
    if not workers:
        yield from map(run, todo)
        return
    in_flight = _InFlight(run)
    pool = ThreadPoolExecutor(workers)
    try:
        running = {pool.submit(in_flight, batch) for batch in islice(todo, workers)}
        while running:
            finished, running = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                yield future.result()
            running |= {pool.submit(in_flight, batch) for batch in islice(todo, len(finished))}
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        in_flight.end()


class _InFlight:
    """Calls that have begun and not ended: what they ask for has been paid for.

    The pool cannot say it after a signal. One inside ``submit`` leaves a worker that the pool does not know, and
    Python 3.11 takes a thread for ended when a signal comes while it is joined.
    """

    def __init__(self, run: Callable[[list[str]], int]):
        self._run, self._count, self._lock = run, 0, threading.Lock()

    def __call__(self, batch: list[str]) -> int:
        with self._lock:
            self._count += 1
        try:
            return self._run(batch)
        finally:
            with self._lock:
                self._count -= 1

    def end(self) -> None:
        """Return when all calls have ended; a signal in the meantime is raised after that."""
        signals: list[KeyboardInterrupt] = []
        while self._count:
            try:
                time.sleep(0.02)
            except KeyboardInterrupt as signal:
                signals.append(signal)
        if signals:
            raise signals[0]
