"""Annotated responses to learn from: responses of several origins, and the program's feedback on each.

    policies        the starting policy, policies at later stages of training, and one that training has ruined
    hot             the starting policy at higher temperatures: sentences that break off or make no sense
    corrupted       demonstrations with another balance of faults: hardly any, or more than a policy makes

The program labels anything, so they cost only the sampling. The critique goes through a response sentence by sentence
and names the value before the verdict: what is decided is then decided beside the word that it hangs on.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from benchmarks.micro.critic import ProfileCritic, quote_of
from benchmarks.micro.task import ASIDES, NOTES, PROFILES, Statement, demonstrate, make_record, read_statements
from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.rollouts import encode_prompt
from nl_gradient_policy_optimization.sampling import TransformersSampler
from text2grad.errors import InputError
from text2grad.feedback import Feedback
from text2grad.models import load_model, load_tokenizer
from text2grad.records import load_json
from text2grad.tasks import Record

Critique = Literal["worked", "evidence", "checklist", "faults", "none"]
"""``worked``: of every sentence the subject, the value, what the notes say, a numbered verdict, and its quote;
``evidence``: the value, what the notes say, then the verdict; ``checklist``: the value and the verdict;
``faults``: the program's own critique, which passes over what is right; ``none``."""

NO_CRITIQUE = "-"
_CRITIC = ProfileCritic()


def feedback_on(record: Record, response: str, critique: Critique) -> Feedback:
    """The program's quotes behind a critique of that kind."""
    feedback = replace(_CRITIC.feedback_on(record, response), scores=[])
    if critique == "worked":
        return replace(feedback, critique=worked(read_statements(record, response), response))
    if critique in ("evidence", "checklist"):
        return replace(
            feedback, critique=checklist(read_statements(record, response), response, critique == "evidence")
        )
    return feedback if critique == "faults" else replace(feedback, critique=NO_CRITIQUE)


def checklist(statements: Sequence[Statement], response: str, evidence: bool) -> str:
    """A verdict on each sentence.

    ``It says beans, notes beans: right; Turin, notes Porto: wrong; Trains were: aside.`` with the evidence, and
    ``It says beans: right; Turin: wrong, Porto; Trains were: aside.`` without.
    """
    remarks = []
    for statement in statements:
        if statement.value is None:
            subject = " ".join(statement.text.rstrip(".").split()[:2]) or statement.text
        else:
            subject = response[slice(*statement.value)]
        if evidence:
            known = f", notes {statement.truth or 'nothing'}" if statement.value else ""
            remarks.append(f"{subject}{known}: {statement.verdict}")
        else:
            truth = f", {statement.truth}" if statement.verdict == "wrong" else ""
            remarks.append(f"{subject}: {statement.verdict}{truth}")
    return f"It says {'; '.join(remarks)}." if remarks else "It says nothing."


def worked(statements: Sequence[Statement], response: str) -> str:
    """How each verdict comes about, and the quote right behind it.

    ``Pet parrot, notes parrot, right 1: keeps a parrot; Home Turin, notes Porto, wrong 1: lives in Turin; aside 2: It
    rained.`` The number counts the good and the poor ones apart, so each quote of the lists has its own mark here.
    """
    counts, remarks = Counter[bool](), []
    for statement in statements:
        counts[statement.verdict == "right"] += 1
        verdict = f"{statement.verdict} {counts[statement.verdict == 'right']}: {quote_of(statement, response)}"
        if statement.value is not None:
            found = f"{statement.note} {response[slice(*statement.value)]}, notes {statement.truth or 'nothing'}, "
            verdict = found + verdict
        remarks.append(verdict)
    return f"{'; '.join(remarks)}." if remarks else "It says nothing."


def annotated(record: Record, critique: Critique) -> Record:
    """A record with its response, annotated as stage 2 reads it."""
    return PROFILES.with_feedback(record, feedback_on(record, record["response"], critique), {"source": _CRITIC.name})


def corrupted(record: Record, rng: random.Random) -> str:
    """A response with its own balance of faults: the share of right sentences is drawn from 0.2..1."""
    share = rng.uniform(0.2, 1.0)
    untold = list(record["notes"])
    told: list[Any] = []
    sentences: list[Any] = []
    rng.shuffle(untold)
    for _ in range(max(1, len(record["notes"]) + rng.choice((-2, -1, 0, 0, 1, 2)))):
        fault = rng.choices(("wrong", "swapped", "repeated", "same again", "invented", "aside"), (6, 2, 3, 1, 4, 2))[0]
        kind = "right" if rng.random() < share else fault
        if kind == "same again" and sentences:
            sentences.append(rng.choice(sentences))
            continue
        note = _note(kind, record, untold, told, rng)
        if note is None:
            sentences.append(rng.choice(ASIDES))
            continue
        templates, values = NOTES[note]
        truth = record["notes"].get(note)
        value = truth if kind in ("right", "repeated") else rng.choice([other for other in values if other != truth])
        if kind == "repeated" and rng.random() < 0.5:
            value = rng.choice(values)
        sentences.append(f"{record['name']} {rng.choice(templates).format(value)}.")
    return " ".join(sentences)


def _note(kind: str, record: Record, untold: list[str], told: list[str], rng: random.Random) -> str | None:
    """What the next sentence speaks of; None: of nothing."""
    if kind == "repeated" and told:
        return rng.choice(told)
    if kind == "invented":
        return rng.choice([note for note in NOTES if note not in record["notes"]])
    if kind in ("right", "wrong", "swapped") and untold:
        told.append(untold.pop())
        return told[-1]
    return None


def sampled(policy: str, records: Sequence[Record], limit: int, temperature: float, seed: int) -> list[str]:
    """A policy's responses to the records' prompts."""
    tokenizer, model = load_tokenizer(policy), load_model(policy, "float32", "cpu")
    config = PolicyConfig(max_new_tokens=limit, temperature=temperature, generation_batch_size=256)
    sampler = TransformersSampler(model, model, tokenizer, [tokenizer.eos_token_id], config)
    torch.manual_seed(seed)
    prompts = [encode_prompt(PROFILES.prompt(record), PROFILES, tokenizer) for record in records]
    return [tokenizer.decode(ids, skip_special_tokens=True) for ids in sampler(prompts)]


def first_responses(count: int, seed: str) -> list[Record]:
    """Demonstrations and corrupted ones in turn: what there is to learn from before any policy answers."""
    rng = random.Random(seed)
    made = []
    for row in range(count):
        record = make_record(rng, row)
        origin, text = ("start", demonstrate(record, rng)) if row % 2 else ("corrupted", corrupted(record, rng))
        made.append({**record, "id": f"{origin}-{record['id']}", "response": text})
    return made


def make_responses(
    start: str, later: Sequence[str], count: int, seed: str, limit: int = 72, hot: Sequence[float] = (1.25, 1.5)
) -> list[Record]:
    """Records with responses, mixed: three tenths of the starting policy, three of the later ones, a tenth of the hot
    ones, and three corrupted. Their ids begin with where they come from.
    """
    rng = random.Random(seed)
    origins = {
        "start": [(start, 1.0)],
        "later": [(policy, 1.0) for policy in later],
        "hot": [(start, heat) for heat in hot],
    }
    shares = {"start": 0.3, "later": 0.3, "hot": 0.1}
    made: list[Record] = []
    for origin, policies in origins.items():
        for number, (policy, heat) in enumerate(policies):
            records = [make_record(rng, row) for row in range(round(shares[origin] * count / len(policies)))]
            texts = sampled(policy, records, limit, heat, rng.randrange(1 << 30))
            made += [
                {**record, "id": f"{origin}-{number}-{record['id']}", "response": text}
                for record, text in zip(records, texts, strict=True)
                if text.strip()
            ]
    for row in range(count - round(sum(shares.values()) * count)):
        record = make_record(rng, row)
        made.append({**record, "id": f"corrupted-{record['id']}", "response": corrupted(record, rng)})
    rng.shuffle(made)
    return made


def load_responses(path: Path) -> list[Record]:
    """What ``make_responses.py`` wrote."""
    if not path.is_file():
        raise InputError(f"{path}: does not exist; run make_responses.py first")
    return load_json(path)
