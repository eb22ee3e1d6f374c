"""Sample responses from the policy. The ids come back as sampled, up to and with the end token."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from transformers import GenerationConfig, PreTrainedTokenizerBase

from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.policy import base_model
from nl_gradient_policy_optimization.rollouts import padded


class TransformersSampler:
    """``model.generate`` in batches, prompts padded on the left.

    Sampling is from the policy's whole distribution at the given temperature: whatever a model's own generation
    settings say of top-p, top-k or repetition is left aside, or π_old would not be what sampled.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, end_ids: list[int], config: PolicyConfig):
        self.pad_id = tokenizer.pad_token_id
        self.end_ids, self.batch_size = end_ids, config.generation_batch_size
        self.settings = GenerationConfig(
            do_sample=True,
            temperature=config.temperature,
            top_p=1.0,
            top_k=0,
            max_new_tokens=config.max_response_tokens,
            eos_token_id=end_ids,
            pad_token_id=self.pad_id,
            disable_compile=True,
        )

    @torch.no_grad()
    def __call__(self, model: nn.Module, prompts: list[list[int]]) -> list[list[int]]:
        """One response per prompt, in order."""
        base = base_model(model)
        device = base.get_input_embeddings().weight.device
        size = self.batch_size or len(prompts)
        responses = []
        with _own_settings(base, self.settings), _without_checkpointing(base):
            for start in range(0, len(prompts), size):
                batch = prompts[start : start + size]
                inputs = padded(batch, torch.long, "left", self.pad_id).to(device)
                mask = padded([[1] * len(ids) for ids in batch], torch.long, "left").to(device)
                output = model.generate(input_ids=inputs, attention_mask=mask, generation_config=self.settings)
                responses += [self._cut(ids) for ids in output[:, inputs.shape[1] :].tolist()]
        return responses

    def _cut(self, ids: list[int]) -> list[int]:
        end = next((index for index, token in enumerate(ids) if token in self.end_ids), len(ids) - 1)
        return ids[: end + 1]


def end_token_ids(model: nn.Module, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Every token that ends a response, for the model or for its tokenizer."""
    base = base_model(model)
    declared = base.generation_config.eos_token_id
    declared = declared if isinstance(declared, list) else [declared]
    return sorted({token for token in [*declared, tokenizer.eos_token_id] if token is not None})


@contextmanager
def _own_settings(base: nn.Module, settings: GenerationConfig) -> Iterator[None]:
    """``generate`` fills what ``settings`` leaves open from the model's own; so these stand in for them meanwhile."""
    before, base.generation_config = base.generation_config, settings
    try:
        yield
    finally:
        base.generation_config = before


@contextmanager
def _without_checkpointing(base: nn.Module) -> Iterator[None]:
    """Gradient checkpointing forbids the key-value cache."""
    if not base.is_activation_checkpointing:
        yield
        return
    base.activation_checkpointing_disable()
    try:
        yield
    finally:
        base.activation_checkpointing_enable({"use_reentrant": False})
