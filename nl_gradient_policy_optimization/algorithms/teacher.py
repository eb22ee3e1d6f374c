"""The critique as a teacher: the policy, once it has read the critique, scores its own rollout.

    Δ_t = log π_T(y_t | x, c, y_<t) − log π(y_t | x, y_<t)

``weight`` and ``gate`` let Δ change the labels that the quotes gave. ``distill`` draws the policy towards the teacher's
whole distribution on poor spans, and ``all`` on every token, without any quotes: SDPO. The formulas are in
``text2grad/losses/teacher.py``. What the teacher reads is a text file of the task, ``prompts/teacher.txt``.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from nl_gradient_policy_optimization.algorithms.base import LossInputs, LossOutputs
from nl_gradient_policy_optimization.algorithms.text2grad import Text2Grad
from nl_gradient_policy_optimization.algorithms.verdict import Verdict
from nl_gradient_policy_optimization.batch import Batch
from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.rollouts import Rollout
from text2grad.configs import setting
from text2grad.errors import InputError
from text2grad.feedback import without_quotes
from text2grad.losses.kl import sampled_kl
from text2grad.losses.ppo import capped_ratio
from text2grad.losses.teacher import divergence, gated, span_sums, weighted, with_tail
from text2grad.models import chat_ids
from text2grad.prompts import Prompt, load_prompt, prompt_path
from text2grad.tasks import Task

WEIGHTS = "teacher.pt"
TeacherKind = Literal["weight", "gate", "distill", "gate+distill", "all"]


@dataclass
class Teacher(Text2Grad):
    """Text2Grad with the policy that has read the critique, whose weights are the reference's or an average of its own.

    A batch has ``extra["taught"]`` (``[B]``: 1 where the critique was read), ``teacher_logprobs`` (``[B, T]``), and for
    a distillation ``top_ids`` and ``teacher_top`` (``[B, T, K]``): the policy's likeliest tokens, and the teacher's
    log-probabilities of them.
    """

    name = "teacher"
    clip: ClassVar[float] = 0.2
    """With ``weight`` a label's size stays within 1 ± this."""
    scale: ClassVar[float] = 0.1
    """With ``gate``, the nats of disagreement over which a label shrinks."""
    top_k: ClassVar[int] = 100
    """A distillation compares so many tokens of the vocabulary; the rest counts as one."""

    teacher: TeacherKind = setting(
        "gate",
        "teacher: what the critique's words change: the size of labels (weight), labels it contradicts (gate), what to "
        "write in place of poor spans (distill), or every token, without quotes (all)",
    )
    teacher_prompt: str = setting(
        "", "teacher, second: file of what the policy reads; by default the task's prompts/teacher.txt"
    )
    teacher_weights: Literal["reference", "average"] = setting(
        "reference", "teacher: its weights are the reference's, or a moving average of the policy's"
    )
    teacher_rate: float = setting(
        0.05, "teacher: how far the average moves towards the policy in each step", at_least=0, at_most=1
    )
    teacher_coef: float = setting(1.0, "teacher distill, all: weight of the divergence from the teacher", at_least=0)
    teacher_alpha: float = setting(
        1.0,
        "teacher distill, all: 1 is KL of the policy from the teacher, 0 of the teacher from the policy, ½ "
        "Jensen-Shannon",
        at_least=0,
        at_most=1,
    )

    @property
    def label(self) -> str:
        return f"teacher_{self.teacher}"

    @property
    def distils(self) -> bool:
        """Whether the loss needs the teacher's distribution, and not only its view of the sampled tokens."""
        return self.teacher in ("distill", "gate+distill", "all")

    def check(self, config: PolicyConfig) -> None:
        super().check(config)
        if not config.critique:
            raise InputError("--critique false leaves --teacher nothing to read; leave one of them out")
        if self.teacher_weights == "average" and config.deepspeed:
            raise InputError("--teacher_weights average is for runs without --deepspeed; use reference")

    def begin(self, run) -> None:
        super().begin(run)
        self.reader = CritiqueReader(self.teacher_prompt, run)
        self.average: dict[str, Tensor] = {}
        if self.teacher_weights == "average":
            self.average = {name: weight.detach().clone() for name, weight in self._trained()}

    # A step

    def score_options(self) -> dict[str, Any]:
        options = super().score_options()
        return {**options, "top_k": self.top_k} if self.distils else options

    def pass_options(self, batch: Batch) -> dict[str, Any]:
        return {"at": batch.extra["top_ids"]} if self.distils else {}

    def on_batch(self, batch: Batch) -> Batch:
        with self.run.costs.timed("teacher"):
            self.read(batch)
        return batch

    def read(self, batch: Batch) -> None:
        """Give the batch the teacher's log-probabilities; without a critique they are the policy's own."""
        ids = self.reader.requests(batch.rollouts)
        taught = torch.tensor([float(bool(chosen)) for chosen in ids], dtype=batch.dtype)
        prompts = [chosen or rollout.prompt_ids for chosen, rollout in zip(ids, batch.rollouts, strict=True)]
        readers = batch.with_prompts(prompts)
        with self._as_teacher() as as_reference:
            options = {"at": "top_ids"} if self.distils else {}
            scores = self.run.learner.forward(readers, as_reference=as_reference, **options)
        batch.extra["taught"] = taught
        batch.extra["teacher_logprobs"] = torch.where(taught[:, None] > 0, scores["logprobs"], batch.old_logprobs)
        if self.distils:
            batch.extra["teacher_top"] = scores["at"]

    def token_rewards(self, batch: Batch) -> Tensor:
        return batch.given + (self.taught_labels(batch.deltas, gaps(batch)) - batch.deltas)

    def taught_labels(self, labels: Tensor, gap: Tensor) -> Tensor:
        """δ'_t of ``weight`` and ``gate``; the labels themselves for the other kinds."""
        if self.teacher == "weight":
            return weighted(labels, gap, self.clip)
        if self.teacher in ("gate", "gate+distill"):
            return gated(labels, span_sums(labels, gap), self.scale)
        return labels

    def surrogate(self, inputs: LossInputs) -> tuple[Tensor, Tensor]:
        """With ``all`` nothing but the KL to the reference, which the rewards would hold otherwise."""
        if self.teacher != "all":
            return super().surrogate(inputs)
        held = self.run.kl.coef * sampled_kl("k3", inputs.scores.logprobs, inputs.batch.ref_logprobs)
        return held, torch.zeros_like(held)

    def loss(self, inputs: LossInputs) -> LossOutputs:
        outputs = super().loss(inputs)
        if not self.distils:
            return outputs
        taught = self.distillation(inputs)
        return outputs._replace(policy=outputs.policy + taught, figures={**outputs.figures, "teacher/loss": taught})

    def distillation(self, inputs: LossInputs) -> Tensor:
        """The divergence from the teacher where it teaches, ``[b, t]``: on poor spans, or with ``all`` everywhere."""
        batch, scores = inputs.batch, inputs.scores
        assert scores.at is not None
        where = batch.mask * batch.extra["taught"][:, None]
        if self.teacher != "all":
            where = where * (batch.deltas < 0)
        apart = divergence(with_tail(scores.at), with_tail(batch.extra["teacher_top"]), self.teacher_alpha)
        return self.teacher_coef * apart * capped_ratio(scores.logprobs, batch.old_logprobs) * where.to(apart)

    def figures(self, batch: Batch) -> dict[str, float]:
        """Whether teacher and quotes agree, over all ranks: on labelled tokens of rollouts whose critique was read."""
        taught = batch.extra["taught"].double()
        labels, gap = batch.deltas.double() * taught[:, None], gaps(batch).double()
        good, poor = labels > 0, labels < 0
        counted = {
            "good": good,
            "poor": poor,
            "gap_good": gap[good],
            "gap_poor": gap[poor],
            "agree": labels * gap > 0,
            "size": labels.abs(),
            "kept": self.taught_labels(labels, gap).abs(),
            "unread": 1 - taught,
        }
        sums = torch.stack([each.double().sum() for each in counted.values()])
        total = dict(zip(counted, self.run.reduce(sums).tolist(), strict=True))
        return {
            "teacher/gap_good": total["gap_good"] / max(total["good"], 1),
            "teacher/gap_poor": total["gap_poor"] / max(total["poor"], 1),
            "teacher/agreement": total["agree"] / max(total["good"] + total["poor"], 1),
            "teacher/kept": total["kept"] / total["size"] if total["size"] else 1.0,
            "teacher/unread": total["unread"],
        }

    # The average of the policy's weights

    def after_update(self) -> None:
        with self.run.costs.timed("update"):
            for name, parameter in self._trained():
                if name in self.average:
                    self.average[name].lerp_(parameter.detach(), self.teacher_rate)

    def save(self, folder: Path) -> None:
        super().save(folder)
        if self.average:
            torch.save(self.average, folder / WEIGHTS)

    def load(self, folder: Path) -> None:
        super().load(folder)
        if self.average:
            saved: Mapping[str, Tensor] = dict(self._trained())  # where the teacher was the reference until now
            if (folder / WEIGHTS).is_file():
                saved = torch.load(folder / WEIGHTS, weights_only=True)
            self.average = {name: saved[name].detach().to(own.device, copy=True) for name, own in self.average.items()}

    def _trained(self) -> list[tuple[str, torch.nn.Parameter]]:
        return [(name, p) for name, p in self.run.learner.scorer.named_parameters() if p.requires_grad]

    @contextmanager
    def _as_teacher(self) -> Iterator[bool]:
        """Inside the block the policy has the teacher's weights; yields whether they are the reference's."""
        if not self.average:
            yield True
            return
        own = {name: parameter.data for name, parameter in self._trained()}
        try:
            for name, parameter in self._trained():
                parameter.data = self.average[name]
            yield False
        finally:
            for name, parameter in self._trained():
                parameter.data = own[name]


@dataclass
class SDPO(Teacher):
    """SDPO (arXiv 2601.20802): Jensen-Shannon divergence from a slowly following teacher, on every token."""

    name = label = "sdpo"

    teacher: TeacherKind = setting("all", "sdpo: as in teacher")
    teacher_weights: Literal["reference", "average"] = setting("average", "sdpo: as in teacher")
    teacher_alpha: float = setting(0.5, "sdpo: as in teacher", at_least=0, at_most=1)


@dataclass
class TaughtVerdict(Teacher, Verdict):
    """Advantages of :class:`Verdict`, and the teacher's loss or labels beside them."""

    name = "verdict_teacher"

    @property
    def label(self) -> str:
        return f"verdict_{super().label}"

    def configure(self, config: PolicyConfig) -> None:
        super().configure(config)
        if self.token_weight is None:
            self.token_weight = 1.0  # whoever asks for a teacher of the spans wants them

    def check(self, config: PolicyConfig) -> None:
        super().check(config)
        if self.teacher == "all":
            raise InputError("--teacher all learns from no verdict; take --algorithm teacher, or distill")


class CritiqueReader:
    """What a policy is given to read of a rollout's critique: the task's teacher prompt, or the file of a setting."""

    def __init__(self, path: str, run):
        self.run, self.prompt = run, load_teacher_prompt(run.task, path)
        self.positions = getattr(run.learner.scorer.config.get_text_config(), "max_position_embeddings", None)

    def requests(self, rollouts: Sequence[Rollout], room: int = 0) -> list[list[int]]:
        """:meth:`prompt_ids` of each, with ``room`` for so many tokens, or else for its own response.

        Raises:
            InputError: the step's rollouts have nothing to read, on any rank.
        """
        ids = [self.prompt_ids(each, room or len(each.response_ids)) for each in rollouts]
        if not self.run.reduce(torch.tensor(float(any(ids) or not any(each.counts for each in rollouts)))):
            raise InputError(
                f"--algorithm {self.run.algorithm.name} reads critiques, and no rollout of this step has one that "
                "fits; use a critic that writes them (a reward model trained with critiques, an LLM, a program), or "
                "--algorithm text2grad"
            )
        return ids

    def prompt_ids(self, rollout: Rollout, room: int) -> list[int]:
        """Empty where there is nothing to read, or where it and ``room`` tokens are more than the model's positions."""
        if not rollout.counts or not rollout.received.critique.strip():
            return []
        ids = encode_teacher_prompt(rollout, self.prompt, self.run.task, self.run.tokenizer)
        fits = self.positions is None or len(ids) + room <= self.positions
        return ids if fits else []


def load_teacher_prompt(task: Task, path: str = "") -> Prompt:
    """The task's own file, or the one that a setting names."""
    return load_prompt(
        path or prompt_path(task, "teacher"), ("prompt", "critique"), offered=("prompt", "critique", "response")
    )


def encode_teacher_prompt(
    rollout: Rollout, prompt: Prompt, task: Task, tokenizer: PreTrainedTokenizerBase
) -> list[int]:
    """The policy's own request, its last message rewritten to hold the critique.

    The critique loses what it quotes of the poor spans: a model that has just read its own wrong words repeats them.
    Where the file shows it the whole response, the critique stays unchanged.
    """
    *before, request = task.messages(rollout.prompt)
    critique = rollout.received.critique
    if "response" not in prompt.names:
        critique = without_quotes(critique, rollout.received.poor)
    fields = {"prompt": request["content"], "critique": critique, "response": rollout.response}
    return chat_ids([*before, {**request, "content": prompt.fill(fields)}], tokenizer)


def gaps(batch: Batch) -> Tensor:
    """Δ_t, ``[B, T]``; 0 where there was nothing to read."""
    return batch.extra["teacher_logprobs"] - batch.old_logprobs
