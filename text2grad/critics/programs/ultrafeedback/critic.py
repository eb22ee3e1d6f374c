"""An annotator of answers to open questions that needs no model: it checks what can be checked in the text.

Poor, each with its reason in the critique:

- *refusal*: sentences that decline;
- *repetition*: sentences said before, a run of eight words said before, a word three times in a row;
- *no language*: heaps of words that are neither sentences nor list items;
- *no end*: the clause that a length limit cut off.

Good: sentences and items that stay on the topic and say something specific that was not said before. How much of
each is praised grows with how much the whole answer tells, up to what the request needs: little for a question of
fact or a short form, more for an explanation, a list or a text. So no single fact earns much, nothing is praised
twice, and length beyond what is needed earns nothing. Facts are not checked: a program cannot know them.

What no quote can hold is ``missing``: more to say, where it tells too little. The verdict is the balance of what it
tells of what is needed, its faults, and what is missing.
"""

import math
from collections.abc import Sequence

from text2grad.critics.programs.english import Fault, excerpt, quotes_of
from text2grad.critics.programs.ultrafeedback.faults import RULES
from text2grad.critics.programs.ultrafeedback.reading import Answer, read_answer, read_request
from text2grad.feedback import Feedback, FeedbackError, balance
from text2grad.tasks import Record

MENTIONED = 4  # spans of each kind that the critique quotes
IN_PART = 0.5  # of what a request needs, from which an answer is one in part


def praised(answer: Answer, poor: set[int]) -> tuple[set[int], float]:
    """The words that are good, and how much of what the request needs was told (0 to 1)."""
    units = [(start, end) for start, end, _ in answer.units if not poor & set(range(start, end))]
    saying = [(start, end) for start, end in units if answer.told(start, end)]
    depth = min(1.0, sum(min(8, answer.told(start, end)) for start, end in saying) / answer.request.needed)
    depth *= answer.on_topic
    good: set[int] = set()
    for start, end in saying:
        length = math.ceil(depth * (end - start))
        first = next(i for i in range(start, end) if answer.fresh[i])
        begin = max(start, min(first, end - length))
        good |= set(range(begin, begin + length))
    return good, depth


class AnswerCritic:
    """Judges answers by the rules at the head of this module; deterministic, no model."""

    name = "programmatic"

    def __call__(
        self, prompts: Sequence[str], responses: Sequence[str], records: Sequence[Record] | None = None
    ) -> list[Feedback | FeedbackError]:
        """Feedback per response. ``records`` has nothing that is needed."""
        return [self.feedback_on(request, response) for request, response in zip(prompts, responses, strict=True)]

    def feedback_on(self, prompt: str, response: str) -> Feedback:
        """Feedback on one answer to one request."""
        answer = read_answer(response, read_request(prompt))
        if not answer.words:
            text = response.strip()
            critique = "The answer is empty: it has no words."
            return Feedback(critique, [], [text] if text else [], missing=["an answer"], score=-1.0)
        faults = [fault for rule in RULES for fault in rule(answer)]
        poor = {i for fault in faults for i in range(fault.start, fault.end)}
        good, depth = praised(answer, poor)
        good_quotes, poor_quotes = (quotes_of(answer.text, answer.words, marked) for marked in (good, poor))
        missing = ["an answer in full"] if depth < IN_PART else []
        critique = _critique(answer, faults, good, depth, missing)
        score = round(balance(depth, len(faults), 1 - depth), 2)
        return Feedback(critique, good_quotes, poor_quotes, missing=missing, score=score)


_SAID = {
    "refusal": "Declines instead of answering",
    "repetition": "Repeats itself",
    "no language": "Heaps up words without sentences",
    "no end": "Breaks off",
}


def _critique(answer: Answer, faults: list[Fault], good: set[int], depth: float, missing: list[str]) -> str:
    """How much is told, and each kind of fault with examples."""
    specific = [answer.words[i].text for i in sorted(good) if answer.fresh[i]]
    if not good:
        parts = ["Says nothing specific about the request."]
    elif depth >= 1:
        parts = [f"Answers in full, with specifics: {', '.join(specific[:8])}."]
    else:
        more = " More is needed." if missing else ""
        parts = [f"Answers in part; specific are {', '.join(specific[:8])}.{more}"]
    for kind in dict.fromkeys(fault.kind for fault in faults):
        mine = [fault for fault in faults if fault.kind == kind]
        shown = dict.fromkeys(excerpt(answer.words[fault.start : fault.end]) for fault in mine[:MENTIONED])
        parts.append(f"{_SAID[kind]} ({'; '.join(shown)}).")
    return " ".join(parts)
