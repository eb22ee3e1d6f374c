"""The faults of an answer that a program can see: one function for each, from an answer to stretches of its words."""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from text2grad.critics.programs.english import has_verb, listed, ngrams
from text2grad.critics.programs.ultrafeedback.reading import COPY_RUN, Answer, any_of, close

REPEATED_RUN = 8

_REFUSAL = re.compile(
    r"\b"
    + any_of(
        r"""as an? (?:ai|artificial|large|language) | i apologi[sz]e |
        i(?:'m| am) (?:sorry|unable|not able|afraid) |
        i(?:'m| am) (?:just |only )?an? (?:ai|artificial|large language|language model|computer program) |
        i (?:cannot|can't|can not|do not have|don't have|am not capable|won't be able to) |
        my (?:training|knowledge) (?:data|cut-?off)"""
    )
    + r"\b",
    re.IGNORECASE,
)
_OPENERS = any_of(
    r"""sure(?: thing)? | certainly | absolutely | of course | okay | great(?: question)? |
    (?:that's|what) an? (?:great|good|interesting) question | thank you for[^.!?\n]* |
    i'?d be happy to[^.!?\n]* | i'?m (?:happy|glad) to[^.!?\n]*"""
)
_CLOSERS = any_of(
    r"""i hope (?:this|that|you) | hope this helps | let me know if | feel free to | please let me know |
    don't hesitate | if you have any (?:other |more |further )?questions | is there anything else"""
)
_PHRASES = any_of(
    r"""
    it(?:'s| is) (?:important|worth|crucial|essential) to (?:note|remember|mention|consider|understand|keep in mind) |
    in conclusion | in summary | to sum up | overall | at the end of the day | when it comes to |
    there are (?:many|several|various|numerous) (?:\w+ )?(?:factors|reasons|ways|things|options|aspects|answers) |
    there are a (?:lot|variety|number|range|few) of (?:\w+ )?(?:factors|reasons|ways|things|options|aspects) |
    depends on (?:a (?:number|variety|lot) of|many|various|several|your (?:personal|individual|own|specific)) \w+ |
    plays? an? (?:important|crucial|vital|significant|key) role | in today's (?:\w+ )?world | navigating the |
    delve into | a testament to | each (?:of these )?(?:has|have|offers) (?:its|their) own | and so on |
    and more"""
)
_STOCK = re.compile(rf"\b{_PHRASES}\b", re.IGNORECASE)
_FILLER = re.compile(
    rf"(?:\A|(?<=[.!?\n]))\s*{_OPENERS}\s*[!,.:]|\b{_CLOSERS}\b[^.!?\n]*[.!?]?|\b{_PHRASES}\b", re.IGNORECASE
)
_REFERRING = listed(
    "it they this these that those such he she their its his her you your we our i my them him there please"
)
_NOT_AFTER_ARTICLE = listed(
    "of and or but is are was were be been am do does did has have had would could should to at by for from into a an "
    "the my our their its your his i he she we they it them us me you him because if so when where how who which"
)
_HEADS = listed("of for with from into at by and or but to is are was were")
_NOT_AFTER_HEAD = listed("of and or but is are was were has had would could should")
_NOT_LAST = listed("a an the my our their its your of and or but because than")
_NO_NAMES = listed("the a an this these those it they and but or of is are was to for with by in on at from as")


@dataclass(frozen=True)
class Fault:
    """Words ``[start, end)`` that are poor, and why."""

    kind: str
    start: int
    end: int
    detail: str = ""


def words_in(answer: Answer, start: int, end: int) -> tuple[int, int] | None:
    """The words that a character interval touches."""
    inside = [i for i, word in enumerate(answer.words) if word.start < end and word.end > start]
    return (inside[0], inside[-1] + 1) if inside else None


def refusal(answer: Answer) -> Iterator[Fault]:
    """Sentences that decline, or speak of being a language model without being asked."""
    if answer.request.about_itself or answer.request.creative:
        return
    for start, end, _ in answer.units:
        if _REFUSAL.search(answer.text[answer.words[start].start : answer.words[end - 1].end]):
            yield Fault("refusal", start, end)


def off_topic(answer: Answer) -> Iterator[Fault]:
    """Nothing of the request in the whole answer; or a sentence without a tie to the request or to any other."""
    request = answer.request
    if not answer.on_topic and len(answer.words) >= (8 if len(request.topic) >= 2 else 20):
        yield Fault("off topic", 0, len(answer.words))
        return
    if request.creative:
        return
    told = [answer.concepts(start, end) for start, end, _ in answer.units]
    count = Counter(concept for concepts in told for concept in concepts)
    for (start, end, _), concepts in zip(answer.units, told, strict=True):
        prose = end - start >= 8 and not answer.is_item(start) and not any(answer.code[start:end])
        refers = any(word.key in _REFERRING for word in answer.words[start:end])
        if prose and not refers and len(told) >= 4 and len(concepts) >= 5:
            others = {concept for concept in count if count[concept] > (concept in concepts)} | request.topic
            if not any(close(concept, others) for concept in concepts):
                yield Fault("off topic", start, end)


def copying(answer: Answer) -> Iterator[Fault]:
    """Sentences that say the request back; work on a text that it brings may use much of it."""
    keys = [word.key for word in answer.words]
    covered: set[int] = set()
    for i, gram in ngrams(keys, COPY_RUN):
        if gram in answer.request.runs:
            covered |= set(range(i, i + COPY_RUN))
    if answer.request.own_text and len(covered) < 0.9 * len(keys):
        return
    for start, end, _ in answer.units:
        said = sum(i in covered for i in range(start, end))
        if said >= 0.7 * (end - start) and said >= COPY_RUN:
            yield Fault("copying", start, end)


def repetition(answer: Answer) -> Iterator[Fault]:
    """Words, runs, sentences and sentence patterns that were there before."""
    keys = [word.key for word in answer.words]
    for i in range(2, len(keys)):
        if keys[i] == keys[i - 1] == keys[i - 2] and not answer.code[i]:
            yield Fault("repetition", i, i + 1)
    apart = {
        i
        for start, end, _ in answer.units
        if answer.request.creative or answer.is_item(start)
        for i in range(start, end)
    }  # items of a list may be alike, and songs have refrains
    seen: set[tuple[str, ...]] = set()
    for i, gram in ngrams(keys, REPEATED_RUN):
        if gram in seen and i not in apart and not any(answer.code[i : i + REPEATED_RUN]):
            yield Fault("repetition", i, i + REPEATED_RUN)
        seen.add(gram)
    patterns: Counter[tuple[str, ...]] = Counter()
    before: list[Counter[str]] = []
    for start, end, _ in answer.units:
        now = Counter(word.concept for word in answer.words[start:end] if not word.is_function)
        same = any((now & other).total() >= 0.85 * max(now.total(), other.total()) for other in before)
        least = 7 if start in apart else 3
        if now.total() >= least and same and not any(answer.code[start:end]):
            yield Fault("repetition", start, end)
        before.append(now)
        pattern = tuple(word.key if word.is_function else "…" for word in answer.words[start:end])
        patterns[pattern] += end - start >= 8 and pattern.count("…") <= 0.7 * len(pattern) and start not in apart
        if patterns[pattern] > 2:  # other words in the same sentence, again and again
            yield Fault("repetition", start, end)


def filler(answer: Answer) -> Iterator[Fault]:
    """Courtesies, stock phrases, and sentences that would fit any request."""
    pattern = _STOCK if answer.request.letter else _FILLER  # courtesies belong to letters
    for match in pattern.finditer(answer.text):
        touched = words_in(answer, *match.span())
        if touched:
            yield Fault("filler", *touched)
    for start, end, _ in answer.units:
        if end - start >= 6 and not answer.is_item(start) and not any(answer.code[start:end]):
            specific = any(not word.is_function and not word.is_common for word in answer.words[start:end])
            if not specific and not answer.request.creative:
                yield Fault("filler", start, end)


def no_language(answer: Answer) -> Iterator[Fault]:
    """Prose without verbs or the small words that hold it together, or in an order that English does not have; and
    lists of words where the request asks for no list."""
    if answer.request.creative:
        return
    bare_words = []
    for start, end, _ in answer.units:
        sentence = answer.words[start:end]
        small = sum(word.is_function for word in sentence)
        link = "://" in answer.text[answer.words[start].start : answer.words[end - 1].end]
        if link or any(answer.code[start:end]) or (answer.is_item(start) and small):
            continue
        if small == 0 and end - start <= 3 and not any(word.is_number for word in sentence):
            bare_words.append((start, end))
        elif not answer.is_item(start) and end - start >= 8 and not any(word.is_number for word in sentence):
            disorder = _disorder(answer, start, end)
            heap = small < 0.12 * (end - start) or (small < 0.25 * (end - start) and not has_verb(sentence))
            if heap or disorder > max(1, (end - start) / 15):
                yield Fault("no language", start, end)
    share = sum(end - start for start, end in bare_words) / len(answer.words)
    if share > 0.6 and len(bare_words) >= 5 and not answer.request.lists:
        yield from (Fault("no language", start, end) for start, end in bare_words)


def _disorder(answer: Answer, start: int, end: int) -> int:
    """How often a sentence has an order of words that English does not have, or an odd beginning or end."""
    first, last = answer.words[start], answer.words[end - 1]
    count = int(first.text[0].islower() and start > 0 and answer.text[: first.start].rstrip()[-1] in ".!?")
    count += last.key in _NOT_LAST and answer.text[last.end : last.end + 1] in (".", "!", "?")
    for one, other in pairwise(answer.words[start:end]):
        if not answer.text[one.end : other.start].strip():
            count += one.text in ("a", "an", "the", "An", "The") and other.key in _NOT_AFTER_ARTICLE
            count += one.key in _HEADS and other.key in _NOT_AFTER_HEAD
            count += one.key == other.key and one.key not in ("that", "had")
            count += other.text[0].isupper() and other.key in _NO_NAMES and one.text[0].islower()
    return count


def no_end(answer: Answer) -> Iterator[Fault]:
    """The last words of an answer that was cut off."""
    start, end, ended = answer.units[-1]
    tail = answer.text.rstrip()
    if ended or answer.code[end - 1] or tail[-1] in ':)]}*`"”|…':
        return
    hanging = answer.words[-1].is_function or tail[-1] in ",;-–—("
    if hanging or (end - start >= 12 and not answer.is_item(start) and not answer.request.creative):
        yield Fault("no end", max(start, end - 10), end)


RULES: tuple[Callable[[Answer], Iterator[Fault]], ...] = (
    refusal,
    off_topic,
    copying,
    repetition,
    filler,
    no_language,
    no_end,
)
