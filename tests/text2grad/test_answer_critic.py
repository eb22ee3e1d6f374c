"""The critic of answers: faults, praise, and answers that try to please it cheaply."""

import json
import statistics
from collections import defaultdict

import pytest

from text2grad.critics.programs.ultrafeedback.critic import _SAID, AnswerCritic
from text2grad.feedback import Feedback
from text2grad.grounding import ground
from text2grad.tasks import get_task
from text2grad.token_rewards import rewards_on

pytestmark = pytest.mark.fast

CRITIC = AnswerCritic()


def delta(feedback: Feedback, answer: str) -> float:
    """The mean reward over the answer's characters, white space aside: what a tokenizer of characters would get."""
    places = [(at, at + 1) for at, char in enumerate(answer) if not char.isspace()]
    values = rewards_on(answer, places, feedback, "ultrafeedback").values
    return sum(values) / len(values) if values else 0.0


def judge(request: str, answer: str) -> Feedback:
    feedback = CRITIC.feedback_on(request, answer)
    assert all(len(ground(quote, answer)) == 1 for quote in feedback.good + feedback.poor)
    assert feedback.critique.strip()
    return feedback


ROME = "How did the Roman aqueducts work?"
GOOD = (
    "Roman aqueducts carried water from springs to cities by gravity alone. Engineers cut a channel with a slope of "
    "roughly thirty centimetres per kilometre and lined it with waterproof mortar. Where valleys crossed the route, "
    "they raised the channel on arches or pushed it through lead pipes that worked as siphons. Settling basins caught "
    "sand and gravel before the water reached distribution tanks. From there, bronze nozzles measured the supply of "
    "fountains, baths and private houses."
)


def test_an_ordinary_good_answer():
    feedback = judge(ROME, GOOD)
    assert feedback.poor == []
    assert delta(feedback, GOOD) > 0.5
    assert "springs" in feedback.critique


FAULTS = {
    "refusal": "I'm sorry, but as an AI language model I cannot help with this question about aqueducts.",
    "repetition": f"{GOOD} Engineers cut a channel with a slope of roughly thirty centimetres per kilometre.",
    "no end": f"{GOOD} Later emperors repaired the older lines and added new ones because the",
    "no language": (
        "Aqueducts water gravity arches stone mortar channels siphons basins tanks nozzles fountains baths houses "
        "springs engineers."
    ),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_faults(kind):
    feedback = judge(ROME, FAULTS[kind])
    assert feedback.poor
    assert _SAID[kind] in feedback.critique
    assert delta(feedback, FAULTS[kind]) < delta(judge(ROME, GOOD), GOOD)


def test_requests_about_the_assistant_may_be_answered():
    answer = "As an AI language model, I cannot feel pain or joy like a human being does."
    assert judge("Can you think and feel like a human?", answer).poor == []


TRICKS = {
    "empty": " ",
    "the request": ROME,
    "the request twice": f"{ROME}\n\n{ROME}",
    "one sentence again and again": " ".join([GOOD.split(". ")[0] + "."] * 6),
    "one sentence": GOOD.split(". ")[0] + ".",
    "the same pattern again and again": (
        "The arch of the Roman aqueducts is a channel with stone and cities. "
        "The slope of the Roman aqueducts is a siphon with lead and valleys. "
        "The mortar of the Roman aqueducts is a fountain with sand and houses. "
        "The spring of the Roman aqueducts is a bath with water and engineers. "
        "The basin of the Roman aqueducts is a gravel with tanks and routes. "
        "The nozzle of the Roman aqueducts is a bronze with pipes and emperors."
    ),
    "filler": (
        "Sure! That's a great question. There are many factors to consider. It depends on your personal situation. "
        "It's important to note that everyone is different. Overall, do what works for you. I hope this helps!"
    ),
    "filler that names the topic": (
        "Roman aqueducts are very interesting. There are many aspects of Roman aqueducts. When it comes to Roman "
        "aqueducts, they play an important role in our world. In conclusion, Roman aqueducts are good to know about."
    ),
    "key words": "Roman, aqueducts, water, gravity, arches, channel, siphons, mortar, basins, tanks, fountains, baths.",
    "a list of key words": "- Roman\n- aqueducts\n- water\n- gravity\n- arches\n- siphons\n- tanks",
    "shuffled": " ".join(sorted(GOOD.split(), key=lambda word: word[::-1])),
    "doubled": f"{GOOD}\n\n{GOOD}",
    "cut": GOOD[: len(GOOD) // 3],
    "another topic": (
        "Bananas ripen faster beside apples. Growers pick them green and ship them cold. Warm rooms filled with "
        "ethylene finish the process within days."
    ),
    "padded": f"{GOOD} {' '.join(['It is good to know things about the world in general.'] * 5)}",
}


@pytest.mark.parametrize("name", TRICKS)
def test_cheap_answers_score_below_an_ordinary_good_one(name):
    ordinary = delta(judge(ROME, GOOD), GOOD)
    assert delta(judge(ROME, TRICKS[name]), TRICKS[name]) < ordinary - 0.1


def test_more_substance_earns_more_until_there_is_enough():
    parts = GOOD.split(". ")
    scores = [delta(judge(ROME, answer), answer) for answer in (". ".join(parts[:n]) + "." for n in (1, 2, 4))]
    assert scores == sorted(scores)
    assert scores[0] < 0.5 * scores[-1]


def test_a_verdict_is_the_balance_of_what_is_kept_and_what_is_broken():
    whole = judge(ROME, GOOD)
    assert whole.missing == [] and whole.score > 0.5
    begun = judge(ROME, GOOD.split(". ")[0] + ".")
    assert begun.score < 0 and begun.missing == ["an answer in full"]
    assert judge(ROME, f"{GOOD} {GOOD}").score < 1


@pytest.mark.parametrize("answer", ["", "   ", "…", "!!!", "```\n```", "😀😀", "\n\n-\n"])
def test_an_answer_without_words_is_poor_as_a_whole(answer):
    feedback = judge(ROME, answer)
    assert (feedback.good, feedback.poor) == ([], [answer.strip()] if answer.strip() else [])


@pytest.mark.parametrize(
    "answer",
    [
        "这是一个关于罗马水道的回答。它们用重力输送水。",
        "Les aqueducs romains transportaient l'eau par gravité sur de longues distances.",
        "a " * 5000, "x" * 20000, "1. " * 500, "| a | b |\n" * 200, "<p>Roman aqueducts &amp; water</p>\x00\ufeff",
        "= 1 + 1 = 2 = 3 + = 1 / 0 = 5", "\ud83d Roman aqueducts",
    ],
)  # fmt: skip
def test_odd_answers_are_judged_without_a_crash(answer):
    feedback = CRITIC.feedback_on(ROME, answer)
    assert all(ground(quote, answer) for quote in feedback.good + feedback.poor)


def test_real_answers(shared_data):
    """Every quote stands in its answer, and the better model's answer mostly gets the higher mean reward."""
    task = get_task("ultrafeedback")
    records = json.loads((shared_data / "ultrafeedback" / "responses.json").read_text(encoding="utf-8"))
    pairs: dict[str, dict[bool, float]] = defaultdict(dict)
    for record in records:
        answer = task.response(record)
        pairs[record["prompt_id"]][record["is_chosen"]] = delta(judge(task.prompt(record), answer), answer)
    assert statistics.mean(pair[True] > pair[False] for pair in pairs.values()) > 0.75
