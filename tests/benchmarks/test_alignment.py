"""The alignment benchmark: that its truth is what the offsets say, that its intervals are what it says they are."""

import random

import pytest

from benchmarks.alignment import (
    AlignmentConfig,
    MarkedResponse,
    alignment_table,
    by_offsets,
    by_text2grad,
    by_words,
    compare_mappings,
    occurrences,
    random_intervals,
    retokenized,
    summarise,
)
from tests import tiny
from tests.quoting_critic import encode
from text2grad.records import load_json, save_json
from text2grad.tasks import get_task
from text2grad.token_text import token_spans

PROSE = "My sister borrowed my car without asking. She got a parking ticket, and I paid for it.\n\nShould she pay me?"
CODE = "def add(a, b):\n    total = a + b\n\n    return total\n\nprint(add(1, 2))\n"


@pytest.fixture(scope="module")
def tokenizer():
    return tiny.tokenizer("byte")


def test_truth_is_the_tokens_inside_the_offsets(tokenizer):
    text = "a b c d"
    ids = [tokenizer.convert_tokens_to_ids(token) for token in ("a", "Ġ", "b", "Ġ", "c", "Ġ", "d")]
    assert by_offsets(ids, tokenizer, [(2, 5)]) == [0, 0, -1, -1, -1, 0, 0]
    assert by_offsets(ids, tokenizer, [(2, 3), (4, 5)]) == [0, 0, -1, 0, -1, 0, 0]
    assert by_offsets(ids, tokenizer, []) == [0] * 7
    assert occurrences("aa", "aaaa.aa") == [0, 1, 2, 5] and occurrences(".", "a.b") == [1]
    assert not MarkedResponse("x", text, [(2, 5)]).repeated and MarkedResponse("x", text, [(0, 1), (1, 2)]).repeated


def test_figures_are_counts_of_tokens_marked_tokens_and_responses(tokenizer):
    rows = [MarkedResponse("once", "one two three", [(4, 7)]), MarkedResponse("twice", "go on and go", [(10, 12)])]
    config = AlignmentConfig(split=0.0, repeats=2)
    items = compare_mappings(rows, get_task("slf5k"), tokenizer, config)
    assert [item.row.repeated for item in items] == [False, True]
    for item in items:
        item.truth, item.labels["text2grad"] = [0, -1, -1, 0], [0, -1, 0, 0]
    items[0].labels["text2grad"] = [0, -1, -1, 0]
    for item, seconds in zip(items, ([0.001, 0.003], [0.002, 0.002]), strict=True):
        assert len(item.seconds["text2grad"]) == 2
        item.seconds["text2grad"] = seconds
        item.labels["word matching"] = [0, 0, 0, -1]
    found = summarise("d", "q", items)
    assert found["text2grad"] == {
        "tokens right": 7 / 8,
        "marked tokens found": 3 / 4,
        "responses entirely right": 1 / 2,
        "microseconds per response": pytest.approx(2000),
    }
    assert found["word matching"]["tokens right"] == 2 / 8
    assert found["differing"] == ["twice"]
    cells = [cell.strip() for cell in alignment_table([found]).splitlines()[-1].split("|")]
    assert cells[1:-2] == ["d: q", "2", "8", "87.50, 25.00", "75.00, 0.00", "50.00, 0.00"]


@pytest.mark.parametrize("name", ["slf5k", "kodcode"])
def test_a_quote_that_stands_once_reaches_its_tokens(name, tokenizer):
    """Both truth and mapping see ids that are not canonical; only word matching loses what punctuation hides."""
    task, text = get_task(name), CODE if name == "kodcode" else PROSE
    exact = plain = 0
    for seed in range(200):
        rng = random.Random(seed)
        row = MarkedResponse(str(seed), text, random_intervals(task, text, rng))
        ids = retokenized(encode(text), tokenizer, 0.3, rng)
        assert token_spans(ids, tokenizer)[0] == text and len(ids) >= len(encode(text))
        if row.repeated:
            continue
        truth = by_offsets(ids, tokenizer, row.places)
        found = by_text2grad(ids, tokenizer, row.quotes, task)
        assert [min(value, 0) for value in found] == truth
        exact += 1
        plain += by_words(ids, tokenizer, row.quotes) == truth
    assert exact > 60 and plain < exact / 2


def test_one_command_makes_the_table(run_script, tmp_path):
    tiny.tiny_model(tmp_path / "model")
    text = PROSE
    spans = [{"start": s, "end": e, "quote": text[s:e]} for s, e in ((0, 9), (42, 67))]
    twice = "It rains. It rains."
    rows = [
        {"id": "a", "response": text, "spans": spans},
        {"id": "b", "response": twice, "spans": [{"start": 10, "end": 19, "quote": "It rains."}]},
    ]
    save_json(tmp_path / "people.jsonl", rows)
    save_json(tmp_path / "posts.json", {"p": {"post": "Rain and a car", "generated_summary": text}})
    flags = ["--tokenizer", tmp_path / "model", "--repeats", "1", "--output", tmp_path / "out.json"]
    flags += ["--human", tmp_path / "people.jsonl", "--slf5k", tmp_path / "posts.json"]
    done = run_script("benchmarks/alignment.py", *flags)
    results = load_json(tmp_path / "out.json")
    by_row = {(row["data"], row["quotes"]): row for row in results}
    assert by_row["answers", "people"]["text2grad"]["responses entirely right"] == 1
    repeated = by_row["answers", "people, a quote occurs more than once"]
    assert repeated["differing"] == ["b"] and "| answers: people" in done.stdout
    assert ("slf5k", "the program") in by_row
