"""Rows of several responses: the tokens, the loss and the gradients of rows of their own."""

import copy
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from nl_reward_model.rows import collate, shared_rows
from nl_reward_model.train_rm import train
from tests.nl_reward_model.test_reward_model import losses
from tests.reward_records import settings, slf5k_records, write
from tests.text2grad.test_decoder import FAMILIES, randomised
from tests.text2grad.test_packed import adapted, packs
from text2grad.critics.reward_model.critic import RewardModelDescription
from text2grad.critics.reward_model.examples import NO_LOSS, encode, learnt, load_annotated
from text2grad.critics.reward_model.prompt import RewardPrompt
from text2grad.errors import InputError
from text2grad.models import load_model, load_tokenizer
from text2grad.models.packed import pack
from text2grad.prompts import load_prompt
from text2grad.tasks import get_task


def example(ids: list[int], prompt: int) -> dict[str, list[int]]:
    return {"input_ids": ids, "labels": [NO_LOSS] * prompt + ids[prompt:]}


# two prompts: [5 6 7 8 | response | 9], z with loss
EXAMPLES = [
    example([5, 6, 7, 8, 20, 21, 9, 30, 31, 2], 7),
    example([5, 6, 40, 22, 9, 33, 2], 5),
    example([5, 6, 7, 8, 20, 23, 24, 9, 32, 2], 8),
    example([5, 6, 7, 8, 9, 34, 35, 36, 2], 5),
]
PROMPTS = ["a", "b", "a", "a"]


def test_rows_hold_each_token_of_each_example_once():
    rows = shared_rows(EXAMPLES, PROMPTS, most=2)
    first = rows[0]
    assert first["input_ids"] == [5, 6, 7, 8, 20, 21, 9, 30, 31, 2, 23, 24, 9, 32, 2]
    assert first["segments"] == [5, 5, 5]
    assert first["labels"] == [NO_LOSS] * 7 + [30, 31, 2] + [NO_LOSS] * 3 + [32, 2]
    assert rows[1]["segments"] == [4, 5]  # the last token of a prompt is never shared: it predicts z
    assert [row["segments"] for row in rows[2:]] == [[4, 3]]


def summed_loss(model, batch) -> torch.Tensor:
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "position_ids")}
    logits = model(**inputs, use_cache=False).logits
    return torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten(), ignore_index=NO_LOSS, reduction="sum"
    )


def gradients(model, rows) -> dict[str, torch.Tensor]:
    model.zero_grad()
    losses = [summed_loss(model, collate(part)) for part in rows]
    torch.stack(losses).sum().backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return found | {"loss": torch.stack(losses).sum().detach()}


@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize("packed", [False, True])
def test_shared_rows_have_the_loss_and_the_gradients_of_single_ones(family, packed, monkeypatch):
    model = randomised(FAMILIES[family]()).train()
    expected = gradients(
        adapted(copy.deepcopy(model)), [shared_rows(EXAMPLES, PROMPTS, 1)[i : i + 1] for i in range(4)]
    )
    model = adapted(pack(model) if packed else model)
    calls = packs(model, monkeypatch)
    found = gradients(model, [shared_rows(EXAMPLES, PROMPTS, 8)])  # both rows in one batch, one of them padded
    assert bool(calls) == packed
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5, msg=name)


def first_losses(tmp_path, name: str, **changes) -> list[float]:
    data = write(tmp_path, slf5k_records(posts=1))
    common = {"validation_share": 0.0, "feedback_records": 0, "max_steps": 2, "save_strategy": "steps", "save_steps": 2}
    config = settings(tmp_path, data, **common, output_dir=str(tmp_path / name), **changes)
    train("slf5k", config)
    return losses(tmp_path / name)


def test_the_loss_in_training_is_the_mean_over_feedback_alone(tmp_path, capsys):
    """By plain transformers, example by example: no token of a prompt counts."""
    first, *_ = first_losses(tmp_path, "alone", per_device_train_batch_size=3)
    assert "on other annotated records" in (said := capsys.readouterr().out) and "--split" not in said
    model = load_model(str(tmp_path / "model"), "float32")
    task, total, count = get_task("slf5k"), torch.zeros(()), 0
    prompt = RewardPrompt(
        load_prompt(tmp_path / "prompt.txt"), task, load_tokenizer(str(tmp_path / "model")), 500, "tail"
    )
    for each in encode(load_annotated(tmp_path / "annotated.json", task), task, prompt, 900).examples:
        ids, z = torch.tensor([each["input_ids"]]), learnt(each)
        with torch.no_grad():
            logprobs = model(ids).logits.log_softmax(-1)[0, :-1].gather(1, ids[0, 1:, None])
        total, count = total - logprobs[-len(z) :].sum(), count + len(z)
    assert first == pytest.approx(float(total / count), rel=1e-4)


def test_training_in_shared_rows_is_training_on_the_same_batch(tmp_path):
    alone = first_losses(tmp_path, "alone", per_device_train_batch_size=3)
    shared = first_losses(tmp_path, "shared", per_device_train_batch_size=1, responses_per_row=3)
    assert len(alone) == 2 and shared == pytest.approx(alone, rel=1e-4)


def test_an_adapter_goes_on_training_from_its_weights(tmp_path):
    data = write(tmp_path, slf5k_records())
    first = settings(tmp_path, data, lora_r=4, lora_alpha=8, lora_target_modules=["v_proj"], learning_rate=1e-2)
    train("slf5k", first)
    made = Path(first.output_dir)
    for name, rate in (("same", 0.0), ("more", 1e-2)):
        changes = {"model": str(made), "output_dir": str(tmp_path / name), "lora_r": 16, "learning_rate": rate}
        train("slf5k", settings(tmp_path, data, **changes))
    paths = (made, tmp_path / "same", tmp_path / "more")
    weights = {path.name: load_file(path / "adapter_model.safetensors") for path in paths}
    assert any(bool(value.any()) for key, value in weights["same"].items() if "lora_B" in key)
    for key, value in weights[made.name].items():
        torch.testing.assert_close(weights["same"][key], value)
    assert any(not torch.equal(weights["more"][key], value) for key, value in weights[made.name].items())
    description, _ = RewardModelDescription.load(tmp_path / "more", "slf5k")
    assert description.settings["lora_r"] == 4 and description.base_model == str(tmp_path / "model")
    with pytest.raises(InputError, match="is an adapter; merge it first"):
        settings(tmp_path, data, model=str(made), lora_r=0)
