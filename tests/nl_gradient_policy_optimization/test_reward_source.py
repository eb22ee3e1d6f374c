"""From a critic's reply to the rewards of the sampled tokens, and what stands in where it fails."""

import copy
import json
import os
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest

from nl_gradient_policy_optimization.algorithms.teacher import encode_teacher_prompt, load_teacher_prompt
from nl_gradient_policy_optimization.collector import Collector
from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.learner import Learner
from nl_gradient_policy_optimization.optimize import optimize
from nl_gradient_policy_optimization.rewards import CriticRewards
from nl_gradient_policy_optimization.rollouts import Rollout, RolloutFeedback, encode_prompt
from nl_gradient_policy_optimization.sampling import TransformersSampler
from tests import reward_records
from tests.baseline_runs import rollout
from tests.fault_server import FaultServer
from tests.tiny import tiny_model, tokenizer
from tests.tiny_runs import ScriptedRewards, digest, rows, tiny_config
from text2grad.critics import load_critic
from text2grad.critics.reward_model.critic import RewardModelDescription
from text2grad.critics.reward_model.prompt import RewardPrompt
from text2grad.errors import InputError, command
from text2grad.feedback import Feedback, FeedbackError
from text2grad.models.answering import LocalPolicy
from text2grad.prompts import FIXED_DATE, load_prompt
from text2grad.records import save_json
from text2grad.tasks import get_task
from text2grad.token_rewards import token_rewards

FINE = json.dumps({"textual_feedback": "Fine.", "good_spans": [], "poor_spans": []})


def judged(*rollouts: Rollout, **settings):
    """By a critic that fails for bad responses and praises the first word of others; and the records that it saw."""
    seen = []

    def critic(prompt, response, record):
        seen.append(record)
        first = response.split()[0]
        return FeedbackError("no JSON") if first == "bad" else Feedback("Fine.", [first], ["zzz"])

    return CriticRewards(critic, get_task("slf5k"), PolicyConfig(**settings))(rollouts), seen


def test_a_critique_becomes_rewards_on_the_sampled_tokens():
    said = rollout("my sister and my car")
    (judgement,), records = judged(said)
    praised = [i for i, (start, end) in enumerate(said.spans) if end <= 2 and end > start]
    assert [i for i, reward in enumerate(judgement.rewards) if reward == 1] == praised
    assert judgement.rewards == judgement.deltas
    assert (judgement.matched, judgement.unmatched, judgement.critique, judgement.poor) == (1, 1, "Fine.", ["zzz"])
    assert (judgement.score, judgement.score_source) == (pytest.approx(4 / 3 - 1), "derived")  # one right, one wrong
    assert records[0]["generated_summary"] == "my sister and my car"  # records carry this response


def test_failed_and_empty_responses():
    results, records = judged(rollout("bad answer"), rollout(""), rollout(" \n"), rollout("my car"))
    assert results[0].error == "no JSON" and not any(results[0].rewards)
    assert results[1].rewards == [-1.0] and results[1].error is None
    assert results[2].rewards[-1] == -1.0 and not any(results[2].rewards[:-1])
    assert "empty" in results[2].critique
    assert [record["generated_summary"] for record in records] == ["bad answer", "my car"]


def test_a_response_that_was_cut_off_is_charged_on_its_last_token():
    unfinished = rollout("my car", finished=False)
    (plain,), _ = judged(unfinished)
    (shaped,), _ = judged(unfinished, unfinished_reward=-0.5)
    assert shaped.rewards[-1] == plain.rewards[-1] - 0.5
    assert shaped.rewards[:-1] == plain.rewards[:-1]
    assert shaped.deltas == plain.deltas  # the metrics of δ stay the critic's


def test_a_signal_loses_no_answer_that_is_on_its_way(tmp_path):
    """The same process goes on, while the error and the first run's objects are alive, as in a notebook."""

    def told(body: dict) -> None:
        if len(server.requests) == 6:
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.2)

    with FaultServer(lambda body: FINE, on_request=told) as server:
        config = tiny_config(tmp_path, critic=f"{server.url}#judge", critic_concurrency=2, log_rollouts_every=1)
        with pytest.raises(SystemExit, match=str(128 + signal.SIGTERM)) as ended:
            command(lambda: optimize("slf5k", config))()
        assert ended.value.__context__ and optimize("slf5k", config)
    logged = rows(tmp_path / "run" / "rollouts.jsonl")
    assert len(server.requests) == sum(bool(row["response"].strip()) for row in logged) >= 6
    assert "dishes" in str(server.requests)


ADDING = {"question_id": "add", "question": "Write add(a, b).", "solution": "an older program"}
ADDING["test"] = "from solution import add\n\ndef test_add():\n    assert add(1, 2) == 3\n"
ADDING["log"] = {"passed": True, "stdout": "the older program passed"}


@pytest.mark.parametrize("run_tests", [None, True, False])
def test_an_online_critic_of_programs_sees_their_test_log(run_tests):
    """Of the new program, not of the record's old one, which is for that alone."""
    program = rollout("def add(a, b):\n    return a - b\n", record=ADDING, prompt=ADDING["question"])
    reply = json.dumps({"code_feedback": "It subtracts.", "wrong_code": ["return a - b"], "improvement_code": []})
    with FaultServer(lambda body: reply) as server:
        task = get_task("kodcode")
        critic = load_critic(f"{server.url}#judge", task)
        (feedback,) = CriticRewards(critic, task, PolicyConfig(run_tests=run_tests))([program])
        critic([ADDING["question"]], [ADDING["solution"]], [ADDING])
        asked, own = [request["messages"][0]["content"] for request in server.requests]
    assert feedback.poor == ["return a - b"] and "return a - b" in asked and "assert add(1, 2) == 3" in asked
    assert "the older program" not in asked and "the older program passed" in own
    assert ("assert -1 == 3" in asked) == (run_tests is not False)


def test_a_test_log_that_nobody_would_see_is_refused():
    def judge(prompts, responses, records):
        return [Feedback(f"passed: {record['log']['passed']}") for record in records]

    wanted = PolicyConfig(run_tests=True)
    with pytest.raises(InputError, match="records of slf5k have no unit tests"):
        CriticRewards(judge, get_task("slf5k"), wanted)
    with pytest.raises(InputError, match=r"programmatic would not see the log.*\$\{log\}"):
        CriticRewards(load_critic("programmatic", "kodcode"), get_task("kodcode"), wanted)
    program = rollout("def add(a, b):\n    return a + b\n", record=ADDING)
    (feedback,) = CriticRewards(judge, get_task("kodcode"), wanted)([program])
    assert feedback.critique == "passed: True"  # a function of one's own may read the log


def test_an_endpoint_judges_while_the_policy_samples_and_scores(tmp_path, monkeypatch):
    """The server holds its replies back until the next batch is sampled, and then until scoring has begun."""
    sampled, scoring, waited = threading.Semaphore(0), threading.Event(), []

    def reply(body: dict) -> str:
        waited.append(sampled.acquire(timeout=20) and scoring.wait(timeout=20))
        return FINE

    batch, score = TransformersSampler._batch, Collector.score

    def counted(self, base, prompts):
        responses = batch(self, base, prompts)
        sampled.release(len(prompts))
        return responses

    def noticed(self, rollouts):
        scoring.set()
        return score(self, rollouts)

    monkeypatch.setattr(TransformersSampler, "_batch", counted)
    monkeypatch.setattr(Collector, "score", noticed)
    with FaultServer(reply) as server:
        config = tiny_config(
            tmp_path, critic=f"{server.url}#judge", generation="transformers", max_steps=1, generation_batch_size=2
        )
        optimize("slf5k", config)
    assert waited and all(waited)


def test_when_judgements_are_made_changes_nothing(tmp_path):
    logs = []
    for remote in (False, True):
        rewards = ScriptedRewards(fail=["post-2"], remote=remote)
        config = tiny_config(tmp_path, generation_batch_size=3, output_dir=str(tmp_path / str(len(logs))))
        optimize("slf5k", config, rewards)
        logs.append((Path(config.output_dir) / "rollouts.jsonl").read_bytes())
    assert logs[0] == logs[1]


def test_what_a_judge_elsewhere_raises_reaches_the_user(tmp_path):
    def broken(token: int) -> float:
        raise InputError("no money left")

    with pytest.raises(InputError, match="no money left"):
        optimize("slf5k", tiny_config(tmp_path), ScriptedRewards(worth=broken, remote=True))


def test_rollouts_ahead_are_sampled_before_the_update_and_judged_during_it(tmp_path, monkeypatch):
    updates, waited, step_update = threading.Semaphore(0), [], Learner.update

    class Slow(ScriptedRewards):
        """Has no judgement of a step until the update of the step before it has begun."""

        def __call__(self, rollouts):
            waited.append(not self.asked or updates.acquire(timeout=20))
            return super().__call__(rollouts)

    def noticed(self, batch, *steps):
        updates.release()
        return step_update(self, batch, *steps)

    monkeypatch.setattr(Learner, "update", noticed)
    config = tiny_config(tmp_path, max_steps=4, rollouts_ahead=True, lr_schedule="constant")
    trainer = optimize("slf5k", config, Slow(remote=True))
    assert waited == [True] * 4 and trainer.ahead is None
    kl = [row["kl/full"] for row in trainer.metrics_log.rows()]
    assert max(abs(value) for value in kl[:2]) < 1e-6  # both sampled by the policy as it was
    assert min(abs(value) for value in kl[2:]) > 1e-4
    config = tiny_config(tmp_path, max_steps=2, lr_schedule="constant", output_dir=str(tmp_path / "usual"))
    assert abs(optimize("slf5k", config, ScriptedRewards()).metrics_log.rows()[1]["kl/full"]) > 1e-4


@pytest.mark.parametrize(
    ("critic", "ahead"), [("programmatic", False), ("openai:gpt-4o", True), ("served:http://host:8765", True)]
)
def test_rollouts_are_sampled_ahead_where_the_critic_works_elsewhere(tmp_path, critic, ahead):
    assert tiny_config(tmp_path, critic=critic).rollouts_ahead is ahead
    assert tiny_config(tmp_path, critic=critic, rollouts_ahead=False).rollouts_ahead is False
    scalar = tiny_config(tmp_path, critic=critic, algorithm="scalar", reward_model="rm")  # in the critic's place
    assert scalar.rollouts_ahead is False
    assert scalar.changed(algorithm="verdict").method == "verdict"
    with pytest.raises(InputError, match="--reward_placement last_mean: a --reward_model gives its own number"):
        scalar.changed(reward_placement="last_mean").check()


@pytest.mark.parametrize("constrained", ["none", "quotes"])
def test_too_many_failed_critiques_stop_the_run(tmp_path, constrained):
    """A reward model's folder is told the setting that helps, where it is not yet set."""
    folder = tmp_path / "reward_model"
    folder.mkdir()
    config = tiny_config(tmp_path, critic=str(folder), critic_constrained=constrained, max_critic_failures=0.25)
    with pytest.raises(InputError, match=r"[34] of 4 critiques failed \(no reply\).*--max_critic_failures") as error:
        optimize("slf5k", config, ScriptedRewards(fail=[f"post-{index}" for index in range(4)]))
    assert ("--critic_constrained quotes" in str(error.value)) == (constrained == "none")


def test_a_step_without_feedback_makes_no_update(tmp_path):
    config = tiny_config(tmp_path, max_steps=1, max_critic_failures=1.0)
    optimize("slf5k", config, ScriptedRewards(fail=[f"post-{index}" for index in range(4)]))
    assert [row["updates"] for row in rows(tmp_path / "run" / "metrics.jsonl")] == [0]


def test_the_settings_of_an_endpoint_reach_it(tmp_path):
    with FaultServer(lambda body: FINE, faults=["500"], rate=1.0) as server:
        settings = {"critic_max_new_tokens": 77, "critic_temperature": 0.5, "critic_retries": 0}
        url = server.url.replace("http://", "http://me:hunter2@")
        config = tiny_config(tmp_path, critic=f"{url}#judge", max_steps=1, max_critic_failures=1.0, **settings)
        optimize("slf5k", config)
        asked = server.requests
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert not [path for path in files if b"hunter2" in path.read_bytes()]
    assert len(asked) <= 4  # one request a rollout at most: none was sent again
    assert {(request["max_tokens"], request["temperature"]) for request in asked} == {(77, 0.5)}


def test_replies_that_could_not_be_used_are_not_used_again(tmp_path):
    """A critic that wrote nonsense for a step is asked again when the run goes on, to the result of a sound one."""
    sick: list[str] = []
    second: list[str] = []  # the responses of step 2, which may be asked about before the last of step 1

    def answer(body: dict) -> str:
        asked = body["messages"][0]["content"]  # a reply that cannot be used is asked for once more, below it
        return sick[0] if sick and any(each in asked for each in second) else FINE

    with FaultServer(answer) as server:
        config = tiny_config(tmp_path, critic=f"{server.url}#judge", save_every=1, log_rollouts_every=1)
        optimize("slf5k", config)
        sound = digest(tmp_path / "run", 2)
        logged = [row for row in rows(tmp_path / "run" / "rollouts.jsonl") if row["step"] == 2]
        second += filter(None, (row["response"].strip() for row in logged))
        for reply in ("I will not say.", FINE.replace("{", '{"n": ' + "1" * 5000 + ", ")):
            shutil.rmtree(tmp_path / "run")
            sick[:] = [reply]
            with pytest.raises(InputError, match="critiques failed"):
                optimize("slf5k", config)
            sick.clear()
            optimize("slf5k", config)
            assert digest(tmp_path / "run", 2) == sound


@pytest.mark.parametrize("adapter", [False, True])
def test_a_served_reward_model_reads_what_it_was_trained_on(tmp_path, adapter):
    """Its folder says how long a prompt may be: x loses its end, the response nothing."""
    folder, task = tmp_path / "reward_model", get_task("slf5k")
    tiny_model(folder)
    if adapter:
        (folder / "config.json").unlink()
        (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
        save_json(folder / "adapter_config.json", {"base_model_name_or_path": "on/the-server", "peft_type": "LORA"})
    prompt = load_prompt(reward_records.prompt_file(tmp_path))
    RewardModelDescription("slf5k", "tiny", 120, 300, "tail", 99).save(folder, prompt)
    post, summary = "One sentence that is said again and again. " * 30, "A summary that stays whole."
    with FaultServer(lambda body: FINE) as server:
        critic = load_critic(f"{server.url}#rm", task, prompt=folder / "reward_prompt.txt")
        (feedback,) = critic([post], [summary], [{"post": post, "generated_summary": summary}])
        (request,) = server.requests
        (too_long,) = critic(["x"], ["word " * 400], [{"post": "x", "generated_summary": "word " * 400}])
    assert feedback == Feedback("Fine.") and request["max_tokens"] == 99
    text = request["messages"][0]["content"]
    assert summary in text and "[…]" in text and "again and again" in text
    assert len(tokenizer("byte")(text)["input_ids"]) <= 120
    assert "its response is never cut" in str(too_long) and len(server.requests) == 1


def test_scores_that_a_scheme_would_ignore_are_refused():
    dense = Feedback("Half.", scores=[("my", 1.0), ("car", -1.0)])
    ids = tokenizer("byte")("my car", add_special_tokens=False)["input_ids"]
    for scheme in ("uniform", "decay"):
        with pytest.raises(InputError, match=f"the scheme '{scheme}' would ignore it; add --scheme dense"):
            token_rewards(ids, tokenizer("byte"), dense, "slf5k", scheme)


def test_no_prompt_holds_todays_date(tmp_path):
    """Llama 3.2's template prints it where it is not told another: a run would not continue over midnight."""
    tok = copy.deepcopy(tokenizer("byte"))  # other tests share it
    tok.chat_template = (
        "{% if date_string is not defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}"
        "{{ date_string }}|{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    assert tok.decode(encode_prompt("A post.", get_task("slf5k"), tok)).startswith(FIXED_DATE)
    answered = rollout("ok", prompt="A post.", feedback=RolloutFeedback([0.0, 0.0], critique="Fine."))
    teacher = load_teacher_prompt(get_task("slf5k"))
    assert tok.decode(encode_teacher_prompt(answered, teacher, get_task("slf5k"), tok)).startswith(FIXED_DATE)
    reward_prompt = RewardPrompt(load_prompt(reward_records.prompt_file(tmp_path)), get_task("slf5k"), tok, 100)
    assert tok.decode(reward_prompt.ids({"prompt": "x", "response": "y"})).startswith(FIXED_DATE)
    config = tiny_config(tmp_path)
    tok.save_pretrained(config.model)
    policy = LocalPolicy(config.model, "float32", "cpu")
    assert policy.tokenizer.decode(policy.token_ids([{"role": "user", "content": "x"}])) == f"{FIXED_DATE}|x"
