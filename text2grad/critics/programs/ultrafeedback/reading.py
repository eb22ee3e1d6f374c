"""What the critic of answers knows of a request, and how it reads an answer to it."""

import re
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from text2grad.critics.programs.english import (
    Word,
    concept,
    listed,
    ngrams,
    related_concepts,
    same_family,
    sentences,
    words,
)
from text2grad.critics.programs.ultrafeedback.demands import code_intervals

COPY_RUN = 5  # words in a row that show where a sentence says the request back
YES_OR_NO, SHORT_ANSWER, LONG_ANSWER = 2.0, 20.0, 60.0  # specific words that kinds of requests need


def any_of(text: str) -> str:
    """A pattern for any one of the phrases that ``text`` holds, separated by bars over any number of lines."""
    return "(?:" + "|".join(" ".join(phrase.split()) for phrase in re.split(r"\s\|\s", text)) + ")"


_FACT = re.compile(
    r"^\W*(?:(?:hi|hello|hey|so|and|please|ok)\W+)?"
    + any_of(
        r"""who | when | where | which | whose | is | are | was | were | does | do | did | has | have | can |
        could | will | would | should | what(?:'s| is| was| are| year| day| time| color| colour| type| kind) |
        whats | how (?:many|much|old|long|far|tall|big)"""
    )
    + r"\b",
    re.IGNORECASE,
)
_BRIEF = re.compile(
    r"\b"
    + any_of(
        r"""brief(?:ly)? | short(?:ly)? | concise(?:ly)? | one (?:word|sentence|line) |
        in a (?:word|sentence|line) | single (?:word|sentence) | yes or no | joke | slogan | title | headline |
        tweet | quick(?:ly)?"""
    )
    + r"\b",
    re.IGNORECASE,
)
_YES_OR_NO = re.compile(r"\b(?:answer|reply|respond)\b[^.?!\n]{0,25}\byes\b.{0,3} or .{0,2}no\b", re.IGNORECASE)
_LETTER = re.compile(r"\b(?:e-?mail|letter|message|post|invitation|note|speech|reply)\b", re.IGNORECASE)
_OWN_TEXT = re.compile(
    r"\b"
    + any_of(
        r"""rewrite | rephrase | paraphrase | translate | edit | correct | proofread | summari[sz]e | convert |
        complete | fix | repeat | quote | extract | classify | analy[sz]e | identify | following | given |
        below | above | this (?:text|passage|sentence|email|article|code|paragraph)"""
    )
    + r"\b",
    re.IGNORECASE,
)
_CREATIVE = re.compile(
    r"\b"
    + any_of(
        r"""poem | story | joke | song | lyrics | haiku | play the role | role-?play | act as | pretend | simulate |
        ascii | draw | write | compose | script | table | code"""
    )
    + r"\b",
    re.IGNORECASE,
)
_LISTS = re.compile(
    r"\b"
    + any_of(
        r"""list | names? | keywords? | options? | examples? | synonyms? | ingredients? | top \d+ | words? |
        alternatives? | ideas? | table | ascii | titles? | terms?"""
    )
    + r"\b",
    re.IGNORECASE,
)
_ABOUT_ITSELF = re.compile(
    r"\b(?:are|were|did|have) you\b|\bdo you (?!think\b|know\b|have any\b|recommend\b|suggest\b)|"
    r"\b(?:can|could|would|will) you (?!please\b|help\b|tell\b|give\b|explain\b|write\b|list\b|show\b|make\b|provide\b|"
    r"create\b|describe\b|generate\b|recommend\b|suggest\b)|\b(?:who|what|how) (?:are|do|can) you\b|"
    r"\byour (?:name|opinion|favou?rite|self)\b|\bas an ai\b|\bchatgpt\b|\byou (?:thinking|feel)",
    re.IGNORECASE,
)
_ASKING = frozenset(
    concept(word)
    for word in listed(
        "write give list explain describe tell create make show question answer poem story style example summarize "
        "following act play role rewrite help generate provide introduce phrase draw executive summary please format"
    )
)
_LIST_MARK = re.compile(r"(?:[-*•–+#>]+|\(?\d{1,3}[.):]|\(?[a-zA-Z][.)])\s")


@dataclass(frozen=True)
class Request:
    """What the critic knows of a request."""

    text: str
    topic: frozenset[str]  # concepts of its uncommon words; of its other content words where it has none
    runs: frozenset[tuple[str, ...]]
    needed: float
    known: frozenset[str]  # concepts that an answer says nothing new by saying
    own_text: bool  # it brings a text to work on
    creative: bool
    lists: bool  # a list of words would answer it
    about_itself: bool
    letter: bool  # it asks for one


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
        said = self.concepts(0, len(self.words))
        named = sum(close(topic, said) for topic in self.request.topic)
        return min(1.0, named / (2 if len(self.request.topic) >= 5 else 1)) if self.request.topic else 1.0

    def told(self, start: int, end: int) -> int:
        """How many specific words a stretch says for the first time."""
        return sum(self.fresh[start:end])

    def concepts(self, start: int, end: int) -> set[str]:
        """What a stretch speaks of."""
        return {word.concept for word in self.words[start:end] if not word.is_function}

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
    given = {word.concept for word in found if word.is_number}
    own_text = len(found) >= 40 and bool(_OWN_TEXT.search(text))
    fact, brief = bool(_FACT.match(text)) and len(found) <= 25, bool(_BRIEF.search(text))
    exercise = len(given) >= 3 and text.rstrip().endswith("?")
    return Request(
        text=text,
        topic=frozenset(topic),
        runs=frozenset(gram for _, gram in ngrams([word.key for word in found], COPY_RUN)),
        needed=YES_OR_NO if _YES_OR_NO.search(text) else SHORT_ANSWER if brief or fact or exercise else LONG_ANSWER,
        known=frozenset() if own_text or exercise else frozenset(topic),
        own_text=own_text,
        creative=bool(_CREATIVE.search(text)),
        lists=bool(_LISTS.search(text)),
        about_itself=bool(_ABOUT_ITSELF.search(text)),
        letter=bool(_LETTER.search(text)),
    )


def read_answer(text: str, request: Request) -> Answer:
    """The words and units of an answer, and which words say something specific for the first time."""
    found = words(text)
    apart = code_intervals(text)
    inside = [any(start <= word.start and word.end <= end for start, end in apart) for word in found]
    answer = Answer(text, request, found, sentences(text, found), inside)
    seen: set[str] = set(request.known)
    for word in found:
        specific = not word.is_function and not word.is_common and not (word.is_number and len(word.concept) < 2)
        answer.fresh.append(specific and word.concept not in seen)
        seen.add(word.concept)
    return answer


def close(name: str, others: frozenset[str] | set[str]) -> bool:
    """Whether others have a concept, a synonym of it, or another word of its family."""
    return (
        name in others
        or bool(related_concepts().get(name, frozenset()) & others)
        or any(name[:4] == other[:4] and same_family(name, other) for other in others)
    )
