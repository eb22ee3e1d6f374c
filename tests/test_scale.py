"""The calculator of what fits: counts that are known, shares that are ZeRO's, and a plan that names its launch line."""

from __future__ import annotations

import pytest

from benchmarks.scale import GIB, Job, load_config, memory, shape_of


def test_weights_are_counted_as_the_models_have_them():
    assert shape_of(load_config("llama-8b"), 0).parameters == 8_030_261_248
    assert shape_of(load_config("llama-70b"), 0).parameters == 70_553_706_496
    # Rank 16 on q, k, v, o, gate, up and down: 16·(in + out) each.
    by_hand = 32 * 16 * (2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 14336))
    assert shape_of(load_config("llama-8b"), 16).adapter == by_hand


def test_zero_shards_state_then_gradients_then_weights():
    shape, job = shape_of(load_config("llama-8b"), 0), Job(lora_r=0, optimizer="adamw")
    whole = memory(shape, job)
    assert whole["optimiser"] == 12 * shape.parameters  # float32 weights and two moments
    for stage, sharded in ((1, {"optimiser"}), (2, {"optimiser", "gradients"}), (3, None)):
        found = memory(shape, job, stage, ranks=8)
        for part in ("weights", "gradients", "optimiser", "reference"):
            share = 8 if sharded is None or part in sharded else 1
            assert found[part] == whole[part] / share, (stage, part)
    assert memory(shape, job, 3, 8)["peak"] < memory(shape, job, 2, 8)["peak"] < memory(shape, job, 1, 8)["peak"]


def test_adapters_need_no_reference_and_the_vocabulary_no_more_than_a_chunk():
    shape = shape_of(load_config("llama-8b"), 16)
    assert memory(shape, Job())["reference"] == 0
    grown = memory(shape, Job(micro_batch=64))["update"] - memory(shape, Job(micro_batch=32))["update"]
    # 32 more responses: hidden states of 32 layers and the inputs of one; the head works on 1,024 rows as before.
    one_layer = 2 * (6 * 4096 + 2 * 4096 + 2 * 1024 + 4 * 14336) + 4 * 2 * 4096
    assert grown == 32 * 768 * (32 * 2 * 4096 + one_layer)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--model", "llama-8b"], "zero1.json"),
        (["--model", "llama-70b", "--nodes", "2"], "NODE_RANK=0..1"),
        (["--model", "llama-70b", "--gpus", "1"], "Nothing fits"),
    ],
)
def test_the_plan_ends_with_a_line_to_run(run_script, flags, said):
    done = run_script("benchmarks/scale.py", *flags)
    assert done.returncode == 0 and said in done.stdout.splitlines()[-1] + done.stdout.splitlines()[-2]


def test_an_h100_holds_an_8b_policy_with_adapters():
    shape = shape_of(load_config("llama-8b"), 16)
    assert 15 < memory(shape, Job(), 2, 8)["peak"] / GIB < 20
