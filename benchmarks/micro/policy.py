"""The policy to improve: a Llama of a few hundred thousand weights, trained from scratch on flawed demonstrations."""

import random
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from tqdm.auto import trange
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from benchmarks.micro.rewriting import rewrite
from benchmarks.micro.task import PROFILES, demonstrate, make_record
from nl_gradient_policy_optimization.rollouts import encode_prompt, padded
from text2grad.critics.reward_model.prompt import completion_ids
from text2grad.errors import InputError
from text2grad.models import PLAIN_CHAT_TEMPLATE
from text2grad.prompts import load_prompt
from text2grad.records import load_json, save_json
from text2grad.tasks import Record

SPECIAL = ["<pad>", "<s>", "</s>"]
DESCRIPTION = "base.json"


@dataclass(frozen=True)
class BaseSettings:
    """How the starting policy is made; ``rewritings`` is the share of demonstrations that follow a critique."""

    layers: int = 2
    hidden: int = 96
    heads: int = 4
    vocabulary: int = 640
    steps: int = 1000
    batch: int = 32
    learning_rate: float = 3e-3
    rewritings: float = 0.0


def make_tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE on demonstrations: frequent words are one token, the others two or three."""
    rng = random.Random(0)
    records = [make_record(rng, number) for number in range(2000)]
    texts = (PROFILES.prompt(record) + "\n\n" + demonstrate(record, rng) for record in records)
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        padding_side="left",
        chat_template=PLAIN_CHAT_TEMPLATE,
        model_max_length=512,
    )


def make_model(settings: BaseSettings, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Random weights."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=settings.hidden,
        intermediate_size=3 * settings.hidden,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        max_position_embeddings=512,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return LlamaForCausalLM(config)


def base_policy(folder: Path, settings: BaseSettings, seed: int) -> str:
    """The folder of the starting policy of ``seed``; it is trained unless it exists.

    Ordinary LM training: cross-entropy on the demonstration's tokens, AdamW, a linear schedule with a warm-up.
    """
    wanted = {**asdict(settings), "seed": seed}
    if (folder / DESCRIPTION).is_file():
        made = {name: value for name, value in load_json(folder / DESCRIPTION).items() if name in wanted}
        if made != wanted:
            raise InputError(f"{folder}: holds a policy made with {made}, not {wanted}; choose another --output_dir")
        return str(folder)
    shutil.rmtree(folder, ignore_errors=True)
    tokenizer, rng = make_tokenizer(settings.vocabulary), random.Random(f"demonstrations {seed}")
    torch.manual_seed(seed)
    model = make_model(settings, tokenizer)
    loss = train_on_demonstrations(model, tokenizer, settings, rng)
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    save_json(folder / DESCRIPTION, {**wanted, "loss": loss, "parameters": parameters})
    return str(folder)


def demonstration(
    record: Record, rng: random.Random, tokenizer: PreTrainedTokenizerFast, rewritings: float
) -> tuple[list[int], list[int]]:
    """The ids of a request and of a flawed answer to it, or of one that follows a critique."""
    if rewritings and rng.random() < rewritings:
        critique, answer = rewrite(record, rng)
        request = load_prompt(PROFILES.place("teacher"), required=("prompt", "critique"))
        asked = request.fill({"prompt": PROFILES.prompt(record), "critique": critique})
    else:
        asked, answer = PROFILES.prompt(record), demonstrate(record, rng)
    return encode_prompt(asked, PROFILES, tokenizer), completion_ids(tokenizer, answer)


def train_on_demonstrations(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, settings: BaseSettings, rng: random.Random
) -> float:
    """The mean loss of the last tenth of the steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / 50, (settings.steps - step) / settings.steps)
    )
    losses = []
    model.train()
    for _ in trange(settings.steps, desc="starting policy", unit="step"):
        ids, labels = [], []
        for number in range(settings.batch):
            record = make_record(rng, number)
            prompt, answer = demonstration(record, rng, tokenizer, settings.rewritings)
            ids.append(prompt + answer)
            labels.append([-100] * len(prompt) + answer)
        inputs = padded(ids, torch.long, value=tokenizer.pad_token_id)
        mask = padded([[1] * len(row) for row in ids], torch.long)
        loss = model(input_ids=inputs, attention_mask=mask, labels=padded(labels, torch.long, value=-100)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        losses.append(loss.item())
    return fmean(losses[-max(1, settings.steps // 10) :])
