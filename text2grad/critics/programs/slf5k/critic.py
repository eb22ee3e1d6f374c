"""An annotator of summaries that needs no model: it reads the post, finds its facts, and judges every phrase.

A *fact* is an uncommon word of the post, with its inflections, derivations and simple synonyms. *Key facts*, a third
of them, are those that occur most often, in the opening, in the question, or in the sentences that share most with
the rest of the post. What a post asks is one more key fact.

Poor, each with its reason in the critique:

- *commentary*: openers, and remarks about the post or its writer ("Here is a summary", "The author describes");
- *advice* to the writer or the reader where the post gives none, and questions to the reader;
- *copying*: runs of six words of the post (of 82 human TL;DR sentences on 44 Reddit posts, one has a run of six and
  none of seven); in a sentence that merely leaves out words of the post's (over 70 % of its word pairs are in the
  post in this order, with at most two words between them; those human sentences: up to 45 %), these pairs;
- *repetition*: a word doubled, four words said before, a word for the fourth time, a sentence that says again what one
  before it said;
- *invention*: numbers and names that the post does not have; other words it does not support, where a sentence has
  two or more and they exceed a third of what it says (one own word is own wording, several are another story);
- *emptiness*: stock phrases ("a range of emotions"), and sentences without any fact, which would fit any post;
- *no language*: runs of words whose order is likelier by chance than in English (``word_order.py``), all words where
  most are in such runs; lists, more than six words in a row without a function word, long sentences without a verb,
  and single pairs that English does not have ("the of", "an thing");
- *no end*: the clause that the length limit cut off, with all beyond the twentieth word of its sentence, and words
  beyond the fiftieth;
- *too little*: the last words of a short answer that stops before the story is told.

Good: facts that the post, too, names close to one another, and the words around them. How many words around, grows
with how much the whole answer tells (a key fact counts 1, another one ½): none up to 1, three to each side from 4 on,
and nothing more is praised once it has told 8. A short answer that tells less than 3 gets its facts alone praised, an
unfinished sentence too, and a key fact that is apart from the others. So a fact earns little by itself, each is
praised once, and there is a limit to what an answer can earn. Nothing is praised that is poor or unsupported.

What it cannot see: who did what to whom, and the order of a dozen words or fewer beyond such pairs.

What no quote can hold is ``missing``: the most important key facts that the answer leaves out, as many as it would
need to tell the story, and what the writer asks. The verdict is the balance of what it tells (in facts), what is poor
(a quote counts 1, and 1 more for every ten words of it) and what is missing.

An answer without any word gets its text as poor span. An answer without any text has no token to be labelled: only
the critique says so, and its reward is zero.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from text2grad.critics.programs.english import Fault, Word, excerpt, quotes_of, words
from text2grad.critics.programs.slf5k.facts import Summary, matches, read_post, read_summary
from text2grad.critics.programs.slf5k.faults import RULES, SHORT, no_end
from text2grad.feedback import Feedback, FeedbackError, balance
from text2grad.tasks import Record

MOST_WORDS = 50  # words beyond these are poor
TOLD = 3.0  # what an answer must tell before phrases are praised
MUCH = 5.0  # what it tells when it tells the story
ENOUGH = 8.0  # what it must tell to have told everything
WORDS_EACH = 10  # so many more words of a poor quote weigh as much as another fault

_ASKING = re.compile(
    r"\b(?:ask(?:s|ed|ing)?|wonder(?:s|ed|ing)?|whether|wants? to know|unsure|not sure|doesn't know|don't know|"
    r"should|how to|advice|help|tips?|suggestions?|ideas|looking for|what to|is it)\b|\b\w+\s*\?",
    re.IGNORECASE,
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
    asking = next((m for m in matches(_ASKING, summary) if post.asks and not barred & set(range(*m))), None)
    if len(told) < 2:
        asking = None
    amount = sum(1.0 if fact in post.keys else 0.5 for fact in told) + bool(asking)
    short = amount < TOLD and len(summary.words) <= SHORT
    worth = set(told) if short else {*told, *post.keys}
    reach = 0 if short else min(3, max(0, int(amount) - 1))
    good: set[int] = set()
    credited: set[str] = set()
    earned = 0.0
    for first, last, ended in summary.sentences:
        if earned >= ENOUGH or len(summary.words) < 5:
            break
        for i in range(first, last):
            fact = summary.facts[i]
            states = fact in worth and fact not in credited
            asks = asking is not None and asking[0] <= i < asking[1]
            if i in barred or not (asks or states):
                continue
            good.add(i)
            if states and fact is not None:
                credited.add(fact)
                earned += 1.0 if fact in post.keys else 0.5
            if fact in told and ended:  # the words beside it, as far as they are neither poor nor unsupported
                for beside in (range(i - 1, max(first, i - reach) - 1, -1), range(i + 1, min(last, i + reach + 1))):
                    good.update(takewhile(lambda k: k not in poor and not summary.new[k], beside))
    return Praise(good - poor, told, amount, bool(asking))


def left_out(summary: Summary, praised: Praise) -> list[str]:
    """What a summary does not tell: as many key facts as it would need to tell the story, and what the writer asks."""
    post = summary.post
    untold = [post.facts[key] for key in post.keys if key not in praised.told]
    needed = max(0, math.ceil(MUCH - praised.amount))
    return untold[:needed] + (["what the writer asks"] if post.asks and not praised.asks else [])


_SAID = {
    "commentary": ("Comments on the post instead of summarising it", "comments"),
    "advice": ("Addresses the reader or gives advice", "advises"),
    "copying": ("Copies the post word for word", "copies"),
    "repetition": ("Repeats itself", "repeats"),
    "invention": ("Says what the post does not support", "invents"),
    "emptiness": ("Has phrases that would fit any post", "fits any post"),
    "language": ("Strings words together without making a sentence", "no sentence"),
    "no end": ("Breaks off", "breaks off"),
    "length": ("Goes on for too long", "too long"),
    "too little": ("Stops before the story is told", "too little"),
}
"""What the critique says of each kind of fault, and what the worked one says."""


class SummaryCritic:
    """Judges summaries of posts by the rules at the head of this module; deterministic, no model."""

    name = "programmatic"

    def __call__(
        self, prompts: Sequence[str], responses: Sequence[str], records: Sequence[Record] | None = None
    ) -> list[Feedback | FeedbackError]:
        """Feedback per summary. ``prompts`` are the posts; ``records`` has nothing that is needed."""
        return [self.feedback_on(post, response) for post, response in zip(prompts, responses, strict=True)]

    def feedback_on(self, post: str, response: str) -> Feedback:
        """Feedback on one summary of one post."""
        every = words(response)
        if not every:
            text = response.strip()
            critique = "The summary is empty: it has no words."
            return Feedback(critique, [], [text] if text else [], missing=["the whole story"], score=-1.0)
        summary, faults = self._read(post, response, every)
        found = summary.words
        marked = [(i, fault.spare) for fault in faults for i in range(fault.start, fault.end)]
        poor = {i for i, spare in marked if not spare or summary.facts[i] is None}
        praised = praise(summary, poor, barred={i for i, _ in marked})
        good = praised.words
        last = len(found) - 1
        if praised.amount < TOLD and len(found) <= SHORT and last not in poor:
            faults.append(Fault("too little", max(0, last - 1), last + 1))
            poor |= {max(0, last - 1), last}
            good = good - poor
        poor |= set(range(len(found), len(every)))
        critique = self.critique(summary, faults, praised)
        good_quotes, poor_quotes = (quotes_of(response, every, chosen) for chosen in (good, poor))
        missing = left_out(summary, praised)
        wrong = sum(1 + len(quote.split()) // WORDS_EACH for quote in poor_quotes)
        score = round(balance(praised.amount, wrong, len(missing)), 2)
        return Feedback(critique, good_quotes, poor_quotes, missing=missing, score=score)

    def _read(self, post: str, response: str, every: list[Word]) -> tuple[Summary, list[Fault]]:
        found, beyond = every[:MOST_WORDS], every[MOST_WORDS:]
        read = response[: beyond[0].start] if beyond else response
        summary = read_summary(read, found, read_post(post))
        faults = [fault for rule in RULES if not (beyond and rule is no_end) for fault in rule(summary)]
        if beyond:
            faults.append(Fault("length", len(found), len(found)))
        return summary, faults

    def critique(self, summary: Summary, faults: list[Fault], praised: Praise) -> str:
        """What is told, what is left out, and each kind of fault with its first example."""
        post = summary.post
        named = dict.fromkeys(fact for i in sorted(praised.words) if (fact := summary.facts[i]) is not None)
        told = [post.facts[fact] for fact in praised.told or named]
        parts = [f"{_amount(praised)}: {_listing(told[:6])}." if told else "Tells nothing of the post."]
        missing = [post.facts[key] for key in post.keys if key not in praised.told]
        if praised.amount < MUCH and missing:
            parts.append(f"Leaves out {_listing(missing[:4])}.")
        if post.asks and not praised.asks:
            parts.append("Does not say what the writer asks.")
        for kind in dict.fromkeys(fault.kind for fault in faults):
            fault = next(fault for fault in faults if fault.kind == kind)
            quoted = summary.words[fault.start : fault.end]
            parts.append(f"{_SAID[kind][0]}{f' ({excerpt(quoted)})' if quoted else ''}.")
        return " ".join(parts)


class WorkedSummaryCritic(SummaryCritic):
    """The same spans, with a critique that works them out: sentence by sentence, whether the post has each fact.

    "Biscuit yes, Iranian no, screaming no: invents." A small reward model learns to compare from it, where the other
    critique only lets it guess. As a critic: ``text2grad.critics.programs.slf5k.critic:WorkedSummaryCritic``.

    Args:
        runs: says of a fact, too, which word it is of a run of the post's own words, from the third to the ninth:
            "rowing yes, club 3, voted 5, captain 7: copies." So where a copy begins and ends is worked out, too.
    """

    name = "programmatic, worked"

    def __init__(self, runs: bool = True):
        self.runs = runs

    def critique(self, summary: Summary, faults: list[Fault], praised: Praise) -> str:
        parts = []
        for first, last, _ in summary.sentences:
            known = [
                f"{summary.words[i].text} {_status(summary.facts[i], summary.runs[i] if self.runs else 0)}"
                for i in range(first, last)
                if summary.facts[i] is not None or summary.new[i]
            ]
            end = last + (last == len(summary.words))  # where what is said of the length stands
            kinds = [fault.kind for fault in faults if fault.start < end and first < fault.end]
            said = ", ".join(_SAID[kind][1] for kind in dict.fromkeys(kinds))
            parts.append(f"{', '.join(known) or 'no facts'}: {said or 'fine'}.")
        return " ".join([*parts, _amount(praised) + "."])


def _status(fact: str | None, length: int) -> str:
    if fact is None:
        return "no"
    return "yes" if length < 3 else str(min(length, 9))


def _amount(praised: Praise) -> str:
    if praised.amount >= MUCH:
        return "Tells the story"
    return "Tells part of the story" if praised.amount >= TOLD else "Only names facts"


def _listing(items: list[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
