"""People's annotations from Label Studio: exact offsets however it counts, agreement, adjudication; and a real one."""

import json
import os
import random
import re
import uuid
from copy import copy, deepcopy
from typing import Any
from xml.etree import ElementTree

import pytest
import requests
from hypothesis import given, settings
from hypothesis import strategies as st

from rm_data_anno.adjudication import PersonsAnnotation, adjudicated, agreement, overlap
from rm_data_anno.label_studio import (
    LabelStudioConfig,
    annotated_record,
    elsewhere,
    read_export,
    write_records,
    write_tasks,
)
from rm_data_anno.text_offsets import CONVENTIONS, Convention, chosen_convention, interval, positions
from tests.processes import Server
from text2grad.errors import InputError
from text2grad.records import load_json, save_json
from text2grad.tasks import SpanWords, get_task

SCRIPT = "rm_data_anno/label_studio.py"
HOSTILE = [
    "Naïve 🐶🎉 dog.\r\nIt barks 🐶 all night…", "e\u0301te\u0301 and été are not the same\r\rbut look alike",
    "👩\u200d👩\u200d👧 a family\r\n\r\nof three 🇩🇪!", "我的室友从来不洗碗。\n我应该怎么办？𠮷",
    "plain text, plain text, plain text", "carriage returns before a break\r\r\nand two of them\r\r\r\n",
]  # fmt: skip
CODE_POINTS, UTF16 = Convention(False, False), Convention(True, False)


def offset(text: str, index: int, convention: Convention) -> int:
    """What precedes a character, counted by re-encoding it rather than one by one."""
    before = text[:index]
    if convention.one_newline:
        before = before.replace("\r\n", "\n")
        if text[index - 1 : index + 1] == "\r\n":
            before = before[:-1]
    return len(before.encode("utf-16-le")) // 2 if convention.utf16 else len(before)


def value(text: str, start: int, end: int, convention: Convention = CODE_POINTS, label: str = "good") -> dict:
    quoted = text[start:end]
    if convention.one_newline:
        quoted = quoted.replace("\r\n", "\n")
    a, b = (offset(text, index, convention) for index in (start, end))
    return {"start": a, "end": b, "text": quoted, "labels": [label]}


@settings(max_examples=300)
@given(st.data())
def test_a_span_comes_back_exactly_in_every_convention(data):
    text = data.draw(st.sampled_from(HOSTILE) | st.text(alphabet="ab 🐶é\u0301\r\n𠮷", min_size=2, max_size=30))
    convention = data.draw(st.sampled_from(CONVENTIONS))
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start + 1, len(text)))
    found = interval(value(text, start, end, convention), text, convention)
    cuts = [at for at in (start, end) if text[at - 1 : at + 1] == "\r\n" and at > 0]
    if not (convention.one_newline and cuts):  # nobody can mark half of a line break that counts as one
        assert found == (start, end)


def test_the_whole_export_decides_how_offsets_count():
    places = [(text, place) for text in HOSTILE for place in ((3, 9), (len(text) - 4, len(text)))]
    for convention in CONVENTIONS:
        marked = [(text, value(text, *place, convention)) for text, place in places]
        chosen = chosen_convention(marked)
        assert [(text, interval(each, text, chosen)) for text, each in marked] == places


def test_one_span_that_two_conventions_explain_takes_the_other_spans_side():
    text = "🐶aaaa"
    unclear = {"start": 2, "end": 3, "text": "a", "labels": ["good"]}
    with pytest.raises(InputError, match=r"may mean 2 places of 'a'.*--offsets code_points or utf16"):
        chosen_convention([(text, unclear)])
    clear = ("🐶 cat", {"start": 3, "end": 6, "text": "cat", "labels": ["good"]})
    assert interval(unclear, text, chosen_convention([(text, unclear), clear])) == (1, 2)  # UTF-16
    assert interval(unclear, text, chosen_convention([(text, unclear)], "code_points")) == (2, 3)


def test_offsets_that_are_not_their_text_are_refused():
    wrong = ("a good dog", {"start": 2, "end": 6, "text": "dog", "labels": ["good"]})
    with pytest.raises(InputError, match="offsets 2 to 6 are not 'dog' in 'a good dog'"):
        chosen_convention([wrong], source="export.json")
    assert positions("🐶\r\n", Convention(True, True)) == {0: 0, 2: 1, 3: 3}


def regions(response: str, critique: str, spans) -> list[dict]:
    """What a person submits in Label Studio's form."""
    about = {"from_name": "span", "to_name": "response", "type": "labels"}
    result = [about | {"value": value(response, a, b, UTF16, label)} for label, a, b in spans]
    critique = {"text": [critique]}
    return [*result, {"from_name": "critique", "to_name": "response", "type": "textarea", "value": critique}]


def exported(responses: dict[str, str], people: dict[str, dict[str, list]]) -> list[dict]:
    """An export in Label Studio's form: people -> record id -> [critique, *(label, start, end)]."""
    rows = []
    for record_id, response in responses.items():
        annotations = []
        for email, said in people.items():
            critique, *spans = said[record_id]
            about = {"id": len(annotations), "completed_by": {"email": email}}
            annotations.append(about | {"result": regions(response, critique, spans)})
        annotations.append({"id": 99, "was_cancelled": True, "completed_by": 1, "result": []})
        rows.append({"id": 1, "data": {"id": record_id, "response": response}, "annotations": annotations})
    return rows


POST = {"post": "My dog barks.", "generated_summary": "🐶 The dog barks at night, it is mean."}
SAID = {
    "a@x.org": ["Right about the dog.", ("good", 2, 15), ("poor", 26, 36)],
    "b@x.org": ["The last part is invented.", ("poor", 26, 36)],
}


def files(tmp_path):
    data, export = tmp_path / "responses.json", tmp_path / "export.json"
    save_json(data, {"t3_a": POST, "t3_b": {**POST, "post": "Other."}})
    people = {email: {"t3_a": rows} for email, rows in SAID.items()}
    save_json(export, exported({"t3_a": POST["generated_summary"]}, people))
    return data, export


def people_of(export, rows) -> list[PersonsAnnotation]:
    """Of an export that holds these rows."""
    export.write_text(json.dumps(rows))
    return read_export(export, {"t3_a": POST["generated_summary"]}).get("t3_a", [])


def test_there_and_back_with_exact_places_and_agreement(tmp_path, run_script):
    data, export = files(tmp_path)
    given, out = {"task": "slf5k", "data_path": data}, tmp_path / "annotated.json"
    run_script(SCRIPT, **given, output_path=tmp_path / "tasks.json")
    tasks = load_json(tmp_path / "tasks.json")
    assert tasks[0]["data"] == {"id": "t3_a", "prompt": "My dog barks.", "response": POST["generated_summary"]}
    assert '<Label value="poor"' in (tmp_path / "tasks.interface.xml").read_text()

    run_script(SCRIPT, **given, export=export, output_path=out)
    (record,) = load_json(out).values()
    assert (record["good_spans"], record["poor_spans"]) == ([], ["it is mean"])  # both say poor, only one says good
    assert record["textual_feedback"] == "Right about the dog.\nThe last part is invented."
    assert record["annotation"]["spans"] == [{"label": "poor", "start": 26, "end": 36}]
    report = load_json(f"{out}.report.json")
    # 13 + 10 characters of a, 10 of b, 10 shared
    assert report["agreement"]["span_overlap"] == round(2 * 10 / 33, 4)
    assert report["agreement"]["overlap_by_record"] == {"t3_a": round(2 * 10 / 33, 4)}
    assert (report["records"], report["without"], report["found_elsewhere"]) == (1, 1, 0)
    assert get_task("slf5k").feedback(record).poor == ["it is mean"]

    done = run_script(SCRIPT, **given, export=export, output_path=tmp_path / "critiques.json", spans="false")
    assert "--prompt human_feedback" in done.stdout  # critiques alone: a model is asked for the spans
    (record,) = load_json(tmp_path / "critiques.json").values()
    assert record == {**POST, "feedback": "Right about the dog.\nThe last part is invented."}


def test_who_decides_settles_it():
    text = "good and bad words"
    first = PersonsAnnotation("a", "One.", [("good", 0, 4)])
    second = PersonsAnnotation("b", "Two.", [("poor", 0, 8)], decides=True)
    third = PersonsAnnotation("c", "Three.", [("good", 0, 8), ("poor", 9, 12)])
    assert adjudicated([first, second, third], text) is second
    second.decides = False
    assert adjudicated([first, third, second], text).places == [("good", 0, 4)]
    assert adjudicated([first], text) is first


def test_missing_things_and_stars_come_back(tmp_path):
    rows = load_json(export := files(tmp_path)[1])
    for stars, annotation in zip((4, 1), rows[0]["annotations"], strict=False):
        typed = {"from_name": "missing", "type": "textarea", "value": {"text": ["why it barks"]}}
        annotation["result"] += [typed, {"from_name": "verdict", "type": "rating", "value": {"rating": stars}}]
    people = people_of(export, rows)
    assert [person.score for person in people] == [0.5, -1.0]
    assert all("why" not in person.critique for person in people)
    feedback = get_task("slf5k").feedback(annotated_record(get_task("slf5k"), POST, people, spans=True))
    assert (feedback.missing, feedback.score) == (["why it barks"], -0.25)
    rows[0]["annotations"][0]["result"][-1]["value"]["rating"] = 7
    with pytest.raises(InputError, match="rating"):
        people_of(export, rows)


def test_agreement_by_hand():
    responses = {"r": "ab cd"}
    marked = {"a": [("good", 0, 2)], "b": [("good", 0, 1), ("poor", 3, 5)]}
    people = [PersonsAnnotation(name, "c", places) for name, places in marked.items()]
    # characters a b c d: good good / good none / none poor / none poor: agreement 1, 0, 0, 0
    # shares: good 3/8, poor 2/8, none 3/8: chance 22/64; kappa (16/64 - 22/64) / (42/64)
    found = agreement({"r": people}, responses)
    assert found["fleiss_kappa"] == round(-6 / 42, 4)
    assert found["span_overlap"] == overlap(*people, 5) == 2 * 1 / 5
    assert agreement({"r": people[:1]}, responses) == {"records": 0}


def test_a_short_quote_that_training_would_find_elsewhere_is_counted():
    task = get_task("slf5k")
    record = {**POST, "generated_summary": "dog, dog"}
    record |= {"textual_feedback": "c", "good_spans": ["dog"], "poor_spans": []}
    record["annotation"] = {"spans": [{"label": "good", "start": 5, "end": 8}]}
    assert elsewhere(task, record) == 1
    record["annotation"]["spans"].append({"label": "poor", "start": 5, "end": 8})  # validation dropped it
    record["annotation"]["spans"][0].update(start=0, end=3)
    assert elsewhere(task, record) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows[0]["data"].update(id="t3_z"), "which is not in --data_path"),
        (lambda rows: rows[0]["data"].update(response="other"), "has another response"),
        (lambda rows: rows[0]["annotations"][0]["result"].pop(), "has no critique"),
        (lambda rows: rows[0]["annotations"][0]["result"][0]["value"].update(labels=["fine"]), "are good and poor"),
    ],
)  # fmt: skip
def test_exports_that_do_not_fit_are_refused(tmp_path, change, message):
    rows = load_json(export := files(tmp_path)[1])
    change(rows)
    with pytest.raises(InputError, match=message):
        people_of(export, rows)


def test_an_annotator_has_one_vote_however_often_they_submit(tmp_path):
    rows = load_json(export := files(tmp_path)[1])
    annotations = rows[0]["annotations"]
    again = [annotations[1] | {"id": 7 + n, "updated_at": f"2026-01-0{n + 1}T00:00:00Z"} for n in range(3)]
    annotations += [again[2], again[0], again[1]]
    again[2]["result"] = [{"type": "textarea", "value": {"text": ["The last word."]}}]
    people = people_of(export, rows)
    critiques = {person.annotator: person.critique for person in people}
    assert len(people) == 2 and critiques == {"a@x.org": "Right about the dog.", "b@x.org": "The last word."}
    assert agreement({"t3_a": people}, {"t3_a": POST["generated_summary"]})["annotators_each"] == 2
    for annotation in (annotations[0], again[1]):  # of a and b, whose own last one stands
        annotation["ground_truth"] = True
    again[1]["updated_at"], last = "2026-01-04T00:00:00Z", annotations[0] | {"id": 9, "updated_at": "2026-01-05"}
    assert people_of(export, [{**rows[0], "annotations": [*annotations, last]}])[-1].annotator == "a@x.org"
    assert len(people_of(export, [*rows, {**rows[0], "id": 2}])) == 2  # the same tasks were imported twice
    del annotations[0]["completed_by"]
    with pytest.raises(InputError, match="completed_by"):
        people_of(export, rows)


def test_code_is_marked_in_its_own_words(tmp_path):
    """What is good in code needs no mark: its tokens earn +1 anyway, and those of an improvable line 0."""
    record = {"question_id": "q", "question": "Add one.", "solution": "def f(x):\n    return x - 1", "log": ""}
    data, tasks, export = (tmp_path / name for name in ("records.json", "tasks.json", "export.json"))
    save_json(data, [record])
    task, given = get_task("kodcode"), {"data_path": str(data), "output_path": str(tasks)}
    write_tasks(task, LabelStudioConfig(**given))
    shown = (tmp_path / "tasks.interface.xml").read_text()
    assert '<Label value="improvable"' in shown and '<Label value="wrong"' in shown and 'value="$prompt"' in shown
    (about,) = (each["data"] for each in load_json(tasks))
    said = {"a@x.org": {about["id"]: ["Subtracts.", ("wrong", 14, 26)]}}
    save_json(export, exported({about["id"]: record["solution"]}, said))
    write_records(task, LabelStudioConfig(**{**given, "output_path": str(tmp_path / "a.json")}, export=str(export)))
    assert load_json(tmp_path / "a.json")[0]["wrong_code"] == ["return x - 1"]
    save_json(export, exported({about["id"]: record["solution"]}, {"a": {about["id"]: ["Fine.", ("good", 14, 26)]}}))
    with pytest.raises(InputError, match="labels are improvable and wrong"):
        write_records(task, LabelStudioConfig(**given, export=str(export)))
    other = copy(task)
    other.span_words = SpanWords('right & "clear"', "x < y")
    write_tasks(other, LabelStudioConfig(**given))
    labels = ElementTree.parse(tmp_path / "tasks.interface.xml").iter("Label")
    assert [label.get("value") for label in labels] == ['right & "clear"', "x < y"]


@pytest.mark.parametrize("place", [
    (), ("data",), ("data", "id"), ("annotations",), ("annotations", 0), ("annotations", 0, "ground_truth"),
    ("annotations", 0, "was_cancelled"), ("annotations", 0, "completed_by"), ("annotations", 0, "result"),
    ("annotations", 0, "result", 0), ("annotations", 0, "result", 0, "value"),
    ("annotations", 0, "result", 0, "value", "labels"), ("annotations", 0, "result", 0, "value", "start"),
    ("annotations", 0, "result", 0, "value", "text"), ("annotations", 0, "result", 2, "value", "text"),
], ids=repr)  # fmt: skip
def test_an_export_of_wrong_types_is_read_or_refused_and_never_believed(tmp_path, place):
    sound = load_json(export := files(tmp_path)[1])
    for wrong in [None, 3, "false", [], {}, [7], {"id": {}}, [[]], [None], "\ud800"]:
        within = rows = deepcopy(sound)
        for step in (0, *place[:-1]) if place else ():
            within = within[step]
        within[place[-1] if place else 0] = wrong
        try:
            people = people_of(export, rows)
        except InputError as error:
            assert str(export) in str(error), wrong
        else:
            assert not any(person.decides for person in people), wrong


# With a real Label Studio, and people who work in it through its API


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


def marks(response: str, seed: str) -> list[tuple[str, int, int]]:
    """Two spans that somebody might mark: from anywhere to anywhere, but no half of a line break."""
    draw = random.Random(seed)
    cuts = [at for at in range(len(response) + 1) if response[at - 1 : at + 1] != "\r\n" or at == 0]
    a, b, c, d = sorted(draw.sample(cuts, 4))
    return [("good", a, b), ("poor", c, d)]


@pytest.mark.slow
def test_a_real_server_gives_back_what_two_people_marked_in_fifty_records(tmp_path):
    """It takes our interface and tasks, and its export has the ids, offsets and authors that we read."""
    place = os.environ.get("TEXT2GRAD_LABEL_STUDIO")
    if not place:
        pytest.skip("set TEXT2GRAD_LABEL_STUDIO to the executable of an environment with `pip install label-studio`")
    responses = {f"t3_{n}": f"{HOSTILE[n % 5]} {n}" for n in range(50)}
    data, tasks, export = (tmp_path / f"{name}.json" for name in ("responses", "tasks", "export"))
    save_json(data, {key: {"post": f"Post {key}.", "generated_summary": text} for key, text in responses.items()})
    write_tasks(get_task("slf5k"), LabelStudioConfig(data_path=str(data), output_path=str(tasks)))
    interface = (tmp_path / "tasks.interface.xml").read_text()
    said: dict[str, list[PersonsAnnotation]] = {}
    command = [place, "start", "--no-browser", "--port", "PORT", "--data-dir", tmp_path]
    log = tmp_path / "server.log"
    with Server(command, log, health="/api/version", COLLECT_ANALYTICS="false", PYTHONPATH="") as server:
        people = [Person(server, f"{uuid.uuid4().hex}@example.org") for _ in range(2)]
        project = people[0].call("POST", "/api/projects", {"title": "summaries", "label_config": interface})["id"]
        people[0].call("POST", f"/api/projects/{project}/import", load_json(tasks))
        for task in people[1].call("GET", f"/api/tasks?project={project}&page_size=100")["tasks"]:
            record_id = task["data"]["id"]
            for person in people:
                critique = f"{record_id} {person.id}"
                places = marks(responses[record_id], critique)
                said.setdefault(record_id, []).append(PersonsAnnotation(str(person.id), critique, places))
                result = regions(responses[record_id], critique, places)
                person.call("POST", f"/api/tasks/{task['id']}/annotations/", {"result": result})
        save_json(export, people[0].call("GET", f"/api/projects/{project}/export?exportType=JSON"))
    assert len(said) == 50 and read_export(export, responses) == said
