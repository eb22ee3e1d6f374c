"""Several opinions on the same responses: which labels are left where enough of them agree."""

from __future__ import annotations

import json

import numpy as np

from nl_reward_model.infer import InferConfig, infer
from nl_reward_model.measures.token_metrics import NO_LABEL
from nl_reward_model.measures.votes import voted
from tests.reward_records import memorised, write


def test_a_label_stays_where_enough_opinions_agree_net_of_those_against_it():
    opinions = [np.array(row) for row in ([1, 1, -1, 0], [1, -1, -1, 1], [1, 1, 0, NO_LABEL])]
    assert voted(opinions, 1).tolist() == [1, 1, -1, 1]
    assert voted(opinions, 2).tolist() == [1, 0, -1, 0]
    assert voted(opinions, 3).tolist() == [1, 0, 0, 0]


def test_opinions_are_written_and_measured(tmp_path, run_script):
    folder, records = memorised()
    data = write(tmp_path, records)
    files = [tmp_path / f"{number}.json" for number in range(3)]
    common = {"model": str(folder), "data_path": data, "constrained": "quotes", "dtype": "float32"}
    for number, path in enumerate(files):
        infer("slf5k", InferConfig(**common, output_path=str(path), opinion=number, temperature=3.0))
    written = [[row["prediction"] for row in json.loads(path.read_text()).values()] for path in files]
    assert written[0] != written[1] != written[2]
    done = run_script(
        "nl_reward_model/measures/votes.py", "--task", "slf5k", "--opinions", *files, "--output_path",
        tmp_path / "votes.json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    agree = json.loads((tmp_path / "votes.json").read_text())["agree"]
    assert list(agree) == ["1", "2", "3"] and done.stdout.count("\n| ") == 5
    marked = [sum(row["balance"]["predicted"][name] for name in ("+1", "-1")) for row in agree.values()]
    assert marked[0] > marked[2]
    alone = run_script(
        "nl_reward_model/measures/votes.py", "--task", "slf5k", "--opinions", files[0], "--output_path", files[0]
    )
    assert alone.returncode == 2 and "two files or more" in alone.stderr
