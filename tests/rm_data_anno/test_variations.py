"""Variations of posts: what a response says is judged against the post that stands beside it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from rm_data_anno.slf5k.corruptions import split
from rm_data_anno.slf5k.variations import SHARES, variations
from text2grad.critics.programs.slf5k.critic import WorkedSummaryCritic
from text2grad.records import load_records, save_json
from text2grad.tasks import get_task

POSTS = Path(__file__).parents[2] / "quickstart" / "data" / "posts_train.json"
TASK = get_task("slf5k")


@pytest.fixture(scope="module")
def posts():
    records = load_records(POSTS, TASK, responses=False)
    return {key: records[key] for key in list(records)[:6]}


@pytest.fixture(scope="module")
def answers(posts):
    return {
        key: [f"{record['ideal_human_summary']} It happened {n} times." for n in range(9)]
        for key, record in posts.items()
    }


def test_records_are_judged_against_their_variation_and_made_in_all_ways(posts, answers):
    made = variations(posts, answers, rounds=8, per_post=5)
    assert len(made) == 6 * 8 * 5
    assert Counter(record["annotation"]["how"] for record in made.values()).keys() == SHARES.keys()
    critic, differ = WorkedSummaryCritic(), 0
    for key, record in made.items():
        own = posts[key.partition("~")[0]]["post"]
        judged, kept = critic.feedback_on(record["post"], record["generated_summary"]), TASK.feedback(record)
        if record["annotation"]["how"] != "spoilt":
            assert kept == judged
            differ += kept != critic.feedback_on(own, record["generated_summary"])
        else:  # a fault that is known besides is poor, too
            assert kept.critique == judged.critique
            assert all(any(quote in longer for longer in kept.poor) for quote in judged.poor)
        sentences = set(split(record["post"]))
        assert sentences & set(split(own)) or record["post"] != own
    assert differ > 30  # a variation changes what is true of a response
    groups = {key.partition("#")[0]: record["post"] for key, record in made.items()}
    assert all(record["post"] == groups[key.partition("#")[0]] for key, record in made.items())
    assert sum(text == posts[key.partition("~")[0]]["post"] for key, text in groups.items()) < len(groups) / 2


def test_the_script_takes_what_generate_writes(tmp_path, posts, answers, run_script):
    save_json(tmp_path / "posts.json", posts)
    sampled = {
        f"{key}@{n}": {"id": f"{key}@{n}", **posts[key], "generated_summary": text}
        for key, texts in answers.items()
        for n, text in enumerate(texts)
    }
    save_json(tmp_path / "answers.json", sampled)
    made = tmp_path / "varied.json"
    done = run_script(
        "rm_data_anno/slf5k/variations.py", "--data_path", tmp_path / "posts.json", "--answers",
        tmp_path / "answers.json", "--rounds", "1", "--per_post", "3", "--output_path", made,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "18 responses to 1 variations of 6 posts" in done.stdout
    assert all(TASK.feedback(record) is not None for record in json.loads(made.read_text()).values())
