"""Critics that learn on the synthetic task: what they learn from, how they are measured, and a run of every script."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

from benchmarks.learnt_critics.annotated import annotated, corrupted, feedback_on, first_responses
from benchmarks.learnt_critics.learning import CriticSettings, batches, rate_at
from benchmarks.learnt_critics.make_responses import ResponsesConfig, make_materials
from benchmarks.learnt_critics.mistakes import count_mistakes
from benchmarks.learnt_critics.policies import PROGRAM, PoliciesConfig, train_all
from benchmarks.learnt_critics.quality import figures
from benchmarks.learnt_critics.report import kept, load_runs, policies_table, report
from benchmarks.learnt_critics.scalar import ScalarConfig
from benchmarks.learnt_critics.scalar import train as train_scalar
from benchmarks.learnt_critics.train_critic import TrainCriticConfig, train
from benchmarks.micro.task import PROFILES, make_record, read_statements
from text2grad.errors import InputError
from text2grad.feedback import Feedback
from text2grad.records import load_json, save_json

RECORD = {"id": "a", "name": "Nora", "notes": {"Home": "Porto", "Pet": "parrot", "Food": "beans"}}
RESPONSE = (
    "Nora keeps a parrot. Nora lives in Turin. Nora plays golf with friends. Nora walks a parrot every day. It rained."
)


def test_what_each_critique_says_before_the_same_quotes():
    said = {kind: feedback_on(RECORD, RESPONSE, kind) for kind in ("evidence", "checklist", "faults", "none")}
    assert said["evidence"].critique == (
        "It says parrot, notes parrot: right; Turin, notes Porto: wrong; golf, notes nothing: invented; "
        "parrot, notes parrot: repeated; It rained: aside."
    )
    assert said["checklist"].critique == (
        "It says parrot: right; Turin: wrong, Porto; golf: invented; parrot: repeated; It rained: aside."
    )
    assert said["none"].critique == "-" and "mentions" not in said["faults"].critique
    for feedback in said.values():
        assert feedback.good == ["keeps a parrot"] and feedback.poor[0] == "lives in Turin" and len(feedback.poor) == 4
    assert feedback_on(RECORD, "", "evidence").critique == "It says nothing."


def test_corrupted_responses_have_every_fault_and_every_balance():
    rng = random.Random(0)
    shares, verdicts = [], set()
    for number in range(300):
        record = make_record(rng, number)
        found = [statement.verdict for statement in read_statements(record, corrupted(record, rng))]
        shares.append(found.count("right") / len(found))
        verdicts |= set(found)
    assert verdicts == {"right", "wrong", "invented", "repeated", "aside"}
    assert np.quantile(shares, 0.1) < 0.25 and np.quantile(shares, 0.9) == 1.0


def test_the_figures_by_hand():
    truth = [np.array([1, 1, -1, 0]), np.array([-1, -1])]
    said = [np.array([1, -1, -1, 1]), np.array([0, -1])]
    found = figures(truth, said)
    assert found["f1_good"] == pytest.approx(2 * 1 / (2 + 2)) and found["f1_poor"] == pytest.approx(2 * 2 / (3 + 3))
    assert found["flips"] == pytest.approx(1 / 4) and found["mean_delta"] == pytest.approx(1.0)
    nothing = figures([np.array([1])] * 2, [np.array([0])] * 2)
    assert nothing["flips"] is None and nothing["mean_delta"] is None


def test_the_rate_rises_stays_and_falls():
    settings = CriticSettings(updates=100, warmup=10)
    assert [rate_at(update, settings) for update in (0, 9, 50, 79, 90, 99)] == [0.1, 1.0, 1.0, 1.0, 0.5, 0.05]


def test_batches_are_of_like_length_and_leave_nothing_out():
    examples = [([0] * length, [number]) for number, length in enumerate(random.Random(0).sample(range(1, 200), 64))]
    stream = batches(examples, 4, seed=1)
    rows = [next(stream) for _ in range(16)]
    assert sorted(z[0] for batch in rows for _, z in batch) == list(range(64))
    assert max(max(len(x) for x, _ in batch) - min(len(x) for x, _ in batch) for batch in rows) < 40


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    make_materials(ResponsesConfig(str(folder), first=40, count=40, held_out=12, base_steps=3), {2e-4: (1,)})
    return folder


def critic_config(study: Path, name: str, **settings) -> TrainCriticConfig:
    own = {"updates": 4, "batch": 4, "examine_every": 2, "save_every": 2, "warmup": 1}
    return TrainCriticConfig(study=str(study), name=name, **own | settings)


@pytest.mark.slow
def test_responses_come_from_everywhere_and_are_annotated_with_the_truth(study):
    records = load_json(study / "responses.json")
    origins = {record["id"].partition("-")[0] for record in records}
    assert origins == {"start", "later", "hot", "corrupted"} and 30 < len(records) <= 40
    assert {record["id"].partition("-")[0] for record in first_responses(4, "x")} == {"start", "corrupted"}
    record = annotated(records[0], "evidence")
    assert PROFILES.feedback(record) == feedback_on(records[0], records[0]["response"], "evidence")


@pytest.mark.slow
def test_a_killed_critic_goes_on_where_it_was(study):
    train(critic_config(study, "whole", keep=[2]))
    train(critic_config(study, "cut", keep=[2], stop_after=2))
    train(critic_config(study, "cut", keep=[2]))
    for name in ("critic-2", "critic-4"):
        weights = [(study / run / name / "model.safetensors").read_bytes() for run in ("whole", "cut")]
        assert weights[0] == weights[1], name
    rows = [json.loads(line) for line in (study / "cut" / "curve.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [2, 4] and rows[0]["seen"] == 8
    assert rows[0]["responses"] == len(load_json(study / "held_out.json"))
    with pytest.raises(InputError, match="other settings"):
        train(critic_config(study, "cut", learning_rate=1e-4))


@pytest.mark.slow
def test_a_critic_goes_on_from_another_one_with_other_feedback(study):
    train(critic_config(study, "first", responses="first", critique="checklist", stop_after=2))
    train(critic_config(study, "second", start_from=str(study / "first")))
    rows = [json.loads(line) for line in (study / "second" / "curve.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [4]


@pytest.mark.slow
def test_policies_learn_from_each_kind_of_reward_and_are_reported(study, tmp_path):
    train(critic_config(study, "whole", keep=[2]))
    train_scalar(ScalarConfig(str(study), updates=5, batch=4))
    critics = [str(study / "whole" / "critic-4"), str(study / "scalar"), PROGRAM]
    train_all(PoliciesConfig(str(study), critics, ["learnt", "number", "perfect"], steps=5))
    results = {
        name: load_json(study / "policies" / name / "lr-0.0002" / "seed-1" / "result.json")
        for name in ("learnt", "number", "perfect")
    }
    for result in results.values():
        assert [row["step"] for row in result["curve"]] == [0, 5]
    assert len({json.dumps(result["curve"][0]) for result in results.values()}) == 1  # one starting policy
    assert len(results["learnt"]["audit"]) == 5 and results["number"]["audit"] == []
    for row in results["perfect"]["audit"]:
        assert row["flips"] in (0, None) and row["delta"] == row["true_delta"]
    page = tmp_path / "page.md"
    page.write_text("# Page\n<!-- learnt_critics -->\n<!-- /learnt_critics -->\n")
    report(study, str(page), tmp_path / "picture")
    text = page.read_text()
    assert "| whole |" in text and "| perfect |" in text and (tmp_path / "picture.svg").is_file()


def test_models_that_differ_in_their_seed_share_a_row(tmp_path):
    def write(name: str, critic: str, seed: int, *f1: float) -> None:
        settings = {"critic": critic, "rate": 2e-4, "seed": seed}
        curve = [{"step": step, "f1": value} for step, value in enumerate(f1)]
        save_json(
            tmp_path / "policies" / name / "lr-0.0002" / f"seed-{seed}" / "result.json",
            {"settings": settings, "curve": curve, "audit": []},
        )

    for seed in (1, 2):
        write("program", "program", seed, 0.5, 0.7, 0.7, 0.7)
        write("worked-4000", "a", seed, 0.5, 0.6, 0.6, 0.6)
        write("worked-seed-1-4000", "b", seed, 0.5, 0.8, 0.8, 0.8)
    runs = load_runs(tmp_path / "policies")
    assert {key: len(results) for key, results in runs.items()} == {("program", 2e-4): 2, ("worked-4000", 2e-4): 4}
    share = kept(runs["worked-4000", 2e-4], runs["program", 2e-4])
    assert share is not None and share.n == 2  # models, of which one has half of the gain and one three halves
    assert [share.value, share.low, share.high] == pytest.approx([1.0, 0.5, 1.5])
    cells = policies_table(runs).splitlines()[-1].split(" | ")
    assert cells[2:5] == ["2", "4", "0.700 [0.600, 0.800]"]


def test_mistakes_by_hand():
    truth = feedback_on(RECORD, RESPONSE, "evidence")
    right = count_mistakes([RECORD | {"response": RESPONSE}], [truth], "evidence")
    every = {"sentences": 5, "said": 5, "note": 4, "notes": 4, "verdict": 5, "quotes": 5, "as it said": 5}
    assert right == every | {"faults": 4, "faults seen": 4}
    mistaken = Feedback(
        "It says parrot, notes parrot: right; Porto, notes Turin: right; golf, notes nothing: wrong; "
        "parrot, notes parrot: right; It rained: aside.",
        ["keeps a parrot", "plays golf with friends"],
        ["lives in Turin"],
    )
    found = count_mistakes([RECORD | {"response": RESPONSE}], [mistaken], "evidence")
    expected = {"said": 4, "note": 3, "verdict": 2, "quotes": 2, "as it said": 1, "faults": 4, "faults seen": 2}
    assert {name: found[name] for name in expected} == expected
    skipped = Feedback("It says parrot, notes parrot: right.", [], [])
    assert count_mistakes([RECORD | {"response": RESPONSE}], [skipped], "evidence") == {"skipped": 1}
