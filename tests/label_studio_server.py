"""A real Label Studio for tests: started, or one that runs already; and people who work in it through its API."""

from __future__ import annotations

import http.cookiejar
import json
import os
import re
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any


class LabelStudio:
    """``with LabelStudio(place, folder) as server:``; ``place`` is its executable, or the address of a running one."""

    def __init__(self, place: str, folder: Path):
        self.process: subprocess.Popen | None = None
        self.folder = folder
        self.url = place.rstrip("/")
        if not place.startswith("http"):
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            self.url = f"http://127.0.0.1:{port}"
            command = [place, "start", "--no-browser", "--port", str(port), "--data-dir", str(folder)]
            environment = {**os.environ, "COLLECT_ANALYTICS": "false", "PYTHONPATH": ""}
            with (folder / "server.log").open("w") as log:
                self.process = subprocess.Popen(
                    command, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL
                )

    def __enter__(self) -> LabelStudio:
        end = time.monotonic() + 1500  # the first start makes its database
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}/api/version", timeout=10):
                    return self
            except OSError as error:
                if time.monotonic() > end or (self.process and self.process.poll() is not None):
                    self.__exit__()
                    raise AssertionError(f"Label Studio does not answer at {self.url}: {self._log()}") from error
                time.sleep(1)

    def __exit__(self, *_: object) -> None:
        if self.process:
            self.process.kill()
            self.process.wait()

    def _log(self) -> str:
        return (self.folder / "server.log").read_text(errors="replace")[-2000:] if self.process else "it runs already"


class Person:
    """Someone who signed up, with a browser's cookies."""

    def __init__(self, server: LabelStudio, email: str):
        self.url = server.url
        self.cookies = http.cookiejar.CookieJar()
        self.opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(self.cookies))
        page = self._open(urllib.request.Request(f"{self.url}/user/signup/")).decode()
        secret = re.search(r'csrfmiddlewaretoken" value="([^"]+)"', page)
        assert secret is not None
        form = {"email": email, "password": "a-long-password", "csrfmiddlewaretoken": secret[1]}
        data = urllib.parse.urlencode(form).encode()
        self._open(urllib.request.Request(f"{self.url}/user/signup/", data, {"Referer": self.url}))
        self.id = self.call("GET", "/api/current-user/whoami")["id"]

    def call(self, method: str, path: str, body: Any = None) -> Any:
        token = next((cookie.value for cookie in self.cookies if "csrf" in cookie.name.lower()), "")
        headers = {"Content-Type": "application/json", "Referer": self.url, "X-CSRFToken": token or ""}
        data = None if body is None else json.dumps(body).encode()
        return json.loads(self._open(urllib.request.Request(self.url + path, data, headers, method=method)) or b"null")

    def _open(self, request: urllib.request.Request) -> bytes:
        try:
            with self.opener.open(request, timeout=120) as response:
                return response.read()
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{request.full_url}: {error.code} {error.read()[:500]!r}") from None
