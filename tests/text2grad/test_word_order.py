"""Which words follow one another in English: the table, runs of words, and what people write."""

from __future__ import annotations

import json
import math
import re

import pytest

from evaluation.slf5k.trivial import shuffled, word_salad
from tests.conftest import ROOT
from text2grad.critics.programs import word_order
from text2grad.critics.programs.english import words
from text2grad.critics.programs.word_order import UNLIKELY, as_table, kinds, learnt, scores, unlikely


def samples(*names: str) -> list[tuple[str, str]]:
    files = [ROOT / f"quickstart/data/posts_{name}.json" for name in names]
    rows = [row for file in files for row in json.loads(file.read_text(encoding="utf-8")).values()]
    return [(row["post"], row["ideal_human_summary"]) for row in rows]


def share(text: str) -> float:
    """Of its words, those in runs that are no language."""
    found = words(text)
    return sum(end - start for start, end in unlikely(text, found)) / len(found)


def test_kinds_of_words():
    found = words("My boss, Ann's aunt, quit in 2 days. Nobody noticed")
    told = [name for name, _ in kinds("My boss, Ann's aunt, quit in 2 days. Nobody noticed", found)]
    assert told == [".", "my", "noun", ",", "my", "noun", ",", "noun", "in", "1", "-s", ".", "noun", "-ed", "."]


def test_a_pairs_score_is_its_log_ratio_mixed_with_chance(monkeypatch):
    monkeypatch.setattr(word_order, "PRIOR", 2.0)
    found = learnt(["the cat of the cat"])  # pairs: . the, the cat, cat of, of the, the cat, cat .
    total, kinds_in_all = 6, len(word_order.KINDS)
    alone = {name: (count + 0.5) / (total + 0.5 * kinds_in_all) for name, count in (("noun", 2), ("the", 2))}
    assert found["the", "noun"] == pytest.approx(math.log((2 + 2 * alone["noun"]) / 4 / alone["noun"]), abs=0.05)
    assert found["noun", "the"] == pytest.approx(math.log((0 + 2 * alone["the"]) / 4 / alone["the"]), abs=0.05)


def test_the_table_is_what_the_sample_posts_teach():
    texts = [text for pair in samples("train", "more") for text in pair]
    assert as_table(learnt(texts)) == word_order.TABLE.read_text(encoding="utf-8")
    assert scores()["the", "noun"] > 1 and scores()["the", "of"] < -1


def test_a_run_is_blamed_where_it_begins_and_ends():
    good = "My landlord keeps the deposit over scratches that were there when I moved in."
    wrong = "of the to and is the of my was a to of the in and my is of the to we in and"
    text = f"{good} {wrong}. {good} {good} {good}"
    (run,) = unlikely(text, words(text))
    first = len(words(good))
    last = first + len(words(wrong))
    assert abs(run[0] - first) <= 1 and abs(run[1] - last) <= 1
    assert unlikely(good, words(good)) == [] == unlikely("", []) and UNLIKELY > 5
    assert unlikely(wrong, words(wrong)) == [(0, len(words(wrong)))]


@pytest.mark.parametrize("change", [str, lambda text: re.sub(r"[^\w\s'’$]", "", text).lower()], ids=["", "bare"])
def test_posts_that_taught_nothing(change):
    """Salads and shuffled summaries are found, also without marks and capitals; posts and summaries hardly ever."""
    held_out = samples("validation", "test")
    for made, least in ((word_salad, 0.85), (lambda post: " ".join(post.split()[::5]), 0.8)):
        assert sum(share(change(made(post))) for post, _ in held_out) > least * len(held_out)
    assert sum(share(change(shuffled(summary))) for _, summary in held_out) > 0.85 * len(held_out)
    assert sum(share(change(summary)) for _, summary in held_out) < 0.02 * len(held_out)
