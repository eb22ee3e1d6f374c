"""docs/own_task_and_critic.md, run: a task in one file through every stage, and a critic of a few lines."""

import importlib
import json
import re
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.fault_server import FaultServer
from tests.processes import flags
from tests.tiny import tiny_model
from text2grad.records import load_json, save_json
from text2grad.tasks import TASKS

POLICY = "nl_gradient_policy_optimization/optimize.py"
PAGE = Path(__file__).parent.parent / "docs" / "own_task_and_critic.md"
LETTERS = [
    ("l1", "Dear baker, your bread was hard on Monday.", "We are really sorry. Fresh bread is on its way to you."),
    ("l2", "Dear library, may I keep the atlas a week longer?", "Very well, keep the atlas until Friday."),
    ("l3", "Dear neighbour, your dog barks at night.", "Nice to hear from you. It is not my dog."),
    ("l4", "Dear council, the lamp in our street is broken.", "A new lamp is ordered for your street."),
]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A user's folder with the page's two files in it; the tasks they make known are unknown again afterwards."""
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        if named := re.match(r"# (my_critic|my_task)\.py\n", block):
            (tmp_path / f"{named[1]}.py").write_text(block, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    with patch.dict(TASKS):
        yield tmp_path


@pytest.fixture
def command(monkeypatch):
    """Run a script's ``main`` as the command line does, in this process: torch is imported once, not eight times."""

    def run(script: str, *args: str, task: str = "my_task.py", **settings: object) -> None:
        monkeypatch.setattr(sys, "argv", [script, *args, *flags(task=task, **settings)])
        importlib.import_module(script.removesuffix(".py").replace("/", ".")).main()

    return run


def feedback_of(body: dict) -> str:
    """A reply to the task's own annotation prompt, whose last line is the response."""
    words = body["messages"][0]["content"].splitlines()[-1].split()
    return json.dumps({"textual_feedback": "It is short.", "good_spans": [words[0]], "poor_spans": [words[-1]]})


PROGRAMS = """
from text2grad.feedback import Feedback
from text2grad.tasks import Task


class Programs(Task):
    name, has_unit_tests = "programs", True
    prompt = response = lambda self, record: record["program"]
    with_response = lambda self, record, response: {**record, "program": response, "log": ""}
    code = lambda self, response: response.removeprefix("Here: ")


def judge(prompt, response, record):
    return Feedback(f"passed: {record['log']['passed']}")
"""


def test_unit_tests_of_an_own_task_are_run(folder, command, capsys):
    (folder / "programs.py").write_text(PROGRAMS)
    test = "from solution import one\n\ndef test_one():\n    assert one == 1\n"
    save_json(folder / "in.json", [{"program": f"Here: one = {number}", "test": test} for number in (1, 2)])
    script, files = "rm_data_anno/annotate.py", {"test_seconds": 60, "data_path": "in.json", "output_path": "out.json"}
    command(script, task="programs.py", critic="programs.py:judge", **files)
    assert [row["textual_feedback"] for row in load_json(folder / "out.json")] == ["passed: True", "passed: False"]
    with pytest.raises(SystemExit):
        command(script, critic="my_critic.py:judge", **files)
    assert "records of letters have no unit tests" in capsys.readouterr().err


def test_a_task_in_one_file_goes_through_every_stage(folder, command, capsys):
    """Annotation by a chat critic, a reward model step and its figures, a policy step, generation and the report."""
    texts = {
        "prompts/policy.txt": "Reply to this letter.\n${prompt}",
        "prompts/annotation/no_cot.txt": "Judge the reply to a letter.\n${prompt}\n---\n${response}",
        "prompts/reward_model/cot.txt": "Judge.\n${prompt}\n> ${response}",
        "reward_model.yaml": (
            "max_steps: 1\nper_device_train_batch_size: 2\nvalidation_share: 0\nreport_to: none\nlora_r: 2\n"
            "lora_target_modules: [all-linear]\nsave_strategy: 'no'\nprecision: fp32\n"
        ),
        "policy.yaml": (
            "max_steps: 1\nrollouts_per_device: 2\nppo_epochs: 1\nmax_new_tokens: 8\nlora_r: 2\nreport_to: [none]\n"
            "dtype: float32\ncritic_constrained: quotes\n"
        ),
    }
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    model = tiny_model(folder / "tiny")
    save_json(folder / "letters.json", [{"id": k, "letter": x, "reply": y} for k, x, y in LETTERS])
    (folder / "letters.csv").write_text("id,letter\n" + "".join(f'{key},"{letter}"\n' for key, letter, _ in LETTERS))

    with FaultServer(feedback_of) as server:
        files = {"data_path": "letters.json", "output_path": "annotated.json"}
        command("rm_data_anno/annotate.py", annotator=f"{server.url}#tiny", prompt="no_cot", **files)
        asked = [body["messages"][0]["content"] for body in server.requests]
    assert sorted(asked) == sorted(f"Judge the reply to a letter.\n{x}\n---\n{y}" for _, x, y in LETTERS)
    annotated = load_json(folder / "annotated.json")
    assert [row["good_spans"] for row in annotated] == [[y.split()[0]] for _, _, y in LETTERS]
    assert {row["annotation"]["annotator"] for row in annotated} == {f"{server.url}#tiny"}

    command("nl_reward_model/train_rm.py", model=model, data_path="annotated.json", output_dir="rm")
    description = load_json(folder / "rm" / "reward_model.json")
    assert description["task"] == "letters" and description["task_source"] == str(folder / "my_task.py")
    assert description["settings"]["lora_r"] == 2  # from the task's own reward_model.yaml
    assert (folder / "rm" / "reward_prompt.txt").read_text().startswith("Judge.")

    files = {"dataset_path": "annotated.json", "output_file": "judged.json"}
    command("nl_reward_model/infer.py", model_path="rm", constrained="quotes", **files)
    files = {"input_file": "judged.json", "output_file": "metrics.json"}
    command("nl_reward_model/measures/metrics.py", tokenizer=model, **files)
    assert load_json(folder / "metrics.json")["task"] == "letters"

    command(POLICY, model=model, critic="rm", data_path="letters.csv", output_dir="policy")
    about = load_json(folder / "policy" / "run.json")
    assert about["task"] == "letters" and about["config"]["max_new_tokens"] == 8
    rollouts = load_json(folder / "policy" / "rollouts.jsonl")
    assert len(rollouts) == 2 and {row["id"] for row in rollouts} <= {key for key, *_ in LETTERS}

    files = {"data_path": "letters.csv", "output_path": "answers.json"}
    command("evaluation/generate.py", model="policy/policy", max_new_tokens=8, **files)
    answers = load_json(folder / "answers.json")
    assert [row["letter"] for row in answers] == [x for _, x, _ in LETTERS] and all("reply" in row for row in answers)

    files = {"responses": "answers.json", "output_path": "text2grad.result.json"}
    command("evaluation/evaluate.py", system="text2grad", tokenizer=model, critic="my_critic.py:judge", **files)
    TASKS.pop("letters")  # a process that never saw --task
    files = {"annotation": "annotated.json.report.json", "reward_model": "metrics.json", "output": "report.html"}
    command("evaluation/report.py", "policy", results="text2grad.result.json", **files)
    files = {"data_path": "annotated.json", "output_path": "steps.json"}
    command("nl_gradient_policy_optimization/baselines/step_labels.py", **files)
    assert f"next: python nl_reward_model/train_rm.py --task {folder}/my_task.py" in capsys.readouterr().out
    report = load_json(folder / "report.json")
    assert report["runs"][0]["task"] == report["tables"][0]["task"] == "letters"
    assert "+1 in good spans" in (folder / "report.html").read_text()


def test_a_critic_of_ones_own_is_named_in_every_file(folder, command):
    """Prompts from a CSV, the task ``plain``, a function as critic: what the page's first command does."""
    spec, model = "my_critic.py:judge", tiny_model(folder / "tiny")
    (folder / "prompts.csv").write_text('id,prompt\nq1,"Write about bread, please."\nq2,Write about the sea.\n')
    sizes = {"max_steps": 1, "rollouts_per_device": 2, "micro_batch_size": 2, "minibatches": 1, "ppo_epochs": 1}
    sizes |= {"seed": 1, "max_new_tokens": 8, "report_to": "none", "gradient_checkpointing": "false"}
    command(POLICY, task="plain", critic=spec, model=model, data_path="prompts.csv", output_dir="run", **sizes)
    about = load_json(folder / "run" / "run.json")
    assert about["critic"] == about["config"]["critic"] == spec
    card = (folder / "run" / "policy" / "README.md").read_text()
    assert f"critic: {spec}" in card and "programmatic" not in card
    rollouts = load_json(folder / "run" / "rollouts.jsonl")
    assert sorted(row["id"] for row in rollouts) == ["q1", "q2"]
    assert all(row["critique"].startswith("Takes up 0 words") for row in rollouts)
