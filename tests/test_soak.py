"""Long disturbances of annotation, judging and policy optimisation: the result is that of an undisturbed run.

Each is sent 20 signals at random moments, has its disk filled twice, and loses its server twice, once for good.
"""

import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import time
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evaluation.judge import JudgeConfig, WinRateConfig, compare_pairwise, open_judge
from nl_gradient_policy_optimization.optimize import optimize
from rm_data_anno.annotate import AnnotateConfig, annotate
from tests.annotation_runs import judge, posts, rows
from tests.fault_server import FaultServer
from tests.processes import PRELOADED, full
from tests.tiny_runs import digest, tiny_config
from text2grad.endpoints import client
from text2grad.errors import command
from text2grad.records import load_json, save_json

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

STEPS = 16
CONCURRENCY = 4
ENDS = {  # exit codes after each event: the run stops in good order, or had finished before
    "SIGKILL": {-signal.SIGKILL},
    "SIGTERM": {128 + signal.SIGTERM},
    "SIGINT": {128 + signal.SIGINT},
    "SIGUSR1": {128 + signal.SIGUSR1},
    "disk": {2, 128 + signal.SIGTERM},  # it ends by itself, or waits for room to write what was paid for
    "down": {128 + signal.SIGTERM},  # for a moment, which a run outlives; then a signal
    "away": {1, 2},  # until it ends by itself: annotation with 1, as where records failed
}
EVENTS = ["SIGKILL", "SIGTERM", "SIGINT", "SIGUSR1"] * 5 + ["disk", "disk", "down", "away"]


def annotation(folder: Path, url: str) -> None:
    records = folder / "in.json"
    if not records.exists():
        save_json(records, posts(400))
    config = AnnotateConfig(
        data_path=str(records), output_path=str(folder / "out.json"), base_url=url, model="m", concurrency=CONCURRENCY
    )
    annotate("slf5k", config)


def judging(folder: Path, url: str) -> None:
    for name in ("own", "other"):
        if not (folder / f"{name}.json").exists():
            summary = {"generated_summary": f"A summary by {name}."}
            save_json(folder / f"{name}.json", {key: record | summary for key, record in posts(200).items()})
    pair = WinRateConfig(
        task="slf5k", data_path=str(folder / "own.json"), system="own", baseline=str(folder / "other.json"),
        baseline_system="other", output_path=str(folder / "out.json"),
    )  # fmt: skip
    with open_judge(JudgeConfig(judge=f"{url}#m", concurrency=CONCURRENCY), folder / "out.json") as asked:
        compare_pairwise(asked, pair)


def policy(folder: Path, url: str) -> None:
    model = folder.parent.parent / "tiny-llama"  # not on the small disk
    config = tiny_config(
        folder, model=str(model), output_dir=str(folder / "run"), max_steps=STEPS, save_every=3, log_rollouts_every=1,
        lora_dropout=0.1, critic=f"{url}#m", max_critic_failures=0.0,
    )  # fmt: skip
    optimize("slf5k", config)


def answer(body: dict) -> str:
    """A critique, or a verdict, that only the question decides."""
    text = body["messages"][0]["content"]
    if "<summary>" in text and re.search(r"Dog \d+ ran off", text):
        return judge(body)
    if "winner" in text:
        return json.dumps({"reasoning": "-", "winner": ("first", "second", "tie")[zlib.crc32(text.encode()) % 3]})
    words = re.search(r"<summary>(.*)</summary>", text, re.DOTALL).group(1).split()
    spans = {"good_spans": words[:1], "poor_spans": words[-1:] if words[-1:] != words[:1] else []}
    return json.dumps({"reasoning": "-", "textual_feedback": "Its ends.", **spans})


def judged(folder: Path) -> Any:
    result = load_json(folder / "out.json")
    return {name: result[name] for name in ("metrics", "system", "baseline")}


CASES: dict[str, tuple[Callable[[Path, str], None], Callable[[Path], Any], str]] = {
    "annotation": (annotation, lambda folder: (folder / "out.json").read_bytes(), "out.json.replies.jsonl"),
    "judge": (judging, judged, "out.json.replies.jsonl"),
    "policy": (policy, lambda folder: digest(folder / "run", STEPS), "run/critic_replies-0.jsonl"),
}


def _entry(work: Callable[[Path, str], None], folder: Path, url: str) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    client._LONGEST_BACK_OFF = 1.0  # an outage is found out in seconds
    command(work)(folder, url)


class Soak:
    """One kind of work, its folder and server, and what happened to it."""

    def __init__(self, case: str, disk: Path, server: FaultServer, seed: int):
        self.work, self.result, self.replies = CASES[case]
        self.disk, self.server, self.draw = disk, server, random.Random(seed)
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload([*PRELOADED, "tests.test_soak"])
        self.codes: Counter = Counter()
        self.lost: Counter = Counter()
        self.begin_again()
        warm = self.context.Process(target=os.getpid)  # the server imports; its time is no run's
        warm.start()
        warm.join()

    def begin_again(self) -> None:
        self.before, self.missing = len(self.server.requests), 0

    def start(self, folder: Path) -> Any:
        process = self.context.Process(target=_entry, args=(self.work, folder, self.server.url))
        process.start()
        return process

    def ended(self, process: Any, what: str) -> int:
        process.join(120)
        assert process.exitcode is not None, f"{what}: it hangs"
        self.codes[f"{what} {process.exitcode}"] += 1
        return process.exitcode

    def disturbed(self, event: str, folder: Path, longest: float) -> int:
        """The exit code of a run to which an event happens."""
        process = self.start(folder)
        time.sleep(self.draw.uniform(0.0, longest))
        if event == "disk":
            filler = full(self.disk)
            process.join(3)
            filler.unlink()
            process.is_alive() and os.kill(process.pid, signal.SIGTERM)
        elif event == "away":
            self.server.down = True
            process.join(60)
            self.server.down = False
        elif event == "down":
            self.server.down = True
            time.sleep(1.5)
            self.server.down = False
            time.sleep(0.5)
            process.is_alive() and os.kill(process.pid, signal.SIGTERM)
        elif process.is_alive():
            os.kill(process.pid, signal.Signals[event])
        code = self.ended(process, event)
        assert code in ENDS[event] | {0}, f"{event}: exit code {code}"
        return code

    def check_payments(self, folder: Path, event: str) -> None:
        """A kill loses the answers that are on their way. All others are kept, and none is asked for again."""
        time.sleep(0.3)  # what a killed process had sent arrives
        while self.server.flying:
            time.sleep(0.1)
        kept = rows(folder / self.replies) if (folder / self.replies).is_file() else []
        paid = [row["key"] for row in kept if "reply" in row]
        assert len(paid) == len(set(paid))
        assert not [row for row in kept if "void" in row]
        lost = len(self.server.requests) - self.before - len(paid)
        new, self.missing = lost - self.missing, lost
        self.lost[event] += new
        assert 0 <= new <= (CONCURRENCY if event == "SIGKILL" else 0), f"{event}: {new} answers lost"


@pytest.mark.parametrize("case", CASES)
def test_twenty_signals_two_full_disks_two_outages(tmp_path, small_disk, case):
    """Where it ended before all of that had happened, it begins another run; each of them ends alike."""
    seed, disk = 7, small_disk(48)
    tiny_config(tmp_path)  # writes the model once
    with FaultServer(answer, on_request=lambda body: time.sleep(0.03)) as server:
        soak = Soak(case, disk, server, seed)
        whole, run = disk / "whole", disk / "disturbed"
        whole.mkdir()
        begin = time.monotonic()
        assert soak.ended(soak.start(whole), "whole") == 0
        longest = 0.3 * (time.monotonic() - begin)
        expected = soak.result(whole)
        events = list(EVENTS)
        soak.draw.shuffle(events)
        run.mkdir()
        finished = 0
        soak.begin_again()
        while True:
            event = events[-1] if events else "last"
            code = soak.disturbed(event, run, longest) if events else soak.ended(soak.start(run), event)
            soak.check_payments(run, event)
            if code != 0:
                events.pop()
                continue
            assert soak.result(run) == expected
            finished += 1
            if not events:
                break
            shutil.rmtree(run)
            run.mkdir()
            soak.begin_again()
        print(f"{case}: {dict(soak.codes)}, {finished} runs finished, {len(server.requests)} requests")
        print(f"{case}: answers lost {dict(soak.lost)}")
