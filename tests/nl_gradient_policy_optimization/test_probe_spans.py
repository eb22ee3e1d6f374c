"""What spans are worth before training: the gradients are the updates', and a critic that knows why gains by spans."""

import json
from pathlib import Path
from statistics import fmean

import pytest
import torch

from nl_gradient_policy_optimization import probe_spans
from nl_gradient_policy_optimization.optimize import prepare
from nl_gradient_policy_optimization.probe_spans import ALONE, METHODS, ProbeSettings, table
from tests.tiny_runs import ScriptedRewards, SpokenRewards, tiny_config, tiny_flags
from text2grad.errors import InputError

SPANS = "verdict and spans"


def worth(token: int) -> float:
    """Every eighth token of the vocabulary is good, its neighbour poor."""
    return {0: 1.0, 1: -1.0}.get(token % 8, 0.0)


class Lying(SpokenRewards):
    """The verdict stays, and the spans are on other tokens."""

    def __call__(self, rollouts):
        given = super().__call__(rollouts)
        for each in given:
            each.rewards = each.deltas = each.rewards[-1:] + each.rewards[:-1]
        return given


def judged(folder: Path, kind: type[SpokenRewards] = SpokenRewards, batches: int = 6, **sizes: int) -> dict:
    sizes = {"rollouts_per_device": 32, "micro_batch_size": 32, "rollouts_per_prompt": 4, **sizes}
    config = tiny_config(folder, algorithm="verdict", max_new_tokens=12, lora_r=8, **sizes)
    given = ProbeSettings(truth_batches=4 * batches, batches=batches)
    return probe_spans.probe(given, "slf5k", config, kind(worth=worth))


def cosine(found: dict, method: str) -> float:
    return fmean(found[method]["what to say"])


@pytest.mark.slow
def test_spans_that_say_where_the_verdict_comes_from_point_further_along_it_and_others_do_not(tmp_path):
    told, lied = judged(tmp_path / "told"), judged(tmp_path / "lied", Lying)
    assert cosine(told, SPANS) > 1.5 * cosine(told, ALONE) > 0
    assert cosine(lied, SPANS) < 0.6 * cosine(told, SPANS)
    assert lied[ALONE]["all"] == pytest.approx(told[ALONE]["all"])  # the same rollouts and verdicts
    assert list(told) == list(METHODS) and {len(row["all"]) for row in told.values()} == {6}
    assert probe_spans.worth(told, ALONE, "all").value == 1 and len(table(told).splitlines()) == 2 + len(told)


def test_several_processes_are_refused_before_anything_is_loaded(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")  # as torchrun sets it
    monkeypatch.setattr(probe_spans, "prepare", pytest.fail)
    with pytest.raises(InputError, match="takes one process"):
        judged(tmp_path, batches=1)


def test_methods_that_compare_a_prompts_answers_need_several(tmp_path):
    sizes = {"rollouts_per_device": 4, "micro_batch_size": 4, "rollouts_per_prompt": 1}
    assert list(judged(tmp_path, batches=1, **sizes)) == [ALONE, SPANS, "Text2Grad"]


GROUPS = {"rollouts_per_device": 8, "rollouts_per_prompt": 4, "kl_coef": 0.0, "kl_target": None}


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict[str, torch.Tensor]:
    """Each method's advantages on the batch that all of them get."""
    config = tiny_config(tmp_path_factory.mktemp("probe"), algorithm="verdict", **GROUPS)
    trainer = prepare("slf5k", config, SpokenRewards())
    batch = probe_spans.feedback(trainer, 1)
    return {name: probe_spans.advantages_of(each, batch) for name, each in probe_spans.compared(trainer).items()}


def test_the_verdict_is_the_runs(tmp_path):
    config = tiny_config(tmp_path, algorithm="verdict", outcome="mean", token_weight=0.5, **GROUPS)
    methods = probe_spans.compared(prepare("slf5k", config, SpokenRewards()))
    made = [(methods[name].outcome, methods[name].token_weight) for name in (ALONE, SPANS)]
    assert made == [("mean", 0), ("mean", 0.5)]


@pytest.mark.parametrize("label", [each for each in METHODS if each != "Text2Grad"])
def test_a_methods_advantages_are_those_of_its_own_run(tmp_path, found, label):
    name, settings = METHODS[label]
    own = prepare("slf5k", tiny_config(tmp_path, algorithm=name, **settings, **GROUPS), SpokenRewards())
    torch.testing.assert_close(found[label], own.credit(probe_spans.feedback(own, 1)).advantages)


def test_the_gradient_is_that_of_an_update(tmp_path):
    config = tiny_config(tmp_path, algorithm="verdict", rollouts_per_device=4, micro_batch_size=2, entropy_coef=0.0)
    trainer = prepare("slf5k", config, ScriptedRewards())
    batch = probe_spans.feedback(trainer, 1)
    batch.advantages = torch.randn(batch.mask.shape, generator=torch.Generator().manual_seed(0)) * batch.mask
    batch.returns = torch.zeros_like(batch.mask)
    found = probe_spans.gradient(trainer, batch, batch.advantages)
    outputs = trainer.learner.losses(batch)
    weights = [each for each in trainer.learner.scorer.parameters() if each.requires_grad]
    expected = torch.autograd.grad((outputs.policy * batch.mask).sum() / batch.mask.sum(), weights)
    torch.testing.assert_close(found, -torch.cat([each.flatten() for each in expected]), rtol=1e-4, atol=1e-7)
    assert found.abs().max() > 1e-4


def test_what_is_left_beside_a_direction_is_at_right_angles_to_it():
    vector, direction = torch.tensor([3.0, 4.0, 1.0]), torch.tensor([0.0, 2.0, 0.0])
    assert probe_spans.without(vector, direction).tolist() == [3, 0, 1]
    assert probe_spans.cosine(vector, torch.zeros(3)) == 0
    found = {ALONE: {"all": [0.1, 0.3]}, "away": {"all": [-0.3, -0.5]}}
    assert probe_spans.worth(found, "away", "all").value == pytest.approx(-4)
    assert table(found).splitlines()[-1].count("–") == 1  # two batches do not tell whether the verdict alone is above 0
    found[ALONE]["all"] = [0.3, 0.31]
    assert "–" not in table(found)


def test_the_program_prints_and_keeps_its_figures(tmp_path, run_script):
    flags = ["--task", "slf5k", "--truth_batches", "2", "--batches", "2", *tiny_flags(tmp_path)]
    assert SPANS in run_script("nl_gradient_policy_optimization/probe_spans.py", *flags).stdout
    assert len(json.loads((tmp_path / "run" / "spans.json").read_text())[SPANS]["all"]) == 2
