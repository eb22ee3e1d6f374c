"""An OpenAI-compatible server that misbehaves on purpose: for tests of whoever talks to one.

It runs in a thread of the test. ``answer(body) -> str`` writes the replies; ``faults`` says which of them go wrong and
how; ``requests`` holds every body that arrived.
"""

import itertools
import json
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from email.parser import BytesParser
from email.policy import HTTP
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

FAULTS = ("429", "500", "reset", "stall", "half_body", "cut_off", "prose", "wrong_schema", "empty", "no_choices")


@contextmanager
def bare_server(answer: Callable[[socket.socket, int], None]) -> Iterator[str]:
    """The address of a server that leaves each connection, and its number from 0, to ``answer``, and then closes it."""

    def serve() -> None:
        for number in itertools.count():
            try:
                connection, _ = listening.accept()
                with connection:
                    answer(connection, number)
            except OSError:  # the client or the test has gone
                return

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


class _Http(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """A client that was killed is no news here."""


class LocalServer:
    """Answers at ``url``, in threads of this process, while its ``with`` block lasts."""

    def __init__(self, handler: type[BaseHTTPRequestHandler], port: int = 0):
        self._http = _Http(("127.0.0.1", port), handler)
        self.port = self._http.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self):
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()


class JsonHandler(BaseHTTPRequestHandler):
    """Answers in JSON and logs nothing."""

    def log_message(self, *_: object) -> None:
        pass

    def read(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def send_json(self, status: int, value: object, headers: Mapping[str, str] | None = None) -> None:
        self.send(status, json.dumps(value).encode(), headers)

    def send(self, status: int, content: bytes | Iterable[bytes], headers: Mapping[str, str] | None = None) -> None:
        """Content in one piece has its length told; after many the connection ends."""
        parts, told = content, {"Content-Type": "application/json"}
        if isinstance(content, bytes):
            parts, told["Content-Length"] = [content], str(len(content))
        else:
            self.close_connection = True
        self.send_response(status)
        for name, value in {**told, **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        for part in parts:
            self.wfile.write(part)
            self.wfile.flush()


class FaultServer(LocalServer):
    """``with FaultServer(answer) as server:`` serves ``server.url`` until the block ends.

    Args:
        answer: the text of the reply to a request's JSON body.
        faults: kinds that occur.
        rate: share of requests at which one occurs.
        refuses: request parameters that are answered with HTTP 400.
        key: the API key that is asked for.
        batch_delay: status requests that a batch stays unfinished for.
        on_request: called with each body before it is answered.
        raw: ``(status, headers, body)`` of a whole answer, the body in one piece or in many; None for an ordinary one.
    """

    def __init__(
        self, answer: Callable[[dict], str], *, faults: Sequence[str] = FAULTS, rate: float = 0.0, seed: int = 0,
        refuses: Sequence[str] = (), key: str | None = None, stall: float = 5.0, retry_after: float = 0.2,
        batch_delay: int = 1, on_request: Callable[[dict], None] = lambda body: None,
        raw: Callable[[dict], tuple[int, dict[str, str], bytes | Iterable[bytes]] | None] = lambda body: None,
    ):  # fmt: skip
        self.answer, self.faults, self.rate, self.refuses, self.key = answer, faults, rate, refuses, key
        self.stall, self.retry_after, self.batch_delay, self.on_request = stall, retry_after, batch_delay, on_request
        self.raw = raw
        self.down = False  # every connection is reset
        self.requests: list[dict] = []
        self.times: list[float] = []
        self.headers: list[dict[str, str]] = []
        self.faults_made: dict[str, int] = {}
        self.files: dict[str, bytes] = {}
        self.batches: dict[str, dict] = {}
        self.flying = self.most_flying = 0
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        super().__init__(self._handler())
        self.url += "/v1"

    def completion(self, body: dict) -> dict[str, Any]:
        """The well-behaved answer to a request."""
        text = self.answer(body)
        limit = body.get("max_tokens") or body.get("max_completion_tokens") or 10**9
        words = text.split(" ")
        message = {"role": "assistant", "content": " ".join(words[:limit])}
        choice = {"index": 0, "finish_reason": "length" if len(words) > limit else "stop", "message": message}
        read = sum(len(m["content"]) // 4 for m in body["messages"])
        value: dict[str, Any] = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": body["model"]}
        value |= {"choices": [choice], "usage": {"prompt_tokens": read, "completion_tokens": len(words)}}
        if body.get("logprobs"):
            tokens = [{"token": w, "logprob": -0.5, "bytes": None} for w in words[:limit]]
            content = [{**t, "top_logprobs": [t, {**t, "token": "other", "logprob": -1.5}]} for t in tokens]
            value["choices"][0]["logprobs"] = {"content": content, "refusal": None}
        return value

    def _next_fault(self) -> str | None:
        with self._lock:
            if self._random.random() >= self.rate:
                return None
            fault = self.faults[sum(self.faults_made.values()) % len(self.faults)]  # in turn, so that all occur
            self.faults_made[fault] = self.faults_made.get(fault, 0) + 1
            return fault

    def _run_batch(self, batch: dict) -> None:
        """Answer every request of a batch file; those at fault end in the error file."""
        good, bad = [], []
        for line in self.files[batch["input_file_id"]].decode().splitlines():
            row = json.loads(line)
            with self._lock:
                self.requests.append(row["body"])
            refused = next((name for name in self.refuses if name in row["body"]), None)
            if refused or self._next_fault():
                message = f"Unsupported parameter: '{refused}'" if refused else "the model stumbled"
                response = {"status_code": 400 if refused else 500, "body": {"error": {"message": message}}}
                bad.append({"custom_id": row["custom_id"], "response": response, "error": None})
            else:
                response = {"status_code": 200, "body": self.completion(row["body"])}
                good.append({"custom_id": row["custom_id"], "response": response, "error": None})
        for name, rows in (("output_file_id", good), ("error_file_id", bad)):
            if rows:
                batch[name] = self._store("".join(json.dumps(row) + "\n" for row in reversed(rows)).encode())
        batch["status"] = "completed"

    def _store(self, content: bytes) -> str:
        with self._lock:
            name = f"file-{len(self.files)}"
            self.files[name] = content
            return name

    def _handler(server) -> type[BaseHTTPRequestHandler]:  # noqa: N805 (``self`` is the handler's below)
        class Handler(JsonHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # headers and body are two writes: 40 ms apart otherwise

            def do_GET(self) -> None:
                parts = self.path.split("?")[0].strip("/").split("/")[1:]
                if parts[0] == "files":
                    self.send(200, server.files[parts[1]], {"Content-Type": "application/octet-stream"})
                elif len(parts) == 1:
                    self.send_json(200, {"object": "list", "data": list(server.batches.values()), "has_more": False})
                else:
                    batch = server.batches[parts[1]]
                    if batch["status"] == "in_progress":
                        batch["polls"] += 1
                        if batch["polls"] > server.batch_delay:
                            server._run_batch(batch)
                    self.send_json(200, batch)

            def do_POST(self) -> None:
                data = self.read()
                if self.path == "/v1/files":
                    self.send_json(200, self._upload(data))
                elif self.path == "/v1/batches":
                    self.send_json(200, self._batch(json.loads(data)))
                elif self.path == "/v1/chat/completions":
                    self._complete(json.loads(data))
                else:
                    self._error(404, f"no such address: {self.path}")

            def _upload(self, data: bytes) -> dict:
                head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
                parts = BytesParser(policy=HTTP).parsebytes(head + data).iter_parts()
                content = next(p for p in parts if "filename" in p["Content-Disposition"]).get_payload(decode=True)
                name = server._store(content)
                about = {"object": "file", "bytes": len(content), "purpose": "batch", "filename": "batch.jsonl"}
                return {"id": name, **about}

            def _batch(self, body: dict) -> dict:
                name = f"batch_{len(server.batches)}"
                server.batches[name] = {"id": name, "object": "batch", "status": "in_progress", "polls": 0, **body}
                return server.batches[name]

            def _complete(self, body: dict) -> None:
                if server.down:
                    return self._reset()
                with server._lock:
                    server.requests.append(body)
                    server.times.append(time.monotonic())
                    server.headers.append({name.lower(): value for name, value in self.headers.items()})
                    server.flying += 1
                    server.most_flying = max(server.most_flying, server.flying)
                try:
                    server.on_request(body)
                    self._answer(body)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True
                finally:
                    with server._lock:
                        server.flying -= 1

            def _answer(self, body: dict) -> None:
                given = self.headers.get("Authorization", "").removeprefix("Bearer ")
                if server.key and given != server.key:
                    return self._error(401, f"Incorrect API key provided: {given}")
                for name in server.refuses:
                    if name in body:
                        return self._error(400, f"Unsupported parameter: '{name}'", param=name)
                fault = server._next_fault()
                if fault == "429":
                    return self._error(429, f"slow down, {given}", headers={"Retry-After": str(server.retry_after)})
                if fault == "quota":
                    return self._error(429, "You exceeded your current quota", code="insufficient_quota")
                if fault == "500":
                    return self._error(500, "the model fell over")
                if fault == "reset":
                    return self._reset()
                if fault == "stall":
                    time.sleep(server.stall)
                    self.close_connection = True
                    return None
                if raw := server.raw(body):
                    status, headers, content = raw
                    return self.send(status, content, headers)
                value = server.completion(body)
                message = value["choices"][0]["message"]
                text = message["content"]
                if fault == "half_body":
                    data = json.dumps(value).encode()
                    return self.send(200, [data[: len(data) // 2]], {"Content-Length": str(len(data))})
                if fault == "cut_off":
                    message["content"] = text[: int(len(text) * 0.7)]
                    value["choices"][0]["finish_reason"] = "length"
                elif fault == "prose":
                    message["content"] = f"Certainly! Here you go:\n```json\n{text}\n```\nDoes that {{help}}?"
                elif fault == "wrong_schema":
                    message["content"] = json.dumps({"verdict": "fine", "textual_feedback": ["no", "text"]})
                elif fault == "empty":
                    message["content"] = ""
                elif fault == "no_choices":
                    value["choices"] = []
                return self.send_json(200, value)

            def _reset(self) -> None:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
                self.close_connection = True

            def _error(self, status: int, message: str, headers: dict | None = None, **details: str) -> None:
                error = {"message": message, "param": None, "code": None, **details}
                self.send_json(status, {"error": error}, headers)

        return Handler
