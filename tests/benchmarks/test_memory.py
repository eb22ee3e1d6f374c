"""Memory of a step: counts that are known, ZeRO's shares, and a launch line that the trainer takes."""

import shlex
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from benchmarks.memory import BUCKET, ROOT, Job, PlanConfig, load_config, plan, serving_gpus, shape_of, step_memory
from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.devices import check_sharding
from text2grad.configs import parse


def planned(**settings) -> str:
    return plan(PlanConfig(**settings))


def test_weights_are_counted_as_the_models_have_them():
    assert shape_of(load_config("llama-8b"), 0).parameters == 8_030_261_248
    assert shape_of(load_config("llama-70b"), 0).parameters == 70_553_706_496
    # Rank 16 on q, k, v, o, gate, up and down: 16·(in + out) each.
    by_hand = 32 * 16 * (2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 14336))
    assert shape_of(load_config("llama-8b"), 16).adapter == by_hand


def test_zero_shards_state_then_gradients_then_weights():
    shape, job = shape_of(load_config("llama-8b"), 0), Job(lora_r=0, optimizer="adamw")
    whole = step_memory(shape, job, 1)
    assert whole["optimiser"] == 12 * shape.parameters  # float32 weights and two moments
    assert step_memory(shape, job, 3, 8)["bucket"] == 2 * BUCKET
    for stage, sharded in (
        (1, {"optimiser"}),
        (2, {"optimiser", "gradients"}),
        (3, {"optimiser", "gradients", "weights"}),
    ):
        found = step_memory(shape, job, stage, ranks=8)
        for part in ("weights", "gradients", "optimiser", "reference"):
            assert found[part] == whole[part] / (8 if part in sharded else 1), (stage, part)
    assert step_memory(shape, job, 2, 8)["peak"] < step_memory(shape, job, 1, 8)["peak"]


def test_without_deepspeed_no_second_copy_of_the_weights_is_kept():
    shape = shape_of(load_config("llama-8b"), 0)
    state = {name: step_memory(shape, Job(lora_r=0, optimizer=name))["optimiser"] for name in ("adamw", "adafactor")}
    assert state == {"adamw": 4 * shape.parameters, "adafactor": 0}  # two moments in the weights' bfloat16
    # A flat partition has no rows and columns: DeepSpeed's Adafactor keeps a value a weight, beside the float32 weight.
    assert step_memory(shape, Job(lora_r=0), 1)["optimiser"] == 8 * shape.parameters


def test_zero3_samples_with_whole_weights_unless_a_server_does():
    shape, job = shape_of(load_config("llama-70b"), 16), Job()
    weights = 2 * shape.parameters
    assert step_memory(shape, job, 3, 16)["rollouts"] > weights
    assert step_memory(shape, job, 3, 16, served=True)["peak"] < weights / 8
    assert serving_gpus(shape, job, "h100", 8) == 4  # 131 GiB of weights: too much for two at 80 % of 80 GiB


def test_adapters_need_no_reference_and_the_vocabulary_no_more_than_a_chunk():
    shape = shape_of(load_config("llama-8b"), 16)
    job = Job(lora_dropout=0.0)
    assert step_memory(shape, job)["reference"] == 0
    smaller, larger = (step_memory(shape, replace(job, micro_batch=size))["update"] for size in (32, 64))
    # 32 more responses: hidden states of 32 layers; the inputs of one and what passes through it are larger than the
    # head's share, which is full at 523 rows. Norms and their copies in float32, keys and values of all heads.
    one_layer = 8 * 4096 + 6 * 14336 + 2 * 4 * 4096 + 4 * (5 * 4096 + 4096 + 14336)
    passing = 4 * 4096 + (2 * 2 + 2 * 4) * 14336
    assert larger - smaller == 32 * 768 * (32 * 2 * 4096 + one_layer + passing)


@pytest.mark.parametrize(
    ("settings", "zero", "served"),
    [
        ({"model": "llama-8b"}, None, False),
        ({"model": "llama-8b", "task": "kodcode", "rollouts": 8, "optimizer": "adamw", "gpus": 1}, None, False),
        ({"model": "llama-8b", "micro_batch": 4, "response": 256}, None, False),
        ({"model": "llama-70b", "nodes": 2}, "zero3.json", True),
    ],
)
def test_the_launch_line_is_one_that_the_trainer_takes(settings, zero, served):
    text = planned(**settings)
    line = text.splitlines()[-1]
    words = shlex.split(line)
    assert f"PROCESSES={settings.get('gpus', 8)}" in words and ("NODE_RANK=0..1" in words) == ("nodes" in settings)
    script = next(word for word in words if word.endswith(".sh"))
    assert (ROOT / script).is_file()
    config = str((ROOT / script).parent / "config.yaml")
    found = parse(PolicyConfig, args=["--config", config, *words[words.index(script) + 1 :]])
    found.check()
    assert (found.generation == "vllm_server") == served
    assert Path(found.deepspeed).name == (zero or "")
    assert not found.deepspeed or (ROOT / found.deepspeed).is_file()
    job = Job(**{name: value for name, value in settings.items() if name in asdict(Job())})
    check_sharding(found.optimizer, found.deepspeed)
    job = replace(job, optimizer="adamw" if zero else job.optimizer)
    said = (found.rollouts_per_device, found.micro_batch_size, found.max_new_tokens, found.optimizer)
    assert said == (job.rollouts, job.micro_batch, job.response, job.optimizer)
