"""Requests: a topic, a length, and one more rule. The same seed gives the same requests.

    python benchmarks/instructions/make_requests.py --output_dir runs/benchmarks/instructions

Those that are held out are about other topics.
"""

import random
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

from text2grad.configs import parse, setting
from text2grad.errors import command
from text2grad.records import save_json

TOPICS = {
    "rain": "water", "bread": "flour", "the moon": "night", "a dog": "loyal", "coffee": "morning", "the sea": "blue",
    "winter": "cold", "a bicycle": "wheels", "music": "sound", "a garden": "flowers", "a train": "travel",
    "a library": "books", "the sun": "light", "a cat": "animal", "tea": "drink", "a river": "water",
    "a school": "students", "an apple": "fruit", "a bridge": "river", "a clock": "time", "snow": "white",
    "a horse": "animal", "a farm": "animals", "a mountain": "high", "a kitchen": "food", "a ship": "sea",
    "a doctor": "patients", "a market": "buy", "birds": "fly", "a forest": "trees",
}  # fmt: skip
KINDS = ("without", "no_and", "sentences", "short", "long", "no_commas")
"""Every kind of request."""
LENGTH, SHORT_LENGTH, LONG_LENGTH = [8, 30], [4, 12], [24, 36]
HELD_OUT_TOPICS = 10


def make_requests(count: int, seed: int, held_out: bool) -> list[dict[str, Any]]:
    """So many requests, some of them alike."""
    rng = random.Random(f"{seed} {held_out}")
    topics = sorted(TOPICS)
    random.Random("topics").shuffle(topics)
    topics = topics[:HELD_OUT_TOPICS] if held_out else topics[HELD_OUT_TOPICS:]
    return [_request(rng, f"{'held-out' if held_out else 'train'}-{n}", topics) for n in range(count)]


def _request(rng: random.Random, key: str, topics: list[str]) -> dict[str, Any]:
    kind = rng.choice(KINDS)
    topic = rng.choice(topics)
    limits = {"short": SHORT_LENGTH, "long": LONG_LENGTH}.get(kind, LENGTH)
    rule, asked = {
        "short": (limits, "Be brief."),
        "long": (limits, "Say much."),
        "no_and": ("and", "Do not use the word and."),
        "no_commas": (True, "Do not use commas."),
        "without": (TOPICS[topic], f"Do not use the word {TOPICS[topic]}."),
        "sentences": (1, "Use one sentence only."),
    }[kind]
    check = {"short": "words", "long": "words", "no_and": "without"}.get(kind, kind)
    prompt = f"Write about {topic} in {limits[0]} to {limits[1]} words. {asked}"
    rules = {"words": limits, "mentions": topic.split()[-1], check: rule, "no_repeats": True, "on_topic": True}
    return {"id": key, "prompt": prompt, "kind": kind, "rules": rules}


@dataclass
class RequestsConfig:
    """How many, and where to."""

    output_dir: str = setting(MISSING, "folder of requests.json and held_out.json")
    requests: int = setting(400, "to train on", above=0)
    held_out: int = setting(200, "to measure with", above=0)


@command
def main() -> None:
    config = parse(RequestsConfig)
    save_json(Path(config.output_dir) / "requests.json", make_requests(config.requests, 0, held_out=False))
    save_json(Path(config.output_dir) / "held_out.json", make_requests(config.held_out, 0, held_out=True))


if __name__ == "__main__":
    main()
