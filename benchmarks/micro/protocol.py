"""What all methods of the synthetic task share: how long they train, and how their policies are evaluated."""

import random
from dataclasses import dataclass, fields
from statistics import fmean
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from benchmarks.micro.task import PROFILES, make_record, score_statements
from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.rollouts import encode_prompt
from nl_gradient_policy_optimization.sampling import TransformersSampler
from text2grad.configs import setting
from text2grad.tasks import Record


@dataclass
class Protocol:
    """What all methods share. No prompt is used twice while steps × rollouts is below ``prompts``."""

    steps: int = setting(60, "steps of a run; a step is one cycle of rollouts and updates")
    rollouts: int = setting(16, "responses sampled in a step")
    epochs: int = setting(2, "passes of updates over a step's responses")
    evaluate_every: int = setting(5, "steps between two evaluations on held-out prompts")
    held_out: int = setting(96, "held-out prompts of an evaluation")
    prompts: int = setting(1000, "training prompts")
    notes: int = setting(0, "notes in a prompt; 0: three to five", at_least=0, at_most=6)
    max_response_tokens: int = setting(72, "tokens of a response")
    value_learning_rate: float = setting(0.1, "learning rate of the value head, for methods that have one")
    kl_coef: float = setting(0.0, "coefficient of the KL to the starting policy, for all methods")
    praises: bool = setting(False, "the critic's critiques also name what is right")
    generation: str = setting("transformers", "what samples the rollouts; decoder: the project's own, faster here")

    def described(self) -> dict[str, Any]:
        """For a run's folder."""
        return {each.name: getattr(self, each.name) for each in fields(Protocol)}


def held_out_records(count: int, notes: int) -> list[Record]:
    rng = random.Random("held-out prompts")
    return [make_record(rng, -number, notes) for number in range(1, count + 1)]


class HeldOutEvaluation:
    """Quality of a policy's sampled answers to held-out prompts; the same prompts and random numbers for all."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, config: PolicyConfig, protocol: Protocol):
        self.tokenizer, self.config = tokenizer, config
        self.records = held_out_records(protocol.held_out, protocol.notes)
        self.prompts = [encode_prompt(PROFILES.prompt(record), PROFILES, tokenizer) for record in self.records]

    def __call__(self, model: nn.Module, step: int) -> dict[str, float]:
        training = model.training
        sampler = TransformersSampler(model.eval(), model, self.tokenizer, [self.tokenizer.eos_token_id], self.config)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1_000_003 * self.config.seed + step)
            ((answers, _),) = sampler.batches(self.prompts)
        model.train(training)
        texts = [self.tokenizer.decode(ids, skip_special_tokens=True) for ids in answers]
        measured = [score_statements(record, text) for record, text in zip(self.records, texts, strict=True)]
        means = {name: round(fmean(row[name] for row in measured), 5) for name in measured[0]}
        return {"step": step, **means, "tokens": round(fmean(map(len, answers)), 3)}
