"""Train a model to give feedback: stage 2's objective, with what a processor needs to be quick about it.

The model reads [prompt; response] and learns to write z; loss on z alone. Of a pretrained model the weights are
bfloat16 with a float32 copy for the optimiser. Its embeddings stay as they are. The softmax runs over the tokens that
feedback is made of and a few thousand others. Only its first layers may be kept, so that feedback costs less, in
training and after. A small model with a small vocabulary learns with all its weights in float32.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from benchmarks.learnt_critics.annotated import Critique
from benchmarks.micro.nl_reward_model import PROMPT_FILE
from benchmarks.micro.task import PROFILES
from text2grad.critics.reward_model.critic import RewardModelDescription
from text2grad.critics.reward_model.prompt import RewardPrompt, completion_ids
from text2grad.models import PLAIN_CHAT_TEMPLATE, load_model, load_tokenizer
from text2grad.prompts import load_prompt
from text2grad.tasks import Record

Example = tuple[list[int], list[int]]
"""The ids of [prompt; response] and of z."""

OTHERS = 2000
"""Tokens of a large vocabulary in the softmax that no feedback holds, drawn once."""
SMALL = 4096
"""A vocabulary that is not worth reducing."""


@dataclass(frozen=True)
class CriticSettings:
    """How a critic is trained.

    Attributes:
        base: ``smollm2``, or the folder of a small model.
        critique: what stands before the quotes; see ``annotated.py``.
        layers: of the model that are kept, from the first; 0 keeps all.
        updates: of ``batch`` annotated responses each. The rate warms up, stays, and falls linearly in the last fifth.
    """

    base: str = "smollm2"
    critique: Critique = "evidence"
    layers: int = 0
    updates: int = 1000
    batch: int = 16
    learning_rate: float = 3e-4
    warmup: int = 30
    seed: int = 0


def rate_at(update: int, settings: CriticSettings) -> float:
    """The learning rate's factor at an update, counted from 0."""
    falling = settings.updates / 5
    return min((update + 1) / settings.warmup, 1.0, (settings.updates - update) / falling)


def load_base(settings: CriticSettings) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model, cut to its first layers, and its tokenizer."""
    tokenizer = critic_tokenizer(settings.base)
    small = len(tokenizer) <= SMALL
    model = load_model(settings.base, "float32" if small else "bfloat16", "cpu")
    if settings.layers:
        model.model.layers = model.model.layers[: settings.layers]
        model.config.num_hidden_layers = settings.layers
        if getattr(model.config, "layer_types", None):
            model.config.layer_types = model.config.layer_types[: settings.layers]
    model.set_attn_implementation("eager")  # the fused one's backward pass takes a quarter of an update on a CPU
    model.get_input_embeddings().requires_grad_(small)
    return model, tokenizer


def critic_tokenizer(base: str) -> PreTrainedTokenizerBase:
    """The base's tokenizer with a bare chat template: 25 tokens fewer in each of SmolLM2's prompts."""
    tokenizer = load_tokenizer(base)
    tokenizer.chat_template = PLAIN_CHAT_TEMPLATE
    return tokenizer


def reward_prompt(tokenizer: PreTrainedTokenizerBase) -> RewardPrompt:
    return RewardPrompt(load_prompt(PROMPT_FILE), PROFILES, tokenizer, max_length=400)


def encode(records: Sequence[Record], prompt: RewardPrompt) -> list[Example]:
    """Annotated records as token ids."""
    examples = []
    for record in records:
        feedback = PROFILES.feedback(record)
        assert feedback is not None
        fields = {"prompt": PROFILES.prompt(record), "response": record["response"]}
        examples.append((prompt.ids(fields), completion_ids(prompt.tokenizer, PROFILES.render_feedback(feedback))))
    return examples


def batches(examples: Sequence[Example], size: int, seed: int) -> Iterator[list[Example]]:
    """Batches of about one length, for ever: shuffled, sorted within pools of 16 batches, and shuffled again."""
    rng = random.Random(seed)
    while True:
        order = rng.sample(range(len(examples)), len(examples))
        for start in range(0, len(order), 16 * size):
            pool = sorted(order[start : start + 16 * size], key=lambda row: sum(map(len, examples[row])))
            cut = [pool[at : at + size] for at in range(0, len(pool), size)]
            for rows in rng.sample(cut, len(cut)):
                yield [examples[row] for row in rows]


def collate(rows: Sequence[Example], columns: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """ids and mask [rows, tokens], and targets [rows, tokens]: the next token's column, −100 outside z.

    Args:
        columns: for each id, its column in the reduced softmax.
    """
    width = max(len(x) + len(z) for x, z in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    mask, targets = torch.zeros_like(ids), torch.full_like(ids, -100)
    for row, (x, z) in enumerate(rows):
        length = len(x) + len(z)
        ids[row, :length], mask[row, :length] = torch.tensor(x + z), 1
        targets[row, len(x) - 1 : length - 1] = columns[torch.tensor(z)]
    return ids, mask, targets


class CriticInTraining:
    """A model in training; what it has learnt so far can be saved as stage 2 saves a reward model."""

    def __init__(self, settings: CriticSettings, examples: Sequence[Example]):
        self.settings = settings
        torch.manual_seed(settings.seed)
        self.model, self.tokenizer = load_base(settings)
        self.weights = [weight for weight in self.model.parameters() if weight.requires_grad]
        self.masters = [nn.Parameter(weight.detach().float()) for weight in self.weights]
        self.optimizer = torch.optim.AdamW(
            self.masters, lr=settings.learning_rate, betas=(0.9, 0.98), weight_decay=0.0, fused=True
        )
        head = self.model.get_output_embeddings().weight
        vocabulary = len(head)
        self.columns = torch.arange(vocabulary)
        self.head = head
        if vocabulary > SMALL:
            used = {token for x, z in examples for token in x + z}
            kept = torch.tensor(sorted(used | set(random.Random(0).sample(range(vocabulary), OTHERS))))
            self.columns = torch.full((vocabulary,), -100)
            self.columns[kept] = torch.arange(len(kept))
            self.head = head.detach()[kept]  # frozen: tied to the embeddings
        self.done = 0

    def update(self, rows: Sequence[Example]) -> float:
        """One optimiser step; the loss per token of z."""
        self.model.train()
        ids, mask, targets = collate(rows, self.columns)
        hidden = self.model.model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
        wanted = targets != -100
        loss = nn.functional.cross_entropy((hidden[wanted] @ self.head.T).float(), targets[wanted])
        loss.backward()
        for master, weight in zip(self.masters, self.weights, strict=True):
            master.grad, weight.grad = weight.grad.float(), None
        nn.utils.clip_grad_norm_(self.masters, 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.learning_rate * rate_at(self.done, self.settings)
        self.optimizer.step()
        with torch.no_grad():
            for master, weight in zip(self.masters, self.weights, strict=True):
                weight.copy_(master)
                master.grad = None
        self.done += 1
        return loss.item()

    def save(self, folder: Path, examples: Sequence[str], metrics: dict[str, float]) -> None:
        """As a reward model's folder, which ``RewardModelCritic.load`` reads."""
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        prompt = reward_prompt(self.tokenizer)
        RewardModelDescription(
            task=PROFILES.name,
            base_model=self.settings.base,
            prompt_max_length=400,
            max_length=640,
            max_new_tokens=240,
            shorten="none",
            examples=list(examples),
            settings=asdict(self.settings),
            metrics=dict(metrics),
        ).save(folder, prompt.prompt)

    def save_state(self, path: Path) -> None:
        part = path.with_suffix(".part")
        state = {
            "done": self.done,
            "masters": [master.detach() for master in self.masters],
            "optimizer": self.optimizer.state_dict(),
        }
        torch.save(state, part)
        part.replace(path)

    def load_state(self, path: Path) -> None:
        state = torch.load(path, weights_only=True)
        self.done = state["done"]
        with torch.no_grad():
            for master, weight, saved in zip(self.masters, self.weights, state["masters"], strict=True):
                master.copy_(saved)
                weight.copy_(saved)
        self.optimizer.load_state_dict(state["optimizer"])
