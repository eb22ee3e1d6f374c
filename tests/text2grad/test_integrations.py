"""``TokenJudge``: ids in, rewards on those ids out, whoever asks and however many ask at one time."""

import asyncio
import time

import pytest

from tests import quoting_critic
from tests.quoting_critic import encode, signs
from tests.tiny import tokenizer
from text2grad.critics import load_critic
from text2grad.critics.asking import Question
from text2grad.errors import InputError, StopRunError
from text2grad.integrations.batching import CriticQueue
from text2grad.integrations.core import TokenJudge, last_user_turn, prompt_and_record
from text2grad.integrations.service import CriticService
from text2grad.tasks import get_task

pytestmark = pytest.mark.fast


class Recorder:
    """Praises the word good, criticises the word bad; keeps what it was asked."""

    name, remote = "recorder", False

    def __init__(self, delay: float = 0.0):
        self.batches: list[list[str]] = []
        self.delay = delay

    def __call__(self, prompts, responses, records=None):
        self.batches.append(list(responses))
        time.sleep(self.delay)
        return list(map(quoting_critic.judge, prompts, responses))


def test_a_persons_notes_are_not_passed_over():
    with pytest.raises(InputError, match="only the variant human_feedback reads a person's feedback"):
        load_critic("http://localhost:1/v1#m", "slf5k", feedback_field="notes")


@pytest.mark.parametrize("made", [TokenJudge, CriticService])
def test_a_persons_feedback_is_not_laid_on_new_responses(made):
    critic = load_critic("http://localhost:1/v1#m", "slf5k", variant="human_feedback")
    with pytest.raises(InputError, match="about the record's response, not about new ones"):
        made(critic, get_task("slf5k"), {})


def test_rewards_lie_on_the_sampled_ids():
    judge = TokenJudge(Recorder(), "plain", tokenizer())
    (found,) = judge(["x"], [encode("a good and a bad one")])
    assert found.rewards == signs("a good and a bad one")
    assert (found.feedback.critique, found.matched, found.unmatched, found.failed) == ("on x", 2, 0, False)


def test_a_failed_response_has_an_error_and_an_empty_one_never_reaches_the_critic():
    critic = Recorder()
    ids = [encode("silence"), [*encode(" \n"), tokenizer().eos_token_id], [], encode("good")]
    failed, empty, nothing, fine = TokenJudge(critic, "plain", tokenizer())(["a", "b", "c", "d"], ids)
    assert (failed.error, failed.rewards) == ("nothing to say", [0.0] * len(ids[0]))
    assert empty.rewards == [0.0] * (len(ids[1]) - 1) + [-1.0] and not empty.failed
    assert nothing.rewards == []
    assert set(fine.rewards) == {1.0}
    assert critic.batches == [["silence", "good"]]


def test_calls_awaited_together_become_one_batch_and_keep_their_answers():
    critic = Recorder()
    judge = TokenJudge(critic, "plain", tokenizer(), window=0.2)
    texts = [f"good {number}" for number in range(20)] + ["silence", " "]

    async def all_at_once():
        return await asyncio.gather(*(judge.one(f"x{row}", encode(text)) for row, text in enumerate(texts)))

    found = asyncio.run(all_at_once())
    judge.close()
    assert len(critic.batches) == 1
    assert sorted(critic.batches[0]) == sorted(texts[:-1])
    assert [each.feedback.critique for each in found[:20]] == [f"on x{row}" for row in range(20)]
    assert found[20].failed and found[21].rewards == [-1.0] * len(encode(" "))
    together = judge([f"x{row}" for row in range(22)], [encode(text) for text in texts])
    assert together == found


def test_cancelled_questions_are_not_asked_and_closing_finishes_what_was():
    critic = Recorder(delay=0.05)
    asked = CriticQueue(critic, window=0.05, batch_size=2)
    futures = [asked.submit(Question("x", f"good {number}")) for number in range(6)]
    assert futures[5].cancel()
    asked.close()
    assert all(future.done() for future in futures)
    assert [response for batch in critic.batches for response in batch] == [f"good {number}" for number in range(5)]
    with pytest.raises(RuntimeError, match="closed"):
        asked.submit(Question("x", "late"))


def test_a_critic_that_is_away_is_not_waited_for_again_by_each_question():
    calls = []

    def away(prompts, responses, records=None):
        calls.append(len(responses))
        raise StopRunError("gives no answer")

    asked = CriticQueue(away, window=0.05)
    futures = [asked.submit(Question("x", "good")) for _ in range(6)]
    asked.close()
    assert calls == [6] and all(isinstance(future.exception(), StopRunError) for future in futures)


def test_a_row_of_another_trainer_is_a_record_where_it_has_the_tasks_fields():
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "Summarise: p"}]
    assert prompt_and_record({"prompt": chat, "post": "p"}, "slf5k") == ("p", {"prompt": chat, "post": "p"})
    assert prompt_and_record({"prompt": chat}, "slf5k") == ("Summarise: p", None)
    x, record = prompt_and_record({"prompt": chat, "answer": 4}, "plain")
    assert (x, record) == ("Summarise: p", {"prompt": "Summarise: p", "answer": 4})
    parts = [{"role": "user", "content": [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]}]
    assert last_user_turn(parts) == "one two"
    with pytest.raises(InputError, match="neither a text nor a chat"):
        prompt_and_record({"question": "?"}, "slf5k")


def test_without_a_tokenizer_each_character_of_a_text_has_a_reward():
    (found,) = TokenJudge(Recorder())(["x"], ["a good bad"])
    assert found.rewards == [0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0, -1.0, -1.0, -1.0]
    assert found.verdict == pytest.approx(1 / 3)  # F1 of one right and one wrong thing is 2/3
    for judge, response in ((TokenJudge(Recorder()), [1, 2]), (TokenJudge(Recorder(), "plain", tokenizer()), "text")):
        with pytest.raises(InputError, match="give the policy's tokenizer for sampled ids"):
            judge(["x"], [response])
    for sizes in ((1, 2, 1), (2, 2, 1)):
        with pytest.raises(InputError, match="{} prompts, {} responses, {} records".format(*sizes)):
            TokenJudge(Recorder())(["x"] * sizes[0], ["text"] * sizes[1], [{"prompt": "x"}] * sizes[2])
    for options, told in (({"scheme": "odd"}, "scheme 'odd'"), ({"critic": "programatic"}, "no critic 'programatic'")):
        with pytest.raises(InputError, match=told):
            TokenJudge(**{"critic": Recorder(), **options})
