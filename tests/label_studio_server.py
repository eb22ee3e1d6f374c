"""A real Label Studio for tests, and people who work in it through its API."""

import re
from pathlib import Path
from typing import Any

import requests

from tests.processes import Server


def label_studio(executable: str, folder: Path) -> Server:
    command = [executable, "start", "--no-browser", "--port", "PORT", "--data-dir", folder]
    log = folder / "server.log"
    return Server(command, log, health="/api/version", COLLECT_ANALYTICS="false", PYTHONPATH="")


class Person:
    """Someone who signed up, with a browser's cookies."""

    def __init__(self, server: Server, email: str):
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
