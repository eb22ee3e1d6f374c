"""The documentation is written in short plain sentences; tests/prose.py has the limits and how they are counted."""

from __future__ import annotations

import pytest

from tests.prose import Prose, blocks, pages, prose_of, sentences
from tests.prose_figures import figures, lost

pytestmark = pytest.mark.fast

SAMPLE = """# A heading: not counted (at all)

Two runs took 14:24 and `a; b (c)` was [linked (here)](https://example.org/x.html). They
ended; both (really) well, e.g. here!

![a picture: no (prose)](x.svg)

- an item without a stop
- **Bold.** Another item, of
  two lines.

| a table | (no) |
| --- | --- |

```bash
echo "code: (not counted); it stands anew"
```
<!-- a comment; (no) -->
1. Numbered: one.
"""


@pytest.mark.parametrize("page", pages())
def test_page_keeps_the_limits(page):
    assert not (found := prose_of(page).problems()), f"{page}:\n" + "\n".join(found)


def test_blocks_leave_out_what_is_no_prose():
    assert blocks(SAMPLE) == [
        "Two runs took 14:24 and CODE was linked (here). They ended; both (really) well, e.g. here!",
        "an item without a stop",
        "Bold. Another item, of two lines.",
        "Numbered: one.",
    ]


def test_counts_of_a_page_by_hand():
    prose = Prose(sentences("One two three (four). Five: six; seven at 14:24.\n\n- eight\n"))
    assert len(prose.sentences) == 3
    assert prose.words == (4 + 5 + 1) / 3
    assert prose.brackets == 1 / 3
    assert prose.colons == 2 / 3
    assert prose.problems() == ["0.67 semicolons and colons a sentence, at most 0.35"]


def test_sentences_end_at_stops_but_not_in_figures_and_abbreviations():
    text = "It rose from 0.5 to 1.25, e.g. here. Is it (so?) Rajbhandari et al. say so. δ is a sum."
    assert sentences(text) == [
        "It rose from 0.5 to 1.25, e.g. here",
        "Is it (so",
        "Rajbhandari et al. say so",
        "δ is a sum.",
    ]


def test_long_sentences_and_words_to_avoid_are_named():
    long = " ".join(["word"] * 46) + "."
    assert [each.split(":")[0] for each in Prose(sentences(f"{long} Short. Short. Short.")).problems()] == [
        "46 words in one sentence, at most 45"
    ]
    found = Prose(sentences("Both are Mended. What becomes of it? Standard words. It understands.")).problems()
    assert [each.partition(" (")[0] for each in found] == ["“Mended”", "“becomes of it”"]


def test_figures_are_read_with_their_units_and_in_one_spelling():
    text = "From −0.55 to +0.17 [0.06, 0.56], 176 083 tokens, 3 %, 14:24, 1.5 ms, 2048 MiB and 12 people."
    assert [str(each) for each in figures(text)] == [
        "-0.55",
        "+0.17",
        "0.06",
        "0.56",
        "176083 tokens",
        "3 %",
        "14:24",
        "1.5 ms",
        "2048 MiB",
        "12",
    ]


def test_lost_figures_are_those_that_occur_nowhere_in_the_new_pages():
    old = "It takes 1.5 ms, 3 % of 2 048 tokens, from −0.55. Twice 7."
    missing, other_unit = lost(old, ["It takes 1.5 minutes.", "3% of 2048 tokens."])
    assert [str(each) for each in missing] == ["-0.55", "7"]
    assert [str(each) for each in other_unit] == ["1.5 ms"]
    assert lost(old, [old]) == ([], [])
