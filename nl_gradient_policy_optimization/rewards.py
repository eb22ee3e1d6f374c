"""Where rewards come from: a critic's feedback, laid on the sampled tokens.

The trainer knows only the interface :class:`RewardSource`. A baseline with another reward (a scalar model, a process
reward model) is another such function; everything after it (KL, GAE, PPO, logs) is shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Protocol

from transformers import PreTrainedTokenizerBase

from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.rollouts import Judgement, Rollout
from text2grad.critics import Critic
from text2grad.feedback import FeedbackError
from text2grad.tasks import Task
from text2grad.token_rewards import token_rewards


class RewardSource(Protocol):
    """Judges rollouts: one :class:`Judgement` each, in order, with one reward per sampled token.

    ``elsewhere``: it waits for other processors (an endpoint), so that the trainer can sample and score meanwhile.
    """

    name: str
    elsewhere: bool

    def __call__(self, rollouts: Sequence[Rollout]) -> list[Judgement]: ...


class Batch:
    """One step's rollouts, and their judgements under way.

    A judge that works elsewhere begins with rollouts as soon as they are added, while others are sampled and scored;
    any other judges all of them together, when its judgements are asked for.
    """

    def __init__(self, rewards: RewardSource):
        self.rollouts: list[Rollout] = []
        self._rewards = rewards
        self._begun: list[Future[list[Judgement]]] = []
        self._pool = ThreadPoolExecutor(thread_name_prefix="critic")

    def add(self, rollouts: Sequence[Rollout]) -> None:
        self.rollouts += rollouts
        if self._rewards.elsewhere:
            self._begun.append(self._pool.submit(self._rewards, rollouts))

    def judgements(self) -> list[Judgement]:
        """All of them, in the order of the rollouts."""
        with self._pool:
            begun = [judgement for part in self._begun for judgement in part.result()]
        return begun or self._rewards(self.rollouts)


class CriticRewards:
    """Text2Grad's own: critique the response, find the quotes, reward their tokens (section 3.3)."""

    def __init__(self, critic: Critic, task: Task, tokenizer: PreTrainedTokenizerBase, config: PolicyConfig):
        self.critic, self.task, self.tokenizer, self.config = critic, task, tokenizer, config
        self.name = critic.name
        self.elsewhere = getattr(critic, "elsewhere", False)

    def __call__(self, rollouts: Sequence[Rollout]) -> list[Judgement]:
        written = [rollout for rollout in rollouts if rollout.response.strip()]
        replies = iter(
            self.critic(
                [rollout.prompt for rollout in written],
                [rollout.response for rollout in written],
                [self.task.with_response(rollout.record, rollout.response) for rollout in written],
            )
            if written
            else []
        )
        return [
            self._judge(rollout, next(replies)) if rollout.response.strip() else _empty(rollout, self.config)
            for rollout in rollouts
        ]

    def _judge(self, rollout: Rollout, reply) -> Judgement:
        if isinstance(reply, FeedbackError):
            zeros = [0.0] * len(rollout.response_ids)
            return Judgement(rewards=zeros, error=str(reply) or type(reply).__name__)
        found = token_rewards(rollout.response_ids, self.tokenizer, reply, self.task, self.config.scheme)
        judgement = Judgement(
            rewards=place(found.values, self.config.reward_placement),
            deltas=found.values,
            critique=reply.critique,
            good=list(reply.good),
            poor=list(reply.poor),
            matched=found.matched,
            unmatched=found.unmatched,
            conflicts=found.conflicts,
        )
        return shape(judgement, rollout, self.config)


def place(values: Sequence[float], placement: str) -> list[float]:
    """Token rewards where they stand (``token``), or gathered on the last token: the scalar baselines' δ.

    ``last_sum`` keeps the total reward, ``last_mean`` is the mean δ of a token.
    """
    if placement == "token":
        return list(values)
    total = sum(values)
    if placement == "last_mean":
        total /= max(len(values), 1)
    return [0.0] * (len(values) - 1) + [total]


def shape(judgement: Judgement, rollout: Rollout, config: PolicyConfig) -> Judgement:
    """Wishes about length and repetition, as rewards: the sampling distribution itself is never touched."""
    rewards = list(judgement.rewards)
    if not rollout.finished:
        rewards[-1] += config.unfinished_reward
    rewards[-1] += config.short_reward * max(0, config.min_response_tokens - len(rewards))
    for token in repeats(rollout.response_ids, config.repeat_ngram):
        rewards[token] += config.repeat_reward
    return replace(judgement, rewards=rewards)


def repeats(ids: Sequence[int], n: int) -> list[int]:
    """Positions of the tokens that complete an n-gram which stands earlier in the response; none for n = 0."""
    seen: set[tuple[int, ...]] = set()
    positions = []
    for end in range(n, len(ids) + 1) if n > 0 else ():
        ngram = tuple(ids[end - n : end])
        if ngram in seen:
            positions.append(end - 1)
        seen.add(ngram)
    return positions


def _empty(rollout: Rollout, config: PolicyConfig) -> Judgement:
    """A response without text has nothing to quote: its last token (the end token) takes the whole blame."""
    deltas = [0.0] * (len(rollout.response_ids) - 1) + [config.empty_reward]
    judgement = Judgement(rewards=list(deltas), deltas=deltas, critique="The response is empty.")
    return shape(judgement, rollout, config)
