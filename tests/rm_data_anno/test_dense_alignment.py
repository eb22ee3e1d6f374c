"""Scores for every word, however often words repeat: bounded time, and an alignment that is right."""

from __future__ import annotations

import time

import pytest

from rm_data_anno.validation import validate
from text2grad.feedback import Feedback
from text2grad.tasks import get_task


@pytest.mark.parametrize("count", [100, 4500])
def test_words_that_repeat(count):
    words = ["a"] * count
    scores = [(word, 1.0 if index % 2 else -1.0) for index, word in enumerate(words)]
    begun = time.process_time()
    checked = validate(Feedback("c", scores=scores), " ".join(words), get_task("slf5k"))
    assert time.process_time() - begun < 5
    assert checked.feedback.scores == scores
    assert checked.unscored == 0


def test_words_that_repeat_with_some_left_out_and_some_added():
    words = [f"w{index % 20}" for index in range(4500)]
    given = [(word, 1.0) for index, word in enumerate(words) if index % 100] + [("never", 1.0)]
    begun = time.process_time()
    checked = validate(Feedback("c", scores=given), " ".join(words), get_task("slf5k"))
    assert time.process_time() - begun < 5
    assert (checked.unscored, checked.unmatched) == (45, ["never"])
