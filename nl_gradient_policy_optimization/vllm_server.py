"""Sample from vLLM servers that hold the policy's base model: the adapter is saved, and loaded into each over HTTP.

Neither a process group nor the package vllm is needed here. Each version of the weights gets a name of its own, made
from its content. So a server can answer neither from older weights nor from keys and values that it kept for them.
"""

import hashlib
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any, TypeVar
from urllib.error import HTTPError

from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object
from torch import nn
from tqdm.auto import tqdm

from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.weights import gathered, save_model, trainable
from text2grad.endpoints.http import send, within
from text2grad.errors import InputError
from text2grad.safety.gate import UnreadableError, read_json
from text2grad.safety.redaction import redacted
from text2grad.tasks.commands import SERVE

T = TypeVar("T")
_DEADLINE = 3  # times the limit on silence: what a request may take in all
_POLL = 2.0  # seconds between two looks at a server that is away


class SamplerError(InputError):
    """The engine that samples is away or samples something else. The step has changed nothing yet."""


class _AwayError(Exception):
    """No answer, or a server's own fault: to be asked again."""


class _RefusedError(Exception):
    """The server answered that it will not."""


class VLLMServer:
    """One server's HTTP interface.

    Args:
        url: its address, with or without ``/v1``.
        timeout: seconds that a request may take, and that the server may stay away.
    """

    def __init__(self, url: str, timeout: float):
        self.url, self.timeout = url.rstrip("/").removesuffix("/v1"), timeout
        self.name = redacted(self.url)

    def longest(self) -> int | None:
        """Tokens of prompt and response together that the server takes; None where it does not say."""
        longest = self._patiently(lambda: next((model.get("max_model_len") for model in self._models()), None))
        return longest if type(longest) is int else None

    def complete(self, adapter: Path, body: dict[str, Any]) -> dict[str, Any]:
        """The completion that an adapter samples, by its folder; a server that lost it is given it again."""

        def ask() -> dict[str, Any]:
            self._load(adapter)
            answer = read_json(self._send("/v1/completions", {"model": adapter.name, **body}))
            if not isinstance(answer, dict):
                raise UnreadableError("the answer is no object")
            return answer

        answer = self._patiently(ask)
        if answer.get("model") != adapter.name:
            raise SamplerError(f"{self.name}: was asked for {adapter.name} and sampled with {answer.get('model')!r}")
        return answer

    def _load(self, adapter: Path) -> None:
        """Have this version loaded, and the run's older ones not: those whose names differ in the last part alone."""
        names = {model["id"] for model in self._models()}
        of_run = adapter.name.rpartition("-")[0]
        for old in (name for name in names if name.rpartition("-")[0] == of_run and name != adapter.name):
            with suppress(_RefusedError):  # another rank was faster
                self._send("/v1/unload_lora_adapter", {"lora_name": old})
        if adapter.name in names:
            return
        try:
            self._send("/v1/load_lora_adapter", {"lora_name": adapter.name, "lora_path": str(adapter)})
        except _RefusedError as error:
            if adapter.name not in {model["id"] for model in self._models()}:  # another rank was faster
                raise SamplerError(
                    f"{self.name} does not load the adapter {adapter} ({error}). Start it by `{SERVE} MODEL`, "
                    "with a --max-lora-rank of the adapter's rank, where it can read this folder under the same path"
                ) from None

    def _models(self) -> list[dict[str, Any]]:
        return read_json(self._send("/v1/models"))["data"]

    def _patiently(self, ask: Callable[[], T]) -> T:
        """What ``ask`` returns; asked again while the server is away, up to the deadline."""
        away_since = None
        while True:
            try:
                answer = ask()
            except _RefusedError as error:
                raise SamplerError(f"{self.name} refuses the request: {error}") from None
            except (_AwayError, UnreadableError, KeyError, TypeError, AttributeError) as error:
                now = time.monotonic()
                if away_since is None:
                    away_since = now
                    tqdm.write(f"{self.name} does not answer ({error}); waiting up to {self.timeout:.0f} s for it")
                if now - away_since > self.timeout:
                    raise SamplerError(
                        f"{self.name} has not answered for {self.timeout:.0f} s ({error}); start it by `{SERVE} MODEL` "
                        "and run the same command again"
                    ) from None
                time.sleep(min(_POLL, self.timeout))
            else:
                if away_since is not None:
                    tqdm.write(f"{self.name} answers again after {time.monotonic() - away_since:.0f} s")
                return answer

    def _send(self, path: str, body: dict[str, Any] | None = None) -> bytes:
        token, longest = os.environ.get("VLLM_API_KEY"), _DEADLINE * self.timeout
        try:
            return within(longest, lambda: send(self.url + path, body, token=token, timeout=self.timeout))
        except HTTPError as error:
            said = " ".join(error.read().decode(errors="replace").split())[:500]
            problem = redacted(f"HTTP {error.code}: {said}")
            raise (_AwayError if error.code >= 500 else _RefusedError)(problem) from None
        except (OSError, HTTPException) as error:
            raise _AwayError(redacted(str(error) or type(error).__name__)) from None


class VLLMServerSampler:
    """Responses from one or more servers, each with the weights as they are when it is asked.

    vLLM rounds differently, so its log-probabilities come back too: the loss corrects for the difference, and the
    trainer compares them with its own.

    Raises:
        InputError: the policy has no adapter, or the servers take less than a prompt and a response.
    """

    def __init__(
        self, model: nn.Module, wrapped: nn.Module, end_ids: list[int], config: PolicyConfig, accelerator: Accelerator
    ):
        if not hasattr(model, "peft_config"):
            raise InputError(
                "--generation vllm_server loads the adapter into the server after each update; with --lora_r 0 there "
                "is none: use transformers"
            )
        self.model, self.wrapped, self.end_ids, self.config = model, wrapped, end_ids, config
        self.accelerator = accelerator
        self.servers = [VLLMServer(url, config.vllm_timeout) for url in config.vllm_url]
        self.folder = Path(config.output_dir).resolve() / "vllm_adapters"
        needed = config.max_prompt_tokens + config.max_new_tokens
        for server in self.servers:
            if (longest := server.longest()) is not None and longest < needed:
                raise InputError(
                    f"{server.name} takes {longest} tokens; --max_prompt_tokens and --max_new_tokens need {needed}: "
                    "start it with a larger --max-model-len"
                )

    def batches(self, prompts: list[list[int]]) -> Iterator[tuple[list[list[int]], list[list[float]]]]:
        """Each batch in order; all are asked for at one time, the servers taking turns."""
        adapter = self._save()
        size = self.config.generation_batch_size or -(-len(prompts) // len(self.servers))
        chunks = [prompts[start : start + size] for start in range(0, len(prompts), size)]
        first, problem = self.accelerator.process_index, None
        with ThreadPoolExecutor(len(chunks), thread_name_prefix="vllm") as pool:
            turns = [self.servers[(first + index) % len(self.servers)] for index in range(len(chunks))]
            for begun in [pool.submit(self._sample, *each, adapter) for each in zip(turns, chunks, strict=True)]:
                try:
                    yield begun.result()
                except SamplerError as error:
                    problem = str(error)
                    break
        # A rank that fails alone would leave the others waiting for it: they all fail, and can save together.
        if problems := [each for each in gather_object([problem]) if each]:
            raise SamplerError(problems[0])

    def _save(self) -> Path:
        """Write the adapter as it is now, in a folder whose name its content decides; older ones are removed."""
        run = hashlib.sha256(str(self.folder).encode()).hexdigest()[:8]
        partial, name = self.folder / ".partial", [""]
        with gathered(self.wrapped, trainable(self.model)):
            if self.accelerator.is_main_process:
                shutil.rmtree(partial, ignore_errors=True)
                save_model(self.model, partial)
                content = hashlib.sha256((partial / "adapter_model.safetensors").read_bytes())
                name = [f"text2grad-{run}-{content.hexdigest()[:16]}"]
                shutil.rmtree(self.folder / name[0], ignore_errors=True)
                os.replace(partial, self.folder / name[0])
        broadcast_object_list(name)
        if self.accelerator.is_main_process:  # no rank samples with the older ones any more
            for old in self.folder.iterdir():
                if old.name != name[0]:
                    shutil.rmtree(old)
        return self.folder / name[0]

    def _sample(
        self, server: VLLMServer, prompts: Sequence[list[int]], adapter: Path
    ) -> tuple[list[list[int]], list[list[float]]]:
        """One response to each prompt. Whatever the server's own defaults narrow is switched off."""
        # No seed: vLLM's engine for CPUs dies of one in a request.
        body = {
            "prompt": list(prompts),
            "max_tokens": self.config.max_new_tokens,
            "temperature": self.config.temperature,
            "top_p": 1.0,
            "top_k": 0,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "ignore_eos": True,
            "stop_token_ids": self.end_ids,
            "logprobs": 0,
            "return_token_ids": True,
        }
        answer = server.complete(adapter, body)
        settings: Any = self.model.config
        vocabulary = settings.get_text_config().vocab_size
        try:
            return read_samples(answer, len(prompts), self.config.max_new_tokens, vocabulary)
        except UnreadableError as error:
            raise SamplerError(
                f"{server.name}: its answer does not hold one response to each of {len(prompts)} prompts ({error})"
            ) from None


def read_samples(
    answer: dict[str, Any], prompts: int, longest: int, vocabulary: int
) -> tuple[list[list[int]], list[list[float]]]:
    """Token ids and their log-probabilities, one response to each prompt in order; ``UnreadableError`` for all else."""
    try:
        choices = {choice["index"]: choice for choice in answer["choices"]}
        rows = [choices[index] for index in range(prompts)]
        ids = [list(row["token_ids"]) for row in rows]
        logprobs = [list(row["logprobs"]["token_logprobs"]) for row in rows]
    except (KeyError, TypeError) as error:
        raise UnreadableError(f"{type(error).__name__}: {error}") from None
    if len(answer["choices"]) != prompts:
        raise UnreadableError(f"{len(answer['choices'])} responses")
    for row, said in zip(ids, logprobs, strict=True):
        if not 0 < len(row) <= longest or len(said) != len(row):
            raise UnreadableError(f"{len(row)} tokens with {len(said)} log-probabilities")
        if not all(type(token) is int and 0 <= token < vocabulary for token in row):
            raise UnreadableError("what is no token of the model")
        if not all(type(value) in (int, float) and math.isfinite(value) for value in said):
            raise UnreadableError("what is no log-probability")
    return ids, logprobs
