"""vLLM servers for tests: the real one, and a small one with the same four requests that can misbehave."""

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.fault_server import JsonHandler, LocalServer
from tests.processes import ROOT, Server
from text2grad.models import load_model
from text2grad.models.decoder import Decoder


class StandIn(LocalServer):
    """``with StandIn(model) as server:`` answers at ``server.url`` until the block ends, as vLLM does with adapters.

    It loads the adapters that it is given and samples from them, with this project's decoder.

    Args:
        stale: keep sampling from the first adapter, under whatever name is asked for.
        longest: what it says its limit of tokens is.
        highest_rank: adapters of a higher rank are refused.
    """

    def __init__(self, model: str, stale: bool = False, longest: int = 4096, highest_rank: int = 16, port: int = 0):
        self.model, self.stale, self.longest, self.highest_rank = model, stale, longest, highest_rank
        self.decoders: dict[str, Decoder] = {}
        self.loaded: list[str] = []
        self.asked: list[dict[str, Any]] = []
        self._first: Decoder | None = None
        self._lock = threading.Lock()
        super().__init__(self._handler(), port)

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Status and answer, in vLLM's words."""
        if path == "/v1/models":
            base = {"id": "base", "max_model_len": self.longest}
            return 200, {"data": [base, *({"id": name} for name in self.decoders)]}
        if path == "/v1/load_lora_adapter":
            return self._load(body["lora_name"], Path(body["lora_path"]))
        if path == "/v1/unload_lora_adapter":
            known = self.decoders.pop(body["lora_name"], None)
            return (200, "removed") if known else (404, f"The lora adapter {body['lora_name']!r} cannot be found.")
        return self._complete(body)

    def _load(self, name: str, folder: Path) -> tuple[int, Any]:
        if name in self.decoders:
            return 400, f"The lora adapter {name!r} has already been loaded."
        if json.loads((folder / "adapter_config.json").read_text())["r"] > self.highest_rank:
            return 400, f"LoRA rank is greater than max_lora_rank {self.highest_rank}."
        decoder = Decoder(load_model(str(folder), "float32").get_base_model())
        self._first = self._first or decoder
        self.decoders[name] = decoder
        self.loaded.append(name)
        return 200, "added"

    def _complete(self, body: dict[str, Any]) -> tuple[int, Any]:
        self.asked.append(body)
        decoder = self._first if self.stale else self.decoders.get(body["model"])
        if decoder is None:
            return 404, f"The model {body['model']!r} does not exist."
        rows = decoder.sample(
            body["prompt"], body["max_tokens"], body["stop_token_ids"], temperature=body["temperature"]
        )
        choices = [
            {"index": index, "token_ids": row.ids, "logprobs": {"token_logprobs": row.logprobs}}
            for index, row in enumerate(rows)
        ]
        return 200, {"model": body["model"], "choices": choices[::-1]}

    def _handler(self) -> type[JsonHandler]:
        server = self

        class Handler(JsonHandler):
            def reply(self) -> None:
                body = json.loads(self.read() or "{}")
                with server._lock:
                    status, answer = server.answer(self.path, body)
                self.send_json(status, answer)

            do_GET = do_POST = reply  # noqa: N815

        return Handler


def vllm_server(model: str, folder: Path, *flags: str) -> Server:
    """vLLM itself, by ``serve_vllm.sh``; the test is skipped where there is no environment with it."""
    real_vllm()
    script = ROOT / "nl_gradient_policy_optimization" / "serve_vllm.sh"
    command = ["bash", script, model, "--port", "PORT", "--max-model-len", "1024", *flags]
    return Server(command, folder / "vllm.log", VENV=str(Path(sys.executable).parent.parent), OMP_NUM_THREADS="1")


def real_vllm() -> None:
    """Skip the test where there is no environment with vLLM."""
    folder = Path(os.environ.get("VLLM_VENV") or ROOT / ".venv-vllm")
    if not (folder / "bin" / "python").exists():
        pytest.skip("no vLLM; run `bash env.sh --vllm`, or set VLLM_VENV")
