"""The faults of an answer that a program can see: one function for each, from an answer to stretches of its words."""

import re
from collections import Counter
from collections.abc import Iterator

from text2grad.critics.programs.english import Fault, has_verb, ngrams
from text2grad.critics.programs.ultrafeedback.reading import Answer

REPEATED_RUN = 8

_REFUSAL = re.compile(
    r"\bi(?:'m| am) (?:sorry|afraid|unable)\b|\bi apologi[sz]e\b|"
    r"\bi (?:cannot|can't|can not|won't) (?:help|assist|provide|answer|give|do|write|create|complete|discuss)\b",
    re.IGNORECASE,
)


def refusal(answer: Answer) -> Iterator[Fault]:
    """Sentences that decline."""
    if answer.request.creative:
        return
    for start, end, _ in answer.units:
        if _REFUSAL.search(answer.text[answer.words[start].start : answer.words[end - 1].end]):
            yield Fault("refusal", start, end)


def repetition(answer: Answer) -> Iterator[Fault]:
    """Words, runs and sentences that were there before. Items of a list may be alike, and songs have refrains."""
    keys = [word.key for word in answer.words]
    for i in range(2, len(keys)):
        if keys[i] == keys[i - 1] == keys[i - 2] and not answer.code[i]:
            yield Fault("repetition", i, i + 1)
    apart: set[int] = set()
    for start, end, _ in answer.units:
        if answer.request.creative or answer.is_item(start):
            apart |= set(range(start, end))
    seen: set[tuple[str, ...]] = set()
    for i, gram in ngrams(keys, REPEATED_RUN):
        if gram in seen and i not in apart and not any(answer.code[i : i + REPEATED_RUN]):
            yield Fault("repetition", i, i + REPEATED_RUN)
        seen.add(gram)
    before: list[Counter[str]] = []
    for start, end, _ in answer.units:
        now = Counter(word.concept for word in answer.words[start:end] if not word.is_function)
        same = any((now & other).total() >= 0.85 * max(now.total(), other.total()) for other in before)
        least = 7 if start in apart else 3
        if now.total() >= least and same and not any(answer.code[start:end]):
            yield Fault("repetition", start, end)
        before.append(now)


def no_language(answer: Answer) -> Iterator[Fault]:
    """Prose without verbs or the small words that hold it together; lists of words where none is asked for."""
    if answer.request.creative:
        return
    bare_words = []
    for start, end, _ in answer.units:
        sentence = answer.words[start:end]
        small = sum(word.is_function for word in sentence)
        link = "://" in answer.text[answer.words[start].start : answer.words[end - 1].end]
        numbers = any(word.is_number for word in sentence)
        if link or numbers or any(answer.code[start:end]) or (answer.is_item(start) and small):
            continue
        if small == 0 and end - start <= 3:
            bare_words.append((start, end))
        elif not answer.is_item(start) and end - start >= 8:
            few = 0.12 if has_verb(sentence) else 0.25
            if small < few * (end - start):
                yield Fault("no language", start, end)
    share = sum(end - start for start, end in bare_words) / len(answer.words)
    if share > 0.6 and len(bare_words) >= 5 and not answer.request.lists:
        yield from (Fault("no language", start, end) for start, end in bare_words)


def no_end(answer: Answer) -> Iterator[Fault]:
    """The last words of an answer that was cut off."""
    start, end, ended = answer.units[-1]
    tail = answer.text.rstrip()
    if ended or answer.code[end - 1] or tail[-1] in ':)]}*`"”|…':
        return
    hanging = answer.words[-1].is_function or tail[-1] in ",;-–—("
    if hanging or (end - start >= 12 and not answer.is_item(start) and not answer.request.creative):
        yield Fault("no end", max(start, end - 10), end)


RULES = (refusal, repetition, no_language, no_end)
