"""The scalar reward model of the PPO baseline: it learns which of two responses has the greater Σδ."""

from __future__ import annotations

import random
from pathlib import Path

import torch

from benchmarks.micro.critic import ProfileCritic
from benchmarks.micro.task import PROFILES, make_record
from nl_gradient_policy_optimization.baselines.finetuning import RESULT_FILE
from nl_gradient_policy_optimization.baselines.preferences import Pair, save_pairs
from nl_gradient_policy_optimization.baselines.scalar_reward import ScalarRewardSettings, train
from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.rollouts import encode_prompt
from nl_gradient_policy_optimization.sampling import TransformersSampler
from text2grad.models import load_model, load_tokenizer
from text2grad.token_rewards import token_rewards


def train_scalar_reward_model(folder: Path, base: str, pairs_path: Path) -> str:
    """The trained model's folder; a finished model is not trained again.

    Args:
        pairs_path: what :func:`pairs_file` made.
    """
    if (folder / RESULT_FILE).is_file():
        return str(folder)
    settings = ScalarRewardSettings(
        task=PROFILES.name,
        data_path=str(pairs_path),
        model=base,
        output_dir=str(folder),
        lora=False,
        dtype="float32",
        max_prompt_tokens=200,
        max_new_tokens=200,
        learning_rate=1e-3,
        num_train_epochs=3,
        per_device_train_batch_size=32,
        per_device_eval_batch_size=64,
        gradient_checkpointing=False,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    train(settings)
    return str(folder)


def pairs_file(path: Path, base: str, count: int, max_new_tokens: int) -> Path:
    """The pairs that reward models learn from, made unless the file exists. Their feedback is not counted to a run."""
    if not path.is_file():
        save_pairs(path, make_pairs(base, count, max_new_tokens))
    return path


def make_pairs(base: str, count: int, max_new_tokens: int, seed: str = "preference pairs") -> list[Pair]:
    """Two sampled responses to each of ``count`` prompts of their own; the one with the greater Σδ is chosen.

    A pair in which neither is greater, or a response is empty, is left out.
    """
    model, tokenizer = load_model(base, torch.float32), load_tokenizer(base)
    config = PolicyConfig(model=base, max_new_tokens=max_new_tokens, generation_batch_size=128)
    sampler = TransformersSampler(model, model, tokenizer, [tokenizer.eos_token_id], config)
    rng, critic, pairs = random.Random(seed), ProfileCritic(), []
    torch.manual_seed(0)
    records = [make_record(rng, number) for number in range(count)]
    prompts = [encode_prompt(PROFILES.prompt(record), PROFILES, tokenizer) for record in records]
    first, second = sampler(prompts), sampler(prompts)
    for record, *responses in zip(records, first, second, strict=True):
        texts = [tokenizer.decode(ids, skip_special_tokens=True) for ids in responses]
        if not all(text.strip() for text in texts):
            continue
        totals = [
            sum(token_rewards(ids, tokenizer, critic.feedback_on(record, text), PROFILES).values)
            for ids, text in zip(responses, texts, strict=True)
        ]
        if totals[0] == totals[1]:
            continue
        best = max((0, 1), key=totals.__getitem__)
        prompt = PROFILES.prompt(record)
        pairs.append(
            Pair(record["id"], prompt, texts[best], texts[1 - best], totals[best], totals[1 - best], critic.name)
        )
    return pairs
