"""One checker for each rule. It quotes what breaks the rule or names what is missing, and says so in a sentence."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

_WORD = re.compile(r"\S*\w\S*")
_SENTENCE = re.compile(r"\S[^.!?]*(?:[.!?]+|$)")
_INSTRUCTION = re.compile(
    r"\b(?:[\w-]+\s+)?(?:words?|sentences?|commas?|capitals?|lower-?case|(?:small|capital) letters)\b"
    r"|\b\d+ (?:to|or) \d+\b|\b(?:writ(?:e|ing) about|be brief|do not use)\b",
    re.IGNORECASE,
)
"""What an answer has only if it speaks of the request in place of its topic."""


class Violation(NamedTuple):
    """Quotes of a response, exactly as it has them, what is wrong, what the response lacks, if it does, and how much.

    A length that is one word off is hardly wrong, and is wrong all the same: ``size`` lies in 0..1.
    """

    quotes: list[str]
    remark: str
    missing: str = ""
    size: float = 1.0


def words_of(text: str) -> list[str]:
    return _WORD.findall(text)


def sentences_of(text: str) -> list[str]:
    return [match.group().rstrip() for match in _SENTENCE.finditer(text)]


def words_between(text: str, limits: list[int]) -> list[Violation]:
    """At least and at most so many words: what is too much is quoted."""
    low, high = limits
    found = list(_WORD.finditer(text))
    if len(found) < low:
        remark = f"It has only {len(found)} words. At least {low} are asked for."
        return [Violation([], remark, f"{low - len(found)} more words", 1 - len(found) / low)]
    if len(found) > high:
        remark = f"It has {len(found)} words. Only {high} are allowed."
        return [Violation([text[found[high].start() :].rstrip()], remark, size=min(1.0, len(found) / high - 1))]
    return []


def sentences_at_most(text: str, most: int) -> list[Violation]:
    found = sentences_of(text)
    return [Violation(found[most:], f"It has {len(found)} sentences. Only {most} is allowed.")] if found[most:] else []


def without_word(text: str, word: str) -> list[Violation]:
    found = re.findall(rf"\b{re.escape(word)}\b", text, re.IGNORECASE)
    return [Violation(found, f"It uses the word {word}, which the request forbids.")] if found else []


def without_commas(text: str, wanted: bool = True) -> list[Violation]:
    found = re.findall(r"\S*,", text)
    return [Violation(found, "It has commas, which the request forbids.")] if found else []


def mentions(text: str, word: str) -> list[Violation]:
    found = re.search(rf"\b{re.escape(word)}", text, re.IGNORECASE)
    return [] if found else [Violation([], f"It does not mention {word}.", word)]


def not_repeated(text: str, wanted: bool = True) -> list[Violation]:
    found = sentences_of(text)
    again = [each for place, each in enumerate(found) if each in found[:place]]
    return [Violation(again, "It says the same sentence twice.")] if again else []


def on_its_topic(text: str, wanted: bool = True) -> list[Violation]:
    """Nothing about the request itself, as in "Tea in 8 to 30 words is a drink"."""
    found = [match.group() for match in _INSTRUCTION.finditer(text)]
    return [Violation(found, "It speaks of its instructions.")] if found else []


CHECKS: dict[str, Callable[[str, Any], list[Violation]]] = {
    "words": words_between,
    "sentences": sentences_at_most,
    "without": without_word,
    "no_commas": without_commas,
    "mentions": mentions,
    "no_repeats": not_repeated,
    "on_topic": on_its_topic,
}


def violations(text: str, rules: dict[str, Any]) -> list[Violation]:
    """Everything that breaks one of a request's rules."""
    return [found for rule, argument in rules.items() for found in CHECKS[rule](text, argument)]


def passes(text: str, rules: dict[str, Any]) -> bool:
    return bool(text.strip()) and not violations(text, rules)
