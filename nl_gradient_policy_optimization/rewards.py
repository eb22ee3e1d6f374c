"""Where rewards come from: a critic's feedback, laid on the sampled tokens.

The trainer knows only the interface :class:`RewardSource`. A method with another reward (a scalar model, the ends of
steps) is another such function; everything after it (KL, GAE, PPO, logs) is shared.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median_low
from typing import Any, Protocol

import torch

from nl_gradient_policy_optimization.batch import Batch
from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.rollouts import Rollout, RolloutFeedback
from text2grad.advantages import Reduce
from text2grad.critics import Critic, as_critic
from text2grad.critics.asking import Question, ask, log_completion, opinions
from text2grad.errors import InputError
from text2grad.feedback import Feedback, FeedbackError
from text2grad.tasks import Task
from text2grad.token_rewards import rewards_on

EMPTY_REWARD = -1.0
"""On the last token of a response without text, which no critic sees."""
Change = Callable[[Rollout, RolloutFeedback], RolloutFeedback]


class RewardSource(Protocol):
    """Gives rollouts their feedback: one :class:`RolloutFeedback` each, in order, with one reward per sampled token.

    ``remote``: other processors do the work (an endpoint's), so that the trainer can sample and score at the same time.
    """

    name: str
    remote: bool

    def __call__(self, rollouts: Sequence[Rollout]) -> list[RolloutFeedback]: ...


class PendingRollouts:
    """One step's rollouts, and their feedback on its way.

    A remote reward source begins with rollouts as soon as they are added, while others are sampled and scored. Any
    other one gets all of them together, when the feedback is asked for.

    Attributes:
        batch: the rollouts, padded and scored, once all of them are there.
    """

    batch: Batch

    def __init__(self, rewards: RewardSource):
        self.rollouts: list[Rollout] = []
        self._rewards = rewards
        self._begun: list[Future[list[RolloutFeedback]]] = []
        self._pool = ThreadPoolExecutor(thread_name_prefix="critic")

    def add(self, rollouts: Sequence[Rollout]) -> None:
        self.rollouts += rollouts
        if self._rewards.remote:
            self._begun.append(self._pool.submit(self._rewards, rollouts))

    def feedback(self) -> list[RolloutFeedback]:
        """All of it, in the order of the rollouts; waits for what has not come yet."""
        try:
            begun = [feedback for part in self._begun for feedback in part.result()]
        finally:  # an interrupted run saves its checkpoint before it waits for what is in flight
            self._pool.shutdown(wait=False, cancel_futures=True)
        return begun or self._rewards(self.rollouts)

    def state(self) -> list[dict[str, Any]]:
        """What a checkpoint keeps of them: the sampled ids and what was computed per token, but no feedback."""
        return [
            {"id": rollout.id, "response_ids": rollout.response_ids, "columns": self.batch.columns(row)}
            for row, rollout in enumerate(self.rollouts)
        ]


class CriticRewards:
    """Text2Grad's own: critique the response, find the quotes, reward their tokens (section 3.3).

    With ``critic_votes`` the critic gives several opinions: see :func:`mean_feedback`. The log has the words of the
    first.
    """

    def __init__(self, critic: Critic, task: Task, config: PolicyConfig):
        self.critic, self.task, self.config = as_critic(critic), task, config
        self.complete = log_completion(self.critic, task, config.run_tests)
        self.name = self.critic.name
        self.remote = getattr(critic, "remote", False)
        self.opinions = opinions(self.critic, config.critic_votes)

    def __call__(self, rollouts: Sequence[Rollout]) -> list[RolloutFeedback]:
        return [mean_feedback(ballot) for ballot in self.ballots(rollouts)]

    def ballots(self, rollouts: Sequence[Rollout]) -> list[list[RolloutFeedback]]:
        """What every opinion gives a rollout, rollout by rollout."""
        written = [each for each in rollouts if not each.blank]
        # Completed once: all opinions are about the same log.
        records = iter(self.complete([self.task.with_response(each.record, each.response) for each in written]))
        questions = [Question(each.prompt, each.response, None if each.blank else next(records)) for each in rollouts]
        votes = zip(*(ask(opinion, questions) for opinion in self.opinions), strict=True)
        return [
            [self._feedback(rollout, reply) for reply in replies]
            for rollout, replies in zip(rollouts, votes, strict=True)
        ]

    def _feedback(self, rollout: Rollout, reply: Feedback | FeedbackError | None) -> RolloutFeedback:
        if reply is None:  # without text there is nothing to quote: the end token takes the whole blame
            deltas = [0.0] * (len(rollout.response_ids) - 1) + [EMPTY_REWARD]
            silence = RolloutFeedback(deltas, deltas, "The response is empty.", score=-1.0, score_source="derived")
            return shape(silence, rollout, self.config)
        if isinstance(reply, FeedbackError):
            zeros = [0.0] * len(rollout.response_ids)
            return RolloutFeedback(rewards=zeros, error=str(reply) or type(reply).__name__)
        found = rewards_on(rollout.response, rollout.spans, reply, self.task, self.config.scheme)
        verdict = self.task.verdict(reply)
        feedback = RolloutFeedback(
            rewards=list(found.values),
            deltas=found.values,
            critique=reply.critique if self.config.critique else "",
            good=list(reply.good),
            poor=list(reply.poor),
            matched=found.matched,
            unmatched=found.unmatched,
            conflicts=found.conflicts,
            missing=list(reply.missing),
            score=verdict.value,
            score_source=verdict.source,
        )
        return shape(feedback, rollout, self.config)


class ChangedRewards:
    """Another source's feedback, changed for each rollout; failed ones and responses without text stay as they are.

    Args:
        change: gives the feedback before ``unfinished_reward``.
    """

    def __init__(self, rewards: RewardSource, config: PolicyConfig, change: Change):
        self.rewards, self.config, self.change = rewards, config, change
        self.name, self.remote = rewards.name, rewards.remote

    def __call__(self, rollouts: Sequence[Rollout]) -> list[RolloutFeedback]:
        pairs = zip(rollouts, self.rewards(rollouts), strict=True)
        return [
            given
            if given.error is not None or rollout.blank
            else shape(self.change(rollout, given), rollout, self.config)
            for rollout, given in pairs
        ]


def mean_feedback(votes: Sequence[RolloutFeedback]) -> RolloutFeedback:
    """The first feedback that did not fail, with the mean rewards, δ and verdict of all that did not; a failure if all
    did. As many things are missing as the median vote misses: two opinions seldom name one thing in the same words."""
    valid = [vote for vote in votes if vote.error is None]
    if len(valid) < 2:
        return valid[0] if valid else votes[0]
    rewards = [fmean(column) for column in zip(*(vote.rewards for vote in valid), strict=True)]
    deltas = [fmean(column) for column in zip(*(vote.labels for vote in valid), strict=True)]
    scores = [vote.score for vote in valid if vote.score is not None]
    lacks = median_low(len(vote.missing) for vote in valid)
    missing = next(vote.missing for vote in valid if len(vote.missing) == lacks)
    score = fmean(scores) if scores else None
    return replace(valid[0], rewards=rewards, deltas=deltas, score=score, missing=missing)


def check_failures(feedback: Sequence[RolloutFeedback], config: PolicyConfig, critic: str, reduce: Reduce) -> None:
    """Stop where too much of a step's feedback failed, over all ranks."""
    failed = [given.error for given in feedback if given.error is not None]
    count, total = reduce(torch.tensor([float(len(failed)), float(len(feedback))])).tolist()
    if total and count / total > config.max_critic_failures:
        local = config.critic_constrained == "none" and Path(config.critic).is_dir()
        raise InputError(
            f"{count:.0f} of {total:.0f} critiques failed ({failed[0] if failed else 'on other ranks'}); "
            f"{'add --critic_constrained quotes, which keeps replies readable, ' if local else ''}check the critic "
            f"{critic!r}, or raise --max_critic_failures, and run the same command again"
        )


def shape(feedback: RolloutFeedback, rollout: Rollout, config: PolicyConfig) -> RolloutFeedback:
    """The feedback, with what a response earns that the length limit cut off."""
    if rollout.finished:
        return feedback
    return replace(feedback, rewards=[*feedback.rewards[:-1], feedback.rewards[-1] + config.unfinished_reward])
