"""Stage 1 through its entry scripts: what goes in, rollouts included, what comes out, and what bad input gets."""

import json
import re
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from rm_data_anno import fidelity
from rm_data_anno.annotate import AnnotateConfig
from rm_data_anno.annotate import annotate as annotate_file
from rm_data_anno.rollouts import rollout_records
from rm_data_anno.validation import supported, validate
from tests.processes import ROOT, run_forked
from text2grad.critics import load_critic
from text2grad.critics.asking import feedback_on
from text2grad.critics.served import ServedCritic
from text2grad.errors import InputError
from text2grad.feedback import Feedback
from text2grad.records import Records, load_records, save_records
from text2grad.tasks import get_task

POST = (
    "My roommate Dan ate the birthday cake I baked for my mother last Friday. I found the empty box in the bin and he "
    "laughed about it. I want to know if it is fair to ask him to pay for a new one before Sunday."
)
RECORDS = {
    "t3_good": {"post": POST, "generated_summary": "Dan ate my mother's birthday cake; should he pay for a new one?"},
    "t3_poor": {"post": POST, "generated_summary": "My sister crashed the car and now the police want to talk to us."},
}


def annotate(task: str, data: Path, output: Path, code: int = 0, **more: object):
    """By the task's script, with the critic that is a program."""
    flags = {"data_path": data, "output_path": output, "critic": "programmatic", **more}
    return run_forked(f"rm_data_anno/{task}/dual_feedback_annotation_RM.py", **flags, code=code)


def write(path: Path, value: object) -> Path:
    path.write_text(json.dumps(value))
    return path


def test_a_file_of_summaries_is_annotated(tmp_path):
    data, output = write(tmp_path / "in.json", RECORDS), tmp_path / "deep" / "my out.json"
    done = annotate("slf5k", data, output)

    annotated = json.loads(output.read_text())
    assert list(annotated) == list(RECORDS)
    for record_id, record in annotated.items():
        assert record["generated_summary"] == RECORDS[record_id]["generated_summary"]
        assert record["textual_feedback"]
        assert all(span in record["generated_summary"] for span in record["good_spans"] + record["poor_spans"])
        assert record["annotation"]["annotator"] == "programmatic"
        (said,) = load_critic("programmatic", "slf5k")([record["post"]], [record["generated_summary"]])
        assert (record["missing"], record["verdict"]) == (said.missing, said.score)
    assert annotated["t3_poor"]["missing"] and annotated["t3_poor"]["poor_spans"]

    report = json.loads((tmp_path / "deep" / "my out.json.report.json").read_text())
    assert report["records"]["annotated"] == 2
    assert report["spans"]["unmatched_rate"] == 0
    assert (tmp_path / "deep" / "my out.json.report.md").read_text() in done.stdout
    train = "python nl_reward_model/slf5k/train_rm.py"
    assert done.stdout.splitlines()[-1].startswith(f"next: train a reward model, {train} --data_path '{output}' ")


@pytest.mark.parametrize("task", ["slf5k", "kodcode", "ultrafeedback"])
def test_the_launchers_pass_their_arguments_on(started, task):
    folder = ROOT / "rm_data_anno" / task
    said = started(folder / f"annotate_{task}.sh", "--data_path", "in.json", "--critic", "programmatic")
    assert said == f"python {folder}/dual_feedback_annotation_RM.py --data_path in.json --critic programmatic"


def test_solutions_without_a_log_are_run_first(tmp_path):
    test = "from solution import larger\n\n\ndef test_larger():\n    assert larger(1, 2) == 2\n"
    record = {"question_id": "q1", "question": "Return the larger of two numbers.", "test": test, "log": ""}
    record["solution"] = "def larger(a, b):\n    return a if a < b else b"
    right = {**record, "solution": record["solution"].replace("<", ">")}
    data = write(tmp_path / "in.json", [record, right])
    annotate("kodcode", data, tmp_path / "out.json")
    wrong, fine = json.loads((tmp_path / "out.json").read_text())
    assert wrong["log"]["passed"] is False
    assert wrong["log"]["error_type"] == "AssertionError"
    assert wrong["wrong_code"] == ["return a if a < b else b"]
    assert fine["log"]["passed"] is True
    assert fine["wrong_code"] == []
    assert "test_seconds" in annotate("kodcode", data, tmp_path / "out.json", 2, test_seconds=9).stderr


def test_tests_that_hang_hold_up_their_own_record_alone(tmp_path):
    test = "from solution import first\n\n\ndef test_first():\n    assert first([1]) == 1\n"
    record = {"question": "Give the first.", "solution": "def first(xs): return xs[0]", "test": test, "log": ""}
    slow = {**record, "solution": "def first(xs):\n    while True: pass"}
    rows = [{"question_id": f"q{n}", **(record if n else slow)} for n in range(6)]
    annotate("kodcode", write(tmp_path / "in.json", rows), tmp_path / "out.json", test_seconds=3)
    done = [json.loads(line).get("id") for line in (tmp_path / "out.json.journal.jsonl").read_text().splitlines()]
    assert len(done) == 7 and done[-1].startswith("q0")
    made = json.loads((tmp_path / "out.json").read_text())
    assert [row["question_id"] for row in made] == [row["question_id"] for row in rows]


def test_a_served_critic_is_asked_several_times_at_once(tmp_path, monkeypatch):
    both = threading.Barrier(2)

    def send(self, path, body):
        if path == "/health":
            return {"task": "slf5k", "critic": "judge"}
        both.wait(30)
        return {"items": [{"critique": "c", "good": [], "poor": []} for _ in body["items"]]}

    monkeypatch.setattr(ServedCritic, "_send", send)
    records = {f"t{n}": {"post": POST, "generated_summary": f"{n} cakes."} for n in range(16)}
    data, output = write(tmp_path / "in.json", records), tmp_path / "out.json"
    config = AnnotateConfig(data_path=str(data), critic="served:http://localhost:1", output_path=str(output))
    annotate_file("slf5k", config)
    assert len(json.loads(output.read_text())) == 16
    critic = load_critic(config.critic, "slf5k")
    assert len(feedback_on(critic, records, TASK, tmp_path / "journal.jsonl").results) == 16


def test_validation_keeps_exact_quotes_only():
    response = "The cat’s bowl is empty,  and the dog sleeps on the red sofa."
    critique = "The empty bowl is right; no dog was mentioned in the post, and the sofa is blue."
    good = ["The cat's bowl is empty", "a full bowl", "red sofa"]
    poor = ["red sofa", "red sofa", "the dog sleeps", "on the"]
    feedback = Feedback(critique, good, poor, missing=["the cat's name"], score=-0.5)
    checked = validate(feedback, response, get_task("slf5k"))
    assert checked.feedback.good == ["The cat’s bowl is empty"]
    assert checked.feedback.poor == ["red sofa", "the dog sleeps", "on the"]
    assert (checked.feedback.missing, checked.feedback.score) == (["the cat's name"], -0.5)
    assert checked.offered == 7
    assert (checked.corrected, checked.repeated) == (1, 1)
    assert checked.unmatched == ["a full bowl"]
    assert checked.contradicted == ["red sofa"]
    assert checked.unsupported == ["on the"]
    assert "<<a full bowl>>" in checked.complaint()
    assert "<<red sofa>>" in checked.complaint()
    both = validate(replace(feedback, scores=[(response, 0.5), ("more", 1.0)]), response, get_task("slf5k"))
    assert replace(both.feedback, scores=[]) == checked.feedback and both.contradicted == checked.contradicted
    assert both.unmatched == ["a full bowl", "more"] and both.offered == 7 + len(response.split()) + 1
    assert both.feedback.scores == [(word, 0.5) for word in response.split()]


@pytest.mark.parametrize(
    ("quote", "critique", "expected"),
    [
        ("the dog sleeps", "Nobody mentioned a dog that was sleeping.", True), ("200 page novel", "200 pages.", True),
        ("with their", "They go there with others.", False), ("it is", "The words 'it is' are vague.", True),
        ("blue car", "It is red.", False), ("天气很好", "这里的天气不对", True), ("天气很好", "价格不对", False),
    ],
)  # fmt: skip
def test_support(quote, critique, expected):
    assert supported(quote, critique) is expected


def test_report_counts_what_stands_in_the_records():
    def record(summary: str, good: list, poor: list, validation: dict, usage: tuple) -> dict:
        base = {"post": "p", "generated_summary": summary}
        names = ("requests", "prompt_tokens", "completion_tokens", "cost_usd")
        made = {"validation": validation, "usage": dict(zip(names, usage, strict=True))}
        return get_task("slf5k").with_feedback(base, Feedback("c", good, poor), made)

    first = {"offered": 2, "corrected": 0, "first": {"offered": 4, "unmatched": ["x"]}}
    records = {
        "a": record("one two three four", ["one two"], ["four"], first, (2, 100, 20, 0.001)),
        "b": record("five six", [], [], {"offered": 1, "unmatched": ["seven"]}, (1, 50, 10, 0.002)),
    }
    report = fidelity.annotation_report(
        get_task("slf5k"), records, {"c": "broken JSON at character 12: x", "d": "broken JSON at character 7: x"}
    )
    assert report["records"] == {"annotated": 2, "failed": 2, "asked_again": 1}
    assert report["spans"]["unmatched_rate"] == 0.4
    assert report["spans"]["dropped_rate"] == pytest.approx(1 / 3, abs=1e-6)
    assert report["good_spans"]["words"] == {"mean": 2, "min": 2, "q1": 2, "median": 2, "q3": 2, "max": 2}
    assert report["labels"]["characters_good_spans"] == pytest.approx(7 / 26, abs=1e-6)
    assert report["labels"]["characters_poor_spans"] == pytest.approx(4 / 26, abs=1e-6)
    assert report["usage"]["cost_usd_per_record"] == 0.0015
    assert report["usage"]["prompt_tokens"] == 150
    assert report["failures"] == {"broken JSON at character N: x": 2}
    odd = {"validation": {"offered": "3", "unmatched": None, "first": True}, "usage": "12 tokens"}
    for annotation in ("checked", odd):
        others = {"a": {**records["a"], "annotation": annotation}}
        assert fidelity.annotation_report(get_task("slf5k"), others)["usage"] == {}


def test_two_annotations_stand_side_by_side(tmp_path, run_script, refused):
    output = tmp_path / "a.json"
    annotate("slf5k", write(tmp_path / "in.json", RECORDS), output)
    done = run_script("rm_data_anno/fidelity.py", "--task", "slf5k", "--data_path", output, output)
    assert re.search(r"\| records: annotated +\| 2 ", done.stdout)
    paths = (output, tmp_path / "in.json")
    assert f"{paths[1]}: record 't3_good'" in refused(fidelity.main, "--task", "slf5k", "--data_path", *paths)


CYCLE = [f"w{n % 20}" for n in range(4500)]


@pytest.mark.parametrize(
    ("words", "given", "unscored", "unmatched"),
    [
        (["a"] * 100, [("a", (-1.0) ** n) for n in range(100)], 0, []),
        (["a"] * 4500, [("a", (-1.0) ** n) for n in range(4500)], 0, []),
        (CYCLE, [*((word, 1.0) for n, word in enumerate(CYCLE) if n % 100), ("never", 1.0)], 45, ["never"]),
    ],
    ids=["few", "many", "some left out and one added"],
)
def test_words_that_repeat(words, given, unscored, unmatched):
    begun = time.process_time()
    checked = validate(Feedback("c", scores=given), " ".join(words), get_task("slf5k"))
    assert time.process_time() - begun < 5
    assert (checked.unscored, checked.unmatched) == (unscored, unmatched)
    assert unmatched or checked.feedback.scores == given


# Rollouts of policy runs as records


TASK = get_task("slf5k")
POSTS = {key: {"post": f"I lost {key}.", "ideal_human_summary": "Lost."} for key in ("a", "b")}


def log(folder, *rows):
    folder.mkdir(exist_ok=True)
    lines = [json.dumps({"step": 1, "id": key, "response": text}) for key, text in rows]
    (folder / "rollouts.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def test_each_different_response_is_kept_once(tmp_path):
    one = log(tmp_path / "one", ("a", " I lost a. "), ("b", "I lost a."), ("a", "I lost a."), ("a", "  "))
    two = log(tmp_path / "two", ("b", "Gone."), ("b", "I lost a."))
    with (two / "rollouts.jsonl").open("ab") as file:  # a run that goes on, read in the middle of a character
        file.write('{"step": 2, "id": "a", "response": "é'.encode()[:-1])
    made = rollout_records(POSTS, [one, two / "rollouts.jsonl"], TASK)
    assert list(made) == ["a@1", "b@2", "b@3"]
    assert [TASK.response(record) for record in made.values()] == ["I lost a.", "I lost a.", "Gone."]
    assert made["b@3"] == {**POSTS["b"], "generated_summary": "Gone."}
    about = {"good_spans": [], "poor_spans": ["x"], "verdict": -1.0}
    judged = {key: {**post, **about, "id": key} for key, post in POSTS.items()}
    save_records(tmp_path / "made.jsonl", Records(rollout_records(judged, [one, two], TASK), tmp_path, keyed=True))
    found = load_records(tmp_path / "made.jsonl", TASK)
    assert list(found) == list(made) and not any({"poor_spans", "verdict"} & set(row) for row in found.values())


def test_what_is_no_log_of_these_prompts_is_named(tmp_path):
    with pytest.raises(InputError, match=r"line 2: no prompt has the id 'c'.*--data_path"):
        rollout_records(POSTS, [log(tmp_path / "one", ("a", "x"), ("c", "x"))], TASK)
    with pytest.raises(InputError, match=r"rollouts\.jsonl"):
        rollout_records(POSTS, [tmp_path], TASK)
    for row in ({"step": 1}, {"id": ["a"], "response": "x"}):
        (tmp_path / "other.jsonl").write_text(json.dumps(row) + "\n")
        with pytest.raises(InputError, match="line 1 is no rollout"):
            rollout_records(POSTS, [tmp_path / "other.jsonl"], TASK)


def test_a_runs_rollouts_are_annotated(tmp_path, run_script):
    posts = ROOT / "quickstart" / "data" / "posts_train.json"
    key = next(iter(json.loads(posts.read_text())))
    run = log(tmp_path / "run", (key, "The landlord keeps the deposit over some scratches."), (key, "As an AI, no."))
    made, annotated = tmp_path / "responses.json", tmp_path / "annotated.json"
    done = run_script("rm_data_anno/rollouts.py", task="slf5k", data_path=posts, runs=run, output_path=made)
    assert "2 different responses of 1 runs" in done.stdout and "next: annotate them" in done.stdout
    annotate("slf5k", made, annotated)
    feedback = [TASK.feedback(record) for record in json.loads(annotated.read_text()).values()]
    assert len(feedback) == 2 and feedback[1].poor
