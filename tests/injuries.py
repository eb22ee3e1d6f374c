"""Texts with random injuries, for tests of whoever reads them."""

import random
from collections import Counter
from collections.abc import Callable

ODD = [
    *'{}[]",:\\\n0-', "\\ud800", "\ud800", "null", "NaN", "1e999", "9" * 5000, "[" * 3000, '{"a":' * 900, "\x00",
    "true", '""',
]  # fmt: skip


def injured_text(chance: random.Random, text: str) -> str:
    for _ in range(chance.randint(1, 3)):
        at, other = sorted((chance.randrange(len(text) + 1), chance.randrange(len(text) + 1)))
        odd = chance.choice(ODD)
        text = chance.choice([
            text[:at] + odd + text[at:], text[:at] + text[other:], text[:at] + text[at:other] * 2 + text[other:],
            text[:other], text.replace(chance.choice(['"', "3", "a", "-1", "e"]), odd, 1),
        ])  # fmt: skip
    return text


def injured(chance: random.Random, text: str) -> bytes:
    data = injured_text(chance, text).encode("utf-8", "surrogatepass")
    if chance.random() < 0.2:
        at = chance.randrange(len(data) + 1)
        data = data[:at] + chance.choice([b"\xff", b"\xed\xa0\x80", b"\xc3", b"\x00"]) + data[at:]
    return data


def read_or_refused(count: int, seed: int, read: Callable[[random.Random], object], *refusals: type, told="") -> None:
    """Call ``read`` so often: it reads, or ends with a refusal that can be printed and holds what is told."""
    chance, seen = random.Random(seed), Counter[str]()
    for _ in range(count):
        try:
            read(chance)
            seen["read"] += 1
        except refusals as error:
            assert told in str(error).encode().decode()
            seen["refused"] += 1
    assert min(seen["read"], seen["refused"]) > 20, seen
