"""A critic with deliberate errors: good and poor exchanged, at random or always on the same phrases."""

import random
from collections.abc import Sequence

from benchmarks.micro.critic import PLAIN
from text2grad.critics import Critic, Feedback, FeedbackError
from text2grad.records import fingerprint
from text2grad.tasks import Record

KINDS = {"flip": "signs flipped", "always": "phrases always misjudged"}
"""Each kind of error, and what tables call it."""


class NoisyCritic:
    """Another critic's feedback, in which good and poor are exchanged for a share of the spans.

    Args:
        kind: ``flip`` decides for each span by itself; ``always`` errs on that share of all phrases, wherever they
            stand, as a learnt critic errs.
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
                (good if is_good != (chance.random() < self.share) else poor).append(quote)
        return Feedback(feedback.critique, good, poor, missing=feedback.missing)


FLIP_10, FLIP_25 = (NoisyCritic(PLAIN, "flip", share, seed=1) for share in (0.1, 0.25))
"""For ``--critic benchmarks.micro.noise:FLIP_25``."""
