"""What the trainer asks of a method. Every hook has the answer of algorithm 4 here or in ``text2grad.py``."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from torch import Tensor

from nl_gradient_policy_optimization.batch import Batch

if TYPE_CHECKING:
    from nl_gradient_policy_optimization.config import PolicyConfig
    from nl_gradient_policy_optimization.policy import Scores
    from nl_gradient_policy_optimization.rewards import RewardSource
    from nl_gradient_policy_optimization.trainer import NLGradientTrainer
    from text2grad.tasks import Task


class LossInputs(NamedTuple):
    """A micro-batch of b responses of up to t tokens, on the policy's device.

    Attributes:
        scores: what the policy says of it now, with a gradient.
        values: V of the value head now, ``[b, t]``; None without a value head.
    """

    batch: Batch
    scores: Scores
    values: Tensor | None


class LossOutputs(NamedTuple):
    """What an update minimises: the means of ``policy`` and ``value`` over the minibatch's tokens.

    Attributes:
        policy, value: ``[b, t]``, for the policy and for the value head.
        figures: what the metrics show, as means over tokens: ``[b, t]``.
    """

    policy: Tensor
    value: Tensor
    figures: dict[str, Tensor]


@dataclass
class Algorithm:
    """A method: what it makes of a step's feedback, and what an update minimises.

    An algorithm is a dataclass of its own settings, which are flags. ``begin`` gives it the trainer, as ``self.run``.
    """

    name: ClassVar[str]
    """What ``--algorithm`` calls it."""
    uses_values: ClassVar[bool] = True
    """Whether a value head is trained."""
    compares_groups: ClassVar[bool] = False
    """Whether a prompt needs several responses, which are compared with each other."""

    # Before the first step

    @property
    def label(self) -> str:
        """The run's name in reports where ``--method`` gives none."""
        return self.name

    def configure(self, config: PolicyConfig) -> None:
        """Fill in settings of the run that the method needs and the user has left open."""

    def check(self, config: PolicyConfig) -> None:
        """Raise ``InputError`` for settings that cannot work, before anything is loaded."""

    def source(self, task: Task, config: PolicyConfig) -> RewardSource | None:
        """A source of rewards that takes the critic's place; None: the critic is asked."""
        return None

    def wrap(self, rewards: RewardSource, task: Task, config: PolicyConfig) -> RewardSource:
        """What the method makes of the critic's rewards, rollout by rollout."""
        return rewards

    def begin(self, run: NLGradientTrainer) -> None:
        """The trainer is ready, its models are loaded."""
        self.run = weakref.proxy(run)  # a run that nobody holds any more frees its memory and files at once

    # How many responses: of those that a step has on each device, some may be sampled later, or never learnt from

    def sampled(self, count: int) -> int:
        """How many of a step's ``count`` responses on a device are sampled before there is any feedback."""
        return count

    def learnt(self, count: int) -> int:
        """How many of a step's ``count`` responses on a device the updates learn from."""
        return count

    # A step

    def score_options(self) -> dict[str, Any]:
        """Further arguments of :class:`~.policy.PolicyScorer` where rollouts are scored; what it gives is kept."""
        return {}

    def on_batch(self, batch: Batch) -> Batch:
        """The feedback has come: compute what the method needs of it; rollouts may be added."""
        return batch

    def token_rewards(self, batch: Batch) -> Tensor:
        """What each token earns before the KL penalty, ``[B, T]``."""
        return batch.given

    def advantages(self, batch: Batch) -> Tensor:
        """A_t, ``[B, T]``; 0 where ``batch.mask`` is 0."""
        raise NotImplementedError

    def returns(self, batch: Batch) -> Tensor:
        """The value head's targets, ``[B, T]``."""
        raise NotImplementedError

    def to_learn(self, batch: Batch) -> Batch:
        """The rollouts that updates learn from."""
        return batch

    def pass_options(self, batch: Batch) -> dict[str, Any]:
        """Further arguments of :class:`~.policy.PolicyScorer` in the updates' passes over a micro-batch."""
        return {}

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """What an update minimises on a micro-batch."""
        raise NotImplementedError

    def after_update(self) -> None:
        """All updates of a step are made."""

    def figures(self, batch: Batch) -> dict[str, float]:
        """Metrics of a step, equal on all ranks."""
        return {}

    # Checkpoints

    def save(self, folder: Path) -> None:
        """Keep what the next step depends on; the main process calls it."""

    def load(self, folder: Path) -> None:
        """The inverse of :meth:`save`; every rank calls it."""
