"""A critic with deliberate errors: spans lost, moved to a wrong place, or good and poor exchanged, at random or not."""

import random
import re
from collections.abc import Sequence

from benchmarks.micro.critic import PLAIN
from text2grad.critics import Critic, Feedback, FeedbackError
from text2grad.grounding import ground
from text2grad.records import fingerprint
from text2grad.tasks import Record

KINDS = {"drop": "spans lost", "shift": "spans shifted", "flip": "signs flipped", "always": "phrases always misjudged"}
"""Each kind of error, and what tables call it."""


class NoisyCritic:
    """Another critic's feedback with each span corrupted with probability ``share``.

    Args:
        kind: ``drop`` leaves the span out; ``shift`` quotes as many words, one to three words off (a span as long
            as the response stays); ``flip`` exchanges good and poor; ``always`` does so for that share of all phrases,
            wherever they stand, as a learnt critic errs. All others are independent.
        seed: the same response to the same prompt is corrupted in the same way.
    """

    def __init__(self, critic: Critic, kind: str, share: float, seed: int = 0):
        self.critic, self.kind, self.share, self.seed = critic, kind, share, seed
        self.name = f"{critic.name}, {kind} {share:.0%}"

    def __call__(
        self, prompts: Sequence[str], responses: Sequence[str], records: Sequence[Record] | None = None
    ) -> list[Feedback | FeedbackError]:
        replies = self.critic(prompts, responses, records)
        return [
            reply if isinstance(reply, FeedbackError) else self.corrupt(reply, prompt, response)
            for prompt, response, reply in zip(prompts, responses, replies, strict=True)
        ]

    def corrupt(self, feedback: Feedback, prompt: str, response: str) -> Feedback:
        rng = random.Random(fingerprint([self.seed, prompt, response]))
        good: list[str] = []
        poor: list[str] = []
        for is_good, quotes in ((True, feedback.good), (False, feedback.poor)):
            for quote in quotes:
                chance = random.Random(fingerprint([self.seed, quote])) if self.kind == "always" else rng
                corrupted = chance.random() < self.share
                if corrupted and self.kind == "drop":
                    continue
                if corrupted and self.kind == "shift":
                    quote = shifted(quote, response, rng)
                (good if is_good != (corrupted and self.kind in ("flip", "always")) else poor).append(quote)
        return Feedback(feedback.critique, good, poor, missing=feedback.missing)


FLIP_10, FLIP_25 = (NoisyCritic(PLAIN, "flip", share, seed=1) for share in (0.1, 0.25))
"""For ``--critic benchmarks.micro.noise:FLIP_25``."""


def shifted(quote: str, response: str, rng: random.Random) -> str:
    """A quote of as many words, one to three words to the left or right of the quote's first place."""
    places = ground(quote, response)
    if not places:
        return quote
    words = [match.span() for match in re.finditer(r"\S+", response)]
    inside = [index for index, (start, end) in enumerate(words) if start < places[0][1] and places[0][0] < end]
    offsets = [o for o in (-3, -2, -1, 1, 2, 3) if inside[0] + o >= 0 and inside[-1] + o < len(words)]
    if not offsets:
        return quote
    offset = rng.choice(offsets)
    return response[words[inside[0] + offset][0] : words[inside[-1] + offset][1]]
