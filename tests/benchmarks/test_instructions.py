"""Requests with rules: what each checker quotes, what passes, and a campaign on a random model."""

import sys

import pytest

from benchmarks.instructions import evaluate
from benchmarks.instructions.checks import CHECKS, passes, violations
from benchmarks.instructions.critic import judge
from benchmarks.instructions.make_requests import KINDS, make_requests
from tests.processes import run_command
from tests.tiny import tiny_model
from text2grad.grounding import ground
from text2grad.records import load_json, save_json


@pytest.mark.parametrize(
    ("rule", "argument", "text", "quotes"),
    [
        ("words", [2, 4], "One two three four five six.", ["five six."]), ("words", [2, 4], "One, two – three.", []),
        ("sentences", 1, "It rains. It pours! Yes", ["It pours!", "Yes"]), ("sentences", 2, "It rains. It pours!", []),
        ("without", "water", "Water is water, not waterproof.", ["Water", "water"]),
        ("no_commas", True, "Rain, snow, hail.", ["Rain,", "snow,"]), ("mentions", "rain", "Rainy days.", []),
        ("on_topic", True, "Tea in 8 to 30 words is a hot drink.", ["8 to 30", "words"]),
        ("on_topic", True, "Write about tea. Do not use one comma!", ["Write about", "Do not use", "one comma"]),
        ("on_topic", True, "The wordless sea, a capitalist and 8 of his letters.", []),
        ("no_repeats", True, "It rains. It pours. It rains.", ["It rains."]),
    ],
)  # fmt: skip
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


def test_an_answer_passes_where_no_checker_objects_and_the_limit_did_not_cut_it(tmp_path, monkeypatch):
    asked = {"kind": "short", "rules": {"words": [1, 3], "mentions": "tea"}}
    answers = {"a": ("Hot tea.", True), "b": ("Hot tea.", False), "c": ("Hot milk.", True)}
    records = {}
    for key, (text, ended) in answers.items():
        records[key] = {**asked, "id": key, "prompt": "?", "response": text, "generation": {"finished": ended}}
    records["d"] = {**records["a"], "id": "d", "kind": "long"}
    found = {name: figure.value() for name, figure in evaluate.figures(records).items() if figure.rows}
    assert found == {"passes": 0.5, "words": 2, "few_words": pytest.approx(1 / 3), "many_words": 1}
    save_json(tmp_path / "answers.json", list(records.values()))
    flags = ["--critic", "benchmarks/instructions/critic.py:judge", "--tokenizer", tiny_model(tmp_path / "tiny")]
    paths = ["--data_path", str(tmp_path / "answers.json"), "--output_path", str(tmp_path / "result.json")]
    monkeypatch.setattr(sys, "argv", ["evaluate.py", "--system", "s", *flags, *paths])
    evaluate.main()
    measured = load_json(tmp_path / "result.json")["metrics"]
    assert (measured["passes"]["value"], measured["missing"]["value"]) == (0.5, 0.25)  # "c" lacks the tea


@pytest.mark.slow
def test_the_campaign_trains_and_measures_on_a_random_model(tmp_path):
    run_command(
        "python", "recipes/campaign.py", "--config", "benchmarks/instructions/requests.yaml", "--seeds", 1,
        "--output_dir", tmp_path / "run", "--model", tiny_model(tmp_path / "tiny"), "--only", "verdict", "distill",
        "--set", "requests=8", "held_out=6", "steps=1", "rollouts=4", "micro=4", "tokens=8",
    )  # fmt: skip
    found = load_json(tmp_path / "run" / "figures.json")
    assert list(found) == ["base", "verdict-seed1", "distill-seed1"]
    assert found["distill-seed1"]["less_base"]["passes"]["difference"] == 0
    metrics = load_json(tmp_path / "run" / "distill-seed1" / "train" / "metrics.jsonl")
    assert metrics[0]["teacher/unread"] == 0 and metrics[0]["ledger/critiques"] <= 4
