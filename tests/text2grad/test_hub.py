"""``--push_to_hub`` of all three stages, against a local server that speaks as much of the hub's API as it takes."""

from __future__ import annotations

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import huggingface_hub.constants
import pytest

from nl_reward_model.train_rm import train
from tests.reward_records import settings, slf5k_records, write
from text2grad.errors import InputError
from text2grad.models.hub import check_repository, publish
from text2grad.records import save_json

TOKEN = "hf_a-token-for-this-test-alone"


class Hub:
    """Repositories by name; each holds its kind, whether it is private, and its files."""

    def __init__(self):
        self.repositories: dict[str, dict] = {}
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                    return self._send(401, {"error": "Invalid credentials"})
                return self._send(200, hub.answer(self.path.split("?")[0], data))

            def do_GET(self) -> None:
                self._send(404, {"error": "no such file"})

            do_HEAD = do_GET  # noqa: N815 (the library's name)

            def _send(self, status: int, value: dict) -> None:
                content = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, path: str, data: bytes) -> dict:
        if path == "/api/repos/create":
            asked = json.loads(data)
            name = f"{asked['organization']}/{asked['name']}" if asked.get("organization") else asked["name"]
            kind = asked.get("type", "model")
            private = asked.get("private") or asked.get("visibility") == "private"
            self.repositories.setdefault(name, {"kind": kind, "private": private, "files": {}})
            prefix = "datasets/" if kind == "dataset" else ""
            return {"url": f"{self.url}/{prefix}{name}", "name": name, "id": "1"}
        if path == "/api/validate-yaml":
            return {"errors": [], "warnings": []}
        _, _, _, owner, name, action, *_ = path.split("/")
        repository = self.repositories[f"{owner}/{name}"]
        if action == "preupload":
            files = json.loads(data)["files"]
            return {"files": [{"path": each["path"], "uploadMode": "regular", "shouldIgnore": False} for each in files]}
        for line in map(json.loads, data.decode().splitlines()):
            if line["key"] == "file":
                repository["files"][line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            else:
                repository["message"] = line["value"]["summary"]
        return {"commitUrl": f"{self.url}/{owner}/{name}/commit/1", "commitOid": "1"}


@pytest.fixture
def hub(monkeypatch):
    found = Hub()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_ENDPOINT", found.url)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    yield found
    found.server.shutdown()


def test_a_reward_model_goes_with_its_prompt_and_card(hub, tmp_path):
    data = write(tmp_path, slf5k_records(2))
    config = settings(tmp_path, data, max_steps=1, validation_share=0.0, push_to_hub=True, hub_model_id="me/judge")
    train("slf5k", config)
    files = hub.repositories["me/judge"]["files"]
    assert {
        "README.md",
        "reward_model.json",
        "reward_prompt.txt",
        "model.safetensors",
        "tokenizer.json",
    } <= files.keys()
    assert b"# A reward model for slf5k" in files["README.md"]
    assert files["model.safetensors"] == (tmp_path / "reward_model" / "model.safetensors").read_bytes()
    assert hub.repositories["me/judge"] | {"files": 0} == {
        "kind": "model", "private": True, "files": 0, "message": "A reward model for slf5k",
    }  # fmt: skip


def test_annotated_data_goes_with_a_card_that_says_who_judged(hub, tmp_path, run_script):
    rows = [{"prompt": "x", "response": f"good {n}"} for n in range(3)]
    save_json(tmp_path / "rows.json", rows)
    (tmp_path / "critic.py").write_text(
        "from text2grad.feedback import Feedback\n\ndef judge(prompt, response):\n    return Feedback('c', ['good'])\n"
    )
    arguments = ("--task", "plain", "--data_path", tmp_path / "rows.json", "--output_path", tmp_path / "out.json")
    critic = f"{tmp_path}/critic.py:judge"
    done = run_script("rm_data_anno/annotate.py", *arguments, "--critic", critic, "--push_to_hub", "me/data")
    assert done.returncode == 0, done.stderr
    assert TOKEN not in done.stdout + done.stderr
    files = hub.repositories["me/data"]["files"]
    assert files.keys() == {"README.md", "train.json", "report.json"}
    assert [row["good_spans"] for row in json.loads(files["train.json"])] == [["good"]] * 3
    card = files["README.md"].decode()
    assert "critic.py:judge" in card and "- records: 3 annotated, 0 failed" in card and "- cost: none" in card
    assert hub.repositories["me/data"]["kind"] == "dataset"


def test_a_refused_upload_keeps_the_files_and_says_what_to_do(hub, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_a-wrong-token-that-must-not-be-shown")
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(InputError, match="the upload failed") as refused:
        publish({"a.txt": tmp_path / "a.txt"}, "me/thing", "model", "m")
    assert "Check HF_TOKEN" in str(refused.value) and "must-not-be-shown" not in str(refused.value)
    assert (tmp_path / "a.txt").exists()
    for name in ("thing", "a/b/c", "https://x/y", "../y"):
        with pytest.raises(InputError, match="write owner/name"):
            check_repository(name)
