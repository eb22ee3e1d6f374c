"""An annotator of summaries that needs no model: it reads the post, finds its key facts, and judges every phrase.

Key facts are up to ten concepts of the post (a concept is a word with its inflections and simple synonyms), ranked by
how often they occur, how uncommon the word is, and whether the opening or the closing question names them; that a
post asks for something counts as one more.

Poor, each with its reason in the critique:

- *commentary*: openers and remarks about the post or the writer instead of what happened ("Here is a summary",
  "This post is about", "The author describes"), and whatever else that sentence says where it names no key fact;
- *advice*: telling the reader or the writer what to do, unless the post itself says so; questions to the reader;
- *copying*: six or more consecutive words of the post (of 82 human TL;DR sentences on 44 Reddit posts one has a run of
  six, none of seven);
- *repetition*: a word doubled, four words said before, a concept for the fourth time, a sentence that says again what
  one before it said;
- *invention*: numbers and names that the post does not have; other words it does not support, where they make up
  more than a quarter of a sentence's content (one own word is own wording, several are another story);
- *emptiness*: stock phrases ("a range of emotions"), and a sentence that would fit any post;
- *no language*: lists of key words, broken word order ("the of");
- *no end*: the clause that the length limit cut off; words beyond ``max_words``;
- *too little*: the last words of an answer that stops before it has told the story.

Good: phrases, in the summary's own words, that tie together key facts which the post, too, names close to one another.
Each fact is praised once, so there is a limit to what an answer can earn. How much of a phrase is praised depends on
how much of the story the whole answer tells: only the words of the facts themselves where it names two or three, the
phrase around them from four on. Nothing is praised that is poor, copied or in an unfinished sentence.

An answer without any word gets its text as poor span; one without any text has no token to be labelled, and only
the critique says so. A trainer sees such an answer as one of zero reward.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from text2grad.critics.programs._text import Word, concept, ngrams, sentences, unique_quote, words
from text2grad.feedback import Feedback, FeedbackError
from text2grad.tasks import Record

COPY_RUN = 6
KEY_FACTS = 10
TOLD = 4  # key facts from which a summary tells the story

Interval = tuple[int, int]


@dataclass(frozen=True)
class Fault:
    """Words ``[start, end)`` of the summary that are poor, and the kind of fault."""

    kind: str
    start: int
    end: int


@dataclass(frozen=True)
class Post:
    """What the critic knows of a post."""

    keys: dict[str, str]  # key concept -> the word the post uses, most important first
    places: dict[str, frozenset[int]]  # concept -> the sentences that name it
    copied: frozenset[tuple[str, ...]]  # its runs of COPY_RUN words
    trigrams: frozenset[tuple[str, ...]]
    asks: bool
    advises: bool

    def near(self, one: str, other: str) -> bool:
        """Whether the post names both within neighbouring sentences."""
        return any(abs(i - j) <= 1 for i in self.places.get(one, ()) for j in self.places.get(other, ()))


@dataclass(frozen=True)
class Summary:
    """A response, read."""

    text: str
    words: list[Word]
    sentences: list[tuple[int, int, bool]]


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
            r"(?:sure|certainly|absolutely|of course|okay|great)\s*[!,.]\s*(?:here(?:'s| is)\b[^.:\n]*[.:]?)?",
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
    r"|\bif you(?:'re| are)\b|\byour (?:best|first|next)\b|\bit(?:'s| is) (?:\w+ )?(?:important|essential|crucial|best) to\b"
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
    r"unique|complicated|personal|emotional) (?:situation|time|experience|journey|topic|issue|matter|story|circumstances?)|"
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


@lru_cache(maxsize=512)
def read_post(text: str) -> Post:
    """The key facts of a post and what is needed to check a summary against it."""
    found = words(text)
    spans = sentences(text, found)
    last = len(spans) - 1
    asking = {i for i, (start, end, _) in enumerate(spans) if "?" in text[found[start].start : found[end - 1].end + 3]}
    places: dict[str, set[int]] = {}
    count: Counter[str] = Counter()
    surface: dict[str, str] = {}
    common: set[str] = set()
    for i, (start, end, _) in enumerate(spans):
        for word in found[start:end]:
            if word.is_content:
                places.setdefault(word.concept, set()).add(i)
                count[word.concept] += 1
                surface.setdefault(word.concept, word.text)
                if word.is_common or word.text.isdigit():
                    common.add(word.concept)
    density = [
        sum(math.log1p(count[w.concept]) for w in found[start:end] if w.is_content and w.concept not in common)
        / math.sqrt(end - start + 4)
        for start, end, _ in spans
    ]
    central = set(sorted(range(len(spans)), key=lambda i: -density[i])[: max(2, len(spans) // 3)])

    def weight(name: str) -> float:
        where = places[name]
        bonus = (
            1 + 0.5 * (0 in where) + 0.5 * bool(where & asking) + 0.25 * (last in where) + 0.5 * bool(where & central)
        )
        return (1 + math.log(count[name])) * bonus * (0.25 if name in common else 1.0)

    ranked = sorted(places, key=lambda name: (-weight(name), min(places[name]), name))
    keys = [name for name in ranked if name not in common][:KEY_FACTS]
    literal = [word.key for word in found]
    return Post(
        keys={name: surface[name] for name in keys},
        places={name: frozenset(where) for name, where in places.items()},
        copied=frozenset(gram for _, gram in ngrams(literal, COPY_RUN)),
        trigrams=frozenset(gram for _, gram in ngrams(literal, 3)),
        asks=bool(_REQUEST.search(text)),
        advises=len(_ADVICE.findall(text)) >= 2,
    )


def _covered(summary: Summary, start: int, end: int) -> Interval:
    """The words that the characters ``[start, end)`` touch."""
    inside = [i for i, word in enumerate(summary.words) if word.start < end and word.end > start]
    return (inside[0], inside[-1] + 1) if inside else (0, 0)


def _matches(pattern: re.Pattern, summary: Summary) -> Iterator[Interval]:
    for match in pattern.finditer(summary.text):
        start, end = _covered(summary, *match.span())
        if end > start:
            yield start, end


def _content(summary: Summary, start: int, end: int) -> list[Word]:
    return [word for word in summary.words[start:end] if word.is_content]


def _named(summary: Summary, post: Post, start: int, end: int) -> set[str]:
    """Key facts among the words ``[start, end)``."""
    return {word.concept for word in summary.words[start:end] if word.concept in post.keys}


def commentary(summary: Summary, post: Post) -> Iterator[Fault]:
    for start, end in _matches(_COMMENTARY, summary):
        for first, last, _ in summary.sentences:
            if first <= start < last and not _named(summary, post, first, last):
                yield Fault("commentary", first, max(last, end))
        yield Fault("commentary", start, end)


def advice(summary: Summary, post: Post) -> Iterator[Fault]:
    told = [_covered(summary, *match.span())[0] for match in _ADVICE.finditer(summary.text)]
    address = [start for start, _ in _matches(_READER, summary)]
    for first, last, _ in summary.sentences:
        if not post.advises and any(first <= i < last for i in told):
            yield Fault("advice", first, last)
        elif (
            not post.advises and any(first <= i < last for i in address) and len(_named(summary, post, first, last)) < 2
        ):
            yield Fault("advice", first, last)


def copying(summary: Summary, post: Post) -> Iterator[Fault]:
    literal = [word.key for word in summary.words]
    for i, gram in ngrams(literal, COPY_RUN):
        if gram in post.copied and len(_content(summary, i, i + COPY_RUN)) >= 2:
            yield Fault("copying", i, i + COPY_RUN)


def repetition(summary: Summary, post: Post) -> Iterator[Fault]:
    literal = [word.key for word in summary.words]
    for i, (one, other) in enumerate(zip(literal, literal[1:], strict=False)):
        if one == other:
            yield Fault("repetition", i + 1, i + 2)
    seen: set[tuple[str, ...]] = set()
    for i, gram in ngrams(literal, 4):
        if gram in seen:
            yield Fault("repetition", i, i + 4)
        seen.add(gram)
    count: Counter[str] = Counter()
    for i, word in enumerate(summary.words):
        if word.is_content:
            count[word.concept] += 1
            if count[word.concept] > 3:
                yield Fault("repetition", i, i + 1)
    said: list[set[str]] = []
    for first, last, _ in summary.sentences:
        now = {word.concept for word in _content(summary, first, last)}
        if len(now) >= 3 and any(len(now & before) >= 0.8 * len(now) for before in said):
            yield Fault("repetition", first, last)
        said.append(now)


def _is_new(word: Word, post: Post) -> bool:
    return word.is_content and not word.is_common and word.concept not in post.places


def invention(summary: Summary, post: Post) -> Iterator[Fault]:
    for first, last, _ in summary.sentences:
        judged = summary.words[first:last]
        titled = sum(word.text[:1].isupper() for word in judged) > 0.6 * len(judged)
        for i in range(first, last):
            word = summary.words[i]
            if word.concept in post.places or word.is_function:
                continue
            digits = any(char.isdigit() for char in word.concept) and word.concept not in ("1", "2")
            if digits or (i > first and word.text[:1].isupper() and not titled and not word.is_common):
                yield Fault("invention", i, i + 1)
        content = [i for i in range(first, last) if summary.words[i].is_content]
        rare = [i for i in content if not summary.words[i].is_common or summary.words[i].concept in post.places]
        new = [i for i in rare if _is_new(summary.words[i], post)]
        if len(new) >= 2 and len(new) > 0.5 * len(rare):
            yield from _stretches(new, [i for i in rare if i not in new])
        elif len(new) >= 2 and len(new) > 0.25 * len(rare):
            yield from (Fault("invention", i, i + 1) for i in new)


def _stretches(new: list[int], supported: list[int]) -> Iterator[Fault]:
    """Invented words joined over the small words between them, as far as nothing supported lies between."""
    start = new[0]
    for one, other in zip(new, [*new[1:], None], strict=True):
        if other is None or any(one < i < other for i in supported) or other - one > 5:
            yield Fault("invention", start, one + 1)
            start = other


def emptiness(summary: Summary, post: Post) -> Iterator[Fault]:
    for start, end in _matches(_STOCK, summary):
        yield Fault("emptiness", start, end)
    earlier = 0
    for first, last, _ in summary.sentences:
        named = len(_named(summary, post, first, last))
        supported = {w.concept for w in _content(summary, first, last) if not w.is_common and w.concept in post.places}
        short_question = earlier >= 2 and last - first <= 7
        if not named and len(supported) < 2 and not short_question:
            yield Fault("emptiness", first, last)
        earlier += named


_AFTER_ARTICLE = frozenset(
    "of to and is are was were be but or by with a an the my i he she they we for from in on".split()
)


def language(summary: Summary, post: Post) -> Iterator[Fault]:
    for i, word in enumerate(summary.words[:-1]):
        if word.key in ("a", "an", "the", "my", "our", "their") and summary.words[i + 1].key in _AFTER_ARTICLE:
            yield Fault("language", i, i + 2)
    for first, last, _ in summary.sentences:
        small = sum(word.is_function and word.key not in ("and", "or") for word in summary.words[first:last])
        if last - first >= 5 and small < 0.15 * (last - first):
            yield Fault("language", first, last)
        items = [first]
        for i in range(first + 1, last):
            between = summary.text[summary.words[i - 1].end : summary.words[i].start]
            if re.search(r"[,;/&+|•\n]", between) or summary.words[i].key in ("and", "or"):
                items.append(i)
        items.append(last)
        short = [end - start <= 3 for start, end in zip(items, items[1:], strict=False)]
        for i in range(len(short) - 3):
            if all(short[i : i + 4]):
                yield Fault("language", items[i], items[i + 4])


_BREAK = frozenset("and but or so because while although which who when that where if".split())


def no_end(summary: Summary, post: Post, max_words: int) -> Iterator[Fault]:
    if len(summary.words) > max_words:
        yield Fault("length", max_words, len(summary.words))
    first, last, ended = summary.sentences[-1]
    if ended:
        return
    hanging = summary.words[last - 1].is_function or summary.text.rstrip()[-1] in ",;:-–—("
    if last - first < 12 and not hanging:
        return
    start = next((i for i in range(last - 1, first, -1) if _breaks(summary, i)), first)
    yield Fault("no end", max(start, last - 10), last)


def _breaks(summary: Summary, i: int) -> bool:
    between = summary.text[summary.words[i - 1].end : summary.words[i].start]
    return bool(re.search(r"[,;:]", between)) or summary.words[i].key in _BREAK


RULES: tuple[Callable[[Summary, Post], Iterator[Fault]], ...] = (
    commentary,
    advice,
    copying,
    repetition,
    invention,
    emptiness,
    language,
)


def _told(summary: Summary, post: Post, poor: set[int]) -> list[str]:
    """Key facts that the summary names outside its poor words, and ties to another one as the post does."""
    named = list(
        dict.fromkeys(w.concept for i, w in enumerate(summary.words) if i not in poor and w.concept in post.keys)
    )
    return [one for one in named if any(one != other and post.near(one, other) for other in named)]


def praise(summary: Summary, post: Post, poor: set[int]) -> tuple[set[int], list[str]]:
    """The words that are good, and the key facts that the summary tells."""
    told = _told(summary, post, poor)
    good: set[int] = set()
    if len(told) < 2 or len(summary.words) < 5:
        return good, told
    credited: set[str] = set()
    literal = [word.key for word in summary.words]
    for first, last, ended in summary.sentences:
        if not ended and last - first >= 12:
            continue
        grams = [gram for _, gram in ngrams(literal[first:last], 3)]
        if len(grams) >= 4 and sum(gram in post.trigrams for gram in grams) > 0.6 * len(grams):
            continue
        anchors = []
        for i in range(first, last):
            name = summary.words[i].concept
            if i not in poor and name in told and name not in credited:
                anchors.append(i)
                credited.add(name)
        if len(told) < TOLD or len(anchors) < 2:
            good.update(anchors)
            continue
        good.update(range(anchors[0], anchors[-1] + 1))
        good.update(_reach(summary, post, poor, range(anchors[0] - 1, first - 1, -1)))
        good.update(_reach(summary, post, poor, range(anchors[-1] + 1, last)))
    if post.asks and len(told) >= TOLD:
        good.update(i for start, end in _matches(_ASKING, summary) for i in range(start, end))
    good -= poor
    good -= {i for i in good if _is_new(summary.words[i], post)}
    return good, told


def _reach(summary: Summary, post: Post, poor: set[int], outward: range) -> Iterator[int]:
    """Words next to a praised phrase that belong to it: at most four, up to a clause's edge or an unsupported word."""
    for step, i in enumerate(outward):
        word = summary.words[i]
        if i in poor or step == 4 or _is_new(word, post) or (outward.step > 0 and _breaks(summary, i)):
            return
        yield i
        if outward.step < 0 and _breaks(summary, i):
            return


def too_little(summary: Summary, told: list[str], poor: set[int]) -> Fault | None:
    """The last two words of an answer that stops too soon."""
    n = len(summary.words)
    if len(told) >= TOLD or n > 12 or n - 1 in poor:
        return None
    return Fault("too little", max(0, n - 2) if n > 3 else 0, n)


_SAID = {
    "commentary": "comments on the post instead of summarising it",
    "advice": "gives advice or addresses the reader",
    "copying": "copies the post word for word",
    "repetition": "repeats itself",
    "invention": "says what the post does not support",
    "emptiness": "is empty: it would fit any post",
    "language": "strings words together without making a sentence",
    "no end": "breaks off unfinished",
    "length": "goes on for too long",
    "too little": "stops before the story is told",
}


class SummaryCritic:
    """Judges summaries of posts by rules (see the module's text); deterministic, about a millisecond each.

    Args:
        max_words: words beyond this are poor.
    """

    name = "programmatic"

    def __init__(self, max_words: int = 50):
        if max_words < 1:
            raise ValueError(f"max_words is {max_words}, but must be at least 1")
        self.max_words = max_words

    def __call__(
        self, prompts: Sequence[str], responses: Sequence[str], records: Sequence[Record] | None = None
    ) -> list[Feedback | FeedbackError]:
        """Feedback per summary. ``prompts``: the posts. ``records`` is not used."""
        return [self.judge(post, response) for post, response in zip(prompts, responses, strict=True)]

    def judge(self, post: str, response: str) -> Feedback:
        """Feedback on one summary of one post."""
        found = words(response)
        if not found:
            kept = response.strip()
            return Feedback("The summary is empty: it has no word.", [], [kept] if kept else [])
        limit = min(len(found), self.max_words + 1)
        text = response if limit == len(found) else response[: found[limit - 1].end]
        summary = Summary(text, found[:limit], sentences(text, found[:limit]))
        facts = read_post(post)
        faults = [fault for rule in RULES for fault in rule(summary, facts)]
        faults += no_end(summary, facts, self.max_words)
        poor = {i for fault in faults for i in range(fault.start, fault.end)}
        good, told = praise(summary, facts, poor)
        if little := too_little(summary, told, poor):
            faults.append(little)
            poor |= set(range(little.start, little.end))
            good -= poor
        if limit < len(found):
            poor |= set(range(limit, len(found)))
        return Feedback(
            critique=_critique(summary, facts, faults, told),
            good=_quotes(response, found, good),
            poor=_quotes(response, found, poor),
        )


def _quotes(text: str, found: list[Word], marked: set[int]) -> list[str]:
    """Exact quotes of the runs of marked words, each with the punctuation attached to it."""
    quotes = []
    for i in sorted(marked):
        if i - 1 in marked:
            continue
        j = i
        while j + 1 in marked:
            j += 1
        if not any(word.is_content for word in found[i : j + 1]) and j - i < 1:
            continue
        start, end = found[i].start, found[j].end
        limit = found[j + 1].start if j + 1 < len(found) else len(text)
        while end < limit and not text[end].isspace():
            end += 1
        quotes.append(unique_quote(text, start, end))
    return quotes


def _critique(summary: Summary, post: Post, faults: list[Fault], told: list[str]) -> str:
    parts = []
    missing = [word for name, word in post.keys.items() if name not in told]
    if len(told) >= 2:
        parts.append(f"The summary states key facts of the post ({_list([post.keys[name] for name in told])}).")
    else:
        parts.append("The summary does not tell the story of the post.")
    if len(told) < TOLD and missing:
        parts.append(f"It leaves out {_list(missing[:4])}.")
    if post.asks and not _ASKING.search(summary.text):
        parts.append("It does not say what the writer asks.")
    for kind in dict.fromkeys(fault.kind for fault in faults):
        first = next(fault for fault in faults if fault.kind == kind)
        quote = summary.text[summary.words[first.start].start : summary.words[first.end - 1].end]
        parts.append(f"It {_SAID[kind]} (“{quote if len(quote) <= 60 else quote[:57] + '…'}”).")
    return " ".join(parts)


def _list(items: list[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
