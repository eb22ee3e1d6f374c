"""Critics of stage 3 behind an endpoint: what they are sent, and which cannot reward new responses."""

from __future__ import annotations

import copy
import json
import shutil

import pytest

from nl_gradient_policy_optimization.algorithms.critique import critique_example
from nl_gradient_policy_optimization.algorithms.teacher import encode_teacher_prompt, load_teacher_prompt
from nl_gradient_policy_optimization.optimize import optimize
from nl_gradient_policy_optimization.rollouts import RolloutFeedback, encode_prompt, make_rollout
from tests import reward_records
from tests.fault_server import FaultServer
from tests.nl_gradient_policy_optimization.test_resume import digest
from tests.tiny import tiny_model, tokenizer
from tests.tiny_runs import tiny_config
from text2grad.critics import load_critic
from text2grad.critics.reward_model.critic import RewardModelDescription
from text2grad.errors import InputError
from text2grad.feedback import Feedback
from text2grad.models.answering import LocalPolicy
from text2grad.prompts import FIXED_DATE, load_prompt
from text2grad.records import save_json
from text2grad.tasks import get_task
from text2grad.token_rewards import token_rewards

FINE = json.dumps({"textual_feedback": "Fine.", "good_spans": [], "poor_spans": []})


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

    def answer(body: dict) -> str:
        return sick[0] if sick and len(server.requests) > 4 else FINE

    with FaultServer(answer) as server:
        config = tiny_config(tmp_path, critic=f"{server.url}#judge", save_every=1, log_rollouts_every=1)
        optimize("slf5k", config)
        sound = digest(tmp_path / "run", 2)
        for reply in ("I will not say.", FINE.replace("{", '{"n": ' + "1" * 5000 + ", ")):
            shutil.rmtree(tmp_path / "run")
            sick[:], server.requests[:] = [reply], []
            with pytest.raises(InputError, match="critiques failed"):
                optimize("slf5k", config)
            sick.clear()
            optimize("slf5k", config)
            assert digest(tmp_path / "run", 2) == sound


def test_a_served_reward_model_reads_what_it_was_trained_on(tmp_path):
    """Its folder says how long a prompt may be: x loses its end, the response nothing."""
    folder, task = tmp_path / "reward_model", get_task("slf5k")
    tiny_model(folder)
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


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"critic_variant": "human_feedback"},
            "feedback is about the record's response, not about new ones",
        ),
        (
            {"critic_variant": "dense"},
            "uniform ignores the scores of --critic_variant dense; add --scheme dense",
        ),
        (
            {"critic_retries": -1},
            "--critic_retries must be at least 0",
        ),
    ],
)
def test_critics_that_cannot_reward_new_responses_are_refused(tmp_path, settings, message):
    config = tiny_config(tmp_path, critic="http://127.0.0.1:9/v1#m", **settings)
    with pytest.raises(InputError, match=message):
        optimize("slf5k", config)


def test_scores_that_a_scheme_would_ignore_are_refused():
    dense = Feedback("Half.", scores=[("my", 1.0), ("car", -1.0)])
    ids = tokenizer("byte")("my car", add_special_tokens=False)["input_ids"]
    for scheme in ("uniform", "decay"):
        with pytest.raises(InputError, match=f"the scheme '{scheme}' would ignore it; add --scheme dense"):
            token_rewards(ids, tokenizer("byte"), dense, "slf5k", scheme)
    assert set(token_rewards(ids, tokenizer("byte"), dense, "slf5k", "dense").values) >= {1.0, -1.0}


def test_no_prompt_holds_todays_date(tmp_path):
    """Llama 3.2's template prints it where it is not told another: a run would not continue over midnight."""
    tok = copy.deepcopy(tokenizer("byte"))  # other tests share it
    tok.chat_template = (
        "{% if date_string is not defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}"
        "{{ date_string }}|{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    assert tok.decode(encode_prompt("A post.", get_task("slf5k"), tok)).startswith(FIXED_DATE)
    rollout = make_rollout("1", "A post.", {}, [], tok.encode("ok"), tok, [])
    rollout.feedback = RolloutFeedback([0.0, 0.0], critique="Fine.")
    teacher = load_teacher_prompt(get_task("slf5k"))
    assert tok.decode(encode_teacher_prompt(rollout, teacher, get_task("slf5k"), tok)).startswith(FIXED_DATE)
    example = critique_example(rollout, get_task("slf5k"), tok)
    assert tok.decode(example.prompt_ids).startswith(FIXED_DATE)
    config = tiny_config(tmp_path)
    tok.save_pretrained(config.model)
    policy = LocalPolicy(config.model, "float32", "cpu")
    assert policy.tokenizer.decode(policy.token_ids([{"role": "user", "content": "x"}])) == f"{FIXED_DATE}|x"


def test_posts_with_references_alone_are_demonstrations(tmp_path):
    from nl_gradient_policy_optimization.baselines.pairs import PairsConfig, make_pairs
    from nl_gradient_policy_optimization.baselines.sft import demonstrations
    from text2grad.records import load_records

    task = get_task("slf5k")
    rows = [{"post": f"Post {i}.", "ideal_human_summary": f"Summary {i}."} for i in range(3)]
    save_json(tmp_path / "posts.json", [*rows, {"post": "Another.", "generated_summary": "Own."}])
    records = load_records(tmp_path / "posts.json", task, responses=None)
    chosen = demonstrations(records, task, "auto")
    assert sorted(pair for pair in chosen.values()) == sorted(
        [(f"Post {i}.", [f"Summary {i}."]) for i in range(3)] + [("Another.", ["Own."])]
    )
    assert len(demonstrations(records, task, "reference")) == 3
    save_json(tmp_path / "neither.json", {"b": {"post": "Q."}})
    with pytest.raises(InputError, match="record 'b' has neither a response nor a person's comparison"):
        make_pairs(PairsConfig("slf5k", str(tmp_path / "neither.json"), str(tmp_path / "pairs.json")))
