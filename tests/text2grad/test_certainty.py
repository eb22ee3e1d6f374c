"""Quotes that a reward model was not sure of: their probability by hand, and the decoder's against a full forward."""

from __future__ import annotations

import pytest
import torch

from tests.reward_records import memorised
from tests.tiny import model, tokenizer
from text2grad.critics.reward_model.certainty import probability_of, quotes_in, without_doubtful
from text2grad.critics.reward_model.critic import RewardModelCritic
from text2grad.critics.reward_model.decoding import FeedbackDecoder
from text2grad.feedback import Feedback
from text2grad.tasks import get_task

TASK = get_task("slf5k")
TEXT = '{"textual_feedback": "Says \\"good_spans\\": [ oddly.", "good_spans": ["a b", "c\\"d"], "poor_spans": ["e"]}'


def test_quotes_are_found_with_their_comma_and_a_critique_cannot_pose_as_a_list():
    good, poor = quotes_in(TEXT, "good_spans"), quotes_in(TEXT, "poor_spans")
    assert [(quote, TEXT[slice(*place)]) for quote, place in good] == [("a b", '"a b"'), ('c"d', ', "c\\"d"')]
    assert [(quote, TEXT[slice(*place)]) for quote, place in poor] == [("e", '"e"')]
    assert quotes_in(TEXT[: TEXT.index("a b") + 1], "good_spans") == quotes_in("{}", "good_spans") == []


def test_the_probability_of_a_quote_is_that_of_all_tokens_that_write_some_of_it():
    spans, chances = [(0, 2), (2, 4), (4, 4), (4, 6), (6, 9)], [0.5, 0.8, 0.1, 0.9, 0.2]
    assert probability_of((3, 6), spans, chances) == pytest.approx(0.8 * 0.9)
    assert probability_of((0, 1), spans, chances) == 0.5


def test_doubtful_quotes_go_and_the_rest_stays():
    places = {quote: place for field in ("good_spans", "poor_spans") for quote, place in quotes_in(TEXT, field)}
    spans = [(index, index + 1) for index in range(len(TEXT))]
    chances = [1.0] * len(TEXT)
    chances[places['c"d'][0]] = 0.4  # to go on with the list at all
    chances[places["e"][0] + 1] = 0.6
    feedback = Feedback("c", ["a b", 'c"d'], ["e"])
    for least, good, poor in ((0.3, ["a b", 'c"d'], ["e"]), (0.5, ["a b"], ["e"]), (0.7, ["a b"], [])):
        kept = without_doubtful(feedback, TASK.fields, TEXT, spans, chances, least)
        assert (kept.critique, kept.good, kept.poor) == ("c", good, poor), least


@pytest.mark.parametrize("lookahead", [0, 3])
def test_the_decoder_gives_the_probability_of_what_it_wrote(lookahead):
    lm, tok = model("gpt2").eval(), tokenizer("byte")
    prompts, limits = [[5, 6, 7, row + 10] for row in range(3)], [12, 5, 9]
    chances: list[list[float]] = []
    written = FeedbackDecoder(lm, tok, [5, 6, 7], lookahead=lookahead)(prompts, limits, 2, probabilities=chances)
    for prompt, ids, found in zip(prompts, written, chances, strict=True):
        with torch.no_grad():
            expected = lm(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1].softmax(-1)
        assert found == pytest.approx([row[token].item() for row, token in zip(expected, ids, strict=True)], rel=1e-4)


def test_a_reward_model_leaves_out_what_it_doubts():
    folder, records = memorised()
    prompts, responses = [[each(r) for r in records.values()] for each in (TASK.prompt, TASK.response)]
    said = {}
    for least in (0.0, 1e-300, 1 - 1e-9):
        critic = RewardModelCritic.load(
            folder, TASK, device="cpu", dtype="float32", constrained="quotes", min_probability=least
        )
        said[least] = critic(prompts, responses)
    assert said[0.0] == said[1e-300] and all(reply.good + reply.poor for reply in said[0.0])
    for whole, sure in zip(said[0.0], said[1 - 1e-9], strict=True):
        assert sure.critique == whole.critique and len(sure.good + sure.poor) < len(whole.good + whole.poor)
