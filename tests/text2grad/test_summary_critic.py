"""The programmatic critic of summaries: each rule, the cheats it must not reward, hostile input."""

import json
import re
from collections import defaultdict
from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.text2grad.test_word_order import samples
from text2grad.critics import load_critic
from text2grad.critics.programs.english import words
from text2grad.critics.programs.slf5k.critic import SummaryCritic, WorkedSummaryCritic
from text2grad.critics.programs.slf5k.facts import read_post, read_summary
from text2grad.grounding import ground
from text2grad.models import load_tokenizer
from text2grad.tasks import get_task
from text2grad.token_rewards import token_rewards

POST = """I moved out of my flat in June after three years. The landlord wants to keep my whole deposit of $900
because of scratches on the kitchen floor. Those scratches were there when I moved in, and I have photos from the first
day. He says the photos prove nothing, since I never signed a checklist. A friend told me to take him to small claims
court, but I have never done anything like that. Is it worth the trouble?"""
GOOD = (
    "My landlord won't return the $900 deposit over floor scratches that my photos show are older. "
    "Should I go to small claims court?"
)
DOG = """Our dog Max has eaten three pairs of my shoes this month. He is two years old, gets two long walks a day and
has a basket full of toys. It only happens while my husband and I are at work. A trainer said that he is lonely and
wants 600 dollars for a course. My husband thinks we should just close the closet door. Has anyone solved this?"""
DOG_GOOD = (
    "Max, our dog, chews up my shoes when we're away at work. "
    "Is a trainer's $600 course better than just shutting the closet?"
)
CRITIC = SummaryCritic()


@pytest.fixture(scope="module")
def rewards():
    """δ of every token of a response, as a trainer would get it."""
    tokenizer = load_tokenizer("smollm2")

    def rewards(post: str, response: str) -> list[float]:
        ids = tokenizer(response, add_special_tokens=False)["input_ids"]
        result = token_rewards(ids, tokenizer, CRITIC.feedback_on(post, response), "slf5k")
        assert result.unmatched == 0
        return result.values or [0.0]

    return rewards


@pytest.fixture(scope="module")
def delta(rewards):
    return lambda post, response: mean(rewards(post, response))


def cheats(post: str, reference: str) -> dict[str, str]:
    """Answers made by machine from the post (and a good summary) that a policy could hit upon."""
    tokens = post.split()
    facts = read_post(post)
    keys = [facts.facts[key] for key in facts.keys]
    spoken = [piece for piece in re.split(r"(?<=[.!?])\s+", post) if len(piece.split()) > 4]

    def thinned(every: int) -> str:
        return " ".join(token for i, token in enumerate(tokens[:40]) if i % every != every - 1).rstrip(".,") + "."

    return {
        "the opening": " ".join(tokens[:25]),
        "the opening, ended": " ".join(tokens[:25]).rstrip(".,;") + ".",
        "the first sentence": spoken[0],
        "the last sentence": spoken[-1],
        "the opening without each 6th word": thinned(6),
        "the opening without each 3rd word": thinned(3),
        "every other word": thinned(2),
        "one key word": f"{keys[0]}.",
        "a key word repeated": " ".join([keys[0]] * 12) + ".",
        "key words": " ".join(keys) + ".",
        "a list of key words": ", ".join(keys) + ".",
        "key words joined": " and the ".join(keys) + ".",
        "key words in a chain": " ".join(f"the {key} of" for key in keys) + " it.",
        "two key words": f"The {keys[0]} and the {keys[1]}.",
        "an endless sentence": reference.rstrip(".!?").replace(".", " and")
        + f" and it was because of the {keys[0]} and because of the {keys[1]} and then it was the",
        "a good summary twice": f"{reference} {reference}",
        "a sentence that fits any post": "The writer is in a difficult situation and wants to know what to do.",
        "another": "A person had a problem with someone and is not sure how to handle it.",
        "commentary": f"This post is about {keys[0]} and the author asks for advice.",
        "advice": f"You should talk to your {keys[0]} and try to find a solution that works for everyone.",
    }


@pytest.mark.parametrize(
    ("reason", "response", "poor"),
    [
        ("Comments on", f"Here is a short summary: {GOOD}", "Here is a short summary:"),
        ("Comments on", f"The author describes how {GOOD[0].lower()}{GOOD[1:]}", "The author describes how"),
        ("Comments on", "This post is about a conflict.", "This post is about"),
        ("addresses the reader", "You should take your landlord to court.", "You should"),
        ("addresses the reader", f"{GOOD} Do you agree with me?", "Do you agree with me?"),
        ("Copies", f"{GOOD} He says the photos prove nothing, since I never signed.", "photos prove nothing, since"),
        ("Copies", "Moved out in June after years. Landlord wants keep whole deposit of $900.", "keep whole deposit"),
        ("Repeats", f"{GOOD} Should I go to small claims court?", "go to small claims court?"),
        ("Repeats", "My landlord landlord keeps the deposit over scratches.", "landlord"),
        ("Repeats", "The deposit is a deposit, that deposit was my deposit, he says.", "deposit"),
        ("does not support", f"{GOOD} It cost 4500 dollars.", "4500"),
        ("does not support", "My landlord Gregory keeps the deposit over floor scratches.", "Gregory"),
        ("does not support", "My landlord burned the kitchen while his lawyer danced on a volcano.", "lawyer danced"),
        ("fit any post", f"{GOOD} It brings a range of emotions.", "a range of emotions"),
        ("fit any post", "He says it is what it is and I am not sure.", "He says it is what it is and I am not sure."),
        ("strings words", "The landlord of the deposit of the floor of the photos is.", "of the deposit of the floor"),
        ("strings words", "My landlord keeps the of deposit over scratches.", "the of"),
        ("strings words", "An landlord keeps my deposit over the scratches.", "An landlord"),
        ("strings words", "Landlord, deposit, scratches, photos, and court.", "Landlord, deposit, scratches"),
        ("Breaks off", "The landlord keeps my deposit for scratches on the floor, and now I have", "and now I have"),
        ("Stops before", "Landlord keeps deposit.", "keeps deposit."),
    ],
)
def test_each_rule_marks_what_it_is_about(reason, response, poor):
    feedback = CRITIC.feedback_on(POST, response)
    assert reason.lower() in feedback.critique.lower()
    assert any(poor in quote for quote in feedback.poor), feedback.poor


@pytest.mark.parametrize(("post", "good"), [(POST, GOOD), (DOG, DOG_GOOD)])
def test_a_good_summary_has_none_of_these_faults(post, good):
    told = CRITIC.feedback_on(post, good).critique
    for reason in ("Comments", "addresses", "Copies", "Repeats", "support", "fit any", "strings", "off"):
        assert reason not in told


def test_a_and_an_go_by_the_sound():
    right, wrong = ("an std", "an xbox", "a usual one"), ("an box", "a ape")
    for text in right + wrong:
        critique = CRITIC.feedback_on(POST, f"He sent {text} today.").critique
        assert ("Strings words together" in critique) == (text in wrong), text


def test_what_is_left_out_is_missing_and_lowers_the_verdict():
    whole = CRITIC.feedback_on(POST, GOOD)
    assert whole.missing == [] and whole.score == 1.0
    first, _ = GOOD.split(". ")
    part = CRITIC.feedback_on(POST, first + ".")
    assert "what the writer asks" in part.missing and 0 < part.score < 1
    assert CRITIC.feedback_on(POST, f"{GOOD} It brings a range of emotions.").score < 1
    assert CRITIC.feedback_on(POST, "").score == -1.0


def test_a_worked_critique_has_the_facts_of_each_sentence_and_the_same_spans():
    text = "Max eats shoes while a piano plays in Vienna. He said he said he said it"
    worked, plain = WorkedSummaryCritic().feedback_on(DOG, text), CRITIC.feedback_on(DOG, text)
    assert (worked.good, worked.poor) == (plain.good, plain.poor)
    assert worked.critique == (
        "Max yes, eats yes, shoes yes, piano no, plays no, Vienna no: invents. "
        "no facts: repeats, breaks off. Tells part of the story."
    )
    long = WorkedSummaryCritic().feedback_on(DOG, "Max eats shoes in the hall all day. " * 9)
    assert "too long" in long.critique
    critic = load_critic("text2grad.critics.programs.slf5k.critic:WorkedSummaryCritic", "slf5k")
    assert critic([DOG], [text]) == [worked]


def test_inflections_families_and_synonyms_count_as_support():
    summary = "The landlord is keeping my deposits over a scratched floor, and I wonder about suing."
    found = words(summary)
    new = [word.text for word, new in zip(found, read_summary(summary, found, read_post(POST)).new, strict=True) if new]
    assert new == ["suing"]
    apart = words("apartment attorneys pictures")
    read = read_summary("apartment attorneys pictures", apart, read_post(POST))
    assert read.new == [False, True, False]


@pytest.mark.parametrize(("post", "good"), [(POST, GOOD), (DOG, DOG_GOOD)])
def test_cheats_earn_less_than_a_good_summary_per_token_and_in_all(post, good, rewards):
    honest = rewards(post, good)
    assert mean(honest) > 0.4
    for name, text in cheats(post, good).items():
        cheat = rewards(post, text)
        assert mean(cheat) < 0.5 * mean(honest), name
        assert sum(cheat) < 0.5 * sum(honest), name


def test_every_step_from_a_typical_bad_answer_to_a_good_one_pays(delta):
    steps = [
        "You should always communicate openly and respect the boundaries of everyone in this challenging time.",
        "The post discusses the importance of communication with a landlord and the emotional journey of moving.",
        "The author describes a conflict with a landlord about the deposit, which is a difficult situation.",
        "The landlord keeps the deposit, which is a frustrating and overwhelming experience for any tenant.",
        "The landlord keeps the deposit because of scratches on the floor, and it is not easy.",
        GOOD,
    ]
    values = [delta(POST, step) for step in steps]
    assert values == sorted(values) and len(set(values)) == len(values), values


def test_each_fact_is_praised_once_and_praise_has_a_limit(rewards):
    facts = list(read_post(POST).facts.values())
    long = " ".join(
        f"He knows about my {one} and I saw the {two}." for one, two in zip(facts[::2], facts[1::2], strict=False)
    )
    assert sum(value > 0 for value in rewards(POST, long)) <= 60
    again = rewards(POST, f"{GOOD} The landlord and the deposit and the photos and the court.")
    assert sum(value > 0 for value in again) <= sum(value > 0 for value in rewards(POST, GOOD))


def test_empty_and_wordless_answers():
    assert CRITIC.feedback_on(POST, "") == CRITIC.feedback_on(POST, " \n ")
    assert CRITIC.feedback_on(POST, "").poor == [] and "empty" in CRITIC.feedback_on(POST, "").critique
    assert CRITIC.feedback_on(POST, " ...!? ").poor == ["...!?"]
    assert CRITIC.feedback_on(POST, "Yes").poor == ["Yes"]


@pytest.mark.parametrize(
    "text",
    [
        "the landlord kept it " * 2400, "landlord " * 5600, "." * 50_000 + "x", "a" * 50_000, "\n" * 50_000 + "x",
        "1." * 25_000 + "x", "here is " * 6_000, "I was 😀 by the landlord 👩‍👩‍👧 and the deposit 🏠.",
        "房东扣留了押金。我该怎么办？" * 50, "e\u0301te\u0301 " * 9_000,
        "The landlord\nkept\n\n\tmy deposit\r\nfor scratches.", "\x00\ufeff‮landlord\u200b",
        "{'textual_feedback': \"}\\",
    ],
)  # fmt: skip
def test_hostile_text_as_answer_and_as_post(text, rewards):
    for post, answer in ((POST, text), (text, GOOD), (text, text)):
        feedback = CRITIC.feedback_on(post, answer)
        assert all(quote and quote in answer for quote in feedback.good + feedback.poor)
        get_task("slf5k").parse_feedback(get_task("slf5k").render_feedback(feedback))
    if len(text) < 5_000:
        rewards(POST, text)


@settings(max_examples=150)
@given(
    st.lists(st.sampled_from([*GOOD.split(), *POST.split()[:30], "You", "should", "1.5", "—", "“x”", "?", "🙂", "\n"]))
)
def test_quotes_are_exact_and_stand_in_one_place(parts):
    text = " ".join(parts)
    feedback = CRITIC.feedback_on(POST, text)
    assert feedback.critique
    for quote in feedback.good + feedback.poor:
        assert quote in text
        start = text.find(quote)
        assert ground(quote, text) == [(start, start + len(quote))]


def _win_share(pairs: list[tuple[str, str]], delta) -> tuple[float, float, dict[str, float]]:
    """How often a reference beats a cheat, the references' mean δ, and each cheat's mean δ."""
    wins, honest, by_cheat = [], [], defaultdict(list)
    for post, reference in pairs:
        value = delta(post, reference)
        honest.append(value)
        for name, text in cheats(post, reference).items():
            by_cheat[name].append(delta(post, text))
            wins.append(value > by_cheat[name][-1])
    return mean(wins), mean(honest), {name: mean(values) for name, values in by_cheat.items()}


def test_the_sample_references_beat_the_cheats(delta):
    share, honest, by_cheat = _win_share(samples("validation"), delta)
    assert share > 0.98
    assert honest > 0.6
    assert max(by_cheat.values()) < 0


@pytest.fixture(scope="module")
def real(shared_data) -> dict[str, list[dict]]:
    """Records by post."""
    by_post = defaultdict(list)
    for record in json.loads((shared_data / "slf5k" / "posts_with_summaries.json").read_text()).values():
        by_post[get_task("slf5k").prompt(record)].append(record)
    return by_post


def test_people_beat_the_cheats_on_real_posts(real, delta):
    """TL;DRs of eight words or more; shorter ones are mostly jokes ("Hell no.")."""
    pairs = []
    for post, records in real.items():
        pieces = [" ".join(piece.split()) for piece in records[0]["references"]]
        reference = " ".join(piece if piece[-1] in ".!?" else f"{piece}." for piece in pieces)
        if len(reference.split()) >= 8:
            pairs.append((post, reference))
    assert len(pairs) > 30
    share, honest, by_cheat = _win_share(pairs, delta)
    assert share > 0.94
    assert max(by_cheat.values()) < -0.2 < honest


def test_people_are_hardly_ever_accused_of_copying(real):
    pairs = [(post, piece) for post, records in real.items() for piece in records[0]["references"] if piece]
    verdicts = [CRITIC.feedback_on(*pair).critique for pair in pairs]
    assert sum("Copies" in verdict for verdict in verdicts) <= 0.02 * len(verdicts)


def test_better_models_score_higher(real, delta):
    values = defaultdict(list)
    for post, records in real.items():
        for record in records:
            values[record["model"]].append(delta(post, record["generated_summary"].strip()))
    score = {model: mean(deltas) for model, deltas in values.items()}
    for family in ("gpt", "sft"):
        assert score[f"{family}-xl"] < score[f"{family}-6b"] < score[f"{family}-175b"]
    for size in ("xl", "6b", "175b"):
        assert score[f"gpt-{size}"] < score[f"sft-{size}"] < score[f"ppo-ptx-{size}"]
