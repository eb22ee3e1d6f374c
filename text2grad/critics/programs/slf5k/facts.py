"""What a program knows of a post and of a summary beside it: words, sentences, facts."""

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from text2grad.critics.programs.english import Word, related_concepts, same_family, sentences, words

ADVICE = re.compile(
    r"\byou(?:'ll| will)?\s+(?:\w+ly\s+)?(?:should|could|can|may|might|must|need|have to|ought|want to|would)\b"
    r"|\bif you(?:'re| are)\b|\byour (?:best|first|next)\b"
    r"|\bit(?:'s| is) (?:\w+ )?(?:important|essential|crucial|best) to\b"
    r"|\bi(?:'d| would)? (?:suggest|recommend|advise)\b|\b(?:one|people|everyone|we) (?:should|must|need to)\b"
    r"|\b(?:make sure|remember|be sure|keep in mind|consider \w+ing)\b"
    r"|(?:^|(?<=[.!?]\s))(?:try|don't|consider|talk to|ask|get|start|think|think of|take|let|look)\b",
    re.IGNORECASE | re.MULTILINE,
)
_REQUEST = re.compile(
    r"\?|\b(?:advice|any tips|any ideas|please help|wondering|suggestions|should i|how (?:do|can) i|need help)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Post:
    """What the critic knows of a post."""

    facts: dict[str, str]  # concept of an uncommon word -> the word
    keys: tuple[str, ...]  # the most important of them, in order
    places: dict[str, frozenset[int]]  # concept of any word that is not a function word -> the sentences that have it
    literal: str  # its words in lower case, a blank before and after each
    pairs: frozenset[tuple[str, str]]  # its pairs of words with at most two others between them
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
    runs: list[int]  # per word: how many words up to it, itself among them, the post has in a row

    def told(self, start: int, end: int) -> set[str]:
        """The facts among the words ``[start, end)``."""
        return {fact for fact in self.facts[start:end] if fact is not None}

    def between(self, i: int) -> str:
        """The text between word ``i`` and the one before it."""
        return self.text[self.words[i - 1].end : self.words[i].start]


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
        literal=f" {' '.join(literal)} ",
        pairs=frozenset(pair for gap in (1, 2, 3) for pair in zip(literal, literal[gap:], strict=False)),
        asks=bool(_REQUEST.search(text)),
        advises=len(ADVICE.findall(text)) >= 2,
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
        place = 1 + 0.6 * (min(where) < 2) + 0.4 * bool(where & asking) + 0.4 * bool(where & central)
        return (1 + math.log(count[name])) * place

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
        runs=_runs([word.key for word in found], post),
    )


def _runs(keys: list[str], post: Post) -> list[int]:
    lengths: list[int] = []
    for end in range(1, len(keys) + 1):
        start = end - 1 - (lengths[-1] if lengths else 0)
        while start < end and f" {' '.join(keys[start:end])} " not in post.literal:
            start += 1
        lengths.append(end - start)
    return lengths


def _supported_by(concept: str, post: Post) -> str | None:
    """The concept of the post that a word means: itself, a synonym, or another word of its family."""
    if concept in post.places:
        return concept
    near = [name for name in related_concepts().get(concept, ()) if name in post.places]
    if not near and not concept[0].isdigit():
        near = [name for name in post.places if name[:4] == concept[:4] and same_family(concept, name)]
    return min(near, key=lambda name: (name not in post.keys, min(post.places[name]), name)) if near else None


def matches(pattern: re.Pattern, summary: Summary) -> Iterator[tuple[int, int]]:
    """The word intervals that a pattern's matches touch."""
    for match in pattern.finditer(summary.text):
        inside = [i for i, word in enumerate(summary.words) if word.start < match.end() and word.end > match.start()]
        if inside:
            yield inside[0], inside[-1] + 1
