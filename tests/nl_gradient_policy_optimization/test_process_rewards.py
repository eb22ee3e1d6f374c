"""PRM-PPO: steps of a response, their labels, and a reward at the end of each."""

import pytest

from nl_gradient_policy_optimization.algorithms.steps import at_step_ends, label_steps, split_steps
from nl_gradient_policy_optimization.baselines import step_labels
from nl_gradient_policy_optimization.baselines.step_labels import by_step
from nl_gradient_policy_optimization.optimize import optimize
from nl_gradient_policy_optimization.rewards import CriticRewards
from tests.baseline_runs import BAD, GOOD, KODCODE, SLF5K, QuotingCritic, rollout
from tests.tiny_runs import POSTS, tiny_config
from text2grad.errors import InputError
from text2grad.feedback import Feedback
from text2grad.records import load_json, save_json

PROGRAM = '''import math

def area(radius):
    """The area; of a circle."""
    if radius < 0:
        raise ValueError("no")
    else:
        value = math.pi * radius ** 2; value += 1
    return value
'''


def pieces(text: str, task=SLF5K) -> list[str]:
    return [text[start:end] for start, end in split_steps(text, task)]


def test_steps_of_a_summary_are_sentences_and_clauses():
    text = "Dr. Ash lost 3.5 kg, but she feels worse than ever. Should she stop, or go on? No; e.g. yes…\nBye"
    sentences = ["Dr. Ash lost 3.5 kg,", "but she feels worse than ever.", "Should she stop,", "or go on?"]
    assert pieces(text) == [*sentences, "No; e.g. yes…", "Bye"]
    assert pieces("她累了。为什么？") == ["她累了。", "为什么？"]


def test_steps_of_a_program_are_its_statements():
    fenced = f"Here it is:\n```python\n{PROGRAM}```\nDone."
    assert pieces(fenced, KODCODE) == pieces(PROGRAM, KODCODE)
    assert pieces(PROGRAM, KODCODE) == [
        "import math", 'def area(radius):\n    """The area; of a circle."""', "if radius < 0:",
        'raise ValueError("no")\n    else:', "value = math.pi * radius ** 2;", "value += 1", "return value",
    ]  # fmt: skip
    assert pieces("# q\x0cabéé\nx = 1\u2028\ny = 2", KODCODE)[-1] == "y = 2"
    assert pieces("# q\x0cabéé\nif 1:y = 2\r\nz = 3\n", KODCODE)[-2:] == ["y = 2", "z = 3"]
    shared = ["@cache\ndef f(ä, b):", "return ä", "x = 'é';", "y = 2"]
    assert pieces("@cache\ndef f(ä, b): return ä\nx = 'é'; y = 2", KODCODE) == shared
    for unparsed in ("def f(:", "-" * 6200):  # the second is a MemoryError of Python's parser
        assert pieces(f"{unparsed}\n\n  x\n", KODCODE) == [unparsed, "x"]


@pytest.mark.parametrize("text", [GOOD, BAD, "one", " \n a. b. c; d e f g: h i j — k l m\n", "“Yes.” … no!", PROGRAM])
@pytest.mark.parametrize("task", [SLF5K, KODCODE])
def test_steps_cover_every_character_once(text, task):
    steps = split_steps(text, task)
    covered = [position for start, end in steps for position in range(start, end)]
    assert len(covered) == len(set(covered)) and covered == sorted(covered)
    assert {i for i, char in enumerate(text) if not char.isspace()} <= set(covered)


def test_a_step_that_a_poor_span_touches_is_wrong():
    text = "She lost her job, and she wants a new car. Is she right?"
    steps = split_steps(text, SLF5K)
    assert label_steps(steps, text, Feedback("c", good=["lost her job"], poor=["new car"]), SLF5K) == [1, -1, 1]


@pytest.mark.parametrize("text", [GOOD, "Zwei Sätze 🐶. Und noch einer 🎉!", "我的室友。为什么？"])
def test_step_rewards_sit_on_step_ends(text):
    row = rollout(text)
    steps = split_steps(row.response, SLF5K)
    rewards = at_step_ends(steps, [float(n + 1) for n in range(len(steps))], row.spans)
    for number, (_, end) in enumerate(steps, 1):
        holders = [token for token, (low, high) in enumerate(row.spans) if low < end <= high]
        assert rewards[holders[-1]] == number
    assert sum(value != 0 for value in rewards) == len(steps)
    assert rewards[-1] == 0  # the end token belongs to no step


def test_prm_rewards_come_from_the_critic_and_keep_failures(tmp_path):
    config = tiny_config(tmp_path, algorithm="steps", unfinished_reward=-0.5)
    spans = CriticRewards(QuotingCritic(poor=["ticket"]), SLF5K, config)
    source = config.algorithm.wrap(spans, SLF5K, config)
    rows = [rollout("She got a ticket. He pays."), rollout("will fail"), rollout(" "), rollout(BAD, finished=False)]
    wrong, failed, empty, unfinished = source(rows)
    assert [value for value in wrong.rewards if value] == [-1.0, 1.0]
    assert wrong.deltas == spans(rows[:1])[0].deltas and -1.0 in wrong.deltas
    assert failed.error == "no reply" and not any(failed.rewards)
    assert empty.rewards == [0.0] * (len(empty.rewards) - 1) + [-1.0]
    assert unfinished.rewards[-1] == -0.5 and [value for value in unfinished.rewards[:-1] if value] == [1.0]


def test_ultrafeedback_has_no_steps(tmp_path):
    config = tiny_config(tmp_path, algorithm="steps")
    save_json(config.data_path, {"a": {"prompt": "Name a colour."}})
    with pytest.raises(InputError, match=r"without reasoning steps.*appendix N"):
        optimize("ultrafeedback", config)


def test_prm_ppo_trains_on_the_rewards_of_its_steps(tmp_path):
    optimize("slf5k", tiny_config(tmp_path, algorithm="steps", critic="programmatic", max_steps=1))
    run = load_json(tmp_path / "run" / "run.json")
    assert (run["method"], run["critic"]) == ("prm_ppo", "programmatic")
    for row in load_json(tmp_path / "run" / "rollouts.jsonl"):
        if row["response"].strip():
            steps = split_steps(row["response"], SLF5K)
            labels = label_steps(steps, row["response"], Feedback("c", row["good"], row["poor"]), SLF5K)
            assert row["rewards"] == at_step_ends(steps, labels, [tuple(span) for span in row["spans"]])


def test_step_labels_are_annotations_of_whole_steps():
    base = {"post": POSTS[0], "generated_summary": "She lost her job, and she wants a new car. Is she right?"}
    made = by_step(SLF5K.with_feedback(base, Feedback("c", ["lost"], ["new car"]), {"model": "m"}), SLF5K)
    assert made["poor_spans"] == ["and she wants a new car."]
    assert made["good_spans"] == ["She lost her job,", "Is she right?"]
    assert made["annotation"] == {"model": "m", "unit": "step"}
    base, judged = {"question": "q", "solution": PROGRAM}, Feedback("c", ["import math"], ["radius ** 2"])
    made = by_step(KODCODE.with_feedback(base, judged, {}), KODCODE)
    assert (made["wrong_code"], made["improvement_code"]) == (["value = math.pi * radius ** 2;"], [])


def test_a_broken_annotation_is_named_and_records_without_one_are_left_out(tmp_path, refused, capsys):
    told = {"post": POSTS[0], "generated_summary": "It ends.", "good_spans": ["ends"], "poor_spans": []}
    told["annotation"] = None
    bare = {"post": POSTS[1], "generated_summary": "So it goes."}
    flags = {"task": "slf5k", "data_path": tmp_path / "in.json", "output_path": tmp_path / "out.json"}
    save_json(tmp_path / "in.json", {"a": {**told, "good_spans": "ends"}, "b": bare})
    assert "in.json: record 'a': 'good_spans' is not a list" in refused(step_labels.main, **flags)
    save_json(tmp_path / "in.json", {"a": told, "b": bare})
    step_labels.main()
    assert list(load_json(tmp_path / "out.json")) == ["a"] and "1 annotated records" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("task", "text", "poor"),
    [
        (SLF5K, "I do not know. He left her. I do not know.", ["her. I do not know."]),
        (KODCODE, "if a:\n    return 0\nb = 1\nif c:\n    return 0\n", ["if c:\n    return 0"]),
        (KODCODE, "```python\nb()\na()\nb()\n```\n```python\nc()\nd()\n```", ["a()\nb()", "c()"]),
    ],
)
def test_a_right_step_with_the_text_of_a_wrong_one_stays_right(task, text, poor):
    field = "generated_summary" if task is SLF5K else "solution"
    record = {"post": "p", "question": "q", field: text}
    steps, feedback = split_steps(text, task), Feedback("c", poor=poor)
    made = task.feedback(by_step(task.with_feedback(record, feedback, {}), task))
    labels = label_steps(steps, text, feedback, task)
    assert {1.0, -1.0} == set(labels) and label_steps(steps, text, made, task) == labels
