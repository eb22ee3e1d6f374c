"""The heart of the method: quotes reach exactly the sampled tokens they are about."""

import random
from itertools import accumulate, pairwise
from os.path import commonprefix

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.convert_slow_tokenizer import bytes_to_unicode

from tests.tiny import CORPUS, tokenizer
from text2grad.errors import InputError
from text2grad.feedback import Feedback
from text2grad.token_rewards import TAGGERS, rewards_on, token_rewards, token_spans

pytestmark = pytest.mark.fast


def touched_characters(ids, tok):
    """Independent of the code under test: which characters each id had a part in, seen only from decoded prefixes."""
    texts = [tok.decode(ids[:count], skip_special_tokens=True) for count in range(len(ids) + 1)]
    whole = texts[-1]
    touched = [set() for _ in ids]
    shared = list(accumulate((len(commonprefix([text, whole])) for text in texts), max))
    begun = [length + (text != whole[:length]) for text, length in zip(texts, shared, strict=True)]
    for char in range(len(whole)):
        first = next(count for count, length in enumerate(begun) if length > char)
        last = next(count for count, text in enumerate(texts) if text[: char + 1] == whole[: char + 1])
        for count in range(first, last + 1):
            if ids[count - 1] not in tok.all_special_ids:  # which write nothing
                touched[count - 1].add(char)
    return whole, touched


def touched_bytes(ids, tok):
    """The same for byte-level BPE from the bytes themselves, for any ids: a byte that is part of no character, and the
    incomplete ones around it, are one replacement character, as in every UTF-8 decoder."""
    of_letter = {letter: byte for byte, letter in bytes_to_unicode().items()}
    owners, data = [], b""
    for index, token in enumerate(tok.convert_ids_to_tokens(ids)):
        if ids[index] not in tok.all_special_ids:
            written = bytes(of_letter[letter] for letter in token)
            owners += [index] * len(written)
            data += written
    whole, touched, position = "", [set() for _ in ids], 0
    while position < len(data):
        try:
            good, broken = data[position:].decode(), 0
        except UnicodeDecodeError as error:
            good, broken = data[position : position + error.start].decode(), error.end
        char, length = (good[0], len(good[0].encode())) if good else ("\N{REPLACEMENT CHARACTER}", broken)
        for owner in owners[position : position + length]:
            touched[owner].add(len(whole))
        whole += char
        position += length
    assert whole == tok.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return whole, touched


def expected_labels(quote, label, whole, touched):
    """Rules (b) and (e) read literally, character by character."""
    places = [i for i in range(len(whole)) if whole.startswith(quote, i)]
    places = [i for i in places if not (glued(whole, i) or glued(whole, i + len(quote)))] or places
    words = sum(max(1, sum("\u3040" <= char <= "\ud7af" for char in word)) for word in quote.split())
    if words < 3:
        places = places[:1]
    labels = []
    for chars in touched:
        visible = {char for char in chars if not whole[char].isspace()} or chars
        inside = any(visible and all(place <= char < place + len(quote) for char in visible) for place in places)
        labels.append(label if inside else 0.0)
    return labels


def glued(text, edge):
    """Whether a word goes on across an edge, in scripts with capitals."""
    sides = text[edge - 1] + text[edge] if 0 < edge < len(text) else " "
    return all(char == "_" or char.isdigit() or char.swapcase() != char for char in sides)


def labels_are_exact(ids, tok, draw_cut, check=touched_characters):
    """Compare on one quote cut from the text of ids; returns the number of tokens compared."""
    whole, touched = check(ids, tok)
    text, _ = token_spans(ids, tok)
    assert text == whole
    start, end = draw_cut(len(whole))
    quote = whole[start:end]
    if not quote.strip():
        return 0
    got = token_rewards(ids, tok, Feedback("c", good=[quote]), "slf5k")
    assert got.values == expected_labels(quote, 1.0, whole, touched), (quote, whole)
    assert (got.matched, got.unmatched) == (1, 0)
    return len(ids)


def clean(ids, tok):
    """Whether the ids write whole characters (for other ids the prefixes alone do not tell who wrote what)."""
    return "\N{REPLACEMENT CHARACTER}" not in tok.decode(ids, skip_special_tokens=True)


def drawn_cut(data):
    def cut(length):
        start = data.draw(st.integers(0, max(length - 1, 0)))
        return start, data.draw(st.integers(start, length))

    return cut


@pytest.mark.parametrize("family", ("byte", "sentencepiece"))
@settings(max_examples=150)
@given(data=st.data())
def test_labels_equal_a_character_by_character_check(family, data):
    """Any ids, canonical or not, with special tokens among them, over emoji, CJK, combining marks and code."""
    tok = tokenizer(family)
    parts = data.draw(st.lists(st.sampled_from([*CORPUS, " \n\n", "ab", "🐶"]), min_size=1, max_size=3))
    ids = [i for part in parts for i in tok(part[:60], add_special_tokens=False)["input_ids"]]
    for _ in range(data.draw(st.integers(0, 3))):
        ids.insert(data.draw(st.integers(0, len(ids))), data.draw(st.sampled_from([0, 1, 2, 70, 90, len(tok) - 1])))
    if clean(ids, tok):
        labels_are_exact(ids, tok, drawn_cut(data))


@settings(max_examples=200)
@given(st.lists(st.integers(0, 900), min_size=1, max_size=30), st.data())
def test_labels_are_exact_on_broken_characters_too(ids, data):
    """Random ids of a byte-level tokenizer: mostly pieces of multi-byte characters that never come together."""
    tok = tokenizer("byte")
    labels_are_exact([i % len(tok) for i in ids], tok, drawn_cut(data), touched_bytes)


@settings(max_examples=100)
@given(st.lists(st.integers(0, 360), min_size=1, max_size=30))
def test_wordpiece_spans_are_the_pieces_and_the_spaces_before_them(ids):
    tok = tokenizer("wordpiece")
    ids = [i for i in ids if i < len(tok)]
    text, spans = token_spans(ids, tok)
    assert text == tok.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    pieces = [text[start:end].strip() for start, end in spans]
    tokens = ["" if i < 4 else tok.convert_ids_to_tokens(i) for i in ids]
    first = next((k for k, token in enumerate(tokens) if token), None)
    assert pieces == [token if k == first else token.removeprefix("##") for k, token in enumerate(tokens)]
    assert "".join(pieces) == text.replace(" ", "")


@settings(max_examples=150)
@given(st.lists(st.integers(0, 900), max_size=40))
def test_any_ids_of_sentencepiece_are_covered(ids):
    """Random ids, broken UTF-8 included: the text is the decoder's, and every visible character has a token."""
    tok = tokenizer("sentencepiece")
    ids = [i % len(tok) for i in ids]
    text, spans = token_spans(ids, tok)
    assert text == tok.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert len(spans) == len(ids)
    covered = {char for start, end in spans for char in range(start, end)}
    assert all(char in covered or text[char] == " " for char in range(len(text)))
    assert all(a[0] <= b[0] for a, b in pairwise(spans))


def test_a_token_with_part_of_a_character_covers_it():
    tok = tokenizer("byte")
    ids = [tok.convert_tokens_to_ids(piece) for piece in ("a", "ð", "Ł", "Ĳ", "¶", "b")]
    assert token_spans(ids, tok) == ("a🐶b", [(0, 1), (1, 2), (1, 2), (1, 2), (1, 2), (2, 3)])
    got = token_rewards(ids, tok, Feedback("c", poor=["🐶"]), "slf5k")
    assert got.values == [0, -1, -1, -1, -1, 0]


def ids_and_pieces(text):
    tok = tokenizer("byte")
    ids = tok(text, add_special_tokens=False)["input_ids"]
    whole, spans = token_spans(ids, tok)
    return tok, ids, [whole[start:end] for start, end in spans]


def test_poor_beats_good_and_conflicts_are_counted():
    tok, ids, pieces = ids_and_pieces("I have worked at the same company")
    assert pieces == ["I", " have", " worked", " at", " the", " same", " company"]
    feedback = Feedback("c", good=["I have worked at"], poor=["worked at", "never said"])
    got = token_rewards(ids, tok, feedback, "slf5k")
    assert got.values == [1, 1, -1, -1, 0, 0, 0]
    assert (got.matched, got.unmatched, got.conflicts) == (2, 1, 2)


def test_short_quotes_take_the_first_free_place_and_long_ones_all():
    tok, ids, pieces = ids_and_pieces("the dog barks; the dog barks; the dog")
    assert token_rewards(ids, tok, Feedback("c", good=["the dog"]), "slf5k").values.count(1.0) == 2
    everywhere = token_rewards(ids, tok, Feedback("c", good=["the dog barks"]), "slf5k")
    labelled = [piece for piece, value in zip(pieces, everywhere.values, strict=True) if value]
    assert labelled == ["the", " dog", " barks", " the", " dog", " barks"]
    both = token_rewards(ids, tok, Feedback("c", good=["the dog"], poor=["the dog barks"]), "slf5k")
    assert both.conflicts == 0  # the good quote moved on to the last, free place
    assert both.values[-2:] == [1.0, 1.0]


def test_only_code_is_judged_in_code():
    response = "Here it is: add(1, 2)\n```python\ndef add(a, b):\n    return a + b\nx = 1\n```\nadd(1, 2) is 3."
    tok, ids, pieces = ids_and_pieces(response)
    got = token_rewards(ids, tok, Feedback("c", good=["def add(a, b):"], poor=["return a + b", "add(1, 2)"]), "kodcode")
    labelled = {1: "", -1: "", 0: ""}
    for piece, value in zip(pieces, got.values, strict=True):
        labelled[value] += piece
    assert labelled[1] == "\n   \nx = 1\n" and labelled[-1] == " return a + b"
    assert labelled[0] == "Here it is: add(1, 2)\n```python\ndef add(a, b):```\nadd(1, 2) is 3."
    assert got.unmatched == 1  # the call stands only outside the code


def test_a_whole_line_of_code_counts_everywhere():
    tok, ids, pieces = ids_and_pieces("if a:\n    return b\nelse:\n    return b\n# return b")
    got = token_rewards(ids, tok, Feedback("c", poor=["return b"]), "kodcode")
    assert got.values.count(-1.0) == 2 * len([p for p in pieces if p.strip() in ("return", "b")]) // 3


def test_linear_decay_is_the_formula():
    tok, ids, _ = ids_and_pieces("my boss told me that I would not")
    got = token_rewards(ids, tok, Feedback("c", good=["my boss told me"], poor=["would"]), "slf5k", scheme="decay")
    tokens = len(tok("my boss told me", add_special_tokens=False)["input_ids"])
    assert got.values[:tokens] == pytest.approx([1 - 0.9 * i / (tokens - 1) for i in range(tokens)])
    assert min(got.values) == -1.0  # a span of one token keeps all of its reward


def test_dense_and_continuous_scores_follow_the_reading_order():
    tok, ids, _ = ids_and_pieces("the dog barks; the dog barks")
    scored = Feedback("c", scores=[("the", 0.5), ("dog", -0.25), ("the", -1.0), ("cat", 1.0), ("barks", 0.0)])
    got = token_rewards(ids, tok, scored, "slf5k", scheme="continuous")
    assert [v for v in got.values if v] == [0.5, -0.25, -1.0]
    assert (got.matched, got.unmatched) == (4, 1)
    dense = token_rewards(ids, tok, scored, "slf5k", scheme="dense")
    assert [v for v in dense.values if v] == [1.0, -1.0, -1.0]
    places = [(0, 3), (3, 6), (6, 8), (8, 13)]  # where a critic left "at" out, its letter is not the word
    left_out = rewards_on("ran at a park", places, Feedback("c", scores=[("ran", 1.0), ("a", -1.0)]), "slf5k", "dense")
    assert left_out.values == [1.0, 0.0, -1.0, 0.0]
    fenced, words = "So:\n```python\nx = 1\n```\nDone.", [(0, 3), (4, 13), (14, 15), (24, 29)]
    around = Feedback("c", scores=[("So:", 1.0), ("x", 1.0), ("Done.", -1.0)])
    assert rewards_on(fenced, words, around, "kodcode", "dense").values == [0.0, 0.0, 1.0, 0.0]
    with pytest.raises(InputError, match="scores"):
        token_rewards(ids, tok, Feedback("c"), "slf5k", scheme="dense")
    with pytest.raises(InputError, match="scheme"):
        token_rewards(ids, tok, Feedback("c"), "slf5k", scheme="sparse")


def test_importance_weighs_nouns_and_verbs():
    spacy = pytest.importorskip("spacy")
    if not any(map(spacy.util.is_package, TAGGERS)):
        pytest.skip("spaCy has no English model here")
    tok, ids, pieces = ids_and_pieces("my boss told me that I would not get the raise")
    got = token_rewards(ids, tok, Feedback("c", good=["my boss told me that"]), "slf5k", scheme="importance")
    by_piece = dict(zip(pieces, got.values, strict=True))
    assert by_piece[" boss"] == by_piece[" told"] == 1.0
    assert by_piece[" me"] == by_piece[" that"] == 0.2


def test_nothing_in_nothing_out():
    tok = tokenizer("byte")
    got = token_rewards([], tok, Feedback("c", good=["a"]), "slf5k")
    assert (got.values, got.unmatched, got.text) == ([], 1, "")
    assert token_rewards([2, 2], tok, Feedback("c"), "kodcode").values == [0.0, 0.0]


@pytest.mark.slow
def test_thousand_sampled_responses_are_labelled_exactly():
    """1 000 responses of SmolLM2 sampled at temperature 1, their own ids, and a random quote cut from each."""
    import torch

    from text2grad.models import load_model, load_tokenizer

    tok, model = load_tokenizer("smollm2"), load_model("smollm2")
    rng = random.Random(0)
    torch.manual_seed(0)
    responses = compared = broken = 0
    prompts = [tok.apply_chat_template([{"role": "user", "content": text}], tokenize=False) for text in CORPUS]
    for _ in range(8):
        asked = [rng.choice(prompts) + "<|im_start|>assistant\n" for _ in range(125)]
        batch = tok(asked, return_tensors="pt", padding=True)
        out = model.generate(**batch, do_sample=True, temperature=1.0, top_k=0, max_new_tokens=40)
        for row in out[:, batch["input_ids"].shape[1] :].tolist():
            cuts = (sorted((rng.randint(0, n), rng.randint(0, n))) for n in [len(touched_bytes(row, tok)[0])] * 50)
            tries = (labels_are_exact(row, tok, lambda _, cut=cut: cut, touched_bytes) for cut in cuts)
            tokens = next(filter(None, tries), 0)  # a cut of white space alone is drawn again
            compared += tokens
            responses += tokens > 0
            broken += not clean(row, tok)
    print(f"{compared} tokens of {responses} responses compared, {broken} with broken characters among all 1000")
    assert responses >= 990  # the others are empty
