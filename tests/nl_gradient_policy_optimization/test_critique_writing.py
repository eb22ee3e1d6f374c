"""The policy learns to write critiques of its own responses: the loss by hand, and that updates bring it down."""

from dataclasses import replace
from math import log

import pytest
import torch

from nl_gradient_policy_optimization.algorithms.critique import critique_example, writing_loss
from nl_gradient_policy_optimization.optimize import prepare
from nl_gradient_policy_optimization.rollouts import Rollout, RolloutFeedback
from tests.tiny import tokenizer
from tests.tiny_runs import SpokenRewards, tiny_config
from text2grad.tasks import get_task


def rollout(critique: str, error: str | None = None) -> Rollout:
    return Rollout(
        "a", "a dog", {}, [1], [2], "It barks.", [], [], True, RolloutFeedback([0.0], None, critique, error=error)
    )


def test_an_example_is_the_chat_and_the_critique():
    task, tok = get_task("slf5k"), tokenizer("byte")
    example = critique_example(rollout("Too short."), task, tok)
    text = tok.decode(example.prompt_ids)
    assert text.index("a dog") < text.index("It barks.") < text.index("What is good and what is poor")
    assert tok.decode(example.response_ids) == "Too short.</s>"
    assert critique_example(rollout("Too short.", error="cut off"), task, tok).response_ids == [tok.eos_token_id]


def test_the_loss_by_hand():
    """Two critiques of three and one tokens, each with its end token, and a rollout without any."""
    examples = [replace(rollout(""), response_ids=ids) for ids in ([7, 8, 9, 2], [7, 2], [2])]
    probabilities = torch.tensor([[0.5, 0.5, 0.25, 1.0], [0.125, 0.5, 1, 1], [0.01, 1, 1, 1]])
    expected = -(log(0.5) + log(0.5) + log(0.25)) / 4 - (log(0.125) + log(0.5)) / 2
    assert writing_loss(examples, lambda rows: probabilities.log()).item() == pytest.approx(expected)


def test_updates_bring_it_down(tmp_path):
    config = tiny_config(tmp_path, critique_coef=1.0, lora_r=0, max_steps=5, kl_coef=0.0)
    trainer = prepare("slf5k", config, SpokenRewards(silent=["post-2"]))
    trainer.train()
    found = trainer.metrics_log.rows()
    assert found[-1]["critique/loss"] < 0.8 * found[0]["critique/loss"]
    assert found[0]["ledger/backward_tokens"] > sum(
        len(row["tokens"]) for row in trainer.rollout_log.rows() if row["step"] == 1
    )
    config = config.changed(algorithm="text2grad", output_dir=str(tmp_path / "off"))
    off = prepare("slf5k", config, SpokenRewards(silent=["post-2"])).step(1)
    assert "critique/loss" not in off and off["ledger/backward_tokens"] < found[0]["ledger/backward_tokens"]
