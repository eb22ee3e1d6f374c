"""Profiles: say in a few sentences what some notes say of a person, with a program that knows every phrase's truth.

    Name: Nora            Nora earns a living as a baker. Nora keeps a parrot. It rained all morning. Nora cooks beans
    Home: Porto           on Sundays.
    Pet: parrot
    Food: beans

The demonstrations that the policy learns to write from are like that response: three fifths of what they state is
right. The rest states a wrong value, repeats a note, adds one that was never given, or is off the subject.
"""

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass

from text2grad.tasks import Interval, PlainTask, Record, Task, register

NAMES = (
    "Anna", "Boris", "Carla", "Dario", "Elena", "Felix", "Greta", "Hugo", "Irene", "Jonas", "Karin", "Luca", "Marta",
    "Nils", "Nora", "Oscar",
)  # fmt: skip
NOTES = {
    "Job": (
        ("works as a {}", "earns a living as a {}", "is a {} by trade"),
        ("nurse", "baker", "pilot", "tailor", "farmer", "painter", "lawyer", "dancer", "plumber", "teacher"),
    ),
    "Home": (
        ("lives in {}", "rents a flat in {}", "has never left {}"),
        ("Porto", "Bergen", "Lyon", "Krakow", "Ghent", "Turin", "Malaga", "Tartu", "Bristol", "Leipzig"),
    ),
    "Pet": (
        ("keeps a {}", "walks a {} every day", "sings to a {}"),
        ("parrot", "ferret", "rabbit", "spaniel", "tortoise", "hamster", "canary", "goldfish", "pony", "kitten"),
    ),
    "Food": (
        ("likes to eat {}", "cooks {} on Sundays", "could live on {}"),
        ("beans", "olives", "noodles", "mussels", "pancakes", "lentils", "cherries", "dumplings", "soup", "plums"),
    ),
    "Sport": (
        ("plays {} with friends", "trains hard for {}", "dreams of {}"),
        ("tennis", "hockey", "rugby", "chess", "squash", "golf", "cricket", "volleyball", "polo", "badminton"),
    ),
    "Drink": (
        ("orders {} in any bar", "starts the day with {}", "drinks {} at night"),
        ("coffee", "cider", "cocoa", "lemonade", "brandy", "sherry", "water", "tea", "milk", "rum"),
    ),
}
ASIDES = (
    "It rained all morning.",
    "The museum is closed today.",
    "There is more to say.",
    "Trains were late again.",
    "Nobody knows the reason.",
    "Prices went up last year.",
)
_PHRASES = [
    (note, re.compile(re.escape(template).replace(r"\{\}", r"(?P<value>\w+)")))
    for note, (templates, _) in NOTES.items()
    for template in templates
]


class Profiles(PlainTask):
    """Records: ``{"id", "notes": {"Job": "nurse", …}, "name", "response"?}``."""

    places: Mapping[str, str] = {**Task.places, "teacher": "benchmarks/micro/teacher.txt"}

    def prompt(self, record: Record) -> str:
        return "\n".join(f"{note}: {value}" for note, value in {"Name": record["name"], **record["notes"]}.items())

    def id_of(self, record: Record) -> str:
        return record["id"]


PROFILES = register(Profiles("profiles"))


@dataclass(frozen=True)
class Statement:
    """One sentence of a response.

    Attributes:
        text: the sentence.
        phrase: the claim, as an interval of the response (None: no claim).
        note: what it speaks of.
        verdict: ``right``, ``wrong`` (another value), ``invented`` (no such note), ``repeated``, or ``aside``.
        truth: the note's true value, where there is one.
    """

    start: int
    text: str
    verdict: str
    note: str = ""
    phrase: Interval | None = None
    truth: str = ""


def read_statements(record: Record, response: str) -> list[Statement]:
    """Every sentence of a response with its verdict; a sentence that fits no template is an aside."""
    statements: list[Statement] = []
    told: set[str] = set()
    for sentence in re.finditer(r"\S[^.]*\.?", response):
        statement = _read_sentence(record, response, *sentence.span(), told)
        if statement.verdict != "aside":
            told.add(statement.note)
        statements.append(statement)
    return statements


def _read_sentence(record: Record, response: str, start: int, end: int, told: set[str]) -> Statement:
    text, name = response[start:end], record["name"] + " "
    for note, pattern in _PHRASES:
        match = pattern.fullmatch(response, start + len(name), end - 1)
        if match is None or not text.startswith(name) or not text.endswith(".") or match["value"] not in NOTES[note][1]:
            continue
        truth = record["notes"].get(note, "")
        verdict = "repeated" if note in told else "invented" if not truth else "wrong"
        if verdict == "wrong" and match["value"] == truth:
            verdict = "right"
        return Statement(start, text, verdict, note, match.span(), truth)
    return Statement(start, text, "aside")


def score_statements(record: Record, response: str) -> dict[str, float]:
    """Quality of a response, independent of any reward: ``f1`` of its statements against the notes.

    ``precision`` is the share of its sentences that are right, ``recall`` the share of the notes that it states.
    """
    statements = read_statements(record, response)
    right = sum(statement.verdict == "right" for statement in statements)
    notes = len(record["notes"])
    return {
        "f1": 2 * right / (len(statements) + notes),
        "precision": right / len(statements) if statements else 0.0,
        "recall": right / notes,
    }


def make_record(rng: random.Random, number: int, notes: int = 0) -> Record:
    """A person with so many notes in any order, three to five if 0."""
    chosen = rng.sample(sorted(NOTES), notes or rng.randint(3, 5))
    known = {note: rng.choice(NOTES[note][1]) for note in chosen}
    return {"id": f"profile-{number}", "name": rng.choice(NAMES), "notes": known}


def demonstrate(record: Record, rng: random.Random) -> str:
    """A flawed demonstration: three sentences of five are right.

    A policy trained on them is right a little less often. If it were wrong more often than right, saying nothing would
    earn more than any answer, however the reward is placed.
    """
    untold = list(record["notes"])
    told: list[str] = []
    sentences: list[str] = []
    rng.shuffle(untold)
    for _ in range(len(record["notes"]) + rng.choice((-1, 0, 0, 1))):
        kind = rng.choices(("right", "wrong", "repeated", "invented", "aside"), (60, 18, 8, 7, 7))[0]
        if kind == "aside" or (kind in ("right", "wrong") and not untold) or (kind == "repeated" and not told):
            sentences.append(rng.choice(ASIDES))
            continue
        if kind == "invented":
            note = rng.choice([note for note in NOTES if note not in record["notes"]])
        else:
            note = rng.choice(told) if kind == "repeated" else untold.pop()
            told += [note] if kind != "repeated" else []
        templates, values = NOTES[note]
        others = [value for value in values if value != record["notes"].get(note)]
        value = record["notes"][note] if kind in ("right", "repeated") else rng.choice(others)
        sentences.append(f"{record['name']} {rng.choice(templates).format(value)}.")
    return " ".join(sentences)
