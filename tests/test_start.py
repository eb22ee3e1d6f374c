"""What a command loads before it has anything to do: libraries of seconds only where they are used."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from text2grad.errors import command
from text2grad.records import save_json

HEAVY = {"torch", "transformers", "peft", "accelerate", "datasets", "pandas", "pyarrow", "scipy", "matplotlib"}
CLIENT = {"openai", "fastapi"}


def loaded(*command: str | Path) -> set[str]:
    """The packages that a command imports, as Python itself tells."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    arguments = [sys.executable, "-X", "importtime", *map(str, command)]
    done = subprocess.run(arguments, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-500:]
    return {name.partition(".")[0] for name in re.findall(r"^import time:.*\| +(\S+)$", done.stderr, re.M)}


@pytest.mark.parametrize(
    ("script", "unwanted"),
    [
        ("rm_data_anno/annotate.py", HEAVY),
        ("nl_reward_model/infer.py", HEAVY | CLIENT),
        ("nl_gradient_policy_optimization/slf5k/train.py", HEAVY | CLIENT | {"numpy"}),
        ("evaluation/generate.py", HEAVY | CLIENT | {"numpy"}),
        ("evaluation/report.py", HEAVY | CLIENT),
        ("evaluation/evaluate.py", HEAVY | CLIENT),
        ("text2grad/integrations/serve.py", HEAVY | CLIENT),
    ],
)
def test_help_waits_for_no_heavy_library(script, unwanted):
    found = loaded(script, "--help")
    assert "yaml" in found and not found & unwanted


def test_a_finished_annotation_ends_without_a_model_library(tmp_path):
    records = {"t3_1": {"post": "My dog barks at night.", "generated_summary": "A dog barks."}}
    save_json(tmp_path / "responses.json", records)
    command = (
        "rm_data_anno/slf5k/dual_feedback_annotation_RM.py", "--critic", "programmatic",
        "--data_path", tmp_path / "responses.json", "--output_path", tmp_path / "annotated.json",
    )  # fmt: skip
    assert "nltk" in loaded(*command)  # it judges the response
    assert not loaded(*command) & (HEAVY | {"nltk"})


@pytest.mark.promise("clear_sentence")
@pytest.mark.parametrize("before", ["cd {} && rmdir {}", ": {} {}; export TQDM_MININTERVAL=x"])
def test_what_no_program_can_start_with_is_one_sentence(tmp_path, before):
    line = f"{before.format(tmp_path, tmp_path)}; exec {sys.executable} {ROOT}/rm_data_anno/annotate.py --help"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", line], env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1) and done.stderr.startswith("error: "), done.stderr


@pytest.mark.promise("clear_sentence")
def test_no_memory_is_one_sentence(capsys):
    @command
    def main() -> None:
        raise MemoryError

    with pytest.raises(SystemExit, match="2"):
        main()
    assert capsys.readouterr().err.startswith("error: out of memory")
