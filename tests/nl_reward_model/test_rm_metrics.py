"""Reward-model metrics against slow, obvious reimplementations and against scikit-learn."""

import json
import random
from collections import Counter

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, confusion_matrix, precision_recall_fscore_support

from nl_reward_model.measures.metrics import metrics_table, reward_model_metrics, rouge, whole_metrics
from nl_reward_model.measures.paired_feedback import load_feedback_rows, pair_feedback
from nl_reward_model.measures.span_metrics import match_record
from nl_reward_model.measures.token_metrics import LABELS, NO_LABEL, labels, shuffled, token_metrics
from tests import tiny
from text2grad.errors import InputError
from text2grad.feedback import Feedback
from text2grad.records import save_json
from text2grad.tasks import get_task

WORDS = [f"{a}{b}" for a in ("bo", "ka", "lu", "mi", "ne", "ra") for b in ("da", "fo", "gi", "pu", "té", "zo", "'s")]


def random_rows(task_name: str, count: int, seed: int) -> dict[str, dict]:
    """Responses of words that occur once, so that where a quote stands is beyond doubt; feedback near the truth."""
    task, rng = get_task(task_name), random.Random(seed)
    rows = {}
    for number in range(count):
        words = rng.sample(WORDS, rng.randint(6, len(WORDS)))
        response = " ".join(words)
        if task.is_code:
            response = f"Take this:\n```python\n{chr(10).join(words)}\n```\nThat is all."

        def some(most: int, words=words, joint="\n" if task.is_code else " ") -> list[str]:
            chosen = []
            for _ in range(rng.randint(0, most)):
                start = rng.randrange(len(words))
                chosen.append(joint.join(words[start : start + rng.randint(1, 4)]))
            return list(dict.fromkeys(chosen))

        truth = Feedback(f"It is {rng.choice(WORDS)} and {rng.choice(WORDS)}.", some(3), some(3))

        def near(quotes: list[str]) -> list[str]:
            kept = [quote for quote in quotes if rng.random() < 0.6]
            cut = [quote[: max(4, len(quote) - rng.randint(0, 9))].strip() for quote in kept]
            return list(dict.fromkeys(cut + some(1) + ["not in there"] * (rng.random() < 0.2)))

        predicted = Feedback(f"It is {rng.choice(WORDS)}.", near(truth.good), near(truth.poor))
        base = dict.fromkeys(("question", "question_id"), f"q{number}") if task.is_code else {"post": f"p{number // 3}"}
        row = task.with_feedback(task.with_response(base, response), truth, {})
        broken = rng.random() < 0.15
        rows[f"r{number}"] = row | {
            "prediction": "{" if broken else task.render_feedback(predicted),
            "predicted": None if broken else task.fields.to_dict(predicted),
            "parse_error": "the JSON is cut off" if broken else None,
        }
    return rows


def slow_labels(item, feedback: Feedback | None, task) -> list[int]:
    """Character by character: a token has a label where all it shows lies in one span of that label."""
    inside = [(start, end) for start, end in task.rewarded(item.text)]
    found = []
    for start, end in item.tokens:
        characters = [i for i in range(start, end) if not item.text[i].isspace()] or list(range(start, end))
        if not characters or not any(low <= min(characters) and max(characters) < high for low, high in inside):
            continue
        label = int(task.values.default)
        for quotes, value in ((feedback.good, task.values.good), (feedback.poor, task.values.poor)) if feedback else ():
            for quote in quotes:
                place = item.text.find(quote, inside[0][0])
                if place != -1 and place <= min(characters) and max(characters) < place + len(quote):
                    label = int(value)
        found.append(label if feedback else NO_LABEL)
    return found


@pytest.mark.parametrize("family", ["byte", "sentencepiece"])
@pytest.mark.parametrize("task_name", ["slf5k", "kodcode"])
def test_token_figures_agree_with_slow_labels_and_scikit_learn(task_name, family):
    task, tokenizer = get_task(task_name), tiny.tokenizer(family)
    rows = random_rows(task_name, 25, seed=1)
    items = pair_feedback(rows, task, tokenizer)
    truth = [slow_labels(item, item.truth, task) for item in items]
    predicted = [slow_labels(item, item.predicted, task) for item in items]
    for item, true, guess in zip(items, truth, predicted, strict=True):
        assert labels(item, item.truth, task).tolist() == true
        assert labels(item, item.predicted, task).tolist() == guess
    true, guess = [x for row in truth for x in row], [x for row in predicted for x in row]
    got = reward_model_metrics(rows, task, tokenizer)["tokens"]
    precision, recall, f1, support = precision_recall_fscore_support(true, guess, labels=list(LABELS), zero_division=0)
    for index, name in enumerate(("+1", "0", "-1")):
        row = got["labels"][name]
        assert row["precision"]["value"] == pytest.approx(precision[index], abs=1e-6)
        assert row["recall"]["value"] == pytest.approx(recall[index], abs=1e-6)
        assert row["f1"]["value"] == pytest.approx(f1[index], abs=1e-6)
        assert row["f1"]["low"] <= row["f1"]["value"] <= row["f1"]["high"]
        assert row["true"] == support[index]
        assert got["chance"]["random"][name]["share"]["value"] == pytest.approx(support[index] / len(true), abs=1e-6)
    assert got["accuracy"]["value"] == pytest.approx(accuracy_score(true, guess), abs=1e-6)
    assert got["macro_f1"]["value"] == pytest.approx(np.mean(f1), abs=1e-6)
    wanted = confusion_matrix(true, guess, labels=[*LABELS, NO_LABEL])[:3]
    assert [list(row.values()) for row in got["confusion"].values()] == wanted.tolist()


def slow_spans(items, task, slot: str) -> dict[str, float]:
    """Table 6 read literally, on sets of character positions."""
    counts = Counter()
    for item in items:
        low = task.rewarded(item.text)[0][0]

        def characters(quote: str, item=item, low=low) -> frozenset[int]:
            place = item.text.find(quote, low)
            return frozenset(range(place, place + len(quote))) if place != -1 else frozenset()

        truth = [characters(quote) for quote in getattr(item.truth, slot)]
        guess = [characters(quote) for quote in (getattr(item.predicted, slot) if item.predicted else [])]
        counts["truth"] += len(truth)
        counts["predicted"] += len(guess)
        counts["exact"] += sum(span in truth for span in guess)
        counts["partial"] += sum(span not in truth and any(span & other for other in truth) for span in guess)
        counts["found"] += sum(any(span & other for other in guess) for span in truth)
        ours = set().union(*(span for span in guess if any(span & other for other in truth)))
        theirs = set().union(*(span for span in truth if any(span & other for other in guess)))
        counts["shared"] += len(ours & theirs)
        counts["joined"] += len(ours | theirs)
        counts["near"] += sum(
            any(len(span & other) >= 0.9 * max(len(span), len(other)) for other in truth if span) for span in guess
        )
        counts["nowhere"] += sum(not span for span in guess)
    return counts


@pytest.mark.parametrize("task_name", ["slf5k", "kodcode"])
def test_span_figures_agree_with_sets_of_characters(task_name):
    task, tokenizer = get_task(task_name), tiny.tokenizer("byte")
    rows = random_rows(task_name, 80, seed=2)
    items = pair_feedback(rows, task, tokenizer)
    got = reward_model_metrics(rows, task, tokenizer)
    nowhere = predicted = 0
    for slot in ("good", "poor"):
        wanted, row = slow_spans(items, task, slot), got["spans"][getattr(task.fields, slot)]
        names = ("truth", "predicted", "exact", "partial")
        assert [row[name] for name in names] == [wanted[name] for name in names]
        assert wanted["exact"] > 5 and wanted["partial"] > 5
        assert row["exact_recall"]["value"] == pytest.approx(wanted["exact"] / wanted["truth"], abs=1e-6)
        assert row["found_recall"]["value"] == pytest.approx(wanted["found"] / wanted["truth"], abs=1e-6)
        assert row["oui"]["value"] == pytest.approx(wanted["shared"] / wanted["joined"], abs=1e-6)
        if task.is_code:
            assert row["exact_match"]["value"] == pytest.approx(wanted["exact"] / wanted["predicted"], abs=1e-6)
            assert row["overlap_90"]["value"] == pytest.approx(wanted["near"] / wanted["predicted"], abs=1e-6)
        nowhere, predicted = nowhere + wanted["nowhere"], predicted + wanted["predicted"]
    assert got["unmatched_rate"]["value"] == pytest.approx(nowhere / predicted, abs=1e-6)


def test_span_lengths_and_accuracy_by_length():
    task, tokenizer = get_task("slf5k"), tiny.tokenizer("byte")
    rows = random_rows("slf5k", 80, seed=3)
    items = pair_feedback(rows, task, tokenizer)
    lengths, right = [], []
    for item in items:
        true = slow_labels(item, item.truth, task)
        for quote in item.predicted.poor if item.predicted else []:
            place = item.text.find(quote)
            inside = [
                index
                for index, (start, end) in enumerate(item.tokens)
                if 0 <= place <= start + (item.text[start] == " " and end - start > 1) and end <= place + len(quote)
            ]
            if inside:
                lengths.append(len(inside))
                right.append(np.mean([true[index] == -1 for index in inside]))
    got = reward_model_metrics(rows, task, tokenizer)["spans"]["poor_spans"]
    q1, q2, q3 = np.percentile(lengths, [25, 50, 75])
    quartiles = {"n": len(lengths), "mean": round(float(np.mean(lengths)), 3), "q1": q1, "q2": q2, "q3": q3}
    assert got["tokens_per_span"]["predicted"] == quartiles
    longest = [share for length, share in zip(lengths, right, strict=True) if length > q3]
    assert got["accuracy_by_length"]["Q3-100%"]["n"] == len(longest)
    assert got["accuracy_by_length"]["Q3-100%"]["value"] == pytest.approx(np.mean(longest), abs=1e-6)
    assert sum(bucket["n"] for bucket in got["accuracy_by_length"].values()) == len(lengths)


def test_critiques_are_compared_by_stems_and_one_that_is_not_there_scores_nothing():
    pairs = [("it named the cause", "it names the causes"), ("", "a b")]
    assert rouge(pairs) == {name: [1, 0] for name in ("rouge1", "rouge2", "rougeL")}


def test_chance_is_the_score_of_a_model_that_knows_only_how_many_spans_there_are():
    rng, task = np.random.default_rng(1), get_task("slf5k")
    truths = [np.repeat(rng.choice([0, 0, 0, 1, -1], 12), 5) for _ in range(80)]
    guesses = [shuffled(truth, 0, rng) for truth in truths]
    by_chance = token_metrics(truths, guesses, task)
    for label in ("+1", "-1"):
        gain = by_chance["chance"]["f1_above_shuffled"][label]
        assert gain["low"] < 0 < gain["high"]
    perfect = token_metrics(truths, truths, task)
    for label in ("+1", "0", "-1"):
        assert perfect["labels"][label]["f1"]["value"] == 1
        assert perfect["chance"]["f1_above_shuffled"][label]["low"] > 0.2


def test_flipped_signs_and_the_correlation_of_mean_rewards():
    truths = [np.array(values) for values in ([1, 1, -1, 0], [-1, -1, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0])]
    guesses = [np.array(values) for values in ([1, -1, 1, 1], [-1, -1, -1, 0], [0, 1, 0, 0], [2, 2, 2, 2])]
    found = token_metrics(truths, guesses, get_task("slf5k"))
    assert found["flip_rate"]["value"] == pytest.approx(2 / 5)
    expected = np.corrcoef([0.25, -0.5, 0.0], [0.5, -0.75, 0.25])[0, 1]  # without the one that could not be read
    assert found["mean_delta_correlation"]["value"] == pytest.approx(expected)
    assert token_metrics(truths, truths, get_task("slf5k"))["mean_delta_correlation"]["value"] == pytest.approx(1)


def test_what_no_span_holds_is_compared_where_annotations_have_it():
    task = get_task("slf5k")
    truths = [Feedback("c", ["a"], [], missing=["Porto", "the dog"], score=0.5), Feedback("c", [], [], score=-1.0)]
    truths.append(Feedback("c", [], [], missing=["rent"], score=0.0))
    said = [Feedback("c", ["a"], [], missing=["Porto", "rent"], score=1.0), Feedback("c", [], ["b"])]
    said.append(Feedback("c", score=0))
    found = whole_metrics(list(zip(said, truths, strict=True)), task, ["p", "q", "r"])
    expected = np.corrcoef([0.5, -1.0, 0.0], [1.0, -1.0, 0.0])[0, 1]  # the second is derived: one poor span
    assert found["verdict_correlation"]["value"] == pytest.approx(expected)
    assert found["missing_f1"]["value"] == pytest.approx(2 * 1 / (4 + 1))
    unjudged = (said[0], Feedback("c", ["a"], []))  # a person who gave no stars said no verdict
    assert whole_metrics([unjudged], task, ["p"]) == {}
    more = whole_metrics([unjudged, *zip(said, truths, strict=True)], task, "opqr")
    assert more["verdict_correlation"] == found["verdict_correlation"]
    undefined = {"value": None, "low": None, "high": None, "n": 3}
    for always in (0.1, 0.3, 0.6, 0.7):  # whose sums leave more or less than nothing
        alike = [(Feedback("c", score=always), truth) for truth in truths]
        assert whole_metrics(alike, task, "pqr")["verdict_correlation"] == undefined
    quotes_only = [Feedback("c", ["a"], []), Feedback("c", [], ["b"]), Feedback("c", ["a"], [])]
    assert [*whole_metrics(list(zip(quotes_only, truths, strict=True)), task, "pqr")] == ["verdict_correlation"]


def test_feedback_that_cannot_be_read_misses_every_token_and_claims_none():
    task, tokenizer = get_task("kodcode"), tiny.tokenizer("byte")
    row = task.with_feedback({"question": "q", "solution": "a = 1\nb = 2"}, Feedback("c", [], ["b = 2"]), {})
    got = reward_model_metrics({"r": row | {"predicted": None, "parse_error": "broken"}}, task, tokenizer)
    assert got["parse_rate"]["value"] == 0 and got["parse_errors"] == {"broken": 1}
    assert got["tokens"]["labels"]["-1"]["recall"]["value"] == 0
    assert got["tokens"]["labels"]["-1"]["precision"]["value"] is None
    assert got["tokens"]["confusion"]["-1"]["none"] > 0
    assert got["critique"]["rougeL"]["value"] == 0
    assert "–" in metrics_table(got)


def test_dense_feedback_is_scored_by_its_words():
    task, tokenizer = get_task("slf5k"), tiny.tokenizer("byte")
    base = {"post": "p", "generated_summary": "My sister borrowed my car"}
    truth = Feedback("c", scores=[("My", 0.0), ("sister", 1.0), ("borrowed", 0.4), ("my", 0.0), ("car", -1.0)])
    predicted = Feedback("c", scores=[("My", 0.0), ("sister", 1.0), ("borrowed", -0.2), ("my", 0.0), ("car", -0.5)])
    row = task.with_feedback(base, truth, {}) | {"predicted": task.fields.to_dict(predicted)}
    got = reward_model_metrics({"r": row}, task, tokenizer)["tokens"]["confusion"]
    assert got["+1"]["+1"] > 0 and got["+1"]["-1"] > 0 and got["-1"]["-1"] > 0
    assert got["-1"]["+1"] == got["0"]["+1"] == got["0"]["-1"] == 0


def test_duplicate_predictions_count_once_as_exact():
    task, tokenizer = get_task("slf5k"), tiny.tokenizer("byte")
    row = task.with_feedback({"post": "p", "generated_summary": "one two three"}, Feedback("c", ["two"], []), {})
    row["predicted"] = {"textual_feedback": "c", "good_spans": ["two", "two"], "poor_spans": []}
    item = pair_feedback({"r": row}, task, tokenizer)[0]
    matching = match_record(item, task, labels(item, item.truth, task))["good"]
    assert (matching.exact, matching.partial, matching.same) == (1, 1, 2)


def test_the_script_writes_figures_and_takes_the_older_flags(tmp_path, run_script):
    task = get_task("slf5k")
    rows = random_rows("slf5k", 12, seed=4)
    save_json(tmp_path / "results.json", rows)
    tiny.tiny_model(tmp_path / "policy")
    files = {"results_path": tmp_path / "results.json", "output_path": tmp_path / "out" / "figures.json"}
    done = run_script("nl_reward_model/slf5k/evaluation/3_metrics.py", **files, tokenizer=tmp_path / "policy")
    written = json.loads(files["output_path"].read_text())
    wanted = reward_model_metrics(rows, task, tiny.tokenizer("byte"))
    assert {name: written[name] for name in wanted} == wanted
    assert "| -1 " in done.stdout and f"{wanted['parse_rate']['value']:.3f}" in done.stdout


def test_files_that_cannot_be_compared_are_refused(tmp_path):
    task = get_task("slf5k")
    for told in ({}, {"predicted": '{"textual_feedback": "Fine."}'}):  # the second is a table's
        save_json(tmp_path / "bare.json", {"a": {"post": "p", "generated_summary": "s", **told}})
        with pytest.raises(InputError, match="no feedback of a model"):
            load_feedback_rows(tmp_path / "bare.json", task)
    save_json(tmp_path / "bare.json", {"a": {"post": "p", "generated_summary": "s", "predicted": None}})
    with pytest.raises(InputError, match="no annotation"):
        load_feedback_rows(tmp_path / "bare.json", task)
    save_json(tmp_path / "broken.json", {"a": {**random_rows("slf5k", 1, seed=5)["r0"], "good_spans": "no list"}})
    with pytest.raises(InputError, match=r"broken.json: record 'a': 'good_spans' is not a list"):
        load_feedback_rows(tmp_path / "broken.json", task)
