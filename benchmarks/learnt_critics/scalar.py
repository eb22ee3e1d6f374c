"""The scalar reward model on the same annotations: a regression head that learns a response's Σδ.

python benchmarks/learnt_critics/scalar.py --output_dir runs/learnt_critics
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.learnt_critics.annotated import annotated
from benchmarks.micro.task import PROFILES
from nl_gradient_policy_optimization.baselines.scalar_model import ScalarDescription, ScalarModel, load_classifier
from nl_gradient_policy_optimization.rollouts import encode_prompt, padded
from text2grad.configs import parse, setting
from text2grad.critics.reward_model.prompt import completion_ids
from text2grad.errors import command
from text2grad.models import load_tokenizer
from text2grad.records import load_json
from text2grad.tasks import Record
from text2grad.token_rewards import token_rewards


@dataclass(frozen=True)
class ScalarConfig:
    """How the scalar model is trained."""

    output_dir: str = setting("runs/learnt_critics", "the study's folder")
    name: str = setting("scalar", "the model's folder in it")
    updates: int = setting(2000, "of --batch annotated responses each")
    batch: int = setting(16, "annotated responses of an update")
    learning_rate: float = setting(1e-3, "warms up over 100 updates, falls in the last fifth")


def totals(records: Sequence[Record], tokenizer) -> list[float]:
    """Σδ of each response by the program, on the policy's tokens."""
    values = []
    for record in records:
        feedback = PROFILES.feedback(annotated(record, "none"))
        assert feedback is not None
        ids = completion_ids(tokenizer, record["response"])
        values.append(sum(token_rewards(ids, tokenizer, feedback, PROFILES).values))
    return values


def correlate(model: nn.Module, tokenizer, held_out: Sequence[Record]) -> float:
    """Of the scores of held-out responses with their true Σδ."""
    scores = ScalarModel(model, tokenizer, PROFILES, 64)(
        [PROFILES.prompt(record) for record in held_out], [record["response"] for record in held_out]
    )
    model.train()
    return round(float(np.corrcoef(scores, totals(held_out, tokenizer))[0, 1]), 4)


def train(config: ScalarConfig) -> None:
    study = Path(config.output_dir)
    folder, base = study / config.name, str(study / "starting_policy")
    tokenizer = load_tokenizer(base)
    records, held_out = load_json(study / "responses.json"), load_json(study / "held_out.json")
    wanted = totals(records, tokenizer)
    mean, deviation = fmean(wanted), pstdev(wanted)
    ids = [
        encode_prompt(PROFILES.prompt(record), PROFILES, tokenizer) + completion_ids(tokenizer, record["response"])
        for record in records
    ]
    torch.manual_seed(0)
    model = load_classifier(base, torch.float32).train()
    model.config.pad_token_id = tokenizer.pad_token_id
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, weight_decay=0.0)
    rng = random.Random(0)
    order: list[Any] = []
    for update in range(config.updates):
        share = min((update + 1) / 100, 1.0, (config.updates - update) / (config.updates / 5))
        optimizer.param_groups[0]["lr"] = config.learning_rate * share
        if len(order) < config.batch:
            order = rng.sample(range(len(ids)), len(ids))
        rows = [order.pop() for _ in range(config.batch)]
        inputs = padded([ids[row] for row in rows], torch.long, value=tokenizer.pad_token_id)
        mask = padded([[1] * len(ids[row]) for row in rows], torch.long)
        target = torch.tensor([(wanted[row] - mean) / deviation for row in rows])
        loss = nn.functional.mse_loss(model(input_ids=inputs, attention_mask=mask).logits[:, 0], target)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if (update + 1) % 250 == 0 or update + 1 == config.updates:
            correlation = correlate(model, tokenizer, held_out)
            print({"update": update + 1, "loss": loss.item(), "correlation": correlation}, flush=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    ScalarDescription(PROFILES.name, "float32", 0.0, 1.0, {"correlation": correlation}).save(folder)


@command
def main() -> None:
    torch.set_num_threads(1)
    train(parse(ScalarConfig))


if __name__ == "__main__":
    main()
