"""How a small model learns from fresh annotated responses: to write z, or to give Σδ as one number."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

import torch
from torch import nn
from torch.nn import functional
from transformers import GPTNeoXConfig, GPTNeoXForSequenceClassification, PreTrainedTokenizerFast

from benchmarks.learnt_critics.annotated import Critique, feedback_on
from benchmarks.learnt_critics.fresh import fresh
from benchmarks.learnt_critics.learning import reward_prompt
from benchmarks.learnt_critics.small_model import SmallModel, hidden_states, new_model, word_tokenizer
from benchmarks.micro.task import PROFILES
from nl_gradient_policy_optimization.rollouts import encode_prompt
from text2grad.critics.reward_model.prompt import completion_ids
from text2grad.feedback import Feedback
from text2grad.tasks import Record
from text2grad.token_rewards import token_rewards

POOL = 16
"""Batches that are drawn together, and sorted by length."""
SHORT_NOTES = 2
"""Notes of the short texts that come first."""
NO_TARGET = -100
ROUND_WIDTH, ROUND_TARGETS = 16, 512
"""Tensors have few sizes, since bfloat16 products are prepared again for every size that they meet."""
SUM_SCALE = 16.0
"""What Σδ is divided by, so that a scalar model learns numbers of about one."""


VERDICTS = ("right", "wrong", "invented", "repeated", "aside", "nothing")
"""The words of z that have to be found out; most of the others are copied."""


@dataclass(frozen=True)
class SmallSettings:
    """How a small model learns.

    Attributes:
        learns: ``z`` (a critic), or ``number``: a response's Σδ (a scalar reward model).
        short: updates on responses to one or two notes, before those of every length.
        updates: of ``batch`` annotated responses each. The rate warms up, stays, and falls in the last fifth.
        sampled: of the later responses, the share that policies wrote.
        verdict_weight: how much a verdict counts in the loss, beside any other word of z.
    """

    learns: Literal["z", "number"] = "z"
    critique: Critique = "worked"
    layers: int = 4
    hidden: int = 128
    heads: int = 4
    updates: int = 4000
    short: int = 560
    batch: int = 32
    sampled: float = 0.4
    verdict_weight: float = 3.0
    learning_rate: float = 2e-3
    warmup: int = 100
    seed: int = 0

    def rate_at(self, update: int) -> float:
        """The learning rate of an update, counted from 0."""
        falling = (self.updates - update) / (self.updates / 5)
        return self.learning_rate * min((update + 1) / self.warmup, 1.0, falling)


Example = tuple[list[int], list[int], float]
"""The ids of [prompt; response] and of z, and the number that a scalar model learns."""


class Examples:
    """The same fresh examples for the same settings, wherever one begins."""

    def __init__(
        self, settings: SmallSettings, tokenizer: PreTrainedTokenizerFast, policy_tokenizer, sampled: Sequence[Record]
    ):
        self.settings, self.tokenizer = settings, tokenizer
        self.policy_tokenizer, self.sampled = policy_tokenizer, sampled
        self._pool: tuple[int, list[list[Example]]] = (-1, [])

    def batch(self, update: int) -> list[Example]:
        """The examples of an update, of about one length."""
        number, row = divmod(update, POOL)
        if self._pool[0] != number:
            self._pool = (number, self.draw(number))
        return self._pool[1][row]

    def draw(self, number: int) -> list[list[Example]]:
        """A pool's batches."""
        settings = self.settings
        rng = random.Random(f"pool {number} of {settings.seed}")
        short = 0 <= number * POOL < settings.short
        stream = fresh([], 0.0, rng, SHORT_NOTES) if short else fresh(self.sampled, settings.sampled, rng)
        made = self.encode(list(islice(stream, POOL * settings.batch)))
        made.sort(key=lambda row: len(row[0]) + len(row[1]))
        batches = [made[at : at + settings.batch] for at in range(0, len(made), settings.batch)]
        return rng.sample(batches, len(batches))

    def encode(self, records: Sequence[Record]) -> list[Example]:
        feedback = [feedback_on(record, record["response"], self.settings.critique) for record in records]
        prompts = [PROFILES.prompt(record) for record in records]
        if self.settings.learns == "number":
            own = self.tokenizer
            ids = [
                encode_prompt(prompt, PROFILES, own) + completion_ids(own, record["response"])
                for prompt, record in zip(prompts, records, strict=True)
            ]
            sums = [self._sum(record, one) for record, one in zip(records, feedback, strict=True)]
            return [(row, [], value) for row, value in zip(ids, sums, strict=True)]
        reading = reward_prompt(self.tokenizer)
        texts = [PROFILES.render_feedback(one) for one in feedback]
        return [
            (reading.ids({"prompt": x, "response": record["response"]}), completion_ids(self.tokenizer, z), 0.0)
            for x, record, z in zip(prompts, records, texts, strict=True)
        ]

    def _sum(self, record: Record, feedback: Feedback) -> float:
        """Σδ on the policy's tokens, scaled."""
        ids = completion_ids(self.policy_tokenizer, record["response"])
        return float(sum(token_rewards(ids, self.policy_tokenizer, feedback, PROFILES).values)) / SUM_SCALE


class SmallInTraining:
    """A small model in training."""

    def __init__(self, settings: SmallSettings, tokenizer: PreTrainedTokenizerFast):
        self.settings, self.tokenizer, self.done = settings, tokenizer, 0
        torch.manual_seed(settings.seed)
        self.model = new_model(SmallModel(settings.layers, settings.hidden, settings.heads), tokenizer)
        if settings.learns == "number":
            scorer = GPTNeoXForSequenceClassification(GPTNeoXConfig(**{**self.model.config.to_dict(), "num_labels": 1}))
            scorer.gpt_neox.load_state_dict(self.model.gpt_neox.state_dict())
            self.model = scorer
        self.verdicts = torch.tensor(tokenizer.convert_tokens_to_ids([f"Ġ{word}" for word in VERDICTS]))
        weights = list(self.model.parameters())
        groups = [
            {"params": [weight for weight in weights if weight.ndim > 1], "weight_decay": 0.01},
            {"params": [weight for weight in weights if weight.ndim < 2], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=settings.learning_rate, betas=(0.9, 0.98), fused=True)

    def update(self, rows: Sequence[Example]) -> float:
        """One optimiser step; the loss per token of z, or the squared error."""
        self.model.train()
        loss = self._loss_of_z(rows) if self.settings.learns == "z" else self._loss_of_number(rows)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.rate_at(self.done)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.done += 1
        return loss.item()

    def _hidden(self, ids: torch.Tensor) -> torch.Tensor:
        weights = {name: weight.bfloat16() for name, weight in self.model.gpt_neox.named_parameters()}
        return hidden_states(weights, self.model.config, ids)

    def _loss_of_z(self, rows: Sequence[Example]) -> torch.Tensor:
        ids = padded_right([x + z for x, z, _ in rows], 0)
        targets = padded_right([[NO_TARGET] * (len(x) - 1) + z + [NO_TARGET] for x, z, _ in rows], NO_TARGET)
        places = (targets.flatten() != NO_TARGET).nonzero()[:, 0]
        places = torch.cat([places, places.new_zeros(-len(places) % ROUND_TARGETS)])
        targets = targets.flatten()[places]
        head = self.model.get_output_embeddings().weight.bfloat16()
        logits = (self._hidden(ids).flatten(0, 1)[places] @ head.T).float()
        losses = functional.cross_entropy(logits, targets, reduction="none", ignore_index=NO_TARGET)
        weights = torch.where(torch.isin(targets, self.verdicts), self.settings.verdict_weight, 1.0)
        weights = weights * (targets != NO_TARGET)
        return (losses * weights).sum() / weights.sum()

    def _loss_of_number(self, rows: Sequence[Example]) -> torch.Tensor:
        states = self._hidden(padded_right([x for x, _, _ in rows], 0))
        last = states[torch.arange(len(rows)), torch.tensor([len(x) - 1 for x, _, _ in rows])]
        return functional.mse_loss(self.model.score(last.float())[:, 0], torch.tensor([value for _, _, value in rows]))

    def save_state(self, path: Path) -> None:
        part = path.with_suffix(".part")
        torch.save(
            {"done": self.done, "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}, part
        )
        part.replace(path)

    def load_state(self, path: Path) -> None:
        state = torch.load(path, weights_only=True)
        self.done = state["done"]
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


def padded_right(rows: Sequence[Sequence[int]], value: int) -> torch.Tensor:
    """[rows, longest, rounded up]"""
    width = -(-max(map(len, rows)) // ROUND_WIDTH) * ROUND_WIDTH
    return torch.tensor([[*row, *[value] * (width - len(row))] for row in rows])


def critic_words(sampled: Sequence[Record], count: int = 3000) -> PreTrainedTokenizerFast:
    """The tokenizer of what critics read and write."""
    records = islice(fresh(sampled, 0.4, random.Random("words")), count)
    return word_tokenizer(
        text
        for record in records
        for text in (
            f"{PROFILES.prompt(record)}\n\n{record['response']}\n\n",
            PROFILES.render_feedback(feedback_on(record, record["response"], "worked")),
        )
    )
