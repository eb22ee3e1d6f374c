"""The critique as a teacher (``--teacher``): the policy, once it has read the critique, scores its own rollout.

    Δ_t = log π_T(y_t | x, c, y_<t) − log π(y_t | x, y_<t)

``weight`` and ``gate`` let Δ change the labels that the quotes gave. ``distill`` draws the policy towards the teacher's
whole distribution on poor spans, and ``all`` on every token, without any quotes (SDPO). The formulas are in
``text2grad/losses/teacher.py``. What the teacher reads is a text file of the task, ``prompts/teacher.txt``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.policy import PolicyScorer
from nl_gradient_policy_optimization.rollouts import Rollout, counting_mask, padded, read_column, write_column
from text2grad.advantages import Reduce
from text2grad.errors import InputError
from text2grad.feedback import without_quotes
from text2grad.losses.teacher import capped_ratio, divergence, gated, span_sums, weighted, with_tail
from text2grad.models import chat_ids
from text2grad.prompts import Prompt, load_prompt, prompt_path
from text2grad.tasks import Task

WEIGHTS = "teacher.pt"
Forward = Callable[..., Iterator[tuple[list[Rollout], tuple[Tensor, ...]]]]
"""The trainer's pass over rollouts, batch by batch."""


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
    Where the file shows it the whole response, the critique stays as it is.
    """
    messages = task.messages(rollout.prompt)
    critique = rollout.received.critique
    if "response" not in prompt.names:
        critique = without_quotes(critique, rollout.received.poor)
    fields = {"prompt": messages[-1]["content"], "critique": critique, "response": rollout.response}
    text = prompt.fill(fields)
    chat = [*messages[:-1], {**messages[-1], "content": text}]
    return chat_ids(chat, tokenizer)


class Reader:
    """What a policy is given to read of a rollout's critique."""

    def __init__(self, config: PolicyConfig, task: Task, tokenizer: PreTrainedTokenizerBase, scorer: PolicyScorer):
        self.config, self.task, self.tokenizer, self.scorer = config, task, tokenizer, scorer
        self.prompt = load_teacher_prompt(task, config.teacher_prompt)
        self.positions = getattr(scorer.config.get_text_config(), "max_position_embeddings", None)

    def prompt_ids(self, rollout: Rollout) -> list[int]:
        """Empty where there is nothing to read, or where it would be longer than the model's positions."""
        if not rollout.counts or not rollout.received.critique.strip():
            return []
        ids = encode_teacher_prompt(rollout, self.prompt, self.task, self.tokenizer)
        fits = self.positions is None or len(ids) + len(rollout.response_ids) <= self.positions
        return ids if fits else []


class Teacher(Reader):
    """The policy that has read the critique; its weights are the reference's, or an average of the policy's."""

    def __init__(self, config: PolicyConfig, task: Task, tokenizer: PreTrainedTokenizerBase, scorer: PolicyScorer):
        super().__init__(config, task, tokenizer, scorer)
        self.average: dict[str, Tensor] = {}
        if config.teacher_weights == "average":
            self.average = {name: p.detach().clone() for name, p in self._trained()}

    def read(self, rollouts: Sequence[Rollout], forward: Forward, reduce: Reduce) -> None:
        """Give the rollouts the teacher's log-probabilities; without a critique they are the policy's own.

        Raises:
            InputError: none of the step's rollouts has a critique.
        """
        ids = [self.prompt_ids(rollout) for rollout in rollouts]
        if float(reduce(torch.tensor(float(sum(map(bool, ids)))))) == 0:
            raise InputError(
                f"--teacher {self.config.teacher} reads critiques, and no rollout of this step has one that fits; use "
                "a critic that writes them (a reward model trained with critiques, an LLM, a program), or --teacher off"
            )
        readers = [replace(r, prompt_ids=chosen or r.prompt_ids) for r, chosen in zip(rollouts, ids, strict=True)]
        with self._as_teacher() as as_reference:
            for rows, (logprobs, _, _, *at) in forward(readers, at=self.config.distils, as_reference=as_reference):
                write_column(rows, "teacher_logprobs", logprobs)
                if at:
                    write_column(rows, "teacher_top", at[0])
        for rollout, reader, chosen in zip(rollouts, readers, ids, strict=True):
            rollout.taught = bool(chosen)
            rollout.teacher_logprobs = reader.teacher_logprobs if chosen else rollout.old_logprobs
            rollout.teacher_top = reader.teacher_top

    def changes(self, rollouts: Sequence[Rollout], precision: torch.dtype) -> Tensor:
        """δ'_t − δ_t: what the teacher changes in the labels, ``[B, T]``."""
        labels, gap = labels_of(rollouts, precision), gaps(rollouts, precision)
        return taught_labels(labels, gap, self.config) - labels

    # The average of the policy's weights

    def follow(self) -> None:
        """Move the average towards the policy as it is now."""
        for name, parameter in self._trained():
            if name in self.average:
                self.average[name].lerp_(parameter.detach(), self.config.teacher_rate)

    def save(self, folder: Path) -> None:
        if self.average:
            torch.save(self.average, folder / WEIGHTS)

    def load(self, folder: Path) -> None:
        if self.average:
            saved: Mapping[str, Tensor] = torch.load(folder / WEIGHTS, weights_only=True)
            self.average = {name: saved[name].to(own.device) for name, own in self.average.items()}

    def _trained(self) -> list[tuple[str, torch.nn.Parameter]]:
        return [(name, p) for name, p in self.scorer.named_parameters() if p.requires_grad]

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


def labels_of(rollouts: Sequence[Rollout], precision: torch.dtype) -> Tensor:
    """l_t: the critic's δ, ``[B, T]``."""
    return padded([rollout.received.labels for rollout in rollouts], precision)


def gaps(rollouts: Sequence[Rollout], precision: torch.dtype) -> Tensor:
    """Δ_t, ``[B, T]``; 0 where there was nothing to read."""
    return read_column(rollouts, "teacher_logprobs", precision) - read_column(rollouts, "old_logprobs", precision)


def taught_labels(labels: Tensor, gap: Tensor, config: PolicyConfig) -> Tensor:
    """δ'_t of ``weight`` and ``gate``; the labels themselves for the other kinds."""
    if config.teacher == "weight":
        return weighted(labels, gap, config.teacher_clip)
    if config.teacher in ("gate", "gate+distill"):
        judged = span_sums(labels, gap) if config.teacher_unit == "span" else gap
        return gated(labels, judged, config.teacher_scale)
    return labels


def distillation(
    rollouts: Sequence[Rollout], logprobs: Tensor, old: Tensor, at: Tensor, config: PolicyConfig, step: int
) -> Tensor:
    """The divergence from the teacher where it teaches, ``[B, T]``: on poor spans, or with ``all`` on every token.

    Args:
        logprobs, old: of the sampled tokens, now and when they were sampled.
        at: log-probabilities now of the tokens in ``top_ids``, ``[B, T, K]``.
    """
    taught = counting_mask(rollouts, old.dtype) * torch.tensor([[float(r.taught)] for r in rollouts])
    if config.teacher != "all":
        taught = taught * (labels_of(rollouts, old.dtype) < 0)
    teacher = read_column(rollouts, "teacher_top", old.dtype).to(at)
    apart = divergence(with_tail(at), with_tail(teacher), config.teacher_alpha)
    return coefficient(config, step) * apart * capped_ratio(logprobs, old) * taught.to(apart)


def coefficient(config: PolicyConfig, step: int) -> float:
    """β of the distillation at a step: constant, or falling to 0 over ``teacher_steps``."""
    left = 1 - (step - 1) / config.teacher_steps if config.teacher_steps else 1.0
    return config.teacher_coef * max(left, 0.0)


def teacher_figures(rollouts: Sequence[Rollout], config: PolicyConfig, reduce: Reduce) -> dict[str, float]:
    """Whether teacher and quotes agree, over all ranks: on labelled tokens of rollouts whose critique was read."""
    labels, gap = labels_of(rollouts, torch.float64), gaps(rollouts, torch.float64)
    labels = labels * torch.tensor([[float(r.taught)] for r in rollouts])
    good, poor = labels > 0, labels < 0
    kept = taught_labels(labels, gap, config).abs()
    figures = [good.sum(), poor.sum(), gap[good].sum(), gap[poor].sum(), (labels * gap > 0).sum(), kept.sum()]
    figures += [labels.abs().sum(), torch.tensor(float(sum(not r.taught for r in rollouts)))]
    goods, poors, gap_good, gap_poor, agree, kept_sum, total, unread = reduce(
        torch.stack([figure.double() for figure in figures])
    ).tolist()
    return {
        "teacher/gap_good": gap_good / max(goods, 1),
        "teacher/gap_poor": gap_poor / max(poors, 1),
        "teacher/agreement": agree / max(goods + poors, 1),
        "teacher/kept": kept_sum / total if total else 1.0,
        "teacher/unread": unread,
    }
