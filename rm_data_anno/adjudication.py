"""Several people's annotations of one response: how far they agree, and the one annotation that they make together."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, groupby
from typing import Any

from text2grad.grounding import cuts_a_word, trimmed
from text2grad.statistics import fleiss_kappa

LABELS = ("good", "poor")


@dataclass
class PersonsAnnotation:
    """What one annotator said of one response.

    Attributes:
        decides: marked as ground truth; it settles what others disagree on.
        score: the verdict on the whole, in −1..1: one star is −1, five are +1.
    """

    annotator: str
    critique: str
    places: list[tuple[str, int, int]] = field(default_factory=list)
    decides: bool = False
    missing: list[str] = field(default_factory=list)
    score: float | None = None

    def labels(self, length: int) -> list[str]:
        """The label of each character; poor where both were marked, as in training."""
        found = [""] * length
        for label, start, end in sorted(self.places, key=lambda mark: LABELS.index(mark[0])):
            found[start:end] = [label] * (end - start)
        return found


def adjudicated(people: Sequence[PersonsAnnotation], response: str) -> PersonsAnnotation:
    """One annotation of several: the deciding one; else per character what more than half of them said, all that any
    of them misses, and the mean verdict."""
    deciding = [person for person in people if person.decides]
    if deciding or len(people) == 1:
        return (deciding or people)[-1]
    labels = []
    for column in zip(*(person.labels(len(response)) for person in people), strict=True):
        label, count = Counter(column).most_common(1)[0]
        labels.append(label if 2 * count > len(people) else "")
    scores = [person.score for person in people if person.score is not None]
    return PersonsAnnotation(
        "majority",
        "\n".join(dict.fromkeys(person.critique for person in people)),
        list(_runs(labels, response)),
        missing=list(dict.fromkeys(text for person in people for text in person.missing)),
        score=sum(scores) / len(scores) if scores else None,
    )


def _runs(labels: Sequence[str], response: str) -> Iterator[tuple[str, int, int]]:
    """Stretches of one label, trimmed, but for those without a letter or digit and those that cut a word."""
    end = 0
    for label, run in groupby(labels):
        start, end = end, end + len(list(run))
        place = trimmed(response, start, end)
        if label and any(char.isalnum() for char in response[start:end]) and not cuts_a_word(response, *place):
            yield (label, *place)


def overlap(first: PersonsAnnotation, second: PersonsAnnotation, length: int) -> float:
    """F1 of two annotators' labelled characters; 1 where neither marked any."""
    a, b = first.labels(length), second.labels(length)
    marked = sum(map(bool, a)) + sum(map(bool, b))
    return 2 * sum(x == y != "" for x, y in zip(a, b, strict=True)) / marked if marked else 1.0


def agreement(found: Mapping[str, Sequence[PersonsAnnotation]], responses: Mapping[str, str]) -> dict[str, Any]:
    """Fleiss' kappa of the characters' labels, and the span overlap of two annotators, where several answered.

    Kappa leaves white space out, and is over the records that the most usual number of people annotated. The overlap is
    the mean over pairs of annotators, of all records and of each.
    """
    several = {record_id: people for record_id, people in found.items() if len(people) > 1}
    if not several:
        return {"records": 0}
    usual = Counter(map(len, several.values())).most_common(1)[0][0]
    counts, by_record = [], {}
    pairs: list[float] = []
    for record_id, people in several.items():
        response = responses[record_id]
        own = [overlap(*pair, len(response)) for pair in combinations(people, 2)]
        by_record[record_id] = round(sum(own) / len(own), 4)
        pairs += own
        if len(people) == usual:
            columns = zip(*(person.labels(len(response)) for person in people), strict=True)
            said = [column for char, column in zip(response, columns, strict=True) if not char.isspace()]
            counts += [[column.count(label) for label in ("good", "poor", "")] for column in said]
    kappa = fleiss_kappa(counts)
    return {
        "records": len(several),
        "annotators_each": usual,
        "fleiss_kappa": None if kappa != kappa else round(kappa, 4),
        "span_overlap": round(sum(pairs) / len(pairs), 4),
        "overlap_by_record": by_record,
    }
