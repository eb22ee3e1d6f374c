"""Where a learnt critic errs: in what a sentence says, in the note, in the verdict, or in the quotes that follow.

python benchmarks/learnt_critics/mistakes.py --critic runs/learnt_critics/worked/critic-4000
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.learnt_critics.annotated import Critique, feedback_on
from benchmarks.learnt_critics.policies import critic_at
from benchmarks.micro.critic import quote_of
from benchmarks.micro.task import PROFILES, read_statements
from text2grad.configs import parse, setting
from text2grad.errors import InputError, command
from text2grad.feedback import Feedback
from text2grad.records import load_json
from text2grad.tasks import Record


@dataclass
class MistakesConfig:
    """Which critic."""

    study: str = setting("runs/learnt_critics", "the study's folder")
    critic: str = setting("", "the folder of a critic that learnt on it")
    critique: Critique = setting("worked", "what it learnt to write: worked, evidence or checklist")


def count_mistakes(records: Sequence[Record], replies: Sequence[Feedback], critique: Critique) -> Counter[str]:
    """What is right, counted over sentences; critiques that list another number of sentences count once, as skipped.

    ``said``: the value is named, and in a worked critique its subject. ``note`` of ``notes``: the note is the right
    one, where the critique names it. ``verdict``: it is right. ``quotes``: the sentence is in the right list alone.
    ``as it said``: in the list that the critique's own verdict asks for. ``faults`` and ``faults seen``: sentences that
    are wrong, and called so in any way. A phrase that is right and then repeated is in both lists, and counts in none.
    """
    counts: Counter[str] = Counter()
    for record, reply in zip(records, replies, strict=True):
        written = _items(reply.critique)
        truth = _items(feedback_on(record, record["response"], critique).critique)
        if len(written) != len(truth):
            counts["skipped"] += 1
            continue
        for statement, own, true in zip(read_statements(record, record["response"]), written, truth, strict=True):
            counts["sentences"] += 1
            counts["said"] += own[0] == true[0]
            counts["notes"] += bool(true[1])
            counts["note"] += bool(true[1]) and own[1] == true[1]
            counts["verdict"] += own[2] == true[2]
            counts["faults"] += true[2] != "right"
            counts["faults seen"] += true[2] != "right" and own[2] != "right"
            quote = quote_of(statement, record["response"])
            good, poor = quote in reply.good, quote in reply.poor
            counts["quotes"] += good != poor and good == (true[2] == "right")
            counts["as it said"] += good != poor and good == (own[2] == "right")
    return counts


def _items(critique: str) -> list[tuple[str, str, str]]:
    """What each sentence says, the note, and the verdict."""
    found = []
    if not critique.startswith("It says "):  # worked
        for item in critique.rstrip(".").split("; "):
            evidence, _, verdict = item.partition(": ")[0].rpartition(", ")
            subject, _, note = evidence.partition(", notes ")
            found.append((subject, note, verdict.split(" ")[0]))
        return found
    for item in critique.removeprefix("It says ").rstrip(".").split("; "):
        subject, _, verdict = item.partition(": ")
        value, _, note = subject.partition(", notes ")
        found.append((value, note, verdict.split(",")[0]))
    return found


@command
def main() -> None:
    config = parse(MistakesConfig)
    if config.critique not in ("worked", "evidence", "checklist"):
        raise InputError(
            f"--critique {config.critique} does not name every sentence; choose worked, evidence or checklist"
        )
    if not config.critic:
        raise InputError("--critic is missing; give the folder that train_critic.py kept")
    torch.set_num_threads(1)
    records = load_json(Path(config.study) / "held_out.json")
    prompts, responses = [PROFILES.prompt(record) for record in records], [record["response"] for record in records]
    replies = critic_at(config.critic)(prompts, responses, records)
    read = [(each, reply) for each, reply in zip(records, replies, strict=True) if isinstance(reply, Feedback)]
    counts = count_mistakes([record for record, _ in read], [reply for _, reply in read], config.critique)
    for name, value in counts.items():
        print(f"{name:12} {value:5}")


if __name__ == "__main__":
    main()
