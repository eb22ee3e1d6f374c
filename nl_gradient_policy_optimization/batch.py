"""A step's rollouts as tensors, padded once: what algorithms, losses and measures compute with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from nl_gradient_policy_optimization.rollouts import Rollout, RolloutFeedback, padded, rounded

_PROMPTS = ("prompt_ids", "prompt_mask")
_LOGGED = ("advantages", "old_logprobs", "new_logprobs", "ref_logprobs", "kl")


class Batch:
    """Rollouts in rows; prompts are padded on the left, responses on the right, with 0 in all columns but the ids.

    B is the number of rollouts, P and T are the longest prompt and response. All of it is on the CPU, except in the
    copies that :meth:`to` makes.

    Attributes:
        rollouts: what each row is; a row's padded ids are its ``prompt_ids`` and ``response_ids``.
        extra: further tensors of an algorithm, ``[B]``, ``[B, T]`` or ``[B, T, K]``.
    """

    prompt_ids: Tensor  # [B, P]
    prompt_mask: Tensor  # [B, P], 1 on tokens and 0 on padding, as response_mask
    response_ids: Tensor  # [B, T], as all below where nothing else is said
    response_mask: Tensor
    groups: Tensor  # [B], the prompt of a row as a number from 0: rows with the same number answer the same prompt
    sampler_logprobs: Tensor  # log π of the engine that sampled, where that is not the policy itself
    old_logprobs: Tensor  # log π of the policy that sampled
    ref_logprobs: Tensor  # of the reference
    new_logprobs: Tensor  # of the policy after the updates, in steps whose rollouts are scored again
    entropy: Tensor  # of the policy that sampled, as kl and values
    kl: Tensor  # to the reference
    values: Tensor  # V(x, y_<t)
    mask: Tensor  # 1 on the tokens that may move the policy: those of responses with feedback
    given: Tensor  # what the reward source gives each token, shaped
    deltas: Tensor  # the critic's δ_t as it gave them
    scores: Tensor  # [B], the verdict on the whole response in −1..1, NaN where no critic spoke
    missing: Tensor  # [B], how many things the critic says the response lacks
    rewards: Tensor  # r_t
    advantages: Tensor  # A_t
    returns: Tensor  # the value head's target

    def __init__(self, rollouts: Sequence[Rollout], pad_id: int, dtype: torch.dtype, group_size: int = 1):
        """Pad rollouts.

        Args:
            dtype: of everything that is computed per token.
            group_size: neighbours that answer the same prompt.
        """
        self.rollouts, self.pad_id, self.dtype = list(rollouts), pad_id, dtype
        self.extra: dict[str, Tensor] = {}
        self._pad_prompts()
        self.response_ids = padded([each.response_ids for each in rollouts], torch.long, value=pad_id)
        self.response_mask = padded([[1] * len(each.response_ids) for each in rollouts], torch.long)
        self.groups = torch.arange(len(self.rollouts)) // group_size
        known = [each.sampler_logprobs for each in rollouts if each.sampler_logprobs is not None]
        if known:
            self.sampler_logprobs = padded(known, dtype)

    def __len__(self) -> int:
        return len(self.rollouts)

    def has(self, name: str) -> bool:
        """Whether a column has been computed."""
        return name in self.extra or isinstance(vars(self).get(name), Tensor)

    @property
    def counts(self) -> Tensor:
        """``[B]``: 1 for each response with feedback."""
        return self.mask[:, 0]

    @property
    def tokens(self) -> int:
        """Tokens of prompts and responses together."""
        return int(self.prompt_mask.sum() + self.response_mask.sum())

    def receive(self, feedback: Sequence[RolloutFeedback]) -> None:
        """Take in the feedback on each rollout."""
        for rollout, each in zip(self.rollouts, feedback, strict=True):
            rollout.feedback = each
        counts = torch.tensor([float(each.error is None) for each in feedback], dtype=self.dtype)
        self.mask = counts[:, None] * self.response_mask
        self.given = padded([each.rewards for each in feedback], self.dtype)
        self.deltas = padded([each.labels for each in feedback], self.dtype)
        nan = float("nan")
        self.scores = torch.tensor([nan if each.score is None else each.score for each in feedback], dtype=self.dtype)
        self.missing = torch.tensor([float(len(each.missing)) for each in feedback], dtype=self.dtype)

    # Parts and copies

    def select(self, rows: Sequence[int]) -> Batch:
        """Some of the rows, no wider than they need to be."""
        part = copy(self)
        part.rollouts = [self.rollouts[row] for row in rows]
        index = torch.tensor(rows, dtype=torch.long)
        prompt = max(len(each.prompt_ids) for each in part.rollouts)
        response = max(len(each.response_ids) for each in part.rollouts)

        def cut(name: str, tensor: Tensor) -> Tensor:
            chosen = tensor[index]
            if name in _PROMPTS:
                return chosen[:, chosen.shape[1] - prompt :]
            return chosen[:, :response] if chosen.dim() > 1 else chosen

        return part._with(cut)

    def micro_batches(self, size: int) -> Iterator[tuple[list[int], Batch]]:
        """``size`` rows at a time and their indices: a prompt's rows together, and else those of like length.

        So the prompt is read once (:mod:`text2grad.models.packed`), and there is little padding. In whatever order
        the rows are, all of them together give the same tensors.
        """
        lengths = (self.prompt_mask.sum(1) + self.response_mask.sum(1)).tolist()
        prompts = self.groups.tolist()
        longest = dict[int, int]()
        for prompt, length in zip(prompts, lengths, strict=True):
            longest[prompt] = max(longest.get(prompt, 0), length)

        def place(row: int) -> tuple:
            rollout = self.rollouts[row]
            return longest[prompts[row]], rollout.prompt_ids, lengths[row], rollout.response_ids

        order = sorted(range(len(self)), key=place)
        for start in range(0, len(order), size):
            rows = order[start : start + size]
            yield rows, self.select(rows)

    def to(self, device: torch.device) -> Batch:
        """A copy on a device."""
        return copy(self)._with(lambda name, tensor: tensor.to(device))

    def with_prompts(self, prompts: Sequence[list[int]]) -> Batch:
        """A copy whose responses follow other prompts."""
        other = copy(self)
        other.extra = dict(self.extra)
        other.rollouts = [replace(each, prompt_ids=ids) for each, ids in zip(self.rollouts, prompts, strict=True)]
        other._pad_prompts()
        return other

    def joined(self, other: Batch) -> Batch:
        """The rows of both, ``other``'s after this one's; of the columns, those that both have."""
        both = Batch([*self.rollouts, *other.rollouts], self.pad_id, self.dtype)
        theirs = dict(other._tensors())
        for name, mine in self._tensors():
            if name in theirs and name not in (*_PROMPTS, "response_ids", "response_mask"):
                rows = [*mine, *theirs[name]]
                both.put(name, torch.stack(rows) if mine.dim() == 1 else padded(rows, mine.dtype))
        return both

    # Columns by name

    def put(self, name: str, tensor: Tensor) -> None:
        """Set a column, or an entry of ``extra`` where there is no column of that name."""
        if name in Batch.__annotations__:
            setattr(self, name, tensor)
        else:
            self.extra[name] = tensor

    def columns(self, row: int) -> dict[str, Tensor]:
        """What has been computed for a rollout per token, by name and without padding."""
        size = len(self.rollouts[row].response_ids)
        skipped = (*_PROMPTS, "response_ids", "response_mask", "mask", "given", "deltas")
        return {
            name: tensor[row, :size].cpu().clone()
            for name, tensor in self._tensors()
            if tensor.dim() > 1 and name not in skipped
        }

    def load_columns(self, rows: Sequence[dict[str, Tensor]]) -> None:
        """The inverse of :meth:`columns`, for all rows."""
        for name in rows[0]:
            self.put(name, padded([columns[name] for columns in rows], rows[0][name].dtype))

    def log_rows(self, step: int) -> list[dict[str, Any]]:
        """Each rollout's line in the log."""
        logged = [name for name in (*_LOGGED, "teacher_logprobs") if self.has(name)]
        rows = []
        for row, rollout in enumerate(self.rollouts):
            columns = self.columns(row)
            per_token = {name: [rounded(value) for value in columns[name].tolist()] for name in logged}
            rows.append({**rollout.row(step), **dict.fromkeys(_LOGGED), **per_token, **rollout.audit()})
        return rows

    def _pad_prompts(self) -> None:
        prompts = [each.prompt_ids for each in self.rollouts]
        self.prompt_ids = padded(prompts, torch.long, "left", self.pad_id)
        self.prompt_mask = padded([[1] * len(ids) for ids in prompts], torch.long, "left")

    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """``input_ids``, ``attention_mask`` and ``response_mask`` of :class:`~.policy.PolicyScorer`."""
        ids = torch.cat([self.prompt_ids, self.response_ids], 1)
        return ids, torch.cat([self.prompt_mask, self.response_mask], 1), self.response_mask

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                yield name, value
        yield from self.extra.items()

    def _with(self, change: Any) -> Batch:
        changed = [(name, change(name, tensor)) for name, tensor in self._tensors()]
        self.extra = {}
        for name, tensor in changed:
            self.put(name, tensor)
        return self
