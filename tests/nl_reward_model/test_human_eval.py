"""Forms for people: what they show, what a browser exports, and the agreement that is read back."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from sklearn.metrics import cohen_kappa_score

from nl_reward_model.measures.human_eval import (
    AgreeConfig,
    PrepareConfig,
    agreement,
    agreement_table,
    form_item,
    measure_agreement,
    write_forms,
)
from text2grad.errors import InputError
from text2grad.feedback import Feedback
from text2grad.records import load_json, save_json
from text2grad.tasks import get_task

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def feedback_file(folder: Path, count: int = 8) -> Path:
    """slf5k feedback, one row of it unreadable."""
    task, rows = get_task("slf5k"), {}
    for number in range(count):
        response = f"She lost her job {number} </script><b>& wants “help” 🐶 now."
        feedback = Feedback(
            f"Critique {number} <i>here</i>.", ["lost her job"], ["now", "nowhere at all"][: number + 1]
        )
        rows[f"r{number}"] = {
            "post": f"post {number // 2}",
            "generated_summary": response,
            "predicted": task.fields.to_dict(feedback) if number else None,
        }
    save_json(folder / "feedback.json", rows)
    return folder / "feedback.json"


def made(folder: Path, **options) -> tuple[list[Path], dict]:
    config = {"task": "slf5k", "data_path": str(feedback_file(folder)), "output_dir": str(folder / "forms"), **options}
    paths = write_forms(PrepareConfig(**config))
    return paths, load_json(folder / "forms" / "sample.json")


def data_of(path: Path) -> dict:
    """What the page's own script will read."""
    return json.loads(re.search(r'id="data">(.*?)</script>', path.read_text(encoding="utf-8"), re.DOTALL).group(1))


def test_all_annotators_grade_the_same_in_orders_of_their_own(tmp_path):
    paths, sample = made(tmp_path)
    forms = [data_of(path) for path in paths]
    assert [form["annotator"] for form in forms] == ["annotator-1", "annotator-2", "annotator-3"]
    orders = [[item["id"] for item in form["items"]] for form in forms]
    assert len({tuple(order) for order in orders}) == 3
    assert {frozenset(order) for order in orders} == {frozenset(f"r{number}" for number in range(1, 8))}
    assert sample["left_out"] == {"unread": 1, "quotes not in the response": 7}
    assert all(form["form"] == sample["form"] for form in forms)
    assert "http" not in re.sub(r'id="data">.*?</script>', "", paths[0].read_text(encoding="utf-8"), flags=re.DOTALL)


def test_the_sample_has_the_size_asked_for_and_depends_on_the_seed_alone(tmp_path):
    _, first = made(tmp_path, count=4)
    _, again = made(tmp_path, count=4)
    _, other = made(tmp_path, count=4, seed=1)
    assert len(first["items"]) == 4 and first == again
    assert [item["id"] for item in first["items"]] != [item["id"] for item in other["items"]]


def test_pieces_put_together_are_the_response_and_each_span_is_marked():
    task = get_task("slf5k")
    record = {"post": "p", "generated_summary": "one two three four. two"}
    feedback = Feedback("c", ["two three", "three four"], ["three", "five"])
    item, lost = form_item("r", record, feedback, task)
    assert lost == 1
    assert "".join(piece for piece, _ in item["pieces"]) == "one two three four. two"
    marked = {
        span["quote"]: "".join(piece for piece, ids in item["pieces"] if span["id"] in ids) for span in item["spans"]
    }
    assert marked == {"two three": "two three", "three four": "three four", "three": "three"}
    assert ["three", ["good:0", "good:1", "poor:2"]] in item["pieces"]


def test_code_is_shown_with_its_tests_and_log():
    record = {"question": "q", "solution": "x = 1\n", "test": "assert x", "log": "1 passed"}
    item, _ = form_item("r", record, Feedback("c", [], ["x = 1"]), get_task("kodcode"))
    assert [part["title"] for part in item["context"]] == ["Task", "Tests", "Log of the tests"]


def exported(folder: Path, sample: dict, name: str, choose) -> str:
    """An export with ``choose(kind, number)`` for each question, None for no answer."""
    answers, number = {}, 0
    for item in sample["items"]:
        spans = {}
        for span in item["spans"]:
            value = choose(span["id"].split(":")[0], number)
            number += 1
            if value is not None:
                spans[span["id"]] = value
        answers[item["id"]] = {"critique": choose("critique", number), "spans": spans, "comment": ""}
    path = folder / f"{name}.answers.json"
    save_json(path, {"form": sample["form"], "annotator": name, "answers": answers})
    return str(path)


def test_agreement_is_what_is_counted_by_hand(tmp_path):
    _, sample = made(tmp_path)  # seven responses with two grounded spans each, good first
    files = [
        exported(tmp_path, sample, "a", lambda kind, number: kind != "poor"),
        exported(tmp_path, sample, "b", lambda kind, number: True),
        exported(tmp_path, sample, "c", lambda kind, number: None if kind == "critique" else number % 4 < 2),
    ]
    result = measure_agreement(AgreeConfig(str(tmp_path / "forms"), files))
    critique, spans, poor = (result["figures"][kind] for kind in ("critique", "spans", "poor"))
    assert critique["questions"] == 7 and critique["unanswered"] == {"a": 0, "b": 0, "c": 7}
    assert critique["answered_by_all"] == 0 and critique["fleiss_kappa"] is None
    assert critique["accuracy"]["a"]["value"] == 1 and critique["accuracy"]["c"]["value"] is None
    assert spans["questions"] == 14
    assert spans["accuracy"]["a"]["value"] == pytest.approx(0.5)
    assert spans["accuracy"]["c"]["value"] == pytest.approx(8 / 14, abs=1e-6)
    # a: + - + - …, b: all +, c: + + - - …: the majority errs only where a and c both say no
    assert spans["accuracy"]["majority"]["value"] == pytest.approx(11 / 14, abs=1e-6)
    assert spans["all_agree"] == pytest.approx(4 / 14, abs=1e-6)
    a, c = [number % 2 == 0 for number in range(14)], [number % 4 < 2 for number in range(14)]
    assert spans["cohen_kappa"]["a, c"] == pytest.approx(cohen_kappa_score(a, c), abs=1e-6)
    assert poor["accuracy"]["a"]["value"] == 0
    assert load_json(tmp_path / "forms" / "agreement.json") == result
    assert "| spans | 14 |" in agreement_table(result) and "unanswered: c 7" in agreement_table(result)


def test_fleiss_kappa_of_answers():
    table = {"a": [True, True, False, False], "b": [True, True, False, True], "c": [True, False, False, True]}
    # counts right/wrong 3/0, 2/1, 0/3, 2/1: P = (1 + 1/3 + 1 + 1/3)/4, Pe = (7/12)² + (5/12)²
    observed, chance = (1 + 1 / 3 + 1 + 1 / 3) / 4, (7 / 12) ** 2 + (5 / 12) ** 2
    got = agreement(table, ["p", "q", "r", "s"])
    assert got["fleiss_kappa"] == pytest.approx((observed - chance) / (1 - chance), abs=1e-6)


def test_exports_that_do_not_belong_are_refused(tmp_path):
    _, sample = made(tmp_path)
    mine = exported(tmp_path, sample, "a", lambda kind, number: True)
    forms = str(tmp_path / "forms")
    with pytest.raises(InputError, match="answered twice"):
        measure_agreement(AgreeConfig(forms, [mine, mine]))
    other = exported(tmp_path, sample | {"form": "another"}, "b", lambda kind, number: True)
    with pytest.raises(InputError, match="belongs to other forms"):
        measure_agreement(AgreeConfig(forms, [other]))
    odd = exported(tmp_path, sample, "c", lambda kind, number: "maybe")
    with pytest.raises(InputError, match="neither right nor wrong"):
        measure_agreement(AgreeConfig(forms, [odd]))
    save_json(tmp_path / "x.json", {"a": 1})
    with pytest.raises(InputError, match="no export"):
        measure_agreement(AgreeConfig(forms, [str(tmp_path / "x.json")]))
    with pytest.raises(InputError, match="used in a file name"):
        PrepareConfig("slf5k", "x", "y", annotators=["a/b"])


def test_the_script_prepares_and_agrees(tmp_path, run_script):
    script = "nl_reward_model/measures/human_eval.py"
    made_forms = run_script(
        script, "prepare", "--task", "slf5k", "--data_path", feedback_file(tmp_path), "--output_dir", tmp_path / "forms"
    )
    assert made_forms.returncode == 0, made_forms.stderr
    sample = load_json(tmp_path / "forms" / "sample.json")
    files = [exported(tmp_path, sample, name, lambda kind, number: kind == "good") for name in "ab"]
    done = run_script(script, "agree", "--output_dir", tmp_path / "forms", "--answers", *files)
    assert done.returncode == 0, done.stderr
    assert "| good | 7 | 1.000 [1.000, 1.000] |" in done.stdout
    assert run_script(script).returncode == 2


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium")
def test_a_browser_keeps_answers_and_exports_them(tmp_path):
    """Fill in the form by its own buttons, load it anew, and export what it kept."""
    paths, _ = made(tmp_path, count=3)
    text = paths[0].read_text(encoding="utf-8")
    fill = """<script>
    if (!localStorage.getItem("filled")) {
      for (let page = 0; page < form.items.length; page++) {
        for (const set of document.querySelectorAll("fieldset"))
          set.querySelector(set.querySelector(".poor") ? ".no" : ".yes").click();
        at("comment").value = "note <" + page + ">";
        at("comment").dispatchEvent(new Event("input"));
        at("next").click();
      }
      localStorage.setItem("filled", "1");
      location.reload();
    } else {
      const seen = at("context").textContent;
      URL.createObjectURL = blob => { blob.text().then(text => {
        document.body.replaceChildren(make("pre", "", JSON.stringify({ text, seen, count: at_count })));
      }); return "#"; };
      const at_count = at("count").textContent;
      at("export").click();
    }
    </script></body>"""
    page = tmp_path / "page.html"
    page.write_text(text.replace("</body>", fill), encoding="utf-8")
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=8000", "--dump-dom"]
    command = [CHROMIUM, *flags, f"--user-data-dir={tmp_path / 'profile'}", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    got = json.loads(html.unescape(re.search(r"<pre>(.*?)</pre>", done.stdout, re.DOTALL).group(1)))
    assert got["count"] == "3 of 3 answered"
    assert "</script><b>& wants “help” 🐶 now." in got["seen"]
    (tmp_path / "a.json").write_text(got["text"], encoding="utf-8")
    result = measure_agreement(AgreeConfig(str(tmp_path / "forms"), [str(tmp_path / "a.json")]))
    assert result["figures"]["critique"]["accuracy"]["annotator-1"]["value"] == 1
    assert result["figures"]["good"]["accuracy"]["annotator-1"]["value"] == 1
    assert result["figures"]["poor"]["accuracy"]["annotator-1"]["value"] == 0
    assert result["figures"]["spans"]["unanswered"] == {"annotator-1": 0}
    assert sorted(result["comments"].values()) == ["note <0>", "note <1>", "note <2>"]
