"""Quotes are found exactly, forgiven only for what copying changes, and never guessed."""

import time
import unicodedata
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from text2grad.feedback import Feedback
from text2grad.grounding import as_whole_words, ground
from text2grad.tasks import get_task
from text2grad.token_rewards import span_intervals

pytestmark = pytest.mark.fast
decomposed = partial(unicodedata.normalize, "NFD")


@pytest.mark.parametrize(
    ("quote", "response", "found"),
    [
        ("a raise", "He wants a raise and a raise.", ["a raise", "a raise"]),
        ("ha ha", "ha ha ha", ["ha ha", "ha ha"]),  # overlapping occurrences all count
        ("it's late", "I think it’s late.", ["it’s late"]),
        ("a raise", "He wants a\n  raise.", ["a\n  raise"]),
        ("The dog barks.", "At night the dog barks at us.", ["the dog barks"]),
        ("THE END", "thE eNd", []),  # only the ends may differ in case
        ("...wants a raise…", "He wants a raise now", ["wants a raise"]),
        ('"wants a raise."', "He wants a raise now", ["wants a raise"]),
        ("well-known fact", "a well–known fact", ["well–known fact"]),
        ("wait... what", "wait… what", ["wait… what"]),
        ("\u00e9t\u00e9", "un e\u0301te\u0301 chaud", ["e\u0301te\u0301"]),
        ("a  raise", "a raises", []),  # a forgiven quote ends where a word ends
        ("a rise", "a raise", []),  # and similarity is not enough
        ("start ... end", "start of the end", []),
        ("", "text", []),
        ("   ", "a   b", []),
        ("...", "well...", ["..."]),
        ("print('a\nb')", "print('a\\nb')", ["print('a\\nb')"]),  # JSON's escape in place of the code's
        ("(r'\bx\b', s)", "re.findall(r'\\bx\\b', s)", ["(r'\\bx\\b', s)"]),
        ("\n", "'\\n'", []),
        ("“”", "a b", []),
        ("室友", "我的室友从来不洗碗", ["室友"]),
        ("苹果很好…", "他说苹果很好吃。", ["苹果很好"]),  # no spaces tell where a word ends
        ("🐶🎉", "dog 🐶🎉!", ["🐶🎉"]),
        ("한국어를", decomposed("나는 한국어를 배운다"), [decomposed("한국어를")]),
        (decomposed("한국어를"), "나는 한국어를 배운다", ["한국어를"]),
    ],
)
def test_ground(quote, response, found):
    assert [response[start:end] for start, end in ground(quote, response)] == found


@pytest.mark.parametrize(
    ("quote", "response", "places"),
    [
        ("the", "there, the last", [(7, 10)]),
        ("end", "the ending, unending", [(4, 7), (14, 17)]),  # it stands nowhere by itself
        ("x = 1", "max = 1; x = 1", [(9, 14)]),
        ("x = 1", "x = 12, x = 1,", [(8, 13)]),
        ("was late", "was late. was latent", [(0, 8)]),
        ("友", "室友, 友", [(1, 2), (4, 5)]),  # no spaces between words: any place may be meant
    ],
)
def test_places_that_cut_a_word_count_only_alone(quote, response, places):
    assert as_whole_words(ground(quote, response), response) == places


@given(st.text(min_size=1, max_size=80) | st.text("ab", min_size=1, max_size=30), st.data())
def test_every_cut_is_found_wherever_it_stands_and_nowhere_else(response, data):
    """Places that overlap included, of which texts of two letters are full."""
    start = data.draw(st.integers(0, len(response) - 1))
    quote = response[start : data.draw(st.integers(start + 1, len(response)))]
    places = [(at, at + len(quote)) for at in range(len(response)) if response.startswith(quote, at)]
    assert ground(quote, response) == (places if quote.strip() else [])


@given(st.text(max_size=40), st.text(max_size=80))
def test_what_is_found_says_the_same(quote, response):
    """Whatever is returned equals the quote up to white space, quotation marks, dashes, case, dots and escapes."""

    def bare(text):
        return [char.casefold() for char in unicodedata.normalize("NFC", text) if char.isalnum()]

    for start, end in ground(quote, response):
        assert 0 <= start < end <= len(response)
        assert bare(response[start:end]) in (bare(quote), bare(repr(quote)[1:-1]))


def within(seconds: float, work) -> None:
    begun = time.process_time()
    work()
    assert time.process_time() - begun < seconds


def test_time_grows_no_faster_than_text_and_quotes():
    """Figures at the length that once took half a minute and more; they are hundredths of a second now."""
    text = "word " * 2000
    within(10, lambda: [ground(f"not here {number}", text) for number in range(10_000)])
    within(5, lambda: ground("x", "a" + "\u0301\u0316" * 100_000))
    within(5, lambda: ground("aaab", "a" * 20_000))
    within(5, lambda: ground("a" * 200_000, "a" * 400_000))
    task = get_task("kodcode")
    within(2, lambda: task.rewarded("~" * 100_000 + "`"))
    within(2, lambda: task.rewarded(" " * 100_000 + "~~~x\n" * 1000))
    words = [f"w{number % 700}" for number in range(2000)]
    response = " ".join(words)
    many = Feedback("c", good=words[:1500], poor=words[500:])
    within(10, lambda: span_intervals(many, response, get_task("ultrafeedback")))
    within(5, lambda: span_intervals(Feedback("c", good=["a"] * 3000), "a " * 2000, get_task("ultrafeedback")))
