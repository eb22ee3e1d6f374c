"""A real Label Studio for tests: started, or one that runs already; and people who work in it through its API."""

import os
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import requests

from tests.processes import free_port


class LabelStudio:
    """``with LabelStudio(place, folder) as server:``; ``place`` is its executable, or the address of a running one."""

    def __init__(self, place: str, folder: Path):
        self.process: subprocess.Popen | None = None
        self.folder = folder
        self.url = place.rstrip("/")
        if not place.startswith("http"):
            port = free_port()
            self.url = f"http://127.0.0.1:{port}"
            command = [place, "start", "--no-browser", "--port", str(port), "--data-dir", str(folder)]
            environment = {**os.environ, "COLLECT_ANALYTICS": "false", "PYTHONPATH": ""}
            with (folder / "server.log").open("w") as log:
                self.process = subprocess.Popen(
                    command, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL
                )

    def __enter__(self):
        end = time.monotonic() + 1500  # the first start makes its database
        while True:
            try:
                requests.get(f"{self.url}/api/version", timeout=10).raise_for_status()
                return self
            except requests.RequestException as error:
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
        self.url, self.browser = server.url, requests.Session()
        page = f"{self.url}/user/signup/"
        secret = re.search(r'csrfmiddlewaretoken" value="([^"]+)"', self.browser.get(page, timeout=120).text)
        form = {"email": email, "password": "a-long-password", "csrfmiddlewaretoken": secret[1]}
        self.browser.post(page, form, headers={"Referer": self.url}, timeout=120).raise_for_status()
        self.id = self.call("GET", "/api/current-user/whoami")["id"]

    def call(self, method: str, path: str, body: Any = None) -> Any:
        token = next((cookie.value for cookie in self.browser.cookies if "csrf" in cookie.name.lower()), "")
        headers = {"Referer": self.url, "X-CSRFToken": token}
        answer = self.browser.request(method, self.url + path, json=body, headers=headers, timeout=120)
        assert answer.ok, f"{path}: {answer.status_code} {answer.text[:500]}"
        return answer.json() if answer.content else None
