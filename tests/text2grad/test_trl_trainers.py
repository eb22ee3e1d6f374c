"""TRL's own trainers with our feedback inside: a few real steps on a tiny model."""

import inspect
from textwrap import dedent

import pytest
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from tests.tiny import model, tokenizer
from text2grad.advantages import group_advantages
from text2grad.errors import InputError, StopRunError
from text2grad.feedback import Feedback, FeedbackError
from text2grad.integrations.trl import TokenGRPOTrainer, verdict_reward

PROMPTS = ["My boss told me", "Our dog barks", "I forgot the birthday", "My roommate"]
ROWS = Dataset.from_list([{"prompt": [{"role": "user", "content": text}]} for text in PROMPTS])
GIVEN = {"train_dataset": ROWS, "processing_class": tokenizer()}


def first_half(prompt: str, response: str) -> Feedback | FeedbackError:
    """Praises the first half of a response and criticises the second; of some it has nothing to say."""
    middle = len(response) // 2
    if len(response) % 5 == 0:
        return FeedbackError("no reply")
    return Feedback(f"On {prompt}: {len(response)} characters.", [response[:middle]], [response[middle:]])


def settings(folder, **options):
    common = {
        "output_dir": str(folder), "max_steps": 1, "per_device_train_batch_size": 4, "num_generations": 2,
        "max_completion_length": 12, "learning_rate": 1e-2, "logging_steps": 1, "report_to": [], "save_strategy": "no",
        "use_cpu": True, "bf16": False, "seed": 3, "disable_tqdm": True,
    }  # fmt: skip
    return GRPOConfig(**{**common, **options})


class Watched(TokenGRPOTrainer):
    """Keeps the batch that it trained on."""

    def _generate_and_score_completions(self, inputs):
        self.batch = super()._generate_and_score_completions(inputs)
        return dict(self.batch)


@pytest.fixture(scope="module")
def grpo(tmp_path_factory):
    """A trained trainer, and the batch it trained on.

    If its check of the seam fails, TRL has changed where advantages go in: read the message, then the change, then
    `_SEAM`.
    """
    trainer = Watched(model(seed=1), critic=first_half, args=settings(tmp_path_factory.mktemp("grpo")), **GIVEN)
    trainer.train()
    return trainer, trainer.batch


def logprobs(policy, batch) -> torch.Tensor:
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
    with torch.no_grad():
        logits = policy(input_ids=ids, attention_mask=mask).logits[:, :-1].log_softmax(-1)
    return logits.gather(2, ids[:, 1:, None])[:, -batch["completion_ids"].shape[1] :, 0]


def test_grpo_gets_an_advantage_for_each_token(grpo):
    trainer, batch = grpo
    mask, advantages = batch["completion_mask"].bool(), batch["advantages"]
    assert advantages.shape == mask.shape
    assert not advantages[~mask].any()
    rewards, judged = torch.zeros(mask.shape), mask.clone()
    for row, (ids, kept) in enumerate(zip(batch["completion_ids"], mask, strict=True)):
        (found,) = trainer.token_judge(["x"], [ids[kept].tolist()])
        rewards[row, kept] = torch.tensor(found.rewards)
        judged[row] &= not found.failed
    wanted = group_advantages(rewards, judged.float(), group_size=2, discount=0.95)
    torch.testing.assert_close(advantages, wanted, atol=1e-4, rtol=1e-4)
    assert advantages.abs().sum() > 0


def test_a_response_without_feedback_counts_neither_for_its_outcome_nor_in_the_log(tmp_path):
    def praise(prompts, responses):
        return [Feedback("c", [text]) if row % 2 else FeedbackError("no reply") for row, text in enumerate(responses)]

    def lengths(completions, **_):
        return [float(len(each[0]["content"])) for each in completions]

    trainer = Watched(
        model(seed=1), lengths, critic=praise, task="slf5k", outcome_weight=1.0, args=settings(tmp_path),
        train_dataset=Dataset.from_list([{"post": text} for text in PROMPTS]), processing_class=tokenizer(),
    )  # fmt: skip
    trainer.train()
    advantages = trainer.batch["advantages"]
    assert advantages[1::2].any() and not advantages[::2].any()
    assert trainer.state.log_history[0]["text2grad/delta"] > 0.9


def test_grpo_moves_the_policy_along_its_token_advantages(grpo):
    trainer, batch = grpo
    before, after = logprobs(model(seed=1), batch), logprobs(trainer.model.eval(), batch)
    gain = (batch["advantages"] * (after - before) * batch["completion_mask"]).sum()
    assert gain > 0.1


def test_a_critic_that_fails_too_often_stops_the_run_and_settings_that_do_not_go_are_refused(tmp_path):
    def silent(prompt, response):
        return FeedbackError("the server is gone")

    trainer = TokenGRPOTrainer(model(), critic=silent, args=settings(tmp_path), **GIVEN)
    with pytest.raises(StopRunError, match="4 of 4 responses have no feedback; the first: the server is gone"):
        trainer.train()
    with pytest.raises(InputError, match="off_policy_mask_threshold"):
        args = settings(tmp_path, off_policy_mask_threshold=0.5)
        TokenGRPOTrainer(model(), critic=silent, args=args, **GIVEN)
    with pytest.raises(InputError, match="outcome_weight"):
        TokenGRPOTrainer(model(), critic=silent, outcome_weight=1.0, args=settings(tmp_path), **GIVEN)


def test_a_trl_without_the_seam_is_refused_with_what_to_do(monkeypatch, tmp_path):
    def one_advantage_per_response(self, model, inputs):
        return inputs["advantages"].unsqueeze(1)

    monkeypatch.setattr(GRPOTrainer, "_compute_loss", one_advantage_per_response)
    with pytest.raises(InputError, match=r"GRPOTrainer\._compute_loss has changed.*install trl==.*verdict_reward"):
        TokenGRPOTrainer(model(), critic=first_half, args=settings(tmp_path), **GIVEN)


def test_options_reach_the_critic(tmp_path):
    class Sized:
        def __init__(self, batch_size=8):
            self.batch_size = batch_size

        def __call__(self, prompt, response):
            return Feedback("c", score=self.batch_size / 10)

    assert verdict_reward(Sized, batch_size=3)(["x"], ["abc"]) == [0.3]
    file = tmp_path / "own.py"
    file.write_text(f"from text2grad.feedback import Feedback\n{dedent(inspect.getsource(Sized))}")
    options = {"critic": f"{file}:Sized", "critic_options": {"batch_size": 3}}
    trainer = TokenGRPOTrainer(model(), args=settings(tmp_path), **options, **GIVEN)
    assert trainer.token_judge.critic.function.batch_size == 3


def test_the_verdict_is_a_reward_function_of_trls_own_trainer(tmp_path):
    def verdict_by_length(prompt, response):
        return FeedbackError("no reply") if len(response) % 5 == 0 else Feedback("long", score=len(response) / 100)

    reward = verdict_reward(verdict_by_length)
    chat = [{"role": "assistant", "content": "abcd"}]
    assert reward(["x", "y", "z"], ["abc", chat, "abcde"], answer=[1, 2, 3], trainer_state=None) == [0.03, 0.04, None]
    args = settings(tmp_path, max_steps=2)
    trainer = GRPOTrainer(model(seed=1), reward, args=args, **GIVEN)
    trainer.train()
    log = trainer.state.log_history
    assert log[0]["rewards/verdict/mean"] > 0 and any(row.get("grad_norm", 0) > 0 for row in log)
