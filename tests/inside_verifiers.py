"""Run by ``test_other_frameworks.py`` in an environment of verifiers: its own evaluation, with our taskset's reward."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fault_server import FaultServer
from tests.quoting_critic import CRITIC
from text2grad.integrations import verifiers


def reply(body: dict) -> tuple[int, dict[str, str], bytes]:
    """A policy's, as the server of an OpenAI-compatible API streams it."""
    text = "silence" if "quiet" in str(body["messages"]) else "a good and a bad one"
    common = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m"}
    parts = [({"role": "assistant", "content": text}, None), ({}, "stop")]
    rows = [{**common, "choices": [{"index": 0, "delta": delta, "finish_reason": end}]} for delta, end in parts]
    stream = "".join(f"data: {row}\n\n" for row in [*map(json.dumps, rows), "[DONE]"])
    return 200, {"Content-Type": "text/event-stream"}, stream.encode()


@pytest.mark.skipif(not shutil.which("uv"), reason="verifiers' harness starts by uv")
def test_an_evaluation_rewards_each_rollout_with_the_critics_verdict(tmp_path):
    module = [line.strip() for line in verifiers.__doc__.splitlines() if "FeedbackTaskset" in line]
    (tmp_path / "my_env.py").write_text("\n".join(module))  # the lines that the documentation asks for
    (tmp_path / "prompts.json").write_text(json.dumps([{"prompt": "ask"}, {"prompt": "be quiet"}]))
    command = [str(Path(sys.executable).with_name("vf-eval")), "my-env", "--env.taskset.data-path", "prompts.json"]
    command += ["--env.taskset.task.critic", CRITIC, "--model", "m", "--client.api-key-var", "KEY"]
    command += ["--env.agent.harness.id", "null", "--env.agent.runtime.type", "subprocess", "--no-push", "--no-rich"]
    path = f"{tmp_path}:{os.environ['PYTHONPATH']}"
    with FaultServer(lambda body: "", raw=reply) as server:
        done = subprocess.run(
            [*command, "--client.base-url", server.url], cwd=tmp_path, text=True, capture_output=True, timeout=600,
            env={**os.environ, "PYTHONPATH": path, "KEY": "none"}, check=False,
        )  # fmt: skip
    (traces,) = tmp_path.glob("outputs/*/traces.jsonl") or pytest.fail(done.stdout + done.stderr)
    rows = [json.loads(line) for line in traces.read_text().splitlines()]
    told, silent = sorted((row for each in rows for row in each.get("traces", [each])), key=lambda row: not row["ok"])
    assert told["rewards"]["verdict"]["score"] == pytest.approx(1 / 3)  # one quote is good, one poor
    assert told["info"]["text2grad"] == {"critique": "on ask", "good": ["good"], "poor": ["bad"]}
    assert silent["rewards"] == {"verdict": None} and "nothing to say" in silent["errors"][0]["message"]
