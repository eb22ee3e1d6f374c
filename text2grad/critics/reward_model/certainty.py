"""How sure a reward model was of each quote that it wrote, and feedback without those it was not sure of.

A wrong sign costs a policy more than a lost span. The probability of a quote is that of its tokens as decoding chose
them, under the constraint if there is one: to go on with the list, which words to quote, and to end the quote there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from math import prod

from text2grad.feedback import Feedback, FeedbackFields
from text2grad.tasks import Interval


def quotes_in(text: str, field: str) -> list[tuple[str, Interval]]:
    """The quotes of one list of z, in order; each with its characters in the text, the comma before it included."""
    keys = list(re.finditer(rf'"{re.escape(field)}"\s*:\s*\[', text))
    found: list[tuple[str, Interval]] = []
    if not keys:
        return found
    start = keys[-1].end()
    while opening := re.compile(r'[\s,]*"').match(text, start):
        try:
            quote, end = json.JSONDecoder(strict=False).raw_decode(text, opening.end() - 1)
        except json.JSONDecodeError:  # cut off
            return found
        found.append((quote, (start, end)))
        start = end
    return found


def probability_of(interval: Interval, spans: Sequence[Interval], probabilities: Sequence[float]) -> float:
    """The product over the tokens that write any of the interval's characters.

    Args:
        spans: the characters of each token.
        probabilities: of each token, when it was chosen.
    """
    start, end = interval
    writing = (max(first, start) < min(last, end) for first, last in spans)
    return prod(p for writes, p in zip(writing, probabilities, strict=True) if writes)


def without_doubtful(
    feedback: Feedback,
    fields: FeedbackFields,
    text: str,
    spans: Sequence[Interval],
    probabilities: Sequence[float],
    least: float,
) -> Feedback:
    """The feedback without the quotes whose probability is below ``least``.

    Args:
        text: z as it was written, with the characters and the probability of each of its tokens.
    """

    def sure(quotes: Sequence[str], field: str) -> list[str]:
        doubtful = [q for q, place in quotes_in(text, field) if probability_of(place, spans, probabilities) < least]
        kept = list(quotes)
        for quote in doubtful:
            if quote in kept:
                kept.remove(quote)
        return kept

    return replace(feedback, good=sure(feedback.good, fields.good), poor=sure(feedback.poor, fields.poor))
