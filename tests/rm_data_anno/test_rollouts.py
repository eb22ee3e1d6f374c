"""Rollouts of policy runs as records to annotate."""

import json

import pytest

from rm_data_anno.rollouts import rollout_records
from tests.conftest import ROOT
from text2grad.errors import InputError
from text2grad.records import Records, load_records, save_records
from text2grad.tasks import get_task

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
    made = rollout_records(POSTS, [one, two / "rollouts.jsonl"], TASK)
    assert list(made) == ["a@1", "b@2", "b@3"]
    assert [TASK.response(record) for record in made.values()] == ["I lost a.", "I lost a.", "Gone."]
    assert made["b@3"] == {**POSTS["b"], "generated_summary": "Gone."}
    judged = {key: {**post, "id": key, "poor_spans": ["x"], "verdict": -1.0} for key, post in POSTS.items()}
    save_records(tmp_path / "made.jsonl", Records(rollout_records(judged, [one, two], TASK), tmp_path, keyed=True))
    found = load_records(tmp_path / "made.jsonl", TASK)
    assert list(found) == list(made) and not any({"poor_spans", "verdict"} & set(row) for row in found.values())


def test_what_is_no_log_of_these_prompts_is_named(tmp_path):
    with pytest.raises(InputError, match=r"line 2: no prompt has the id 'c'.*--data_path"):
        rollout_records(POSTS, [log(tmp_path / "one", ("a", "x"), ("c", "x"))], TASK)
    with pytest.raises(InputError, match=r"rollouts\.jsonl"):
        rollout_records(POSTS, [tmp_path], TASK)
    (tmp_path / "other.jsonl").write_text('{"step": 1}\n')
    with pytest.raises(InputError, match="line 1 is no rollout"):
        rollout_records(POSTS, [tmp_path / "other.jsonl"], TASK)


def test_a_runs_rollouts_are_annotated(tmp_path, run_script):
    posts = ROOT / "quickstart" / "data" / "posts_train.json"
    key = next(iter(json.loads(posts.read_text())))
    run = log(tmp_path / "run", (key, "The landlord keeps the deposit over some scratches."), (key, "As an AI, no."))
    made, annotated = tmp_path / "responses.json", tmp_path / "annotated.json"
    done = run_script(
        "rm_data_anno/rollouts.py", "--task", "slf5k", "--data_path", posts, "--runs", run, "--output_path", made
    )
    assert "2 different responses of 1 runs" in done.stdout and "next: annotate them" in done.stdout
    done = run_script(
        "rm_data_anno/slf5k/dual_feedback_annotation_RM.py", "--critic", "programmatic", "--data_path", made,
        "--output_path", annotated,
    )  # fmt: skip
    feedback = [TASK.feedback(record) for record in json.loads(annotated.read_text()).values()]
    assert len(feedback) == 2 and feedback[1].poor
