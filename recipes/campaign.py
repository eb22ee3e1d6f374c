"""Runs of several methods and seeds in a given time: the most telling first, figures written at once, resumable.

    python recipes/campaign.py --config recipes/kodcode_small.yaml --data_path solutions.json --output_dir runs/small
    python recipes/campaign.py … --minutes 25 --jobs 4      # 4 runs share a GPU; no command runs longer than that
    python recipes/campaign.py … --set rollouts=8 steps=20  # other sizes

The file lists commands: ``prepare`` once, then for each seed and each of its ``methods`` those of ``train``, with the
method's ``{flags}`` (or commands of the method's own), and of ``measure``. Names in braces are its ``sizes``, the
``{seed}``, the run's ``{name}`` and folder ``{out}``, and its ``{policy}``. A run ends with ``result.json``; the same
command goes on where the last one was stopped.
"""

import os
import shlex
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import MISSING, dataclass
from pathlib import Path
from string import Formatter
from threading import Lock
from typing import Any

from tabulate import tabulate

from text2grad.configs import parse, setting
from text2grad.errors import InputError, command
from text2grad.journal.checksums import checksum
from text2grad.records import check_same_settings, fingerprint, load_json, save_json
from text2grad.statistics import interval_text, mean_interval

BASE, COMMANDS = "base", "commands.json"
ONE_WORD = {"data", "model", "run", "out", "policy", "name"}
"""What may hold spaces."""


@dataclass
class CampaignConfig:
    """What is run, where, and for how long."""

    output_dir: str = setting(MISSING, "folders of all runs, and figures.json: {run}", "--save_dir")
    model: str = setting(MISSING, "the policy at the start: {model}")
    data_path: str = setting("", "the records, or the name of a `datasets` set: {data}", "--dataset_path")
    seeds: list[int] = setting([1, 2, 3], "one run of each method for each")
    only: list[str] = setting([], "these methods, in this order; by default all")
    jobs: int = setting(1, "runs at the same time", above=0)
    minutes: float = setting(0, "stop after so long; 0: when all is done", at_least=0)
    set: list[str] = setting([], "other values of sizes, NAME=VALUE")
    sizes: dict[str, Any] = setting({}, "values of names in the commands")
    prepare: list[str] = setting([], "commands before the first run")
    train: list[str] = setting([], "commands that train a policy with {flags}")
    measure: list[str] = setting([], "commands after each run's training")
    metrics: list[str] = setting([], "what the table shows of each result; by default pass@k, or all")
    methods: dict[str, Any] = setting({}, "name: its {flags}, or {train, policy}")


class Campaign:
    """One call of the program."""

    def __init__(self, config: CampaignConfig):
        self.config, self.folder = config, Path(config.output_dir)
        self.end = time.monotonic() + 60 * config.minutes if config.minutes else None
        self.lock = Lock()
        threads = max(1, (os.cpu_count() or 1) // config.jobs)  # else each run takes all cores, and all wait
        self.environment = {"OMP_NUM_THREADS": str(threads), **os.environ}
        self.running: list[subprocess.Popen] = []
        self.stopped = False
        if BASE not in config.methods:
            raise InputError(f"methods lacks {BASE}: {{train: [], policy: ...}}, the start that all are compared with")
        for name, given in (("seeds", config.seeds), ("only", config.only)):
            if len(set(given)) < len(given):
                raise InputError(f"--{name} {' '.join(map(str, given))}: names one twice, whose folder two would write")
        if unknown := [name for name in config.only if name not in config.methods]:
            raise InputError(f"--only {' '.join(unknown)}: the methods are {', '.join(config.methods)}")
        if not config.data_path and "{data}" in " ".join(config.prepare + config.train):
            raise InputError("--data_path is missing: the records that this campaign is about")
        changed = [pair.partition("=") for pair in config.set]
        if unknown := [name for name, equals, _ in changed if not equals or name not in config.sizes]:
            raise InputError(f"--set {' '.join(unknown)}: give NAME=VALUE; the sizes are {', '.join(config.sizes)}")
        self.names = {
            **config.sizes, **{name: value for name, _, value in changed},
            "data": config.data_path, "model": config.model, "run": config.output_dir,
        }  # fmt: skip
        path = Path(config.data_path)
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        read = [checksum(file) for file in files if config.data_path and file.is_file()]
        self.data = {"data": fingerprint(read)} if read else {}

    def run(self) -> bool:
        """Run all; False where time was up or a run failed. A signal ends the commands, which save what they must."""
        self.folder.mkdir(parents=True, exist_ok=True)
        pool = ThreadPoolExecutor(self.config.jobs)
        try:
            prepare = self._checked(self.folder, self.config.prepare, {})
            if not self._commands(self.config.prepare, self.folder / "prepare.log", {}):
                return False
            save_json(self.folder / COMMANDS, prepare)
            if not self._one(BASE, 0):
                return False
            methods = [name for name in self.config.only or self.config.methods if name != BASE]
            jobs = [(method, seed) for seed in self.config.seeds for method in methods]
            return all(list(pool.map(self._tried, jobs)))
        except KeyboardInterrupt:
            self.stopped = True
            pool.shutdown(wait=False, cancel_futures=True)  # before a command's end makes room for the next run
            for process in list(self.running):
                self._end(process)
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    @staticmethod
    def _end(process: subprocess.Popen) -> None:
        """A run of this project writes a checkpoint, and goes on from it."""
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait()

    def _tried(self, job: tuple[str, int]) -> bool:
        """One run; what is wrong with it stops no other."""
        try:
            return self._one(*job)
        except InputError as error:
            print(f"error: {error}", file=sys.stderr, flush=True)
            return False

    def _one(self, method: str, seed: int) -> bool:
        """Train and measure, unless it was done."""
        given = self.config.methods[method]
        about = given if isinstance(given, dict) else {"flags": given}
        out = self.folder / (method if method == BASE else f"{method}-seed{seed}")
        names = {"seed": seed, "name": out.name, "out": str(out)}
        names["flags"] = with_names(about.get("flags") or "", {**self.names, **names})
        names["policy"] = with_names(about.get("policy", "{out}/train/policy"), {**self.names, **names})
        names["against"] = (
            "" if method == BASE else f"--compare_with {shlex.quote(str(self.folder / BASE / 'result.json'))}"
        )
        commands = [*about.get("train", self.config.train), *self.config.measure]
        now = self._checked(out, commands, names)
        if (out / "result.json").is_file():
            if method == BASE:  # the first: an earlier call may have ended before it wrote the figures of its last run
                self._figures()
            return True
        save_json(out / COMMANDS, now)
        if not self._commands(commands, out / "log.txt", names):
            return False
        if not (out / "result.json").is_file():
            print(f"{out}: no command wrote result.json there; see `measure`", file=sys.stderr, flush=True)
            return False
        with self.lock:
            self._figures()
        return True

    def _checked(self, folder: Path, commands: list[str], names: dict[str, Any]) -> dict[str, str]:
        """The commands that fill a folder; ``InputError`` where others wrote more than a log there."""
        now = self.data | {f"command {n}": shlex.join(self._words(line, names)) for n, line in enumerate(commands, 1)}
        written = {path.name for path in folder.glob("*")}
        if COMMANDS in written and written - {COMMANDS, "log.txt"}:
            remedy = "delete that folder, or choose another --output_dir"
            check_same_settings(folder, self.data | load_json(folder / COMMANDS), now, remedy)
        return now

    def _words(self, line: str, names: dict[str, Any]) -> list[str]:
        """A command's words. A path stays one word; flags and sizes may be several."""
        words, known = [], {**self.names, **names}
        for word in shlex.split(line):
            filled = with_names(word, known)
            fields = {field for _, field, _, _ in Formatter().parse(word) if field}
            words += [filled] if fields <= ONE_WORD else shlex.split(filled)
        return words

    def _commands(self, commands: list[str], log: Path, names: dict[str, Any]) -> bool:
        for line in commands:
            words = self._words(line, names)
            left = None if self.end is None else self.end - time.monotonic()
            if self.stopped or (left is not None and left <= 0):
                return False
            print(f"$ {shlex.join(words)}", flush=True)
            with log.open("a") as file:
                program = [sys.executable, *words[1:]] if words[0] == "python" else words
                try:
                    process = subprocess.Popen(program, stdout=file, stderr=file, process_group=0, env=self.environment)
                except OSError as error:
                    raise InputError(f"{line}: {words[0]} cannot be run ({error.strerror}); correct --config") from None
                self.running.append(process)
                try:
                    code = process.wait(left)
                except (subprocess.TimeoutExpired, KeyboardInterrupt) as error:
                    self._end(process)
                    if isinstance(error, KeyboardInterrupt):
                        raise
                    print(f"time is up: {log.parent.name}", flush=True)
                    return False
                finally:
                    self.running.remove(process)
            if self.stopped:
                return False
            if code:
                why = "too little memory?" if code == -signal.SIGKILL else f"{log} says why"
                print(f"{log.parent.name} ended with {code}; {why}", file=sys.stderr, flush=True)
                return False
        return True

    def _figures(self) -> None:
        """Write figures.json, and print the table of all runs that are done."""
        done = sorted(self.folder.glob("*/result.json"), key=lambda path: path.stat().st_mtime)
        results = {path.parent.name: load_json(path) for path in done}
        figures = {
            name: {
                "metrics": result["metrics"],
                "less_base": result.get("compared_with", {}).get("differences", {}),
                "errors": result.get("errors", {}),
            }
            for name, result in results.items()
        }
        save_json(self.folder / "figures.json", figures)
        known = list(figures[BASE]["metrics"])
        if unknown := [name for name in self.config.metrics if name not in known]:
            raise InputError(f"--metrics {' '.join(unknown)}: the results have {', '.join(known)}")
        measured = self.config.metrics or [name for name in known if name.startswith("pass@")] or known
        rows = []
        for name, row in figures.items():
            less = {of: {**each, "value": each["difference"]} for of, each in row["less_base"].items()}
            shown = [interval_text(by[of]) if of in by else "" for by in (row["metrics"], less) for of in measured]
            rows.append([name, *shown])
        if len(over := over_seeds(figures, list(self.config.methods), measured[0])) > 1:
            print(tabulate(over, "firstrow"), flush=True)
        print(tabulate(rows, ["run", *measured, *(f"{of} less base" for of in measured)]), flush=True)


def with_names(text: str, known: dict[str, Any]) -> str:
    """The text, its names in braces replaced."""
    try:
        return text.format(**known)
    except KeyError as error:
        raise InputError(f"{text}: there is no {{{error.args[0]}}}; the names are {', '.join(known)}") from None
    except (ValueError, IndexError):
        raise InputError(f"{text}: a brace that holds no name; write {{{{ and }}}} for braces") from None


def over_seeds(figures: dict[str, Any], methods: list[str], metric: str) -> list[list[Any]]:
    """A heading, and a row for each method: seeds, mean, and the mean of what paired seeds have above the first one's.

    Intervals are Student's over seeds: they know nothing of which questions were asked.
    """
    values: dict[str, dict[str, float]] = {}
    for name, row in figures.items():
        method, _, seed = name.rpartition("-seed")
        value = row["metrics"].get(metric, {}).get("value")
        if method and value is not None:
            values.setdefault(method, {})[seed] = value
    known = [method for method in methods if method in values]
    table: list[list[Any]] = [["method", "seeds", metric, f"less {known[0]}" if known else ""]]
    for method in known:
        paired = [value - values[known[0]][seed] for seed, value in values[method].items() if seed in values[known[0]]]
        less = mean_interval(paired) if paired and method != known[0] else ""
        table.append([method, len(values[method]), mean_interval(list(values[method].values())), less])
    return table


@command
def main() -> None:
    if not Campaign(parse(CampaignConfig)).run():
        raise SystemExit(1)


if __name__ == "__main__":
    main()
