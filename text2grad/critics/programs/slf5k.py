"""An annotator of summaries that needs no model: it reads the post, finds its facts, and judges every phrase.

A *fact* is an uncommon word of the post, with its inflections, derivations and simple synonyms. *Key facts*, a third
of them, are those that occur most often, in the opening, in the question, or in the sentences that share most with
the rest of the post. What a post asks is one more key fact.

Poor, each with its reason in the critique:

- *commentary*: openers, and remarks about the post or its writer ("Here is a summary", "The author describes");
- *advice* to the writer or the reader where the post gives none, and questions to the reader;
- *copying*: runs of six words of the post (of 82 human TL;DR sentences on 44 Reddit posts, one has a run of six and
  none of seven); in a sentence that is for the greater part a mosaic of shorter runs, those of three words and more
  (human sentences: at most 40 %);
- *repetition*: a word doubled, four words said before, a word for the fourth time, a sentence that says again what one
  before it said;
- *invention*: numbers and names that the post does not have; other words it does not support, where a sentence has
  two or more and they exceed a third of what it says (one own word is own wording, several are another story);
- *emptiness*: stock phrases ("a range of emotions"), and sentences without any fact, which would fit any post;
- *no language*: lists of words, and word orders that English does not have ("the of");
- *no end*: the clause that the length limit cut off, and words beyond ``max_words``;
- *too little*: the last words of a short answer that stops before the story is told.

Good: facts that the post, too, names close to one another, and the words around them. How many words around, grows
with how much the whole answer tells (a key fact counts 1, another one ½): none below 3, three to each side from 5 on,
nothing more once it has told 8. So a fact earns little alone, each is praised once, and there is a limit to what an
answer can earn. Nothing is praised that is poor or unsupported, and only bare facts in a sentence without end.

An answer without any word gets its text as poor span. An answer without any text has no token to be labelled: only
the critique says so, and its reward is zero.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from text2grad.critics.programs._text import (
    RELATED,
    Word,
    listed,
    ngrams,
    same_family,
    sentences,
    unique_quote,
    words,
)
from text2grad.errors import InputError
from text2grad.feedback import Feedback, FeedbackError
from text2grad.tasks import Record

COPY_RUN = 6
MOSAIC = 0.6  # share of a sentence's words in copied runs of three from which it is copied
TOLD = 3.0  # what an answer must tell before phrases are praised
ENOUGH = 8.0  # what it must tell to have told everything


@dataclass(frozen=True)
class Post:
    """What the critic knows of a post."""

    facts: dict[str, str]  # concept of an uncommon word -> the word
    keys: tuple[str, ...]  # the most important of them, in order
    places: dict[str, frozenset[int]]  # concept of any word that is not a function word -> the sentences that have it
    runs: frozenset[tuple[str, ...]]  # its runs of COPY_RUN words
    trigrams: frozenset[tuple[str, ...]]
    asks: bool
    advises: bool

    def near(self, one: str, other: str) -> bool:
        """Whether the post names both within three sentences."""
        return any(abs(i - j) <= 2 for i in self.places[one] for j in self.places[other])


@dataclass(frozen=True)
class Summary:
    """A response, read beside its post."""

    text: str
    post: Post
    words: list[Word]
    sentences: list[tuple[int, int, bool]]  # words [i, j), and whether there is an end mark
    facts: list[str | None]  # per word: the fact it names
    new: list[bool]  # per word: whether the post does not support it

    def told(self, start: int, end: int) -> set[str]:
        """The facts among the words ``[start, end)``."""
        return {fact for fact in self.facts[start:end] if fact is not None}

    def between(self, i: int) -> str:
        """The text between word ``i`` and the one before it."""
        return self.text[self.words[i - 1].end : self.words[i].start]


@dataclass(frozen=True)
class Fault:
    """Words ``[start, end)`` that are poor. With ``spare``, facts among them are left alone: what they are used for
    is at fault, not they."""

    kind: str
    start: int
    end: int
    spare: bool = False


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
_ADVICE = re.compile(
    r"\byou(?:'ll| will)?\s+(?:\w+ly\s+)?(?:should|could|can|may|might|must|need|have to|ought|want to|would)\b"
    r"|\bif you(?:'re| are)\b|\byour (?:best|first|next)\b"
    r"|\bit(?:'s| is) (?:\w+ )?(?:important|essential|crucial|best) to\b"
    r"|\bi(?:'d| would)? (?:suggest|recommend|advise)\b|\b(?:one|people|everyone|we) (?:should|must|need to)\b"
    r"|\b(?:make sure|remember|be sure|keep in mind|consider \w+ing)\b"
    r"|(?:^|(?<=[.!?]\s))(?:try|don't|consider|talk to|ask|get|start|think|think of|take|let|look)\b",
    re.IGNORECASE | re.MULTILINE,
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
_ASKING = re.compile(
    r"\b(?:ask(?:s|ed|ing)?|wonder(?:s|ed|ing)?|whether|wants? to know|unsure|not sure|doesn't know|don't know|"
    r"should|how to|advice|help|tips?|suggestions?|ideas|looking for|what to|is it)\b|\?",
    re.IGNORECASE,
)
_REQUEST = re.compile(
    r"\?|\b(?:advice|any tips|any ideas|please help|wondering|suggestions|should i|how (?:do|can) i|need help)\b",
    re.IGNORECASE,
)


def _is_fact(word: Word) -> bool:
    return not word.is_function and not word.is_common


@lru_cache(maxsize=512)
def read_post(text: str) -> Post:
    """The facts of a post, and what is needed to check a summary against it."""
    found = words(text)
    spans = sentences(text, found)
    places: dict[str, set[int]] = {}
    facts: dict[str, str] = {}
    for i, (start, end, _) in enumerate(spans):
        for word in found[start:end]:
            if not word.is_function or word.is_number:
                places.setdefault(word.concept, set()).add(i)
            if _is_fact(word):
                facts.setdefault(word.concept, word.text)
    literal = [word.key for word in found]
    return Post(
        facts=facts,
        keys=tuple(_ranked(text, found, spans, places)[: max(6, len(facts) // 3)]),
        places={name: frozenset(where) for name, where in places.items()},
        runs=frozenset(gram for _, gram in ngrams(literal, COPY_RUN)),
        trigrams=frozenset(gram for _, gram in ngrams(literal, 3)),
        asks=bool(_REQUEST.search(text)),
        advises=len(_ADVICE.findall(text)) >= 2,
    )


def _ranked(text: str, found: list[Word], spans: list[tuple[int, int, bool]], places: dict[str, set[int]]) -> list[str]:
    """The facts of a post without its numbers, most important first."""
    count = Counter(word.concept for word in found if _is_fact(word) and not word.is_number)
    shared = [
        sum(len(places[name]) - 1 for name in {w.concept for w in found[start:end]} & count.keys()) / (end - start + 5)
        for start, end, _ in spans
    ]
    central = set(sorted(range(len(spans)), key=lambda i: -shared[i])[: max(1, len(spans) // 3)])
    asking = {i for i, (_, end, _) in enumerate(spans) if text[found[end - 1].end : found[end - 1].end + 1] == "?"}

    def weight(name: str) -> float:
        where = places[name]
        opening = min(where) < 2
        return (1 + math.log(count[name])) * (
            1 + 0.6 * opening + 0.4 * bool(where & asking) + 0.4 * bool(where & central)
        )

    return sorted(count, key=lambda name: (-weight(name), min(places[name]), name))


def read_summary(text: str, found: list[Word], post: Post) -> Summary:
    """The words of a summary, each with the fact of the post it names."""
    named = [_supported_by(word.concept, post) if not word.is_function else None for word in found]
    return Summary(
        text=text,
        post=post,
        words=found,
        sentences=sentences(text, found),
        facts=[name if name in post.facts else None for name in named],
        new=[
            name is None
            and not word.is_function
            and (word.concept not in ("1", "2") if word.is_number else _is_fact(word))
            for word, name in zip(found, named, strict=True)
        ],
    )


def _supported_by(concept: str, post: Post) -> str | None:
    """The concept of the post that a word stands for: itself, a synonym, or another word of its family."""
    if concept in post.places:
        return concept
    near = [name for name in RELATED.get(concept, ()) if name in post.places]
    if not near and not concept[0].isdigit():
        near = [name for name in post.places if name[:4] == concept[:4] and same_family(concept, name)]
    return min(near, key=lambda name: (name not in post.keys, min(post.places[name]), name)) if near else None


def _matches(pattern: re.Pattern, summary: Summary) -> Iterator[tuple[int, int]]:
    """The word intervals that a pattern's matches touch."""
    for match in pattern.finditer(summary.text):
        inside = [i for i, word in enumerate(summary.words) if word.start < match.end() and word.end > match.start()]
        if inside:
            yield inside[0], inside[-1] + 1


def commentary(summary: Summary) -> Iterator[Fault]:
    """Openers and remarks; the whole sentence where it tells nothing else."""
    for start, end in _matches(_COMMENTARY, summary):
        yield Fault("commentary", start, end)
        for first, last, _ in summary.sentences:
            if first <= start < last and len(summary.told(end, last)) < 2:
                yield Fault("commentary", first, last, spare=True)


def advice(summary: Summary) -> Iterator[Fault]:
    """What the writer or the reader should do, and questions to the reader that tell nothing."""
    if summary.post.advises:
        return
    advising = {start for start, _ in _matches(_ADVICE, summary)}
    addressing = {start for start, _ in _matches(_READER, summary)}
    for first, last, _ in summary.sentences:
        inside = range(first, last)
        question = summary.text[summary.words[last - 1].end :].startswith("?")
        advises = bool(advising & set(inside)) and not question
        if advises or (addressing & set(inside) and len(summary.told(first, last)) < 2):
            yield Fault("advice", first, last, spare=True)


def copying(summary: Summary) -> Iterator[Fault]:
    """Long runs of the post's own words, and sentences pieced together from shorter ones."""
    literal = [word.key for word in summary.words]
    for i, gram in ngrams(literal, COPY_RUN):
        if gram in summary.post.runs and any(not word.is_function for word in summary.words[i : i + COPY_RUN]):
            yield Fault("copying", i, i + COPY_RUN)
    for first, last, _ in summary.sentences:
        pieces = [first + i for i, gram in ngrams(literal[first:last], 3) if gram in summary.post.trigrams]
        if last - first >= 7 and len({i + k for i in pieces for k in range(3)}) > MOSAIC * (last - first):
            yield from (Fault("copying", i, i + 3) for i in pieces)


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
    yield from (Fault("emptiness", start, end) for start, end in _matches(_STOCK, summary))
    for first, last, _ in summary.sentences:
        closing = last == len(summary.words) and last - first <= 10 and len(summary.told(0, first)) >= TOLD
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
_NOT_LAST = listed("a an the my our their its every and or but because of than i we they")
_NOT_THRICE = listed("of and or but in on at by with for from is was")


def language(summary: Summary) -> Iterator[Fault]:
    """Word orders that English does not have, and lists."""
    keys = [word.key for word in summary.words]
    for i in range(len(keys) - 1):
        if keys[i + 1] in _NEVER.get(keys[i], ()) and not summary.between(i + 1).strip():
            yield Fault("language", i, i + 2)
    for first, last, _ in summary.sentences:
        for key in _NOT_THRICE.intersection(keys[first:last]):
            at = [i for i in range(first, last) if keys[i] == key]
            yield from (Fault("language", i, k + 1) for i, k in zip(at, at[2:], strict=False) if k - i < 10)
    for first, last, ended in summary.sentences:
        if ended and keys[last - 1] in _NOT_LAST:
            yield Fault("language", last - 1, last)
        small = sum(word.is_function and word.key not in ("and", "or") for word in summary.words[first:last])
        if last - first >= 5 and small < 0.1 * (last - first):
            yield Fault("language", first, last)
        items = [
            i for i in range(first + 1, last) if keys[i] in ("and", "or") or re.search(r"[,;/&+|•]", summary.between(i))
        ]
        edges = [first, *items, last]
        short = [end - start <= 3 for start, end in zip(edges, edges[1:])]  # noqa: B905, RUF007
        for i in range(len(short) - 3):
            if all(short[i : i + 4]):
                yield Fault("language", edges[i], edges[i + 4])


_BREAKS = listed("and but or so because while although which who when that where if")


def _begins_clause(summary: Summary, i: int) -> bool:
    return summary.words[i].key in _BREAKS or bool(re.search(r"[,;:(—–]", summary.between(i)))


def no_end(summary: Summary) -> Iterator[Fault]:
    """The last clause of an answer that was cut off. A short headline may do without a full stop."""
    first, last, ended = summary.sentences[-1]
    hanging = summary.words[-1].is_function or summary.text.rstrip()[-1] in ",;:-–—("
    if not ended and (hanging or last - first >= 12):
        start = next((i for i in range(last - 1, first, -1) if _begins_clause(summary, i)), first)
        yield Fault("no end", max(start, last - 10), last)


RULES: tuple[Callable[[Summary], Iterator[Fault]], ...] = (
    commentary,
    advice,
    copying,
    repetition,
    invention,
    emptiness,
    language,
    no_end,
)


@dataclass(frozen=True)
class Praise:
    """What is good about a summary."""

    words: set[int]
    told: list[str]  # facts, in order
    amount: float  # a key fact counts 1, another one ½
    asks: bool  # says what the writer asks


def praise(summary: Summary, poor: set[int], barred: set[int]) -> Praise:
    """The facts that a summary tells outside ``barred`` words, and the words around them that are not ``poor``."""
    post = summary.post
    named = list(dict.fromkeys(f for i, f in enumerate(summary.facts) if f is not None and i not in barred))
    told = [one for one in named if any(one != other and post.near(one, other) for other in named)]
    asking = next((m for m in _matches(_ASKING, summary) if post.asks and not barred & set(range(*m))), None)
    if len(told) < 2:
        asking = None
    amount = sum(1.0 if fact in post.keys else 0.5 for fact in told) + bool(asking)
    if not told or len(summary.words) < 5:
        return Praise(set(), told, amount, bool(asking))
    reach = min(3, max(0, int(amount) - 1))
    good: set[int] = set()
    credited: set[str] = set()
    earned = 0.0
    for first, last, ended in summary.sentences:
        if earned >= ENOUGH:
            break
        for i in range(first, last):
            fact = summary.facts[i]
            asks = asking is not None and asking[0] <= i < asking[1]
            if i in barred or not (asks or (fact in told and fact not in credited)):
                continue
            good.add(i)
            if fact in told and fact not in credited:
                credited.add(fact)
                earned += 1.0 if fact in post.keys else 0.5
            if ended or last - first < 12:
                for step in (-1, 1):
                    good.update(_reached(summary, poor, first, last, i, step, reach))
    return Praise(good - poor, told, amount, bool(asking))


def _reached(
    summary: Summary, poor: set[int], first: int, last: int, start: int, step: int, reach: int
) -> Iterator[int]:
    """Up to ``reach`` words beside a fact, within its sentence, as far as they are neither poor nor unsupported."""
    for i in range(start + step, start + step * (reach + 1), step):
        if not first <= i < last or i in poor or summary.new[i]:
            return
        yield i


_SAID = {
    "commentary": "comments on the post instead of summarising it",
    "advice": "addresses the reader or gives advice",
    "copying": "copies the post word for word",
    "repetition": "repeats itself",
    "invention": "says what the post does not support",
    "emptiness": "has phrases that would fit any post",
    "language": "strings words together without making a sentence",
    "no end": "breaks off",
    "length": "goes on for too long",
    "too little": "stops before the story is told",
}


class SummaryCritic:
    """Judges summaries of posts by the rules at the head of this module; deterministic, no model.

    Args:
        max_words: words beyond this are poor.
    """

    name = "programmatic"

    def __init__(self, max_words: int = 50):
        if max_words < 1:
            raise InputError(f"max_words is {max_words}; give at least 1")
        self.max_words = max_words

    def __call__(
        self, prompts: Sequence[str], responses: Sequence[str], records: Sequence[Record] | None = None
    ) -> list[Feedback | FeedbackError]:
        """Feedback per summary. ``prompts`` are the posts; ``records`` has nothing that is needed."""
        return [self.judge(post, response) for post, response in zip(prompts, responses, strict=True)]

    def judge(self, post: str, response: str) -> Feedback:
        """Feedback on one summary of one post."""
        found = words(response)
        if not found:
            text = response.strip()
            return Feedback("The summary is empty: it has no words.", [], [text] if text else [])
        beyond = found[self.max_words :]
        found = found[: self.max_words]
        read = response[: beyond[0].start] if beyond else response
        summary = read_summary(read, found, read_post(post))
        faults = [fault for rule in RULES if not (beyond and rule is no_end) for fault in rule(summary)]
        if beyond:
            faults.append(Fault("length", len(found), len(found)))
        barred = {i for fault in faults for i in range(fault.start, fault.end)}
        poor = {
            i
            for fault in faults
            for i in range(fault.start, fault.end)
            if not (fault.spare and summary.facts[i] is not None)
        }
        praised = praise(summary, poor, barred)
        good = praised.words
        last = len(found) - 1
        if praised.amount < TOLD and len(found) <= 12 and last not in poor:
            faults.append(Fault("too little", max(0, last - 1), last + 1))
            poor |= {max(0, last - 1), last}
            good = good - poor
        every = [*found, *beyond]
        poor |= set(range(len(found), len(every)))
        return Feedback(
            _critique(summary, faults, praised), _quotes(response, every, good), _quotes(response, every, poor)
        )


def _quotes(text: str, found: list[Word], marked: set[int]) -> list[str]:
    """Exact quotes of the runs of marked words, each with the punctuation attached to its end."""
    quotes = []
    for i in sorted(marked):
        if i - 1 in marked:
            continue
        j = i
        while j + 1 in marked:
            j += 1
        end = found[j].end
        limit = found[j + 1].start if j + 1 < len(found) else len(text)
        while end < limit and not text[end].isspace():
            end += 1
        quotes.append(unique_quote(text, found[i].start, end))
    return quotes


def _critique(summary: Summary, faults: list[Fault], praised: Praise) -> str:
    post = summary.post
    parts = []
    if praised.told:
        verdict = (
            "Tells the story"
            if praised.amount >= 5
            else "Tells part of the story"
            if praised.amount >= TOLD
            else "Names"
        )
        parts.append(f"{verdict}: {_listing([post.facts[fact] for fact in praised.told[:6]])}.")
    else:
        parts.append("Tells nothing of the post.")
    missing = [post.facts[key] for key in post.keys if key not in praised.told]
    if praised.amount < 5 and missing:
        parts.append(f"Leaves out {_listing(missing[:4])}.")
    if post.asks and not praised.asks:
        parts.append("Does not say what the writer asks.")
    for kind in dict.fromkeys(fault.kind for fault in faults):
        fault = next(fault for fault in faults if fault.kind == kind)
        quote = [word.text for word in summary.words[fault.start : fault.end]]
        shown = f" (“{' '.join(quote[:6])}{'…' if len(quote) > 6 else ''}”)" if quote else ""
        parts.append(f"{_SAID[kind][0].upper()}{_SAID[kind][1:]}{shown}.")
    return " ".join(parts)


def _listing(items: list[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
