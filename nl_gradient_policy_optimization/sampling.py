"""Sample responses from the policy. The ids come back as sampled, up to and with the end token.

Sampling is from the policy's whole distribution at the given temperature. Whatever a model's own generation settings
say of top-p, top-k or repetition is left aside: π_old would not be what sampled.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn
from transformers import GenerationConfig, PreTrainedTokenizerBase

from nl_gradient_policy_optimization.batch import Batch
from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.rollouts import padded
from nl_gradient_policy_optimization.vllm_server import SamplerError, VLLMServerSampler
from nl_gradient_policy_optimization.weights import gathered
from text2grad.advantages import Reduce
from text2grad.errors import InputError
from text2grad.models import base_model
from text2grad.models.decoder import Decoder, supports

SAMPLER_LIMIT = 0.2
"""Nats per token: rounding stays far below it, and another base model or temperature far above."""
Samples = tuple[list[list[int]], list[list[float]] | None]
"""One response per prompt, in order; and, where another engine samples, the log-probabilities it sampled with."""


def make_sampler(
    model: nn.Module,
    wrapped: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    end_ids: list[int],
    config: PolicyConfig,
    accelerator: Accelerator,
) -> "TransformersSampler | DecoderSampler | VLLMServerSampler":
    """The sampler that ``config.generation`` names; its ``batches`` gives each batch as soon as it is sampled.

    Args:
        model: the policy (a PEFT model, or the causal LM itself).
        wrapped: what distributed training made of it.
    """
    if config.generation == "decoder" or (config.generation == "auto" and supports(model)):
        return DecoderSampler(model, end_ids, config)
    if config.generation == "vllm_server":
        return VLLMServerSampler(model, wrapped, end_ids, config, accelerator)
    return TransformersSampler(model, wrapped, tokenizer, end_ids, config)


class TransformersSampler:
    """``generate`` on batches padded on the left: the policy itself."""

    def __init__(
        self,
        model: nn.Module,
        wrapped: nn.Module,
        tokenizer: PreTrainedTokenizerBase,
        end_ids: list[int],
        config: PolicyConfig,
    ):
        self.model, self.wrapped, self.pad_id = model, wrapped, tokenizer.pad_token_id
        self.end_ids, self.batch_size = end_ids, config.generation_batch_size
        self.settings = GenerationConfig(
            do_sample=True,
            temperature=config.temperature,
            top_p=1.0,
            top_k=0,
            max_new_tokens=config.max_new_tokens,
            eos_token_id=end_ids,
            pad_token_id=self.pad_id,
            disable_compile=True,
        )

    @torch.no_grad()
    def batches(self, prompts: list[list[int]]) -> Iterator[Samples]:
        base = base_model(self.model)
        with (
            gathered(self.wrapped, list(self.model.parameters()), free_running=True),
            _own_settings(base, self.settings),
        ):
            size = self.batch_size or len(prompts)
            for start in range(0, len(prompts), size):
                yield self._batch(base, prompts[start : start + size]), None

    def _batch(self, base: Any, prompts: list[list[int]]) -> list[list[int]]:
        device = base.get_input_embeddings().weight.device
        inputs = padded(prompts, torch.long, "left", self.pad_id).to(device)
        mask = padded([[1] * len(ids) for ids in prompts], torch.long, "left").to(device)
        output = base.generate(input_ids=inputs, attention_mask=mask, generation_config=self.settings)
        return [cut_at_end(ids, self.end_ids) for ids in output[:, inputs.shape[1] :].tolist()]


class DecoderSampler:
    """The project's own decoder (``text2grad/models/decoder.py``) on a merged copy of the weights, made for each step.

    Folding the adapter in rounds differently, so the log-probabilities come back too: the loss corrects for it.

    Raises:
        InputError: the decoder does not compute this model.
    """

    def __init__(self, model: nn.Module, end_ids: list[int], config: PolicyConfig):
        if not supports(model):
            raise InputError(
                "--generation decoder samples from Llama, Mistral and Qwen2 models whose weights are whole, with LoRA "
                "at most, and take an eighth of a GPU's memory at most; use --generation transformers"
            )
        self.model, self.end_ids, self.config = model, end_ids, config

    def batches(self, prompts: list[list[int]]) -> Iterator[Samples]:
        decoder, config = Decoder(base_model(self.model)), self.config
        size = config.generation_batch_size or len(prompts)
        for start in range(0, len(prompts), size):
            chosen = prompts[start : start + size]
            sampled = decoder.sample(chosen, config.max_new_tokens, self.end_ids, temperature=config.temperature)
            yield [row.ids for row in sampled], [row.logprobs for row in sampled]


def check_sampler(batch: Batch, generation: str, reduce: Reduce) -> None:
    """Stop where the engine that samples cannot have this policy's weights, or samples from it differently."""
    if batch.has("sampler_logprobs") and (found := sampler_difference(batch, reduce)) > SAMPLER_LIMIT:
        raise SamplerError(
            f"--generation {generation}: the log-probabilities of the sampled tokens differ from the policy's by "
            f"{found:.2f} nats on average, more than {SAMPLER_LIMIT}. Check the base model of the server, and its "
            "--logprobs-mode processed_logprobs where --temperature is not 1"
        )


def sampler_difference(batch: Batch, reduce: Reduce) -> float:
    """Mean |log π_sampler − log π_old| of a response token, in nats, over all ranks; NaNs left out."""
    apart = (batch.sampler_logprobs - batch.old_logprobs).double().abs()[batch.response_mask.bool()]
    known = apart[~apart.isnan()]
    total, count = reduce(torch.tensor([known.sum(), len(known)], dtype=torch.float64)).tolist()
    return total / max(count, 1)


def cut_at_end(ids: list[int], end_ids: list[int]) -> list[int]:
    """A response up to and with its first end token."""
    end = next((index for index, token in enumerate(ids) if token in end_ids), len(ids) - 1)
    return ids[: end + 1]


@contextmanager
def _own_settings(base: Any, settings: GenerationConfig) -> Iterator[None]:
    """``generate`` fills what ``settings`` leaves open from the model's own, so these replace them inside the block."""
    before, base.generation_config = base.generation_config, settings
    try:
        yield
    finally:
        base.generation_config = before
