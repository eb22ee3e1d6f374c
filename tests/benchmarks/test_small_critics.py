"""Small critics that learn from fresh responses: the stream, the quick forward pass, resuming, and what comes out."""

from __future__ import annotations

import json
import random
from itertools import islice
from pathlib import Path

import pytest
import torch

from benchmarks.learnt_critics.annotated import feedback_on
from benchmarks.learnt_critics.fresh import broken, fresh, with_other_notes
from benchmarks.learnt_critics.mistakes import count_mistakes
from benchmarks.learnt_critics.policies import critic_at
from benchmarks.learnt_critics.report import kept
from benchmarks.learnt_critics.small_learning import Examples, SmallInTraining, SmallSettings, critic_words
from benchmarks.learnt_critics.small_model import hidden_states
from benchmarks.learnt_critics.train_small import TrainSmallConfig, train
from benchmarks.micro.policy import BaseSettings, base_policy
from benchmarks.micro.task import NOTES, PROFILES, read_statements
from nl_gradient_policy_optimization.baselines.scalar_model import load_scalar_model
from text2grad.errors import InputError
from text2grad.feedback import Feedback
from text2grad.records import save_json

RECORD = {"id": "a", "name": "Nora", "notes": {"Home": "Porto", "Pet": "parrot", "Food": "beans"}}
RESPONSE = (
    "Nora keeps a parrot. Nora lives in Turin. Nora plays golf with friends. Nora walks a parrot every day. It rained."
)
TINY = {"layers": 2, "hidden": 32, "heads": 2, "batch": 4, "updates": 4, "short": 0, "warmup": 1}


@pytest.fixture(scope="module")
def words():
    return critic_words([], 400)


def test_a_worked_critique_shows_how_each_verdict_comes_about():
    feedback = feedback_on(RECORD, RESPONSE, "worked")
    assert feedback.critique == (
        "Pet parrot, notes parrot, right 1: keeps a parrot; Home Turin, notes Porto, wrong 1: lives in Turin; "
        "Sport golf, notes nothing, invented 2: plays golf with friends; "
        "Pet parrot, notes parrot, repeated 3: walks a parrot every day; aside 4: It rained."
    )
    assert feedback.good == ["keeps a parrot"] and len(feedback.poor) == 4
    assert feedback_on(RECORD, "", "worked").critique == "It says nothing."


def test_mistakes_of_a_worked_critique_by_hand():
    said = feedback_on(RECORD, RESPONSE, "worked")
    mistaken = said.critique.replace("notes Porto, wrong 1", "notes Turin, right 2")
    wrong = Feedback(mistaken, [*said.good, "lives in Turin"], said.poor[1:])
    found = count_mistakes([RECORD | {"response": RESPONSE}], [wrong], "worked")
    expected = {"said": 5, "note": 3, "notes": 4, "verdict": 4, "quotes": 4, "as it said": 5, "faults seen": 3}
    assert {name: found[name] for name in expected} == expected


def test_the_stream_has_short_and_long_ones_with_every_verdict():
    rng = random.Random(0)
    short = list(islice(fresh([], 0.0, rng, 2), 200))
    assert max(len(record["notes"]) for record in short) == 2
    verdicts = [s.verdict for record in short for s in read_statements(record, record["response"])]
    assert 0.3 < verdicts.count("right") / len(verdicts) < 0.6 and verdicts.count("wrong") / len(verdicts) > 0.25
    sampled = [RECORD | {"response": RESPONSE}]
    long = list(islice(fresh(sampled, 0.5, rng), 400))
    kinds = {s.verdict for record in long for s in read_statements(record, record["response"])}
    assert kinds == {"right", "wrong", "invented", "repeated", "aside"}
    own = [record for record in long if record["response"] == RESPONSE]
    assert 100 < len(own) < 300
    altered = [record for record in own if record["notes"] != RECORD["notes"]]
    assert 50 < len(altered) < len(own)  # some of its sentences are right beside some notes and wrong beside others
    assert {s.verdict for record in altered for s in read_statements(record, RESPONSE)[:1]} >= {"right", "wrong"}


def test_other_notes_are_notes_and_accidents_leave_some_text():
    rng = random.Random(1)
    for _ in range(200):
        notes = with_other_notes(RECORD, rng)["notes"]
        assert notes and all(value in NOTES[note][1] for note, value in notes.items())
        assert broken(RESPONSE, RECORD, rng).strip()
        assert broken("Nora", RECORD, rng)


def test_the_quick_forward_pass_is_the_models_own(words):
    model = SmallInTraining(SmallSettings(**TINY), words).model.eval()
    ids = torch.randint(0, 300, (3, 20))
    weights = dict(model.gpt_neox.named_parameters())
    with torch.no_grad():
        own = model.gpt_neox(input_ids=ids).last_hidden_state
        assert torch.allclose(hidden_states(weights, model.config, ids), own, atol=1e-5)


def test_the_loss_is_that_of_z_with_heavier_verdicts(words):
    settings = SmallSettings(**{**TINY, "verdict_weight": 1.0})
    learner = SmallInTraining(settings, words)
    rows = Examples(settings, words, words, []).batch(0)
    losses = []
    for x, z, _ in rows:
        ids = torch.tensor([x + z])
        logits = learner.model(input_ids=ids).logits[0, len(x) - 1 : -1]
        losses.append(torch.nn.functional.cross_entropy(logits, torch.tensor(z), reduction="none"))
    plain = torch.cat(losses)
    assert learner._loss_of_z(rows).item() == pytest.approx(plain.mean().item(), rel=0.01)  # bfloat16
    learner.settings = SmallSettings(**{**TINY, "verdict_weight": 5.0})
    heavy = torch.isin(torch.cat([torch.tensor(z) for _, z, _ in rows]), learner.verdicts) * 4.0 + 1
    assert heavy.max() == 5
    weighted = ((plain * heavy).sum() / heavy.sum()).item()
    assert learner._loss_of_z(rows).item() == pytest.approx(weighted, rel=0.01)


def test_the_same_examples_wherever_one_begins(words):
    settings = SmallSettings(**{**TINY, "short": 16})
    all_at_once = Examples(settings, words, words, [])
    before = [all_at_once.batch(update) for update in range(33)]
    assert Examples(settings, words, words, []).batch(32) == before[32]
    assert len({tuple(x) for rows in before for x, _, _ in rows}) > 120  # fresh ones every time


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    base_policy(folder / "starting_policy", BaseSettings(steps=2), 0)
    rng = random.Random(5)
    for name, count in (("responses", 30), ("held_out", 4)):
        save_json(
            folder / f"{name}.json",
            [r | {"id": f"{r['id']}-{n}"} for n, r in enumerate(islice(fresh([], 0, rng), count))],
        )
    return folder


def config_of(study: Path, name: str, **settings) -> TrainSmallConfig:
    return TrainSmallConfig(study=str(study), name=name, save_every=2, **{**TINY, **settings})


def test_a_killed_small_critic_goes_on_bit_for_bit_and_judges(study):
    train(config_of(study, "whole", keep=[2]))
    train(config_of(study, "cut", stop_after=2))
    train(config_of(study, "cut"))
    weights = [(study / name / "critic-4" / "model.safetensors").read_bytes() for name in ("whole", "cut")]
    assert weights[0] == weights[1]
    rows = [json.loads(line) for line in (study / "cut" / "curve.jsonl").read_text().splitlines()]
    assert [(row["step"], row["seen"], row["responses"]) for row in rows] == [(2, 8, 4), (4, 16, 4)]
    reply = critic_at(str(study / "whole" / "critic-4"))(
        [PROFILES.prompt(RECORD)], [RESPONSE], [RECORD | {"response": RESPONSE}]
    )[0]
    assert isinstance(reply, Feedback)
    with pytest.raises(InputError, match="other settings"):
        train(config_of(study, "cut", learning_rate=1.0))


def test_a_scalar_model_learns_the_sum_from_the_same_stream(study):
    train(config_of(study, "number", learns="number"))
    scorer, description = load_scalar_model(str(study / "number" / "critic-4"), PROFILES)
    (score,) = scorer([PROFILES.prompt(RECORD)], [RESPONSE])
    assert description.deviation > 0 and abs(score) < 100


def test_the_kept_gain_is_of_the_same_seeds():
    def run(seed: int, start: float, end: float) -> dict:
        return {"settings": {"seed": seed, "critic": "a"}, "curve": [{"f1": start}] + [{"f1": end}] * 3}

    perfect = [run(1, 0.5, 0.7), run(2, 0.5, 0.9), run(3, 0.0, 1.0)]
    assert kept([run(1, 0.5, 0.6), run(2, 0.5, 0.8)], perfect).value == pytest.approx(0.4 / 0.6)
    assert kept([run(9, 0.5, 0.6)], perfect) is None
