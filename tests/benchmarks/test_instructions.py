"""Requests with rules: what each checker quotes, and a study of a few steps on a random model."""

import pytest

from benchmarks.instructions.checks import CHECKS, passes, violations
from benchmarks.instructions.critic import judge
from benchmarks.instructions.make_requests import KINDS, make_requests
from benchmarks.instructions.study import START, InstructionsConfig, table, train_and_evaluate
from tests.tiny import tiny_model
from text2grad.errors import InputError
from text2grad.grounding import ground
from text2grad.records import load_json


@pytest.mark.parametrize(
    ("rule", "argument", "text", "quotes"),
    [
        ("words", [2, 4], "One two three four five six.", ["five six."]),
        ("words", [2, 4], "One, two – three.", []),
        ("sentences", 1, "It rains. It pours! Yes", ["It pours!", "Yes"]),
        ("sentences", 2, "It rains. It pours!", []),
        ("without", "water", "Water is water, not waterproof.", ["Water", "water"]),
        ("no_commas", True, "Rain, snow, hail.", ["Rain,", "snow,"]),
        ("mentions", "rain", "Rainy days.", []),
        ("on_topic", True, "Tea in 8 to 30 words is a hot drink.", ["8 to 30", "words"]),
        ("on_topic", True, "Write about tea. Do not use one comma!", ["Write about", "Do not use", "one comma"]),
        ("on_topic", True, "The wordless sea, a capitalist and 8 of his letters.", []),
        ("no_repeats", True, "It rains. It pours. It rains.", ["It rains."]),
    ],
)
def test_a_checker_quotes_what_breaks_its_rule(rule, argument, text, quotes):
    found = CHECKS[rule](text, argument)
    assert [quote for violation in found for quote in violation.quotes] == quotes
    assert all(ground(quote, text) for quote in quotes) and bool(found) == bool(quotes)


@pytest.mark.parametrize(
    ("rule", "argument", "missing", "score"),
    [("words", [6, 9], "4 more words", 1 / 6), ("mentions", "rain", "rain", 0)],
)
def test_what_no_quote_can_show_is_missing(rule, argument, missing, score):
    assert [(each.quotes, each.missing) for each in CHECKS[rule]("It pours.", argument)] == [([], missing)]
    feedback = judge("", "It pours.", {"rules": {rule: argument, "no_commas": True}})
    assert (feedback.good, feedback.poor, feedback.missing) == (["It pours."], [], [missing])
    assert feedback.score == pytest.approx(score)  # of two rules


def test_the_critic_blames_and_praises():
    rules = {"words": [3, 8], "mentions": "rain", "no_commas": True}
    text = "Rain, it falls. It is rain."
    feedback = judge("", text, {"rules": rules})
    assert feedback.poor == ["Rain,"] and feedback.good == ["It is rain."]
    assert feedback.critique == "It has commas, which the request forbids."
    right = judge("", "Rain falls on us.", {"rules": rules})
    assert (right.good, right.poor, right.critique) == (["Rain falls on us."], [], "It follows every rule.")


def test_requests_are_repeatable_and_held_out():
    train, held_out = make_requests(200, 0, held_out=False), make_requests(200, 0, held_out=True)
    assert train == make_requests(200, 0, held_out=False) and {each["kind"] for each in train} == set(KINDS)
    assert not {each["prompt"] for each in train} & {each["prompt"] for each in held_out}
    assert not passes("", {"no_commas": True}) and not violations("", {"no_commas": True})


def test_a_study_trains_evaluates_and_goes_on(tmp_path):
    config = InstructionsConfig(
        output_dir=str(tmp_path / "study"), model=tiny_model(tmp_path / "tiny"), methods=["verdict", "distill"],
        seeds=[1], steps=1, rollouts=4, requests=8, held_out=6, max_new_tokens=8,
    )  # fmt: skip
    found = train_and_evaluate(config)
    assert set(found) == {"start", "verdict", "distill"} and len(found["start"][0]) == 6
    metrics = load_json(tmp_path / "study" / "distill" / "seed-1" / "metrics.jsonl")
    assert metrics[0]["teacher/unread"] == 0 and metrics[0]["ledger/critiques"] <= 4
    assert train_and_evaluate(config) == found  # nothing is trained again
    cells = [cell.strip() for cell in table(found, config.kinds).splitlines()[2].split("|")]
    assert cells[1:5] == ["before training", "0.000", "0.00", ""]
    config.methods = [START]
    assert train_and_evaluate(config) == {START: found[START]}
    config.steps = 2
    with pytest.raises(InputError, match="choose another --output_dir"):
        train_and_evaluate(config)
