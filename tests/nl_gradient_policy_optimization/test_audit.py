"""The trusted critic beside the one that rewards."""

import shutil

import pytest

from nl_gradient_policy_optimization.observers.audit import COUNTS, AuditedRewards, audit_stop_reason, count, figures
from nl_gradient_policy_optimization.optimize import optimize
from nl_gradient_policy_optimization.rollouts import Rollout, RolloutFeedback
from tests.tiny_runs import ScriptedRewards, rows, tiny_config


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
        found = figures(dict(zip(COUNTS, count(given), strict=True)))
        expected = {"rollouts": 1, "failures": 0, "tokens": 2, "compared": 0, "signed": 0, "delta": 0.5}
        assert found == {f"audit/{name}": value for name, value in expected.items()}


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
