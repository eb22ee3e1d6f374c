"""What the critic of answers knows of a request, and how it reads an answer to it."""

import re
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from text2grad.critics.programs.english import Word, concept, listed, same_family, sentences, words

SHORT_ANSWER, LONG_ANSWER = 20.0, 60.0  # specific words that kinds of requests need


def any_of(text: str) -> re.Pattern[str]:
    """Any one of the phrases that ``text`` holds, separated by bars over any number of lines."""
    phrases = "|".join(" ".join(phrase.split()) for phrase in re.split(r"\s\|\s", text))
    return re.compile(rf"\b(?:{phrases})\b", re.IGNORECASE)


_FACT = any_of(
    r"""who | when | where | which | whose | is | are | was | were | does | do | did | has | have | can | could | will |
    would | should | what(?:'s| is| was| are| year| day| time) | how (?:many|much|old|long|far|tall|big)"""
)
_BRIEF = any_of(
    r"""brief(?:ly)? | short(?:ly)? | concise(?:ly)? | quick(?:ly)? | (?:one|a|single) (?:word|sentence|line) |
    yes or no | joke | slogan | title | headline | tweet"""
)
_CREATIVE = any_of(
    r"""poem | story | joke | song | lyrics | haiku | play the role | role-?play | act as | pretend | simulate |
    ascii | draw | write | compose | script | table | code"""
)
_LISTS = any_of(
    r"""list | names? | keywords? | options? | examples? | synonyms? | ingredients? | top \d+ | words? |
    alternatives? | ideas? | table | ascii | titles? | terms?"""
)
_ASKING_WORDS = listed(
    "write give list explain describe tell create make show question answer poem story style example summarize "
    "following act play role rewrite help generate provide introduce phrase draw executive summary please format"
)
_ASKING = frozenset(map(concept, _ASKING_WORDS))
_LIST_MARK = re.compile(r"(?:[-*•–+#>]+|\(?\d{1,3}[.):]|\(?[a-zA-Z][.)])\s")


_FENCE = re.compile(r"```[^\n]*\n(.*?)(?:```|\Z)", re.DOTALL)
_CODE_LINE = re.compile(
    r"^[ \t]*(?:(?:def|class|import|from|return|function|const|let|var|public|private|#include|using|for|while|if|try|"
    r"else|print|<\?php|SELECT|CREATE|npm|git|sudo|scp|docker|pip)\b.*|[\w.\[\]]+\s*=[^=].*|[\w.]+\(.*\)[;:]?|[{}<].*[;>{}]|"
    r"[$>]\s\w.*)$",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Request:
    """What the critic knows of a request."""

    topic: frozenset[str]  # concepts of its uncommon words; of its other content words where it has none
    needed: float
    creative: bool
    lists: bool  # a list of words would answer it


@dataclass
class Answer:
    """A response, read as the answer to its request. Intervals are of words."""

    text: str
    request: Request
    words: list[Word]
    units: list[tuple[int, int, bool]]  # sentences, list items and lines; whether there is an end mark
    code: list[bool]  # per word: whether it is in code or in a table
    fresh: list[bool] = field(default_factory=list)  # per word: specific, and for the first time

    @cached_property
    def on_topic(self) -> float:
        """0 where it names nothing that the request is about; 1 for a word of it, for a long request two."""
        said = {word.concept for word in self.words if not word.is_function}
        named = sum(close(topic, said) for topic in self.request.topic)
        return min(1.0, named / (2 if len(self.request.topic) >= 5 else 1)) if self.request.topic else 1.0

    def told(self, start: int, end: int) -> int:
        """How many specific words a stretch says for the first time."""
        return sum(self.fresh[start:end])

    def is_item(self, start: int) -> bool:
        """Whether a unit begins like a list item, a heading or a table's row."""
        line = self.text.rfind("\n", 0, self.words[start].start) + 1
        before = self.text[line : self.words[start].start] + self.text[self.words[start].start :][:4]
        return bool(_LIST_MARK.match(before.lstrip())) or "|" in self.text[line:].split("\n", 1)[0]


@lru_cache(maxsize=512)
def read_request(text: str) -> Request:
    """What a request is about, and what kind of answer it wants."""
    found = words(text)
    content = [word for word in found if not word.is_function and word.concept not in _ASKING]
    topic = {word.concept for word in content if not word.is_common} or {word.concept for word in content}
    fact = bool(_FACT.match(text.lstrip())) and len(found) <= 25
    return Request(
        topic=frozenset(topic),
        needed=SHORT_ANSWER if fact or _BRIEF.search(text) else LONG_ANSWER,
        creative=bool(_CREATIVE.search(text)),
        lists=bool(_LISTS.search(text)),
    )


def read_answer(text: str, request: Request) -> Answer:
    """The words and units of an answer, and which words say something specific for the first time."""
    found = words(text)
    # Fenced blocks, or else lines that look like code.
    apart = [match.span() for match in _FENCE.finditer(text)] or [match.span() for match in _CODE_LINE.finditer(text)]
    inside = [any(start <= word.start and word.end <= end for start, end in apart) for word in found]
    answer = Answer(text, request, found, sentences(text, found), inside)
    seen: set[str] = set(request.topic)  # the request's own words tell nothing
    for word in found:
        specific = not word.is_function and not word.is_common and not (word.is_number and len(word.concept) < 2)
        answer.fresh.append(specific and word.concept not in seen)
        seen.add(word.concept)
    return answer


def close(name: str, others: set[str]) -> bool:
    """Whether others have a concept, or another word of its family."""
    return name in others or any(name[:4] == other[:4] and same_family(name, other) for other in others)
