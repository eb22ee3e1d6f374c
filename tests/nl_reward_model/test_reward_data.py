"""What a reward model is trained on: whole targets, prompts that fit, a split by prompt, rows of several responses."""

import copy
import random
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from nl_reward_model.data import check_disjoint, split_by_prompt, spread
from nl_reward_model.rows import collate, shared_rows
from nl_reward_model.train_rm import train
from tests.reward_records import PROMPT, RECORDS, losses, settings, slf5k_records, write
from tests.tiny import FAMILIES, adapted, randomised, reference_logprobs, tiny_model, tokenizer
from text2grad.critics.reward_model.critic import RewardModelDescription
from text2grad.critics.reward_model.examples import NO_LOSS, encode, learnt, load_annotated, target
from text2grad.critics.reward_model.prompt import DoesNotFit, RewardPrompt, completion_ids, cut
from text2grad.errors import InputError
from text2grad.models import load_model, load_tokenizer
from text2grad.models.packed import pack
from text2grad.prompts import Prompt, load_prompt
from text2grad.records import Records, load_json
from text2grad.tasks import get_task

SLF5K = get_task("slf5k")
FILE = Prompt(PROMPT, frozenset({"prompt", "response"}), "prompt.txt")


def as_records(items: dict) -> Records:
    return Records(items, Path("records.json"), True)


def reward_prompt(max_length: int, shorten: str = "tail") -> RewardPrompt:
    return RewardPrompt(FILE, SLF5K, tokenizer("byte"), max_length, shorten)


@pytest.mark.parametrize("task_name", RECORDS)
@pytest.mark.parametrize("family", ["byte", "sentencepiece"])
def test_the_loss_is_on_z_and_the_end_of_the_turn_alone(tmp_path, task_name, family):
    task = get_task(task_name)
    records = load_annotated(write(tmp_path, RECORDS[task_name]()), task)
    prompt = RewardPrompt(FILE, task, tokenizer(family), 400, "none")
    encoded = encode(records, task, prompt, 900)
    assert encoded.ids == list(records) and not encoded.dropped
    for record, example in zip(records.values(), encoded.examples, strict=True):
        ids, labels = example["input_ids"], example["labels"]
        start = len(ids) - len(learnt(example))
        assert labels == [NO_LOSS] * start + ids[start:]
        assert ids[-1] == prompt.tokenizer.eos_token_id
        written = prompt.tokenizer.decode(ids[start:-1])
        assert task.parse_feedback(written) == task.feedback(record)
        asked = prompt.tokenizer.decode(ids[:start])
        assert task.response(record).strip() in asked and target(record, task) not in asked


def test_training_and_use_see_the_same_prompt(tmp_path):
    """What the critic feeds the model is, id for id, what the model was trained to continue."""
    records = slf5k_records()
    for record in list(records.values())[:5]:
        record["post"] *= 20
    records = load_annotated(write(tmp_path, records), SLF5K)
    prompt = reward_prompt(max_length=120)
    encoded = encode(records, SLF5K, prompt, 400)
    assert encoded.shortened == 5 and not encoded.dropped
    for record, example in zip(records.values(), encoded.examples, strict=True):
        fields = {"prompt": SLF5K.prompt(record).strip(), "response": SLF5K.response(record)}
        used = prompt.ids(fields, room=399)
        assert example["input_ids"][: len(used)] == used
        assert example["labels"][len(used) - 1 : len(used) + 1] == [NO_LOSS, example["input_ids"][len(used)]]
        text = tokenizer("byte").decode(example["input_ids"])  # the post alone lost its end
        assert text.count(record["generated_summary"]) == 1 and target(record, SLF5K) in text
        assert len(example["input_ids"]) <= 400


def test_a_record_that_does_not_fit_is_dropped_and_counted_not_cut(tmp_path):
    records = slf5k_records(1)
    records["t3_0_1"]["textual_feedback"] = "So long. " * 100
    records["t3_0_2"]["generated_summary"] = "An endless summary. " * 60
    loaded = load_annotated(write(tmp_path, records), SLF5K)
    encoded = encode(loaded, SLF5K, reward_prompt(max_length=150), max_length=260)
    assert encoded.ids == ["t3_0_0"]
    assert set(encoded.dropped) == {"t3_0_1", "t3_0_2"}
    assert all("fit" in reason for reason in encoded.dropped.values())


def test_an_end_of_turn_that_feedback_quotes_does_not_end_it():
    tok, z = tokenizer("byte"), '{"textual_feedback": "Leaks </s>.", "good_spans": [], "poor_spans": ["</s>"]}'
    ids = completion_ids(tok, z)
    assert ids.count(tok.eos_token_id) == 1 and tok.decode(ids[:-1]) == z


@given(
    words=st.lists(st.text(alphabet="abc é🐶中\n", min_size=1, max_size=12), min_size=30, max_size=80),
    where=st.sampled_from(["tail", "middle"]),
    limit=st.integers(90, 300),
)
@hypothesis_settings(max_examples=25)
def test_shortening_keeps_as_much_as_fits(words, where, limit):
    x = " ".join(words)
    prompt = reward_prompt(limit, where)
    fields = {"prompt": x, "response": "The response."}
    full = len(prompt.full_ids(fields))
    try:
        fitted = prompt.fit(fields)
    except DoesNotFit:
        assert len(prompt.full_ids({**fields, "prompt": cut(x, 80, where)})) > limit
        return
    assert len(prompt.full_ids(fitted)) <= limit
    assert fitted["response"] == fields["response"]
    assert (fitted["prompt"] == x) == (full <= limit)
    if fitted["prompt"] != x:
        head, _, tail = fitted["prompt"].partition(" […]")
        assert x.startswith(head) and x.rstrip().endswith(tail.strip())
        assert bool(tail) == (where == "middle")


@given(sizes=st.lists(st.integers(1, 6), min_size=2, max_size=30), share=st.floats(0.01, 0.9), seed=st.integers(0, 5))
@hypothesis_settings(max_examples=60)
def test_the_split_never_shares_a_prompt(sizes, share, seed):
    items = {f"{p}-{i}": f"post {p}" for p, size in enumerate(sizes) for i in range(size)}
    records = as_records({key: {"post": post, "generated_summary": key} for key, post in items.items()})
    training, validation = split_by_prompt(records, SLF5K, share, seed)
    assert set(training) | set(validation) == set(records) and not set(training) & set(validation)
    sides = [{SLF5K.prompt(record) for record in side.values()} for side in (training, validation)]
    assert sides[0] and sides[1] and not sides[0] & sides[1]
    wanted = round(share * len(records))
    assert len(validation) <= max(1, wanted) + max(sizes) - 1
    shuffled = dict(random.Random(seed).sample(list(records.items()), len(records)))
    assert set(split_by_prompt(records.like(shuffled), SLF5K, share, seed)[1]) == set(validation)


@pytest.mark.parametrize(
    ("items", "count", "expected"), [(5, 3, [0, 1, 3]), (2, 3, [0, 1]), (4, 0, []), (6, 2, [0, 3])]
)
def test_records_to_look_at_come_from_all_of_them(items, count, expected):
    assert spread(range(items), count) == expected


def test_one_prompt_cannot_be_split():
    with pytest.raises(InputError, match="all records have one prompt"):
        split_by_prompt(as_records(slf5k_records(1)), SLF5K, 0.1, 0)
    training, validation = split_by_prompt(as_records(slf5k_records(1)), SLF5K, 0.0, 0)
    assert len(training) == 3 and not validation


def test_a_validation_file_may_not_repeat_a_training_prompt():
    records = as_records(slf5k_records(2))
    other = as_records({"t3_9": {**slf5k_records(1)["t3_0_0"], "generated_summary": "Another."}})
    with pytest.raises(InputError, match=r"'t3_9' has the prompt of record 't3_0_2'"):
        check_disjoint(records, other, SLF5K)


def test_broken_and_missing_annotations_are_named(tmp_path):
    records = slf5k_records(2)
    del records["t3_0_0"]["textual_feedback"], records["t3_0_0"]["good_spans"]
    assert len(load_annotated(write(tmp_path, records), SLF5K)) == 5
    records["t3_1_1"]["good_spans"] = "not a list"
    with pytest.raises(InputError, match=r"annotated.json: record 't3_1_1': 'good_spans'"):
        load_annotated(write(tmp_path, records), SLF5K)
    bare = {key: {"post": record["post"], "generated_summary": "y"} for key, record in records.items()}
    with pytest.raises(InputError, match="annotate the file first"):
        load_annotated(write(tmp_path, bare), SLF5K)


# Rows of several responses: the tokens, the loss and the gradients of rows of their own


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


def gradients(model, rows) -> dict[str, torch.Tensor]:
    """Of the loss summed over all tokens, and that loss."""
    model.zero_grad()
    loss = torch.zeros(())
    for batch in map(collate, rows):
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "position_ids")}
        logits = model(**inputs, use_cache=False).logits[:, :-1].flatten(0, 1)
        wanted = batch["labels"][:, 1:].flatten()
        loss = loss + torch.nn.functional.cross_entropy(logits, wanted, ignore_index=NO_LOSS, reduction="sum")
    loss.backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return found | {"loss": loss.detach()}


@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize("packed", [False, True])
def test_shared_rows_have_the_loss_and_the_gradients_of_single_ones(family, packed, packs):
    model = randomised(FAMILIES[family]()).train()
    expected = gradients(adapted(copy.deepcopy(model)), [[row] for row in shared_rows(EXAMPLES, PROMPTS, 1)])
    model = adapted(pack(model) if packed else model)
    found = gradients(model, [shared_rows(EXAMPLES, PROMPTS, 8)])  # both rows in one batch, one of them padded
    assert bool(packs) == packed
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", ["gemma2", "gemma3_text"])
def test_rows_are_not_shared_where_masks_alone_do_not_decide_what_is_seen(family, tmp_path):
    """By eager attention, which adds a mask to the scores, or beside a sliding window."""
    model = tiny_model(tmp_path / "model", family)
    config = settings(tmp_path, write(tmp_path, slf5k_records()), model=model, responses_per_row=2)
    with pytest.raises(InputError, match="--responses_per_row: not every layer"):
        train("slf5k", config)


def first_losses(tmp_path, name: str, **changes) -> list[float]:
    data = write(tmp_path, slf5k_records(posts=1))
    common = {"validation_share": 0.0, "feedback_records": 0, "max_steps": 2, "save_strategy": "steps", "save_steps": 2}
    config = settings(tmp_path, data, **common, output_dir=str(tmp_path / name), **changes)
    train("slf5k", config)
    return losses(tmp_path / name)


@pytest.mark.parametrize("weight", [1.0, 7.5])
def test_the_loss_in_training_is_the_mean_over_feedback_alone_in_shared_rows_too(tmp_path, capsys, weight):
    """By plain transformers, example by example: no token of a prompt counts, and one of each z as said."""
    alone = first_losses(tmp_path, "alone", per_device_train_batch_size=3, first_word_weight=weight)
    assert "on other annotated records" in (said := capsys.readouterr().out) and "--split" not in said
    model = load_model(str(tmp_path / "model"), "float32")
    file, tok = load_prompt(tmp_path / "prompt.txt"), load_tokenizer(str(tmp_path / "model"))
    prompt, total, count = RewardPrompt(file, SLF5K, tok, 500, "tail"), 0.0, 0
    examples = encode(load_annotated(tmp_path / "annotated.json", SLF5K), SLF5K, prompt, 900).examples
    first = next(at for at, tokens in enumerate(zip(*map(learnt, examples), strict=False)) if len(set(tokens)) > 1)
    for each in examples:
        z = learnt(each)
        logprobs = reference_logprobs(model, each["input_ids"][: -len(z)], z)
        total -= float(logprobs.sum() + (weight - 1) * logprobs[first])
        count += len(z)
    assert alone[0] == pytest.approx(total / count, rel=1e-4)
    shared = first_losses(
        tmp_path, "shared", per_device_train_batch_size=1, responses_per_row=3, first_word_weight=weight
    )
    assert len(alone) == 2 and shared == pytest.approx(alone, rel=1e-4)


def test_an_adapter_goes_on_training_from_its_weights(tmp_path):
    data = write(tmp_path, slf5k_records())
    first = settings(tmp_path, data, lora_r=4, lora_alpha=8, lora_target_modules=["v_proj"], learning_rate=1e-2)
    train("slf5k", first)
    made = Path(first.output_dir)
    for name, rate in (("same", 0.0), ("more", 1e-2)):
        changes = {"model": str(made), "output_dir": str(tmp_path / name), "lora_r": 16, "learning_rate": rate}
        train("slf5k", settings(tmp_path, data, **changes, lora_dropout=0.25))
    assert load_json(tmp_path / "more" / "adapter_config.json")["lora_dropout"] == 0.25  # the user's, not its own
    paths = (made, tmp_path / "same", tmp_path / "more")
    weights = {path.name: load_file(path / "adapter_model.safetensors") for path in paths}
    assert any(bool(value.any()) for key, value in weights["same"].items() if "lora_B" in key)
    torch.testing.assert_close(weights["same"], weights[made.name])
    assert any(not torch.equal(weights["more"][key], value) for key, value in weights[made.name].items())
    description, _ = RewardModelDescription.load(tmp_path / "more", "slf5k")
    assert description.settings["lora_r"] == 4 and description.base_model == str(tmp_path / "model")
