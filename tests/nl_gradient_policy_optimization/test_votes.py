"""Several judgements of a rollout: one critic's opinions, votes, and a trusted critic beside the one that rewards."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from threading import Lock
from time import sleep

import pytest

from nl_gradient_policy_optimization.algorithms.capo import VotedRewards
from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.observers.audit import COUNTS, AuditedRewards, audit_stop_reason, count, figures
from nl_gradient_policy_optimization.optimize import optimize, prepare, trusted_settings
from nl_gradient_policy_optimization.rewards import CriticRewards, mean_feedback
from nl_gradient_policy_optimization.rollouts import Rollout, RolloutFeedback
from tests.baseline_runs import KODCODE, SLF5K, QuotingCritic, rollout
from tests.fault_server import FaultServer
from tests.reward_records import memorised
from tests.tiny_runs import ScriptedRewards, SpokenRewards, check_same_weights, rows, tiny_config
from text2grad.critics import load_critic
from text2grad.critics.asking import opinions
from text2grad.critics.reward_model.critic import RewardModelCritic
from text2grad.endpoints.client import Reply
from text2grad.endpoints.reply_cache import ReplyCache
from text2grad.endpoints.spending import Usage
from text2grad.errors import InputError
from text2grad.feedback import Feedback
from text2grad.records import load_json


def test_an_opinion_depends_on_its_number_and_the_response_alone():
    """Another batch, another order, another time: it stays. A sampled one is not the greedy one."""
    folder, records = memorised()
    given = {"dtype": "float32", "constrained": "quotes", "temperature": 2.0, "max_new_tokens": 90}
    critics = [RewardModelCritic.load(folder, SLF5K, batch_size=size, **given) for size in (2, 3)]
    prompts, responses = ([each(record) for record in records.values()] for each in (SLF5K.prompt, SLF5K.response))
    said = [critics[0].write(prompts, responses, number=number) for number in range(3)]
    assert said[0] == critics[0].write(prompts, responses) and len({str(texts) for texts in said}) == 3
    for number in range(3):
        again = critics[1].write(prompts[::-1], responses[::-1], number=number)
        assert again[::-1] == said[number]


def test_delta_is_the_mean_of_the_opinions_that_did_not_fail():
    first = RolloutFeedback([1.0, -1.0, -7.0], [1.0, -1.0, -1.0], critique="a", poor=["x"], score=0.5, missing=["y"])
    second = RolloutFeedback([0.0, -1.0, -5.0], [0.0, -1.0, 1.0], critique="b", score=-1.0)
    failed = RolloutFeedback([0.0] * 3, error="cut off")
    mean = mean_feedback([failed, first, second])
    assert mean.rewards == [0.5, -1.0, -6.0] and mean.deltas == [0.5, -1.0, 0.0]
    assert (mean.critique, mean.poor, mean.error, mean.score) == ("a", ["x"], None, -0.25)
    others = [replace(second, missing=["where", "when"]), replace(second, missing=["the place", "the day"])]
    assert mean.missing == [] and mean_feedback([first, *others]).missing == ["where", "when"]
    assert mean_feedback([failed, first]) is first and mean_feedback([failed, failed]) is failed


def test_a_policy_learns_from_three_opinions(tmp_path):
    config = tiny_config(
        tmp_path, critic=str(memorised()[0]), critic_constrained="quotes", critic_votes=3, critic_temperature=3.0,
        max_steps=2, log_rollouts_every=1, max_critic_failures=1.0,
    )  # fmt: skip
    optimize("slf5k", config)
    logged = rows(tmp_path / "run" / "rollouts.jsonl")
    thirds = {round(3 * delta) for row in logged if row["error"] is None for delta in row["deltas"]}
    assert thirds <= {-3, -2, -1, 0, 1, 2, 3} and thirds & {-2, -1, 1, 2}


def test_each_opinion_of_an_endpoint_is_a_request_of_its_own_and_is_paid_once(tmp_path):
    """The requests are equal, so the cache has to keep them apart; a resumed run pays for none again."""
    said = iter(range(100))

    def judge(body: dict) -> str:
        return SLF5K.render_feedback(Feedback(f"opinion {next(said)}", ["short"], []))

    asked = []
    with FaultServer(judge) as server:
        for _ in range(2):
            cache = ReplyCache(tmp_path / "replies.jsonl")
            critic = load_critic(f"{server.url}#judge", SLF5K, variant="no_cot", cache=cache, temperature=1.0)
            replies = [opinion(["A post."], ["It is short."])[0] for opinion in opinions(critic, 3)]
            cache.close()
            asked.append(([reply.critique for reply in replies], len(server.requests)))
    assert asked == [(["opinion 0", "opinion 1", "opinion 2"], 3)] * 2


def test_all_votes_are_about_one_run_of_the_unit_tests():
    test = "import time\nfrom solution import now\n\ndef test_now():\n    assert now() == time.time_ns()\n"
    record = {"question_id": "now", "question": "Write now().", "test": test}
    program = rollout("def now():\n    return 0\n", record=record, prompt=record["question"])
    reply = KODCODE.render_feedback(Feedback("It is late.", [], ["return 0"]))
    with FaultServer(lambda body: reply) as server:
        critic = load_critic(f"{server.url}#judge", KODCODE, temperature=0.7)
        config = PolicyConfig(critic_votes=3, critic_temperature=0.7)
        CriticRewards(critic, KODCODE, config)([program, rollout(" ", record=record)])
    asked = [request["messages"][0]["content"] for request in server.requests]
    assert len(asked) == 3 and len({*asked}) == 1 and "assert 0 == 1" in asked[0]


TEXT = "She lost her job, and she wants a new car."


def voted(*ballot: RolloutFeedback) -> RolloutFeedback:
    """What critics make of one response who say this."""
    rewards = CriticRewards(QuotingCritic(), SLF5K, PolicyConfig())
    rewards.ballots = lambda rollouts: [list(ballot)]
    (found,) = VotedRewards(rewards, PolicyConfig())([rollout(TEXT)])
    return found


def vote(*deltas: float, poor: bool = True) -> RolloutFeedback:
    return RolloutFeedback(list(deltas), list(deltas), "c", [], ["q"] if poor else [])


def test_a_token_is_wrong_where_most_votes_blame_it():
    size = len(rollout(TEXT).response_ids)
    ends = [[-1, -1, 1], [-1, 1, 0], [0, -1, 1]]
    ballot = [vote(*first, *[0.0] * (size - 3)) for first in ends] + [RolloutFeedback([0.0] * size, error="no reply")]
    found = voted(*ballot)
    assert found.deltas == [-1, -1] + [0] * (size - 2)
    assert found.rewards == [-1, -1] + [0] * (size - 3) + [-1]  # most found something poor
    lenient = [vote(*[-1.0] * size), vote(*[1.0] * size, poor=False), vote(*[1.0] * size, poor=False)]
    found = voted(*lenient)
    assert found.deltas == [0] * size and found.rewards == [0] * (size - 1) + [1]
    failed = RolloutFeedback([0.0] * size, error="no reply")
    assert voted(failed, failed).error == "no reply"


@pytest.mark.parametrize(("text", "poor", "outcome"), [(TEXT, ["job"], -1), (TEXT, ["dog"], 1), ("  ", [], -1)])
def test_capos_outcome_lies_on_the_last_token(text, poor, outcome):
    response, config = rollout(text), PolicyConfig()
    plain = CriticRewards(QuotingCritic(poor=poor), SLF5K, config)
    (found,) = VotedRewards(plain, config)([response])
    assert found.rewards == [*found.deltas[:-1], found.deltas[-1] + outcome]
    assert found.deltas == [min(delta, 0) for delta in plain([response])[0].labels]  # praise counts for nothing


def test_capo_lets_the_opinions_of_a_model_vote(tmp_path):
    folder, given = str(memorised()[0]), {"critic_votes": 3, "critic_temperature": 0.7, "rollouts_per_prompt": 2}
    given |= {"max_critic_failures": 1.0, "critic_max_new_tokens": 77}
    config = tiny_config(tmp_path, algorithm="capo", critic=folder, max_steps=1, **given)
    voting = optimize("slf5k", config).rewards
    assert voting.rewards.critic.max_new_tokens == 77
    assert voting.name == f"3 votes of {voting.rewards.name}" and len(set(voting.rewards.opinions)) == 3
    assert load_json(tmp_path / "run" / "run.json")["critic_name"] == voting.name
    deltas = [row["deltas"] for row in rows(tmp_path / "run" / "rollouts.jsonl") if row["error"] is None]
    assert {delta for row in deltas for delta in row} <= {-1, 0}


# The trusted critic beside the one that rewards


def test_a_method_that_drops_praise_reads_the_trusted_critic_alike(tmp_path):
    audited = {"audit_critic": "programmatic", "audit_share": 1.0, "rollouts_per_prompt": 2}
    source = prepare("slf5k", tiny_config(tmp_path, algorithm="capo", **audited)).rewards
    text = "He wants a raise, and his boss has said no to it twice."
    post = {"post": "My boss has said no to a raise twice. Do I ask again?"}
    (found,) = source([replace(rollout(text), record=post, prompt=post["post"])])
    assert found.trusted.matched  # praise, which neither counts
    assert not any(found.trusted.deltas) and not any(found.deltas)


def feedback(deltas: list[float] | None, trusted: list[float] | None, **fields) -> RolloutFeedback:
    length = len(deltas or trusted or [])
    seen = RolloutFeedback(rewards=[0.0] * length, deltas=trusted, error=None if trusted is not None else "no reply")
    return RolloutFeedback(rewards=[0.0] * length, deltas=deltas, trusted=seen, **fields)


def test_the_audits_figures_of_a_step_by_hand():
    given = [feedback([1.0, 1.0, -1.0, 0.0, 0.0], [1.0, -1.0, -1.0, -1.0, 0.0]), feedback([1.0, 0.0], [1.0, 1.0])]
    given += [feedback([1.0], None), RolloutFeedback(rewards=[1.0], deltas=[1.0])]
    total = dict(zip(COUNTS, map(sum, zip(*map(count, given), strict=True)), strict=True))
    expected = {"rollouts": 2, "failures": 1, "tokens": 7, "compared": 7, "signed": 4, "delta": 0.0}
    expected |= {"delta_gap": pytest.approx(2 / 7), "flip_rate": 0.25, "missed_rate": 2 / 6}
    assert figures(total) == {f"audit/{name}": value for name, value in expected.items()}
    assert count(None) == count(given[3]) == [0.0] * len(COUNTS)
    assert figures(dict.fromkeys(COUNTS, 0.0)) == {}  # a step without audits


def test_a_scalar_reward_or_a_failure_leaves_the_trusted_delta_alone():
    for given in (feedback(None, [1.0, 0.0]), feedback([0.0, 0.0], [1.0, 0.0], error="no JSON")):
        found = figures(dict(zip(COUNTS, count(given), strict=True)))
        expected = {"rollouts": 1, "failures": 0, "tokens": 2, "compared": 0, "signed": 0, "delta": 0.5}
        assert found == {f"audit/{name}": value for name, value in expected.items()}


def audited(share: float, seed: int) -> set[int]:
    rewards = AuditedRewards(ScriptedRewards(), ScriptedRewards(), share, seed)
    drawn = (Rollout(f"post-{n}", "A post.", {}, [1], [n, 2, 3], "one", [], [], True) for n in range(2000))
    return {each.id for each in drawn if rewards.audits(each)}


def test_a_trusted_model_in_this_process_gets_one_batch_at_a_time():
    """Its buffers are those of one batch, and a remote critic's rollouts come in several threads."""
    busy, together = Lock(), []

    class Model(ScriptedRewards):
        def __call__(self, rollouts):
            together.append(not busy.acquire(timeout=0.01))
            sleep(0.05)
            busy.release()
            return super().__call__(rollouts)

    audits = AuditedRewards(ScriptedRewards(remote=True), Model(), 1.0, 1)
    with ThreadPoolExecutor(3) as pool:
        given = list(pool.map(lambda text: audits([rollout(text)]), "abc"))
    assert together == [False] * 3 and all(each.trusted for (each,) in given)


def test_the_trusted_critic_need_not_score_every_word():
    config = PolicyConfig.of(scheme="dense", audit_critic="programmatic")
    assert trusted_settings(config).scheme == "uniform"
    assert trusted_settings(config.changed(scheme="decay")).scheme == "decay"
    assert trusted_settings(config.changed(audit_prompt="prompts/dense.txt")).scheme == "dense"


def test_the_critic_and_the_trusted_one_spend_one_budget_though_one_is_a_server_without_a_price(tmp_path):
    paid, free, run = "http://h/v1#gpt-4o", "http://h/v1#mine", tmp_path / "run"
    for name in ("critic", "audit"):
        with closing(ReplyCache(run / f"{name}_replies-0.jsonl")) as cache:
            cache.replied(None, "key", "", asdict(Reply("{}", usage=Usage(cost_usd=0.3))))
    for critic, audit in ((paid, free), (free, paid)):
        config = tiny_config(tmp_path, critic=critic, audit_critic=audit, critic_max_cost_usd=1.0)
        with ExitStack() as files:
            rewards = prepare("slf5k", config, files=files).rewards
        budgets = [each.critic.client.budget for each in (rewards.rewards, rewards.trusted)]
        assert budgets[0] is budgets[1] and budgets[0].spent == 0.6 and not budgets[0].fits(0.5)
    for critic, audit in ((free, free), (paid, "https://h/v1#mine")):
        with pytest.raises(InputError, match="the price table does not list mine"):
            prepare("slf5k", config.changed(critic=critic, audit_critic=audit))


def test_audits_fall_on_the_share_of_rollouts_and_depends_on_the_seed_alone():
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
    check_same_weights(trained, plain)

    figures = audit_rows(whole / "metrics.jsonl")
    audited = [row for row in rows(whole / "rollouts.jsonl") if "audit" in row]
    assert sum(row.get("audit/rollouts", 0) for row in figures) == len(audited) > 0
    assert all(row.get("audit/flip_rate", 0) == row.get("audit/delta_gap", 0) == 0 for row in figures)  # one critic
    assert all(row["audit"]["critique"] == row["critique"] for row in audited)

    for name in ("checkpoint-4", "policy"):
        shutil.rmtree(whole / name)
    optimize("slf5k", tiny_config(tmp_path, output_dir=str(whole), **settings))
    assert audit_rows(whole / "metrics.jsonl") == figures


def test_a_run_stops_when_the_trusted_critic_disagrees(tmp_path, capsys):
    """Praise for everything; the program finds fault with a random model's words."""
    settings = {"max_steps": 30, "max_new_tokens": 16, "audit_critic": "programmatic", "audit_share": 1.0}
    config = tiny_config(tmp_path, audit_gap_limit=0.3, **settings)
    optimize("slf5k", config, SpokenRewards(worth=lambda token: 1.0))
    logged = rows(tmp_path / "run" / "metrics.jsonl")
    assert len(logged) < 30 and "audit/delta_gap" in capsys.readouterr().out
