"""Annotated responses without end: new ones for every update, so that a critic has nothing to learn by heart.

    short       one or two sentences, as often wrong as right; they come first
    made        demonstrations, and corrupted ones with every balance of faults
    sampled     policies' responses

Half of the longer ones are put beside other notes than they were written for. So a critic cannot judge by the words
alone: the same sentence is right beside one person's notes and wrong beside another's. The program annotates either.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from benchmarks.learnt_critics.annotated import corrupted
from benchmarks.micro.task import NAMES, NOTES, demonstrate, make_record
from text2grad.tasks import Record

BROKEN = 0.15
"""Of the made responses, the share that is broken somewhere."""


def short_record(rng: random.Random, most: int) -> Record:
    """A person with one to ``most`` notes."""
    record = make_record(rng, rng.randrange(1 << 30))
    kept = rng.sample(list(record["notes"]), min(len(record["notes"]), rng.randint(1, most)))
    return {**record, "notes": {note: record["notes"][note] for note in kept}}


def short_response(record: Record, rng: random.Random) -> str:
    """One or two sentences, as often wrong as right: what there is to learn first is to compare."""
    sentences: list[str] = []
    for note in rng.choices(list(record["notes"]), k=rng.randint(1, 2)):
        kind = rng.choices(("right", "wrong", "invented"), (45, 45, 10))[0]
        if kind == "invented":
            note = rng.choice([other for other in NOTES if other not in record["notes"]])
        templates, values = NOTES[note]
        value = record["notes"][note] if kind == "right" else rng.choice(values)
        sentences.append(f"{record['name']} {rng.choice(templates).format(value)}.")
    return " ".join(sentences)


def with_other_notes(record: Record, rng: random.Random) -> Record:
    """The same response beside other notes: some values exchanged, some notes left out, some added."""
    notes = dict(record["notes"])
    for note in NOTES:
        draw = rng.random()
        if note in notes and draw < 0.3:
            notes[note] = rng.choice(NOTES[note][1])
        elif note in notes and draw < 0.4 and len(notes) > 1:
            del notes[note]
        elif note not in notes and draw < 0.2:
            notes[note] = rng.choice(NOTES[note][1])
    order = rng.sample(list(notes), len(notes))
    return {**record, "notes": {note: notes[note] for note in order}}


def broken(response: str, record: Record, rng: random.Random) -> str:
    """A response with one accident: cut off, a word lost or doubled or exchanged, or another person's name."""
    words = response.split(" ")
    place = rng.randrange(len(words))
    accident = rng.choice(("cut", "cut", "cut", "lost", "doubled", "exchanged", "name"))
    if accident == "cut":
        kept = " ".join(words[: max(1, place)])
        return kept[: rng.randint(max(1, len(kept) - 4), len(kept))]
    if accident == "lost" and len(words) > 1:
        del words[place]
    elif accident == "doubled":
        words.insert(place, words[place])
    elif accident == "exchanged":
        words[place] = rng.choice(words)
    else:
        return response.replace(record["name"], rng.choice(NAMES), 1)
    return " ".join(words)


def made(rng: random.Random, most: int | None = None) -> Record:
    """A response by program; with ``most``, a short one to so many notes at the most."""
    if most is not None:
        record = short_record(rng, most)
        return {**record, "id": f"short-{record['id']}", "response": short_response(record, rng)}
    record = make_record(rng, rng.randrange(1 << 30))
    response = demonstrate(record, rng) if rng.random() < 0.2 else corrupted(record, rng)
    if response and rng.random() < BROKEN:
        response = broken(response, record, rng)
    return {**record, "id": f"made-{record['id']}", "response": response}


def fresh(sampled: Sequence[Record], share: float, rng: random.Random, most: int | None = None) -> Iterator[Record]:
    """Responses for ever; ``share`` of them sampled by policies, the others made; half of both beside other notes."""
    while True:
        record = rng.choice(sampled) if sampled and rng.random() < share else made(rng, most)
        yield with_other_notes(record, rng) if most is None and rng.random() < 0.5 else record
