"""z = [c; A(y)]: what is rendered is read back, and nothing else is taken for feedback."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from text2grad.feedback import Feedback, FeedbackError, Verdict, verdict
from text2grad.prompts import Prompt, load_prompt, prompt_path
from text2grad.tasks import TASKS, get_task

pytestmark = pytest.mark.fast

text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip)
texts = st.lists(text, max_size=3)
scores = st.none() | st.floats(-1, 1)
feedbacks = st.builds(Feedback, text.map(str.strip), texts, texts, missing=texts, score=scores)


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
@given(
    feedback=feedbacks,
    before=st.text(max_size=20).filter(lambda s: "{" not in s),
    after=st.sampled_from(["", "\n```", " ok."]),
)
def test_round_trip(task, feedback, before, after):
    assert task.parse_feedback(before + task.render_feedback(feedback) + after) == feedback


def test_what_is_missing_and_the_verdict_come_last_and_only_where_given():
    task = get_task("slf5k")
    whole = Feedback("c", missing=["who won"], score=-0.5)
    assert list(json.loads(task.render_feedback(whole)))[-2:] == ["missing", "verdict"]
    assert list(json.loads(task.render_feedback(Feedback("c", score=0.0))))[-2:] == ["missing", "verdict"]
    assert list(json.loads(task.render_feedback(Feedback("c", missing=["x"]))))[-1] == "missing"
    older = '{"textual_feedback": "c", "good_spans": [], "poor_spans": []}'
    assert task.render_feedback(Feedback("c")) == older == task.without_verdict().render_feedback(whole)
    nothing = '{"Textual_feedback": "c", "good_spans": [], "poor_spans": [], "Missing": null}'
    assert task.parse_feedback(nothing).missing == []


@pytest.mark.parametrize("name", ["slf5k", "kodcode", "ultrafeedback"])
def test_a_reward_model_is_asked_for_the_fields_that_z_has(name):
    full = Feedback("c", good=["g"], poor=["p"], missing=["m"], score=0.5)
    task = get_task(name)
    for known in (task, task.without_verdict()):
        for variant in ("cot", "no_cot"):
            asked = load_prompt(prompt_path(task, "reward_model", variant)).bound("whole", known.fields.whole)
            shape = asked.text[asked.text.index("{") : asked.text.index("}") + 1].replace("-1..1", "1")
            assert list(json.loads(shape)) == list(known.fields.to_dict(full)) and asked.names == {"prompt", "response"}


def test_a_placeholder_is_bound_in_both_spellings_and_where_it_is_one():
    prompt = Prompt("$whole, ${whole}, $${whole}, ${prompt}", frozenset({"whole", "prompt"}), "mine.txt")
    assert prompt.bound("whole", "$5").fill({"prompt": "x"}) == "$5, $5, ${whole}, x"


def test_an_older_annotation_leaves_nothing_behind():
    task = get_task("slf5k")
    record = {"post": "x", "generated_summary": "y"}
    first = task.with_feedback(record, Feedback("c", missing=["z"], score=0.5), {})
    assert task.feedback(first) == Feedback("c", missing=["z"], score=0.5)
    assert task.feedback(task.with_feedback(first, Feedback("d"), {})) == Feedback("d")
    assert task.training_prompts({**first, "feedback": "A person's."}) == record
    program = {"question": "x", "solution": "y"}
    assert get_task("kodcode").training_prompts({**program, "log": {"passed": True}, "log_weaker": []}) == program


def test_own_fields_with_the_names_of_feedbacks_parts_stay():
    task = get_task("plain")
    own = dict.fromkeys(("verdict", "missing", "scores", "annotation", "log", "log_weaker"), "the task's own")
    record = {"prompt": "x", "response": "y", **own}
    assert task.training_prompts(record) == task.without_older(record) == record


@pytest.mark.parametrize(
    ("feedback", "value"),
    [
        (Feedback("c", ["a"], ["b"], score=0.25), 0.25),
        (Feedback("c", ["a", "b", "c"], ["d"], missing=["e"]), 0.5),  # F1 = 2·3 / (2·3 + 1 + 1) = 3/4
        (Feedback("c", ["a"]), 1.0),
        (Feedback("c", [], ["a"]), -1.0),
        (Feedback("c", [], [], missing=["a"]), -1.0),
        (Feedback("c"), 0.0),
        (Feedback("c", scores=[("a", 1.0), ("b", -0.5)]), 0.25),
    ],
)
def test_a_verdict_is_given_or_derived_from_the_spans(feedback, value):
    assert verdict(feedback) == Verdict(value, "given" if feedback.score is not None else "derived")


def test_code_without_wrong_lines_is_right():
    task = get_task("kodcode")
    assert task.verdict(Feedback("c", good=["improvable"])).value == 1.0
    assert task.verdict(Feedback("c", poor=["wrong"])).value == pytest.approx(4 / 3 - 1)  # 2·1 / (2·1 + 1)
    assert task.verdict(Feedback("c", poor=["wrong"], score=-1.0)).value == -1.0


def test_the_last_complete_object_counts():
    draft = '{"textual_feedback": "draft", "good_spans": [], "poor_spans": []}'
    final = '{"Textual Feedback": "final", "Good spans": ["a"], "poor-spans": null, "note": {"x": 1}}'
    assert get_task("slf5k").parse_feedback(f"Let me think {{hm}}. {draft} Better: {final}") == Feedback("final", ["a"])
    code = (
        r"""{"code_feedback": "It\'s \u00e9.", "wrong_code": ["re.sub('\d+', '\\w')"], "improvement_code": ["\u12"]}"""
    )
    assert get_task("kodcode").parse_feedback(code) == Feedback("It's é.", [r"\u12"], [r"re.sub('\d+', '\w')"])
    spans = '{"good_spans": ["a"], "poor_spans": []}'  # what is asked for beside a person's critique
    assert get_task("slf5k").fields.parse(f"{spans} for the dict {{}}", "by hand") == Feedback("by hand", ["a"])


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ("", "empty"),
        ("The summary is fine.", "no JSON object"),
        ('{"textual_feedback": "a", "good_spans": ["b', "cut off"),
        ('{"textual_feedback": "a", "good_spans": ["b"]', "cut off"),
        ('{"textual_feedback": "a", "good_spans": []}', "lacks 'poor_spans'"),
        ('{"textual_feedback": "a", "good_spans": "b", "poor_spans": []}', "'good_spans' is not a list"),
        ('{"textual_feedback": "a", "good_spans": [1], "poor_spans": []}', "'good_spans' is not a list"),
        ('{"textual_feedback": 3, "good_spans": [], "poor_spans": []}', "'textual_feedback'"),
        ('{"textual_feedback": " ", "good_spans": [], "poor_spans": []}', "'textual_feedback'"),
        ('{"textual_feedback": "a", "textual_feedback": "b", "good_spans": [], "poor_spans": []}', "twice"),
        ('{"textual_feedback": "\\ud800", "good_spans": [], "poor_spans": []}', "surrogate"),
        ('{"textual_feedback": "a", "scores": [["b", 2]]}', "'scores'"),
        ('{"textual_feedback": "a", "good_spans": [], "poor_spans": [], "missing": "b"}', "'missing'"),
        ('{"textual_feedback": "a", "good_spans": [], "poor_spans": [], "verdict": "good"}', "'verdict'"),
        ('{"textual_feedback": "a", "good_spans": [], "poor_spans": [], "verdict": -1.1}', "'verdict'"),
        ('{"textual_feedback": "a", "good_spans": [], "poor_spans": [], "verdict": true}', "'verdict'"),
        ('{"textual_feedback": "a", "scores": [["b", NaN]]}', "'scores'"),
        ('{"a": ' * 100_000, "nests|no JSON|cut off|broken"),
        ('[["textual_feedback"]]', "no JSON object"),
    ],
)
def test_what_is_wrong_is_said(reply, reason):
    with pytest.raises(FeedbackError, match=reason):
        get_task("slf5k").parse_feedback(reply)


def test_dense_scores_need_no_spans_and_in_a_record_no_critique():
    task = get_task("slf5k")
    got = task.parse_feedback('{"textual_feedback": "a", "scores": [["b", 1], [" c", -0.5]]}')
    assert got == Feedback("a", scores=[("b", 1.0), (" c", -0.5)])
    assert task.parse_feedback(task.render_feedback(got)) == got
    alone = Feedback("", scores=got.scores)  # a function of one's own may have nothing else to say
    assert task.feedback(task.with_feedback({"post": "x", "generated_summary": "b c"}, alone, {})) == alone
    with pytest.raises(FeedbackError, match="lacks 'good_spans', 'poor_spans'"):
        task.without_critique().parse_feedback('{"scores": [["b", 1]]}')


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
@given(feedback=feedbacks)
def test_without_a_critique_z_is_the_two_lists(task, feedback):
    alone = task.without_critique()
    z = alone.render_feedback(feedback)
    assert list(json.loads(z)) == [task.fields.good, task.fields.poor]
    assert alone.parse_feedback(z) == Feedback("", feedback.good, feedback.poor)
    assert alone.parse_feedback(task.render_feedback(feedback)) == Feedback("", feedback.good, feedback.poor)
    with pytest.raises(FeedbackError, match=f"lacks '{task.fields.critique}'"):
        task.parse_feedback(z)
    assert task.fields.with_critique  # the task itself is as it was


def test_a_record_may_hold_spans_alone():
    task = get_task("slf5k")
    older = {"textual_feedback": "Of older spans.", "good_spans": ["A"]}
    record = {"post": "x", "generated_summary": "A dog ran.", **older}
    annotated = task.with_feedback(record, Feedback("", ["A dog"], []), {})
    assert task.feedback(annotated) == Feedback("", ["A dog"], [])
    del annotated["textual_feedback"]
    assert task.feedback(annotated) == Feedback("", ["A dog"], [])
    assert task.feedback({"post": "x", "good_spans": ["A dog"]}) is None
    with pytest.raises(FeedbackError, match="'textual_feedback' of the record is not a text"):
        task.feedback({**annotated, "textual_feedback": None})
