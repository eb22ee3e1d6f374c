"""Reflection at inference time: critique, rewrite, and nothing asked twice."""

from __future__ import annotations

from nl_gradient_policy_optimization.baselines import reflect
from tests.baseline_runs import BASELINES, SLF5K, QuotingCritic
from tests.tiny import tiny_model
from tests.tiny_runs import POSTS
from text2grad.feedback import Feedback
from text2grad.models.answering import PolicyAnswer
from text2grad.prompts import load_prompt
from text2grad.records import load_records, save_json


class EchoWriter:
    """Answers with the round's number and what the chat asks for; counts its work."""

    identity, workers = "echo", 1

    def __init__(self):
        self.chats = []

    def __call__(self, chats, ids, sampling):
        self.chats += chats
        answer = PolicyAnswer(f"try {len(self.chats)}: worse", None, None, True)
        return [answer if "See." in chat[-1]["content"] else RuntimeError("?") for chat in chats]


def test_reflection_runs_its_rounds_and_asks_nothing_twice(tmp_path):
    rows = {
        "a": SLF5K.with_feedback({"post": POSTS[0], "generated_summary": "worse"}, Feedback("old"), {}),
        "b": {"post": POSTS[1], "generated_summary": "fine already"},
        "c": {"post": POSTS[2], "generated_summary": "will fail"},
    }
    save_json(tmp_path / "in.json", rows)
    records = load_records(tmp_path / "in.json", SLF5K)
    critic, writer = QuotingCritic(poor=["worse"]), EchoWriter()
    prompt = load_prompt(BASELINES / "slf5k" / "reflect.txt", required=("critique",))

    def go(rounds):
        config = reflect.ReflectConfig("slf5k", "in.json", str(tmp_path / "out.json"), model="echo", rounds=rounds)
        return reflect.reflect(records, SLF5K, critic, writer, prompt, config)

    one = go(1)
    assert one["a"]["generated_summary"] == "try 1: worse"
    assert (len(critic.judged), len(writer.chats)) == (3, 1)
    roles = [turn["role"] for turn in writer.chats[0]]
    assert roles == ["user", "assistant", "user"] and writer.chats[0][1]["content"] == "worse"
    assert "See." in writer.chats[0][2]["content"] and "- worse" in writer.chats[0][2]["content"]

    three = go(3)
    assert len(writer.chats) == 3  # one more in each new round; the first round is remembered
    assert critic.judged.count("worse") == 1
    assert three["a"]["generated_summary"] == "try 3: worse"
    assert [turn["response"] for turn in three["a"]["reflection"]["rounds"]] == [
        "worse",
        "try 1: worse",
        "try 2: worse",
    ]
    assert three["b"]["generated_summary"] == "fine already"
    assert not any(turn["rewritten"] for turn in three["b"]["reflection"]["rounds"])
    assert three["c"]["generated_summary"] == "will fail"
    assert three["c"]["reflection"]["rounds"][0]["error"] == "no reply"
    assert "textual_feedback" not in three["a"]
    assert go(3) == three and len(writer.chats) == 3


def test_reflection_of_a_real_model_from_the_command_line(run_script, tmp_path):
    model = tiny_model(tmp_path / "tiny")
    rows = {
        "a": {"post": POSTS[0], "generated_summary": "The post is about the the the"},
        "b": {"post": POSTS[1], "generated_summary": " "},
    }
    save_json(tmp_path / "in.json", rows)
    command = (
        "nl_gradient_policy_optimization/baselines/reflect.py", "--config", BASELINES / "slf5k" / "reflect.yaml",
        "--task", "slf5k", "--data_path", tmp_path / "in.json", "--output_path", tmp_path / "out.json",
        "--model", model, "--max_new_tokens", "8",
    )  # fmt: skip
    done = run_script(*command)
    assert done.returncode == 0, done.stderr
    out = load_records(tmp_path / "out.json", SLF5K, responses=False)
    story = out["a"]["reflection"]["rounds"]
    assert len(story) == 1 and story[0]["poor_spans"]
    assert story[0]["rewritten"] == (out["a"]["generated_summary"] != story[0]["response"])
    blank = out["b"]["reflection"]["rounds"][0]
    assert not blank["rewritten"] and blank["error"] == "the answer is empty"
    save_json(tmp_path / "in.json", {"a": {"post": POSTS[0]}})
    refused = run_script(*command)
    assert refused.returncode == 2 and "record a has no answer to rewrite" in refused.stderr
