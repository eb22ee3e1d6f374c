"""The synthetic task's methods run, and what its teachers and verifiers say is true."""

import random

import pytest

from benchmarks.micro.methods import method_of
from benchmarks.micro.policy import BaseSettings, base_policy
from benchmarks.micro.protocol import Protocol
from benchmarks.micro.rewriting import rewrite
from benchmarks.micro.runs import Materials, config_of, run_method, training_prompts
from benchmarks.micro.task import make_record, read_statements
from text2grad.records import load_json


def test_a_rewriting_does_what_the_critique_says():
    rng, checked = random.Random(3), 0
    for number in range(300):
        record = make_record(rng, number)
        critique, answer = rewrite(record, rng)
        statements = read_statements(record, answer)
        said = [s.note for s in statements]
        for note, value in record["notes"].items():
            if f"{note.lower()} wrong: the notes say" in critique:
                assert f"the notes say {value}." in critique
            if any(f"{note.lower()} {end}" in critique for end in ("wrong:", "right.", "twice.")) or (
                f"not mention {record['name']}'s {note.lower()}." in critique
            ):
                assert said.count(note) == 1
                assert next(s.verdict for s in statements if s.note == note) == "right"
                checked += 1
        if "….' is not about" in critique:
            assert "aside" not in [s.verdict for s in statements]
    assert checked > 300


@pytest.mark.parametrize("name", ["flip-50-gate_distill", "critique_grpo", "capo"])
def test_the_methods_run(tmp_path, name):
    base = base_policy(tmp_path / "base", BaseSettings(layers=1, hidden=32, steps=2, batch=4, rewritings=0.5), seed=0)
    assert load_json(tmp_path / "base" / "base.json")["rewritings"] == 0.5
    materials = Materials(base, training_prompts(tmp_path / "prompts.json", 20))
    protocol = Protocol(
        steps=1, rollouts=16 if name == "critique_grpo" else 4, evaluate_every=1, held_out=2, max_response_tokens=16,
        kl_coef=0.02, praises=True,
    )  # fmt: skip
    config = config_of(name, method_of(name), 1e-3, 1, tmp_path / "run", materials, protocol)
    assert config.kl_coef == 0.02
    result = run_method(name, 1e-3, 1, tmp_path / "run", materials, protocol)
    assert [row["step"] for row in result["curve"]] == [0, 1]
    if name == "flip-50-gate_distill":
        row = load_json(tmp_path / "run" / "metrics.jsonl")[0]
        assert row["teacher/unread"] == 0 and row["teacher/kept"] <= 1


def test_a_run_that_breaks_has_nothing_from_there_on(tmp_path, capsys):
    base = base_policy(tmp_path / "base", BaseSettings(layers=1, hidden=32, steps=2, batch=4), seed=0)
    materials = Materials(base, training_prompts(tmp_path / "prompts.json", 20))
    protocol = Protocol(steps=3, rollouts=4, evaluate_every=1, held_out=2, max_response_tokens=16)
    result = run_method("text2grad", 1e30, 1, tmp_path / "run", materials, protocol)
    assert [row["step"] for row in result["curve"]] == [0, 1, 2, 3]
    assert [row["f1"] for row in result["curve"][-2:]] == [0.0, 0.0] and "is nan" in capsys.readouterr().out
