"""Answers that take no understanding of a post. A measure of summaries must not prefer them to people's summaries.

Each table of summaries carries these rows: a policy that does not beat them has learnt to please a measure.
"""

import random
from collections.abc import Mapping
from typing import Any

FIRST_WORDS = 15
SHOWN = ("mean_delta", "verdict", "closeness", "logprob", "rougeL", "facts_told", "copied_words", "words")
"""The measures of their tables, on the screen and in the report."""


def word_salad(post: str) -> str:
    """Every fourth word of the post."""
    return " ".join(post.split()[::4])


def shuffled(text: str) -> str:
    """The words in another order, the same for the same text."""
    words = text.split()
    random.Random(text).shuffle(words)
    return " ".join(words)


def trivial_answers(posts: Mapping[str, str], references: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Name of the row -> record id -> answer, for the records that have a reference."""
    ids = list(references)
    # By post, not by record: a post with several answers comes several times.
    own = {posts[key]: references[key] for key in ids}
    following = dict(zip(own, [*list(own)[1:], *list(own)[:1]], strict=True))
    rows = {
        f"first {FIRST_WORDS} words": {key: " ".join(posts[key].split()[:FIRST_WORDS]) for key in ids},
        "every fourth word": {key: word_salad(posts[key]) for key in ids},
        "the whole post": {key: posts[key] for key in ids},
        "reference": dict(references),
        "reference, words shuffled": {key: shuffled(references[key]) for key in ids},
    }
    if len(own) > 1:
        rows["another post's reference"] = {key: own[following[posts[key]]] for key in ids}
    return rows


def print_rows(system: str, metrics: Mapping[str, Any], rows: Mapping[str, Mapping[str, Any]]) -> None:
    """The system among the trivial rows, as a table on the screen."""
    from tabulate import tabulate

    names = [name for name in SHOWN if name in metrics]
    table = [[label, *(row.get(name, {}).get("value") for name in names)] for label, row in rows.items()]
    table.insert(0, [system, *(metrics[name]["value"] for name in names)])
    print(tabulate(table, headers=["responses", *names], floatfmt=".3f"))
