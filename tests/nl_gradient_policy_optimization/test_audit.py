"""The trusted critic beside the one that rewards, and a reward model that goes on learning from it."""

import os
import shutil
import signal
from functools import lru_cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
import torch

from nl_gradient_policy_optimization.observers.audit import COUNTS, AuditedRewards, audit_stop_reason, count, figures
from nl_gradient_policy_optimization.observers.refresh import Refresh
from nl_gradient_policy_optimization.optimize import optimize, prepare
from nl_gradient_policy_optimization.rollouts import Rollout, RolloutFeedback
from nl_gradient_policy_optimization.trainer import NLGradientTrainer
from nl_reward_model.train_rm import train
from tests import reward_records
from tests.processes import run_ranks
from tests.tiny_runs import ScriptedRewards, rows, tiny_config
from text2grad.critics import load_critic
from text2grad.errors import InputError, Interrupted
from text2grad.feedback import Feedback
from text2grad.records import load_json, save_json


def feedback(deltas: list[float] | None, trusted: list[float] | None, **fields) -> RolloutFeedback:
    length = len(deltas or trusted or [])
    seen = RolloutFeedback(rewards=[0.0] * length, deltas=trusted, error=None if trusted is not None else "no reply")
    return RolloutFeedback(rewards=[0.0] * length, deltas=deltas, trusted=seen, **fields)


def test_the_figures_of_a_step_by_hand():
    given = [
        feedback([1.0, 1.0, -1.0, 0.0, 0.0], [1.0, -1.0, -1.0, -1.0, 0.0]),
        feedback([1.0, 0.0], [1.0, 1.0]),
        feedback([1.0], None),
        RolloutFeedback(rewards=[1.0], deltas=[1.0]),
    ]
    total = dict(zip(COUNTS, map(sum, zip(*map(count, given), strict=True)), strict=True))
    assert figures(total) == {
        "audit/rollouts": 2,
        "audit/failures": 1,
        "audit/tokens": 7,
        "audit/compared": 7,
        "audit/signed": 4,
        "audit/delta": 0.0,
        "audit/delta_gap": pytest.approx(2 / 7),
        "audit/flip_rate": 0.25,
        "audit/missed_rate": 2 / 6,
    }
    assert count(None) == count(given[3]) == [0.0] * len(COUNTS)
    assert figures(dict.fromkeys(COUNTS, 0.0)) == {}  # a step without audits


def test_a_scalar_reward_or_a_failure_leaves_the_trusted_delta_alone():
    for given in (feedback(None, [1.0, 0.0]), feedback([0.0, 0.0], [1.0, 0.0], error="no JSON")):
        assert figures(dict(zip(COUNTS, count(given), strict=True))) == {
            "audit/rollouts": 1,
            "audit/failures": 0,
            "audit/tokens": 2,
            "audit/compared": 0,
            "audit/signed": 0,
            "audit/delta": 0.5,
        }


def rollout(number: int) -> Rollout:
    return Rollout(f"post-{number}", "A post.", {}, [1], [number, 2, 3], "one", [], [], True)


def audited(share: float, seed: int) -> set[int]:
    rewards = AuditedRewards(ScriptedRewards(), ScriptedRewards(), share, seed)
    return {number for number in range(2000) if rewards.audits(rollout(number))}


def test_the_lot_falls_on_the_share_of_rollouts_and_depends_on_the_seed_alone():
    assert 60 < len(audited(0.05, 1)) < 140  # 100 of 2000; beyond four standard deviations otherwise
    assert audited(0.05, 1) == audited(0.05, 1) != audited(0.05, 2)
    assert audited(0.05, 1) < audited(0.5, 1) and len(audited(1.0, 1)) == 2000


def test_stop_rules_pool_the_window_and_wait_for_enough_tokens():
    def row(flips: float, signed: int, gap: float = 0.0, compared: int = 0) -> dict[str, float]:
        return {"audit/flip_rate": flips, "audit/signed": signed, "audit/delta_gap": gap, "audit/compared": compared}

    assert audit_stop_reason([row(1.0, 99)], 0.1, None) == ""
    assert "--audit_flip_limit 0.1" in audit_stop_reason([row(1.0, 30), {}, row(0.0, 70)], 0.1, None)
    assert audit_stop_reason([row(1.0, 30), row(0.0, 70)], 0.3, None) == ""
    assert audit_stop_reason([row(1.0, 500), *[{}] * 19, row(0.0, 100)], 0.1, None) == ""
    reason = audit_stop_reason([row(0.0, 0, 0.5, 100), row(0.0, 0, 0.1, 100)], None, 0.2)
    assert reason == "audit/delta_gap of the last 20 steps is 0.3, above --audit_gap_limit 0.2"
    assert audit_stop_reason([row(0.0, 0, 0.5, 100)], None, 0) == ""


def audit_rows(run) -> list[dict]:
    return [{name: value for name, value in row.items() if name.startswith("audit/")} for row in rows(run)]


def test_an_audited_run_learns_the_same_and_resumes_with_the_same_audits(tmp_path):
    plain = optimize("slf5k", tiny_config(tmp_path, max_steps=4, output_dir=str(tmp_path / "plain")))
    settings = {"max_steps": 4, "audit_critic": "programmatic", "audit_share": 0.5, "save_every": 2}
    whole = tmp_path / "whole"
    trained = optimize("slf5k", tiny_config(tmp_path, output_dir=str(whole), **settings))
    same = dict(plain.learner.scorer.named_parameters())
    assert all(weight.equal(same[name]) for name, weight in trained.learner.scorer.named_parameters())

    figures = audit_rows(whole / "metrics.jsonl")
    audited = [row for row in rows(whole / "rollouts.jsonl") if "audit" in row]
    assert sum(row.get("audit/rollouts", 0) for row in figures) == len(audited) > 0
    assert all(row.get("audit/flip_rate", 0) == row.get("audit/delta_gap", 0) == 0 for row in figures)  # one critic
    assert all(row["audit"]["critique"] == row["critique"] for row in audited)

    for name in ("checkpoint-4", "policy"):
        shutil.rmtree(whole / name)
    optimize("slf5k", tiny_config(tmp_path, output_dir=str(whole), **settings))
    assert audit_rows(whole / "metrics.jsonl") == figures


class PraiseOnly:
    name, remote = "praise", False

    def __call__(self, rollouts):
        praise = [[1.0] * len(rollout.response_ids) for rollout in rollouts]
        return [RolloutFeedback(rewards=values, deltas=values) for values in praise]


def test_a_run_stops_when_the_trusted_critic_disagrees(tmp_path, capsys):
    """Praise for everything; the program finds fault with a random model's words."""
    settings = {"max_steps": 30, "max_new_tokens": 16, "audit_critic": "programmatic", "audit_share": 1.0}
    config = tiny_config(tmp_path, audit_gap_limit=0.3, **settings)
    optimize("slf5k", config, PraiseOnly())
    logged = rows(tmp_path / "run" / "metrics.jsonl")
    assert len(logged) < 30 and "audit/delta_gap" in capsys.readouterr().out


TRUSTED = "tests/nl_gradient_policy_optimization/test_audit.py:first_word"


def first_word(prompt: str, response: str) -> Feedback:
    """The trusted critic: the first word is poor, and nothing else is said."""
    return Feedback("It begins badly.", poor=[response.split()[0]])


@lru_cache
def adapter() -> str:
    """A reward model with an adapter, which has learnt next to nothing."""
    folder = Path(mkdtemp(prefix="refreshed-"))
    data = reward_records.write(folder, reward_records.slf5k_records(2))
    options = {"lora_r": 4, "lora_target_modules": ["all-linear"], "validation_share": 0.0, "max_steps": 2}
    train("slf5k", reward_records.settings(folder, data, **options))
    return str(folder / "reward_model")


def refreshed_config(folder: Path, **settings):
    settings = {
        "critic": str(reward_records.memorised()[0]),
        "lora_dropout": 0.1,
        "save_every": 3,
        "max_steps": 6,
    } | settings
    return tiny_config(
        folder, critic_constrained="quotes", audit_critic=TRUSTED, audit_share=0.4, refresh_every=2, refresh_records=6,
        refresh_updates=3, refresh_batch_size=4, max_critic_failures=1.0, log_rollouts_every=1, **settings,
    )  # fmt: skip


def test_the_reward_model_learns_what_the_trusted_critic_says(tmp_path):
    """It has the records of two posts by heart; then it is told of other responses, and of their first word."""
    records = reward_records.memorised()[1]
    config = refreshed_config(tmp_path)
    config = config.changed(refresh_updates=120, refresh_learning_rate=1e-2, refresh_batch_size=12)
    save_json(tmp_path / "old.json", records)
    config.refresh.refresh_data = str(tmp_path / "old.json")
    config.max_steps = 3
    trainer = prepare("slf5k", config)
    answers = (f"{first} {second}." for first in ("He", "She", "They", "We") for second in ("sat", "ran", "ate"))
    trainer.collector.sampler.batches = lambda prompts: iter([([_ids(trainer, next(answers)) for _ in prompts], None)])
    trainer.train()
    (figures,) = [row for row in rows(tmp_path / "run" / "metrics.jsonl") if "refresh/loss" in row]
    assert figures["step"] == 3 and figures["refresh/records"] == 6 and figures["refresh/loss"] < 2
    annotated = rows(tmp_path / "run" / "refreshed.jsonl")
    assert [row["poor_spans"] for row in annotated] == [[row["response"].split()[0]] for row in annotated]
    latest = rows(tmp_path / "run" / "rollouts.jsonl")[2:8]
    assert [row["response"] for row in annotated] == [row["response"] for row in latest]

    saved = tmp_path / "run" / "checkpoint-3" / "reward_model"
    posts = [load_json(tmp_path / "posts.json")[row["id"]]["post"] for row in annotated]
    told = load_critic(str(saved), "slf5k", constrained="quotes")(posts, [row["response"] for row in annotated])
    right = [
        isinstance(given, Feedback) and given.poor == row["poor_spans"]
        for given, row in zip(told, annotated, strict=True)
    ]
    assert sum(right) >= 5
    critic = load_critic(str(saved), "slf5k")
    known = list(records.values())
    kept = critic([each["post"] for each in known], [each["generated_summary"] for each in known])
    assert [given.good for given in kept] == [each["good_spans"] for each in known]  # nothing is forgotten
    own = refresher(trainer).critic
    assert own([known[0]["post"]], [known[0]["generated_summary"]]) == [kept[0]]


def content(path: Path) -> dict[str, bytes]:
    """The bytes of a file, or of all files in a folder."""
    files = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
    return {each.name: each.read_bytes() for each in files}


def _ids(trainer, text: str) -> list[int]:
    return [*trainer.tokenizer(text, add_special_tokens=False)["input_ids"], trainer.tokenizer.eos_token_id]


def test_a_resumed_run_repeats_its_refreshes_bit_for_bit(tmp_path):
    """Refreshes come before steps 3 and 5; checkpoints after steps 3 and 6."""
    optimize("slf5k", refreshed_config(tmp_path, output_dir=str(tmp_path / "whole")))
    optimize("slf5k", refreshed_config(tmp_path))
    run = tmp_path / "run"
    for name in ("checkpoint-6", "policy"):
        shutil.rmtree(run / name)
    optimize("slf5k", refreshed_config(tmp_path))
    for name in ("rollouts.jsonl", "refreshed.jsonl", "checkpoint-6/reward_model", "checkpoint-6/policy"):
        assert content(run / name) == content(tmp_path / "whole" / name), name
    steps = [row["step"] for row in rows(run / "refreshed.jsonl")]
    assert steps == [3] * 6 + [5] * 6
    before, after = (
        load_critic(str(each), "slf5k")
        for each in (reward_records.memorised()[0], run / "checkpoint-6" / "reward_model")
    )
    weights = dict(before.decoder.model.named_parameters())
    changed = [not weight.equal(weights[name]) for name, weight in after.decoder.model.named_parameters()]
    assert any(changed)


@pytest.mark.parametrize("moment", ["annotation", "feedback"])
def test_a_run_that_was_stopped_around_a_refresh_goes_on_as_if_it_had_not(tmp_path, moment):
    """Ctrl-C before the reward model has learnt, and just after it."""
    optimize("slf5k", refreshed_config(tmp_path, max_steps=4, save_every=0, output_dir=str(tmp_path / "whole")))
    config = refreshed_config(tmp_path, max_steps=4, save_every=0)
    trainer = prepare("slf5k", config)
    target = refresher(trainer) if moment == "annotation" else trainer
    name = "annotate" if moment == "annotation" else "receive"
    work = getattr(target, name)

    def interrupted(*args):
        if trainer.finished_steps == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return work(*args)

    setattr(target, name, interrupted)
    with pytest.raises((KeyboardInterrupt, Interrupted)):
        trainer.train()
    assert refresher(trainer).done == (0 if moment == "annotation" else 3)
    assert trainer.finished_steps == 2
    optimize("slf5k", config)
    for name in ("rollouts.jsonl", "refreshed.jsonl", "checkpoint-4/reward_model", "checkpoint-4/policy"):
        assert content(tmp_path / "run" / name) == content(tmp_path / "whole" / name), name


def refresher(trainer: NLGradientTrainer) -> Refresh:
    """The trainer's observer that lets the reward model learn."""
    (found,) = [observer for observer in trainer.observers if isinstance(observer, Refresh)]
    return found


def _one_refresh(folder: str, name: str, critic: str) -> None:
    ranks = int(os.environ.get("WORLD_SIZE", 1))
    config = refreshed_config(
        Path(folder), output_dir=str(Path(folder) / name), critic=critic, rollouts_per_device=4 // ranks,
        micro_batch_size=1,
    )  # fmt: skip
    trainer = prepare("slf5k", config)
    told = [
        {"id": f"post-{index}", "response": f"a{index} b", **trainer.task.fields.to_dict(first_word("", f"a{index} b"))}
        for index in range(4)
    ]
    refresher(trainer).model.eval = refresher(trainer).model.train = lambda *mode: (
        None
    )  # no dropout: it differs by rank
    refresher(trainer).learn(3, told)
    trainer.finished_steps = 2
    trainer.save()
    trainer.accelerator.end_training()


def test_two_ranks_refresh_as_one_does(tmp_path):
    tiny_config(tmp_path)
    critic = adapter()
    assert run_ranks(_one_refresh, 1, str(tmp_path), "one", critic) == [0]
    assert run_ranks(_one_refresh, 2, str(tmp_path), "two", critic) == [0, 0]
    one, two = (
        torch.load(tmp_path / name / "checkpoint-2" / "refresh.pt", weights_only=True)["optimizer"]["state"]
        for name in ("one", "two")
    )
    for index, state in one.items():  # AdamW's first moment: a mean of the three gradients
        torch.testing.assert_close(two[index]["exp_avg"], state["exp_avg"], rtol=1e-3, atol=1e-7)
    assert max(float(state["exp_avg"].abs().max()) for state in one.values()) > 1e-5


def test_a_program_cannot_be_refreshed(tmp_path):
    config = tiny_config(tmp_path, critic="programmatic", audit_critic="programmatic", refresh_every=2)
    with pytest.raises(InputError, match="needs a reward model's folder as --critic, not programmatic"):
        prepare("slf5k", config)


def test_another_trusted_critic_is_another_run(tmp_path):
    """Without a refresh it is for the log alone, and may change."""
    optimize("slf5k", refreshed_config(tmp_path, max_steps=1))
    other = refreshed_config(tmp_path, max_steps=1)
    other.audit.audit_critic = "programmatic"
    with pytest.raises(InputError, match="audit_critic"):
        prepare("slf5k", other)
