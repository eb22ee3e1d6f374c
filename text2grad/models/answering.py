"""Policies that answer chats: a model in this process, or one behind an OpenAI-compatible API."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import MISSING, dataclass
from typing import TYPE_CHECKING

from text2grad.configs import setting
from text2grad.endpoints.settings import Endpoint
from text2grad.errors import InputError, when_interrupted
from text2grad.models.adapters import base_model
from text2grad.models.loading import (
    DtypeName,
    best_device,
    chat_ids,
    end_token_ids,
    load_model,
    load_tokenizer,
    model_identity,
)

if TYPE_CHECKING:
    import torch

    from text2grad.endpoints.client import ChatError

Chat = list[dict[str, str]]


@dataclass(kw_only=True)
class AnsweringConfig(Endpoint):
    """Which policy answers."""

    model: str = setting(
        MISSING,
        "model folder, adapter folder, hub id or smollm2; with --base_url the name served there",
        "--model_path",
    )
    base_url: str | None = setting(None, "an OpenAI-compatible API, http://HOST:PORT/v1")
    dtype: DtypeName = setting("auto", "number type of the weights", "--precision")
    device: str | None = setting(None, "cpu, cuda, cuda:1, …; by default the best one present")
    batch_size: int = setting(16, "prompts in one batch of a model in this process", above=0)
    concurrency: int = setting(16, "requests in flight to an API", above=0)
    max_cost_usd: float | None = setting(None, "of an API: spend no more than this in one run")


@dataclass
class SamplingConfig:
    """How it answers."""

    max_new_tokens: int | None = setting(
        None, "longest answer in tokens; by default the task's", "--max_response_tokens", "--max_tokens"
    )
    temperature: float = setting(0.0, "0 decodes greedily")
    top_p: float = setting(1.0, "sample from the smallest set of tokens with this probability")
    seed: int = setting(42, "each answer's randomness depends on this seed and the answer's id only")


@dataclass(frozen=True)
class PolicyAnswer:
    """One answer. ``finished``: the policy ended it itself, rather than the length limit.

    Token counts are None where an API does not tell.
    """

    text: str
    tokens: int | None
    prompt_tokens: int | None
    finished: bool


PolicyAnswers = list[PolicyAnswer | Exception]
"""One answer for each chat, in order, or the exception for a chat that failed."""


def load_policy(config: AnsweringConfig) -> Policy:
    """The policy that ``--model`` and ``--base_url`` name."""
    if config.base_url:
        return ServedPolicy(config.model, config.base_url, config)
    return LocalPolicy(config.model, config.dtype, config.device, config.batch_size)


def _present(device: str) -> str:
    import torch

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"--device {device}: {str(error).splitlines()[0]}; leave it out for the best one") from None
    return device


class LocalPolicy:
    """A causal LM in this process; an adapter stays an adapter on its base."""

    workers = 0

    def __init__(self, name: str, dtype: str = "auto", device: str | None = None, batch_size: int = 16):
        from transformers import GenerationConfig

        from text2grad.models.decoder import Decoder, supports

        self.name, self.batch_size = name, batch_size
        self.identity = model_identity(name)
        self.device = _present(device) if device else best_device()
        self.tokenizer = load_tokenizer(name)
        self.model = load_model(name, dtype, self.device)
        self.stops = end_token_ids(self.model, self.tokenizer)
        # Replaced as a whole: a model's own file may set top-k or a repetition penalty, which are no settings here.
        self.model.generation_config = GenerationConfig(
            eos_token_id=self.stops, pad_token_id=self.tokenizer.pad_token_id, bos_token_id=self.tokenizer.bos_token_id
        )
        text_config = self.model.config.get_text_config()
        self.context: int | None = getattr(text_config, "max_position_embeddings", None)
        self._decoder = Decoder(base_model(self.model)) if supports(self.model) else None

    def token_ids(self, chat: Chat) -> list[int]:
        return chat_ids(chat, self.tokenizer)

    def length(self, chat: Chat) -> int:
        return len(self.token_ids(chat))

    def shorten(self, text: str, excess: int) -> str:
        """``text`` without its last ``excess`` tokens (or a little more)."""
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        kept = self.tokenizer.decode(ids[: max(0, len(ids) - excess)], clean_up_tokenization_spaces=False)
        return kept.rstrip("\ufffd").rstrip()  # half of a multi-byte character decodes to U+FFFD

    def __call__(self, chats: Sequence[Chat], ids: Sequence[str], sampling: SamplingConfig) -> PolicyAnswers:
        prompts = [self.token_ids(chat) for chat in chats]
        digests = [hashlib.sha256(f"{sampling.seed}:{own}".encode("utf-8", "surrogatepass")).digest() for own in ids]
        seeds = [int.from_bytes(digest[:7], "big") for digest in digests]
        choose = OwnRandomness(seeds, sampling.temperature, sampling.top_p, self.device)
        assert sampling.max_new_tokens is not None
        if self._decoder:
            sampled = self._decoder.sample(prompts, sampling.max_new_tokens, self.stops, choose.ids)
            written = [row.ids for row in sampled]
        else:
            written = self._generated(prompts, sampling.max_new_tokens, choose)
        return [self._reply(row, len(prompt)) for row, prompt in zip(written, prompts, strict=True)]

    def _generated(self, prompts: list[list[int]], length: int, choose: OwnRandomness) -> list[list[int]]:
        import torch
        from transformers import LogitsProcessorList

        width = max(map(len, prompts))
        pad = self.tokenizer.pad_token_id
        input_ids = torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        with torch.inference_mode():
            output = self.model.generate(
                input_ids=input_ids.to(self.device),
                attention_mask=mask.to(self.device),
                max_new_tokens=length,
                do_sample=False,
                logits_processor=LogitsProcessorList([choose]),
            )
        return output[:, width:].tolist()

    def _reply(self, ids: list[int], prompt_tokens: int) -> PolicyAnswer:
        end = next((index for index, token in enumerate(ids) if token in self.stops), None)
        answer = ids if end is None else ids[:end]
        text = self.tokenizer.decode(answer, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return PolicyAnswer(text, len(answer), prompt_tokens, finished=end is not None)


class OwnRandomness:
    """Draws each row's tokens from a generator for that row; at temperature 0 takes the likeliest.

    The argmax of log p + Gumbel noise is a draw from p. So an answer depends neither on the others in its batch nor
    on interruptions of the run. As a ``LogitsProcessor`` it turns ``generate``'s greedy decoding into sampling.
    """

    def __init__(self, seeds: Sequence[int], temperature: float, top_p: float, device: str):
        import torch
        from transformers import TopPLogitsWarper

        self.generators = [torch.Generator(device).manual_seed(seed) for seed in seeds]
        self.temperature = temperature
        self.nucleus = TopPLogitsWarper(top_p) if top_p < 1 else None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return self._noisy(scores, range(len(scores)))

    def ids(self, scores: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
        """The next id of each of ``rows``, whose scores are ``[rows, V]``."""
        return self._noisy(scores, rows).argmax(-1)

    def _noisy(self, scores: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
        import torch

        if not self.temperature:
            return scores
        scores = scores.float() / self.temperature
        if self.nucleus:
            scores = self.nucleus(None, scores)
        noise = torch.empty_like(scores)
        for row, number in zip(noise, rows, strict=True):
            row.exponential_(generator=self.generators[number])
        return scores - noise.log()


class ServedPolicy:
    """A model behind an OpenAI-compatible API. Its sampling draws from the server's randomness, not from ``seed``."""

    batch_size = 1

    def __init__(self, model: str, base_url: str | None, endpoint: Endpoint, identity: str = ""):
        from text2grad.endpoints.client import ChatClient

        self._client = ChatClient(base_url, model, **endpoint.client_options())
        self.name, self.workers = model, endpoint.concurrency
        self.identity = identity or f"{self._client.base_url} {model}"

    def length(self, chat: Chat) -> int:
        return sum(len(message["content"]) for message in chat) // 4

    def __call__(self, chats: Sequence[Chat], ids: Sequence[str], sampling: SamplingConfig) -> PolicyAnswers:
        if sampling.top_p < 1:
            raise InputError("--top_p is for models in this process; set it in the server's generation config")
        with when_interrupted(self._client.stop):
            return [self._ask(chat, key, sampling) for chat, key in zip(chats, ids, strict=True)]

    def _ask(self, chat: Chat, key: str, sampling: SamplingConfig) -> PolicyAnswer | ChatError:
        from text2grad.endpoints.client import ChatError

        length, temperature = sampling.max_new_tokens, sampling.temperature
        try:
            answer = self._client.complete(chat, max_tokens=length, scope=key, temperature=temperature)
        except ChatError as error:
            return error
        usage = answer.usage
        written, read = (None, None) if usage.uncounted else (usage.completion_tokens, usage.prompt_tokens)
        return PolicyAnswer(answer.text, written, read, finished=answer.finish_reason == "stop")


Policy = LocalPolicy | ServedPolicy
"""Answers chats, in order; ``ids`` seed the sampling. ``identity`` is what must be equal for two answers to come from
one policy."""
