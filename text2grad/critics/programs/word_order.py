"""Whether words follow one another as in English: a test of each pair of neighbours, summed up over runs of words.

A pair's score is log p(kind of the second word | kind of the first) − log p(kind of the second), in nats: how much
likelier it is in English than among the same words in any order. Kinds are groups of function words, forms of other
words, commas and ends of sentences. ``word_order.txt`` holds the scores, as :func:`learnt` finds them in the sample
posts and summaries that a reward model may learn from (quickstart/data, posts_train and posts_more).

A run whose words are ``UNLIKELY`` nats likelier by chance is no language. Words taken out of a text, or shuffled, show
it after about a dozen; what people write hardly ever does, telegraphic style included.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

from text2grad.critics.programs.english import GROUP_OF, IRREGULAR, VERBS, Word, words

UNLIKELY = 6.0
PRIOR = 40.0
"""How many pairs with any first word a kind's own pairs are mixed with, when scores are learnt."""
UNIT = 0.1  # nats, of a score in the table
TABLE = Path(__file__).with_name("word_order.txt")

END, PAUSE = ".", ","
KINDS = (*dict.fromkeys(GROUP_OF.values()), "1", "-ing", "-ed", "-ly", "-s", "go", "noun", PAUSE, END)


def kind(word: Word) -> str:
    """The group of a function word, the form of another one."""
    key = word.key
    if key in GROUP_OF:
        return GROUP_OF[key]
    if word.is_number:
        return "1"
    if key.endswith("'s"):
        return "my"
    if key.endswith("ing") and len(key) > 5:
        return "-ing"
    if key in VERBS:
        return "-ed" if key in IRREGULAR else "go"
    if key.endswith("ed") and len(key) > 4:
        return "-ed"
    if key.endswith("ly") and len(key) > 4:
        return "-ly"
    return "-s" if key.endswith("s") and not key.endswith(("ss", "us", "is")) else "noun"


def kinds(text: str, found: list[Word]) -> list[tuple[str, int]]:
    """The kinds of a text's words, commas and ends, each with the number of words before it; an end at both ends."""
    marked = [(END, 0)]
    for i, word in enumerate(found):
        gap = text[found[i - 1].end : word.start] if i else ""
        if re.search(r"[.!?…\n]", gap):
            marked.append((END, i))
        elif re.search(r"[,;:()\"“”—–]|\s-+\s", gap):
            marked.append((PAUSE, i))
        marked.append((kind(word), i))
    return [*marked, (END, len(found))]


def learnt(texts: Iterable[str]) -> dict[tuple[str, str], float]:
    """The score of each pair of kinds in these texts, to a tenth of a nat."""
    single: Counter[str] = Counter()
    first: Counter[str] = Counter()
    pairs: Counter[tuple[str, str]] = Counter()
    for text in texts:
        for (one, _), (other, _) in pairwise(kinds(text, words(text))):
            single[other] += 1
            first[one] += 1
            pairs[one, other] += 1
    total = sum(single.values())

    def score(one: str, other: str) -> float:
        alone = (single[other] + 0.5) / (total + 0.5 * len(KINDS))
        return math.log((pairs[one, other] + PRIOR * alone) / (first[one] + PRIOR) / alone)

    return {(one, other): round(score(one, other) / UNIT) * UNIT for one in KINDS for other in KINDS}


def as_table(scores: dict[tuple[str, str], float]) -> str:
    """A row for each kind of first word, a column for each kind of second word, in ``UNIT`` nats."""
    rows = [" ".join(("", *KINDS))]
    rows += [" ".join((one, *(str(round(scores[one, other] / UNIT)) for other in KINDS))) for one in KINDS]
    return "\n".join(rows) + "\n"


@cache
def scores() -> dict[tuple[str, str], float]:
    """The scores of ``word_order.txt``."""
    head, *rows = [line.split() for line in TABLE.read_text(encoding="utf-8").splitlines()]
    return {(row[0], other): int(value) * UNIT for row in rows for other, value in zip(head, row[1:], strict=True)}


def unlikely(text: str, found: list[Word]) -> list[tuple[int, int]]:
    """Words ``[i, j)`` whose order is no English; all of them where that is more than half."""
    marked, known = kinds(text, found), scores()
    against = [-known[one, other] for (one, _), (other, _) in pairwise(marked)]
    before = [*(count for _, count in marked), len(found)]
    runs = sorted((before[i], before[j + 1]) for i, j in _runs_above(against, UNLIKELY, 0))
    most = 2 * sum(end - start for start, end in runs) > len(found)
    return [(0, len(found))] if most else runs


def _runs_above(values: list[float], least: float, offset: int) -> Iterator[tuple[int, int]]:
    """The interval with the greatest sum, if that exceeds ``least``, and those before and after it."""
    best, place, total, start = least, (0, 0), 0.0, 0
    for i, value in enumerate(values):
        if total <= 0:
            total, start = 0.0, i
        total += value
        if total > best:
            best, place = total, (start, i + 1)
    if place[1]:
        yield offset + place[0], offset + place[1]
        yield from _runs_above(values[: place[0]], least, offset)
        yield from _runs_above(values[place[1] :], least, offset + place[1])
