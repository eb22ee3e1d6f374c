"""What is poor about a summary: one rule, one function."""

import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from text2grad.critics.programs.english import Fault, has_verb, listed, ngrams
from text2grad.critics.programs.slf5k.facts import ADVICE, Summary, matches
from text2grad.critics.programs.word_order import unlikely

COPY_RUN = 6  # words in a row that count as copied
PATCHWORK = 0.7  # share of a sentence's word pairs in the post's order from which it is copied
SHORT = 12  # words up to which an answer may be a headline without a full stop
LONG = 20  # words after which a sentence should come to an end
RUN = 6  # content words in a row that a person writes
TOLD_BEFORE = 3  # facts after which a short closing question needs none

_WRITER = r"(?:the|this|our)\s+(?:author|writer|poster|narrator|speaker|user|original poster|op|person|individual)"
_PIECE = r"(?:post|passage|article|story|text|message|thread|piece|summary|paragraph|section|narrative|discussion)"
_SPEECH = (
    r"(?:writes?|wrote|describ\w+|discuss\w+|shar(?:es?|ed|ing)|talk(?:s|ed|ing)?|explain\w*|highlight\w*|express\w*|"
    r"reflect\w*|recount\w*|mention\w*|stat(?:es?|ed)|introduc\w+|address\w*|explor\w+|detail\w*|present\w*|tells?|"
    r"emphasi\w+|reveal\w*|suggest\w*|tackl\w+|deliver\w*|provid\w+|conclud\w+|illustrat\w+|showcas\w+|delv\w+|begins|ends)"
)
_COMMENTARY = re.compile(
    r"|".join(
        [
            r"(?:^|(?<=[.!?:]\s))(?:sure|certainly|absolutely|of course|okay|great)\s*[!,.]",
            r"here(?:'s| is| are)\b[^.:\n]*\b(?:summary|version|sentences?|tl;?dr)\b[^.:\n]*[.:]?",
            r"\b(?:tl\s*;?\s*dr|(?:a |my |short |brief )*summary)\s*[:\-–]",
            r"\b(?:in summary|to summari[sz]e|to sum up|in conclusion|in short|overall|in essence|in a nutshell)\b,?",
            rf"\b(?:the|this|your|my|following)\s+(?:\w+\s+)?{_PIECE}\s+(?:\w+ly\s+)?"
            rf"(?:(?:is|was)(?:\s+\w+)?\s+(?:about|of|on|from|that)|{_SPEECH})(?:\s+(?:about|that|on|how|into))?",
            rf"\b{_WRITER}(?:\s+of\s+this\s+\w+)?\s+(?:\w+ly\s+)?(?:(?:is|was|has)\s+)?{_SPEECH}"
            r"(?:\s+(?:about|that|on|how|into))?",
            r"\bas an ai\b[^.!?\n]*|\bi(?:'m| am) sorry\b[^.!?\n]*|\bi hope (?:this|that)\b[^.!?\n]*",
            r"\b(?:let me know|feel free|good luck|hope this helps|thanks?(?: you)? for)\b[^.!?\n]*",
            r"\bi(?:'ll| will) (?:do my best|try to|keep)\b[^.!?\n]*|\bit sounds like\b|\bit seems (?:like|that)\b",
        ]
    ),
    re.IGNORECASE,
)
_READER = re.compile(r"\b(?:you|your|you're|you've|yours)\b", re.IGNORECASE)
_STOCK = re.compile(
    r"\b(?:a (?:wide )?(?:range|variety|mix|sense|lot|number) of (?:different )?(?:emotions?|feelings?|things|issues|"
    r"factors|reasons|aspects|opinions)|(?:various|many|several|multiple|different|certain|numerous) (?:things|issues|"
    r"factors|reasons|aspects|challenges|emotions|topics|ways|elements)|(?:a )?(?:difficult|challenging|complex|tough|"
    r"unique|complicated|personal|emotional) (?:situation|time|experience|journey|topic|issue|matter|story)|"
    r"the importance of|(?:plays?|playing) (?:a|an) \w+ role|lasting impact|impact on|at the end of the day|"
    r"when it comes to|important to note|worth noting|and more|and so on|etc|in (?:this|the) (?:world|situation|case)|"
    r"life lessons?|ups and downs|personal (?:growth|development|life|experiences?)|the (?:complexities|challenges|"
    r"dynamics|significance|concept|idea|topic|issue) of|sheds? light on|bring(?:s|ing)? light|navigat(?:e|es|ing)|"
    r"rollercoaster|journey|testament|thought-provoking|compelling|engaging)\b",
    re.IGNORECASE,
)


def commentary(summary: Summary) -> Iterator[Fault]:
    """Openers and remarks; the whole sentence where it tells nothing else."""
    for start, end in matches(_COMMENTARY, summary):
        yield Fault("commentary", start, end)
        for first, last, _ in summary.sentences:
            if first <= start < last and len(summary.told(end, last)) < 2:
                yield Fault("commentary", first, last, spare=True)


def advice(summary: Summary) -> Iterator[Fault]:
    """What the writer or the reader should do, and questions to the reader that tell nothing."""
    if summary.post.advises:
        return
    advising = {start for start, _ in matches(ADVICE, summary)}
    addressing = {start for start, _ in matches(_READER, summary)}
    for first, last, _ in summary.sentences:
        inside = range(first, last)
        question = summary.text[summary.words[last - 1].end :].startswith("?")
        advises = bool(advising & set(inside)) and not question
        if advises or (addressing & set(inside) and len(summary.told(first, last)) < 2):
            yield Fault("advice", first, last, spare=True)


def copying(summary: Summary) -> Iterator[Fault]:
    """Long runs of the post's own words, and sentences pieced together from shorter ones."""
    literal = [word.key for word in summary.words]
    for end, length in enumerate(summary.runs, 1):
        start = end - COPY_RUN
        if length >= COPY_RUN and any(not word.is_function for word in summary.words[start:end]):
            yield Fault("copying", start, end)
    for first, last, _ in summary.sentences:
        pairs = [i for i in range(first, last - 1) if (literal[i], literal[i + 1]) in summary.post.pairs]
        if last - first >= 7 and len(pairs) > PATCHWORK * (last - first - 1):
            yield from (Fault("copying", i, i + 2) for i in pairs)


def repetition(summary: Summary) -> Iterator[Fault]:
    """Words, runs and sentences that were there before."""
    literal = [word.key for word in summary.words]
    yield from (Fault("repetition", i, i + 1) for i in range(1, len(literal)) if literal[i] == literal[i - 1])
    seen: set[tuple[str, ...]] = set()
    for i, gram in ngrams(literal, 4):
        if gram in seen:
            yield Fault("repetition", i, i + 4)
        seen.add(gram)
    count: Counter[str] = Counter()
    for i, word in enumerate(summary.words):
        if not word.is_function:
            count[word.concept] += 1
            if count[word.concept] > 3:
                yield Fault("repetition", i, i + 1)
    said: list[set[str]] = []
    for first, last, _ in summary.sentences:
        now = {word.concept for word in summary.words[first:last] if not word.is_function}
        if len(now) >= 3 and any(len(now & before) >= 0.8 * len(now) for before in said):
            yield Fault("repetition", first, last)
        said.append(now)


def invention(summary: Summary) -> Iterator[Fault]:
    """Numbers and names that the post lacks; other unsupported words, where they are more than own wording."""
    for first, last, _ in summary.sentences:
        inside = range(first, last)
        capitals = sum(summary.words[i].text[0].isupper() for i in inside)
        new = [i for i in inside if summary.new[i]]
        for i in new:
            name = i > first and summary.words[i].text[0].isupper() and capitals <= 0.5 * len(inside)
            if name or summary.words[i].is_number:
                yield Fault("invention", i, i + 1)
        facts = sum(summary.facts[i] is not None for i in inside)
        if len(new) >= 2 and len(new) > (len(new) + facts) / 3:
            yield from (Fault("invention", *stretch) for stretch in _joined(summary, new))


def _joined(summary: Summary, marked: list[int]) -> Iterator[tuple[int, int]]:
    """Marked words as intervals, joined over up to two small words between them."""
    start = before = marked[0]
    for i in marked[1:]:
        if i - before > 3 or any(not summary.words[k].is_function for k in range(before + 1, i)):
            yield start, before + 1
            start = i
        before = i
    yield start, before + 1


def emptiness(summary: Summary) -> Iterator[Fault]:
    """Stock phrases, and sentences without a fact; a short question after the story is told is no fault."""
    yield from (Fault("emptiness", start, end) for start, end in matches(_STOCK, summary))
    for first, last, _ in summary.sentences:
        closing = last == len(summary.words) and last - first <= 10 and len(summary.told(0, first)) >= TOLD_BEFORE
        if not summary.told(first, last) and sum(summary.new[first:last]) < 2 and not closing:
            yield Fault("emptiness", first, last)


_FINITE = "is are was were has had will would could should"
_SUBJECTS = "i he she we they"
_NEVER = {
    first: listed(after)
    for group, after in {
        "a an the my our their its every": f"{_FINITE} {_SUBJECTS} a an the my our their of and or but be with by for "
        "from at as than who it do does did if because so when where how not there",
        "of for from with into at by": f"{_FINITE} {_SUBJECTS} and or",
        "to": f"{_FINITE} {_SUBJECTS} of and or",
        "and or but": "of and or but",
        _SUBJECTS: f"{_SUBJECTS} a an the my our their of for from with into at by to",
        _FINITE: f"{_FINITE} of and or but",
    }.items()
    for first in group.split()
}
"""Function words that do not follow one another in English (rarely enough)."""
_WRONG_ARTICLE = re.compile(
    r"an (?!x|[^aeiouy]+$)[bcdfgj-np-tv-z][a-z]{2}"
    r"|a (?!one|once|eu|u[ns]i|us[eu]|unan|uti|ubi|ewe|oui|ura)[aeiou][a-z]{2}"
)
_NOT_LAST = listed("a an the my our their its every and or but because of than i we they")
_NOT_THRICE = listed("of and or but in on at by with for from is was")


def language(summary: Summary) -> Iterator[Fault]:
    """Word orders that English does not have, sentences without a verb, and lists."""
    yield from (Fault("language", *run) for run in unlikely(summary.text, summary.words))
    keys = [word.key for word in summary.words]
    for i in range(len(keys) - 1):
        article = _WRONG_ARTICLE.match(f"{keys[i]} {summary.words[i + 1].text}")
        if (article or keys[i + 1] in _NEVER.get(keys[i], ())) and not summary.between(i + 1).strip():
            yield Fault("language", i, i + 2)
    for first, last, ended in summary.sentences:
        for key in sorted(_NOT_THRICE.intersection(keys[first:last])):
            at = [i for i in range(first, last) if keys[i] == key]
            yield from (Fault("language", i, k + 1) for i, k in zip(at, at[2:], strict=False) if k - i < 10)
        if ended and keys[last - 1] in _NOT_LAST:
            yield Fault("language", last - 1, last)
        sentence = summary.words[first:last]
        small = sum(word.is_function and word.key not in ("and", "or") for word in sentence)
        if (
            (last - first >= 5 and small < 0.1 * (last - first))
            or (last - first >= 8 and not has_verb(sentence))
            or _longest_run(summary, first, last) > RUN
        ):
            yield Fault("language", first, last)
        items = [
            i for i in range(first + 1, last) if keys[i] in ("and", "or") or re.search(r"[,;/&+|•]", summary.between(i))
        ]
        edges = [first, *items, last]
        short = [end - start <= 3 for start, end in pairwise(edges)]
        for i in range(len(short) - 3):
            if all(short[i : i + 4]):
                yield Fault("language", edges[i], edges[i + 4])


def _longest_run(summary: Summary, first: int, last: int) -> int:
    """The most words in a row without a function word or punctuation."""
    longest = run = 0
    for i in range(first, last):
        joined = i > first and not summary.between(i).strip()
        run = 0 if summary.words[i].is_function else run + 1 if joined else 1
        longest = max(longest, run)
    return longest


_BREAKS = listed("and but or so because while although which who when that where if")


def _begins_clause(summary: Summary, i: int) -> bool:
    return summary.words[i].key in _BREAKS or bool(re.search(r"[,;:(—–]", summary.between(i)))


def no_end(summary: Summary) -> Iterator[Fault]:
    """The last clause of an answer that was cut off. A short headline may do without a full stop."""
    first, last, ended = summary.sentences[-1]
    hanging = summary.words[-1].is_function or summary.text.rstrip()[-1] in ",;:-–—("
    if not ended and (hanging or last - first > SHORT):
        clause = next((i for i in range(last - 1, first, -1) if _begins_clause(summary, i)), first)
        start = min(max(clause, last - 10), last - 4, first + LONG)
        yield Fault("no end", max(first, start), last)


RULES = (commentary, advice, copying, repetition, invention, emptiness, language, no_end)
