"""The benchmark of memory against vocabulary: its three ways do the same work, and ours does not grow."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks.vocabulary_memory import WAYS, score_and_backpropagate, small_llama
from nl_gradient_policy_optimization.policy import SCORES_IN_MEMORY, PolicyScorer


def test_all_ways_give_the_same_gradient():
    torch.manual_seed(0)
    ids = torch.randint(600, (3, 9))
    weights = small_llama(600).double().state_dict()
    gradients = {}
    for way in WAYS:
        model = small_llama(600).double()
        model.load_state_dict(weights)
        score_and_backpropagate(way, model, ids)
        gradients[way] = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    assert gradients["plain"].norm() > 0.1
    for way in WAYS:
        # TRL's head and the plain way work in float32 behind a float64 model.
        assert (gradients[way] - gradients["plain"]).norm() < 1e-5 * gradients["plain"].norm(), way


def test_a_chunk_is_as_long_as_the_vocabulary_lets_it_be():
    assert PolicyScorer(small_llama(1024)).chunk == SCORES_IN_MEMORY // 1024
    assert PolicyScorer(small_llama(1024), chunk=7).chunk == 7


@pytest.mark.slow
def test_memory_does_not_grow_with_the_vocabulary(run_script, tmp_path):
    output = tmp_path / "memory.json"
    sizes = {"responses": 1, "response_tokens": 1024}
    flags = [str(part) for name, value in sizes.items() for part in (f"--{name}", value)]
    done = run_script(
        "benchmarks/vocabulary_memory.py", "--vocabularies", "65536", "131072", "--output", output, *flags
    )
    assert done.returncode == 0, done.stderr[-2000:]
    mib = json.loads(output.read_text())["mib"]
    assert mib["ours"]["131072"] < 1.15 * mib["ours"]["65536"]
    assert mib["plain"]["131072"] > 1.7 * mib["plain"]["65536"]
