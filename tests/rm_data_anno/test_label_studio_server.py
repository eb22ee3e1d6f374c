"""People's feedback through the stages, in the real Label Studio, by its API."""

import os
import random
import re
import uuid
from pathlib import Path
from typing import Any

import pytest
import requests

from nl_reward_model.train_rm import train
from rm_data_anno.adjudication import PersonsAnnotation, adjudicated
from rm_data_anno.label_studio import INTERFACE
from tests.processes import Server
from tests.reward_records import settings
from tests.rm_data_anno.test_label_studio import HOSTILE, regions
from text2grad.records import load_json, save_json


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


SCRIPT = "rm_data_anno/label_studio.py"


def marks(response: str, seed: str) -> list[tuple[str, int, int]]:
    """Two spans that somebody might mark: from anywhere to anywhere, but no half of a line break."""
    draw = random.Random(seed)
    cuts = [at for at in range(len(response) + 1) if response[at - 1 : at + 1] != "\r\n" or at == 0]
    a, b, c, d = sorted(draw.sample(cuts, 4))
    return [("good", a, b), ("poor", c, d)]


@pytest.mark.slow
def test_fifty_records_two_annotators_and_a_step_of_training(tmp_path, run_script):
    place = os.environ.get("TEXT2GRAD_LABEL_STUDIO")
    if not place:
        pytest.skip("set TEXT2GRAD_LABEL_STUDIO to the executable of an environment with `pip install label-studio`")
    data, out = tmp_path / "responses.json", tmp_path / "annotated.json"
    records = {f"t3_{n}": {"post": f"Post {n}.", "generated_summary": f"{HOSTILE[n % 5]} {n}"} for n in range(50)}
    save_json(data, records)
    arguments = ("--task", "slf5k", "--data_path", data)
    run_script(SCRIPT, *arguments, "--output_path", tmp_path / "tasks.json")
    said: dict[str, list[PersonsAnnotation]] = {}
    with label_studio(place, tmp_path) as server:
        people = [Person(server, f"{uuid.uuid4().hex}@example.org") for _ in range(2)]
        project = people[0].call("POST", "/api/projects", {"title": "summaries", "label_config": INTERFACE})["id"]
        people[0].call("POST", f"/api/projects/{project}/import", load_json(tmp_path / "tasks.json"))
        tasks = people[1].call("GET", f"/api/tasks?project={project}&page_size=100")["tasks"]
        assert len(tasks) == 50
        for task in tasks:
            record_id = task["data"]["id"]
            response = records[record_id]["generated_summary"]
            for number, person in enumerate(people):
                spans = marks(response, f"{record_id} {number}")
                said.setdefault(record_id, []).append(PersonsAnnotation(str(person.id), f"{record_id} {number}", spans))
                result = regions(response, f"{record_id} {number}", spans)
                person.call("POST", f"/api/tasks/{task['id']}/annotations/", {"result": result})
        export = people[0].call("GET", f"/api/projects/{project}/export?exportType=JSON")
    save_json(tmp_path / "export.json", export)
    run_script(SCRIPT, *arguments, "--export", tmp_path / "export.json", "--output_path", out)

    annotated = load_json(out)
    assert list(annotated) == list(records)
    for record_id, record in annotated.items():
        wanted = adjudicated(said[record_id], records[record_id]["generated_summary"])
        found = [(each["label"], each["start"], each["end"]) for each in record["annotation"]["spans"]]
        assert found == sorted(wanted.places, key=lambda mark: mark[1:])
        assert record["textual_feedback"] == wanted.critique
        for label in ("good", "poor"):
            assert all(quote in records[record_id]["generated_summary"] for quote in record[f"{label}_spans"])
    report = load_json(f"{out}.report.json")
    assert report["agreement"]["records"] == 50 and report["agreement"]["annotators_each"] == 2
    assert any(record["good_spans"] or record["poor_spans"] for record in annotated.values())
    train("slf5k", settings(tmp_path, str(out), max_steps=1))
    assert (tmp_path / "reward_model" / "reward_model.json").is_file()
