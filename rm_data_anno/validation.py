"""The check every annotation passes before it may train anything (paper, appendices L and M.1).

Each span must be an exact quote of what can get a reward in the response, carry one label only, and be about
something the critique mentions.
"""

import re
import string
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher

from text2grad.errors import InputError
from text2grad.feedback import Feedback
from text2grad.grounding import ground, inside
from text2grad.records import Records, load_records
from text2grad.tasks import Task

_WORD = re.compile(r"[^\W_]+")
_UNSPACED = re.compile("[\u0e00-\u0eff\u2e80-\u9fff]")  # Thai, Lao, Chinese and Japanese letters
_MOST_LISTED = 10  # spans that a complaint names
_MOST_PAIRS = 300_000  # of equal words in two texts that are compared in full
_FARTHEST = 50  # words
_STEM = 5  # letters compared: "summarise" and "summary" agree, "post" and "poster" too
_LISTS = ("unmatched", "unjudged", "contradicted", "unsupported")
_FUNCTION_WORDS = frozenset(
    _WORD.findall("""
    all and any are but can did for from get had has her him his how its may not off our out own per she the too
    two use was who why you yet about after again also because been before being between both could does doing
    down during each from further have having here into itself just more most only other over same should some
    such than that their them then there these they this those through under until very were what when where
    which while will with would your
    """)
)


@dataclass
class Validated:
    """Feedback whose spans are all exact quotes, and what happened to those that were not."""

    feedback: Feedback
    offered: int
    unmatched: list[str] = field(default_factory=list)  # not in the response: dropped
    unjudged: list[str] = field(default_factory=list)  # only in prose around the code: dropped
    contradicted: list[str] = field(default_factory=list)  # in both slots: kept as poor
    repeated: int = 0  # given before in the same slot: kept once
    corrected: int = 0  # found but for white space, quotes or case: replaced by the response's own characters
    unscored: int = 0  # words of the response that dense labels left out: they score 0
    unsupported: list[str] = field(default_factory=list)  # nothing in the critique speaks of them: kept, flagged

    def complaint(self) -> str | None:
        """What to tell the model about spans that had to be dropped; None where there are none."""
        told = {
            "are not exact quotes of the response": self.unmatched,
            "lie outside the code of the response": self.unjudged,
            "are in both lists": self.contradicted,
        }
        return "; ".join(f"these spans {what}: {_listed(spans)}" for what, spans in told.items() if spans) or None

    def to_dict(self) -> dict:
        """For the record's ``annotation``: empty lists and rare counts of 0 are left out."""
        found = {name: getattr(self, name) for name in ("repeated", "unscored", *_LISTS)}
        always = {"offered": self.offered, "corrected": self.corrected}
        return always | {name: item for name, item in found.items() if item}


def load_unannotated(path: str, task: Task) -> Records:
    """Records that annotation may add to; ``InputError`` where it would replace a field of their own."""
    records = load_records(path, task)
    for record_id, record in records.items():
        try:
            task.check_room(record)
        except InputError as error:
            raise InputError(f"{path}: record {record_id!r}: {error}") from None
    return records


def validate(feedback: Feedback, response: str, task: Task) -> Validated:
    """Keep of each slot the spans in text that can get a reward, in the response's own characters."""
    result = Validated(Feedback(feedback.critique), offered=len(feedback.good) + len(feedback.poor))
    poor = _checked(feedback.poor, response, task, result)
    good = _checked(feedback.good, response, task, result)
    result.contradicted = [quote for quote in good if quote in poor]
    good = [quote for quote in good if quote not in poor]
    result.feedback = replace(feedback, good=good, poor=poor)
    if feedback.critique:
        result.unsupported = [quote for quote in poor + good if not supported(quote, feedback.critique)]
    if feedback.scores:
        _validate_scores(feedback, response, result)
    return result


def _validate_scores(feedback: Feedback, response: str, result: Validated) -> None:
    """Dense labels: a score for every word of the response, in order.

    The words that the model wrote are aligned with those of the response, as in a comparison of two versions of a
    text; case and punctuation around a word are forgiven. What it added is dropped, what it left out scores 0.
    """
    given = [(word, score) for piece, score in feedback.scores for word in piece.split()]
    words = response.split()
    scores, aligned = [0.0] * len(words), set()
    for here, there in _aligned(list(map(_bare, words)), [_bare(word) for word, _ in given]):
        scores[here] = given[there][1]
        aligned.add(there)
    result.offered += len(given)
    result.unmatched += [word for index, (word, _) in enumerate(given) if index not in aligned]
    result.unscored = len(words) - len(aligned)
    result.feedback = replace(result.feedback, scores=list(zip(words, scores, strict=True)))


def _aligned(words: list[str], given: list[str]) -> Iterator[tuple[int, int]]:
    """Pairs of indices of equal words, in order: as in a comparison of two versions of a text.

    Where words repeat so often that the comparison would take long, each given word takes the next such word that is
    at most ``_FARTHEST`` words ahead.
    """
    counts = Counter(given)
    if sum(counts[word] for word in words) <= _MOST_PAIRS:
        for here, there, length in SequenceMatcher(None, words, given, autojunk=False).get_matching_blocks():
            yield from zip(range(here, here + length), range(there, there + length), strict=True)
        return
    position = 0
    for there, word in enumerate(given):
        ahead = range(position, min(len(words), position + _FARTHEST))
        found = next((at for at in ahead if words[at] == word), None)
        if found is not None:
            yield found, there
            position = found + 1


def _bare(word: str) -> str:
    return word.strip(string.punctuation + "“”‘’…").casefold() or word


def _checked(quotes: list[str], response: str, task: Task, result: Validated) -> list[str]:
    kept: list[str] = []
    for quote in quotes:
        intervals = ground(quote, response)
        judged = inside(task.rewarded(response), intervals)
        if not intervals:
            result.unmatched.append(quote)
        elif not judged:
            result.unjudged.append(quote)
        else:
            exact = response[slice(*judged[0])]
            result.corrected += exact != quote
            if exact in kept:
                result.repeated += 1
            else:
                kept.append(exact)
    return kept


def supported(quote: str, critique: str) -> bool:
    """Whether the critique speaks of a span: it contains the span, or shares a content word with it.

    Content words are numbers and words of three or more letters that are not function words, compared without case by
    their first five letters. A span without any (an operator, "it is") needs to be quoted. Text without spaces between
    words (Chinese, Japanese, Thai) counts as supported when it shares two neighbouring characters with the critique.
    """
    if " ".join(quote.split()).lower() in " ".join(critique.split()).lower():
        return True
    return bool(_content(quote) & _content(critique))


def _content(text: str) -> set[str]:
    found: set[str] = set()
    for word in _WORD.findall(text.lower()):
        if _UNSPACED.search(word):
            found.update(word[index : index + 2] for index in range(len(word) - 1))
        elif word.isdigit() or (len(word) >= 3 and word not in _FUNCTION_WORDS):
            found.add(word[:_STEM])
    return found


def _listed(quotes: list[str]) -> str:
    more = f" and {len(quotes) - _MOST_LISTED} more" if len(quotes) > _MOST_LISTED else ""
    return ", ".join(f"<<{quote}>>" for quote in quotes[:_MOST_LISTED]) + more
