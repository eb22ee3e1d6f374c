"""Two reward models before a judge: a judge of known taste must give known figures, whatever its position bias."""

import json
import sys

import pytest

from nl_reward_model.measures.pairwise import CompareFeedbackConfig, compare_feedback, win_rates
from tests.fault_server import FaultServer
from text2grad.endpoints.judging import JudgeConfig, open_judge
from text2grad.errors import InputError
from text2grad.feedback import Feedback
from text2grad.records import save_json
from text2grad.tasks import get_task

TASK = get_task("slf5k")


def reviews(body: dict) -> list[str]:
    """The two reviews as the judge is shown them."""
    text = body["messages"][-1]["content"].split("Reply with one JSON object")[0]
    return text.split("FIRST REVIEW\n")[1].split("SECOND REVIEW\n")


def verdict(winner: str) -> str:
    return json.dumps({"reasoning": "because", "winner": winner})


def likes_best(body: dict) -> str:
    first, second = ("BEST" in review for review in reviews(body))
    return verdict("tie" if first == second else "first" if first else "second")


def save_reviews(folder, mine: list[str | None], other: list[str | None]) -> dict[str, str]:
    paths = {}
    for name, critiques in (("first", mine), ("second", other)):
        rows = {}
        for number, critique in enumerate(critiques):
            feedback = None if critique is None else Feedback(critique, ["sum"], [])
            rows[f"r{number}"] = {
                "post": f"post {number}",
                "generated_summary": f"sum {number}",
                "prediction": "…",
                "predicted": feedback and TASK.fields.to_dict(feedback),
                "parse_error": None if feedback else "broken",
            }
        save_json(folder / f"{name}.json", rows)
        paths[name] = str(folder / f"{name}.json")
    return paths


def judged(folder, server: FaultServer, paths: dict[str, str], **options) -> dict:
    config = CompareFeedbackConfig(task="slf5k", **paths, output_path=str(folder / "out.json"), **options)
    with open_judge(JudgeConfig(judge=f"{server.url}#judge", concurrency=4), config.output_path) as judge:
        return compare_feedback(judge, config)


def test_a_fair_judge_gives_the_true_record_and_no_bias(tmp_path):
    mine = ["BEST a"] * 6 + ["plain b"] * 3 + ["plain c"]
    other = ["plain d"] * 6 + ["BEST e"] * 3 + ["plain f"]
    with FaultServer(likes_best) as server:
        result = judged(tmp_path, server, save_reviews(tmp_path, mine, other))
    assert len(server.requests) == 20
    got = {name: figure["value"] for name, figure in result["figures"].items()}
    assert got == pytest.approx(
        {"win": 0.6, "tie": 0.1, "lose": 0.3, "score": 0.65, "position": 0.5, "orders_agree": 1.0}
    )
    assert result["figures"]["win"]["low"] < 0.6 < result["figures"]["win"]["high"]
    assert json.loads((tmp_path / "out.json").read_text()) == result
    prompt = server.requests[0]["messages"][-1]["content"]
    assert "good_spans:\n- sum" in prompt and "poor_spans:\n(none)" in prompt and "post " in prompt


def test_a_judge_that_always_takes_the_first_shows_it_and_favours_nobody(tmp_path):
    with FaultServer(lambda body: verdict("first")) as server:
        paths = save_reviews(tmp_path, ["BEST a"] * 8, ["plain b"] * 8)
        result = judged(tmp_path, server, paths)
    got = {name: figure["value"] for name, figure in result["figures"].items()}
    assert got == {"win": 0, "tie": 1, "lose": 0, "score": 0.5, "position": 1.0, "orders_agree": 0}


def test_one_order_is_drawn_at_random_and_still_shows_the_bias(tmp_path):
    with FaultServer(lambda body: verdict("first")) as server:
        paths = save_reviews(tmp_path, ["BEST a"] * 40, ["plain b"] * 40)
        result = judged(tmp_path, server, paths, orders="one")
    assert len(server.requests) == 40
    mine_first = sum("BEST" in reviews(body)[0] for body in server.requests)
    assert 10 < mine_first < 30
    assert result["figures"]["win"]["value"] == mine_first / 40
    assert result["figures"]["position"]["value"] == 1.0
    assert "orders_agree" not in result["figures"]


def test_what_cannot_be_read_loses_and_equal_feedback_ties_without_a_question(tmp_path):
    with FaultServer(likes_best) as server:
        paths = save_reviews(tmp_path, ["a", None, "same", None], [None, "b", "same", None])
        result = judged(tmp_path, server, paths)
    assert server.requests == []
    assert result["compared"] == 3 and result["unread"] == {"first": 1, "second": 1}
    got = {name: figure["value"] for name, figure in result["figures"].items()}
    assert got["win"] == got["lose"] == got["tie"] == pytest.approx(1 / 3)
    assert got["position"] is None


def test_a_second_run_asks_only_what_failed(tmp_path, run_script, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["pairwise.py"])  # whose output a second run may replace
    broken = {"on": True}

    def sometimes(body: dict) -> str:
        return "I cannot say." if broken["on"] and "post 3" in body["messages"][-1]["content"] else likes_best(body)

    with FaultServer(sometimes) as server:
        paths = save_reviews(tmp_path, ["BEST a"] * 5, ["plain b"] * 5)
        result = judged(tmp_path, server, paths)
        assert result["compared"] == 4 and len(result["failures"]) == 2
        assert "names no winner" in result["failures"]["r3|ab"] or "no JSON" in result["failures"]["r3|ab"]
        broken["on"], asked = False, len(server.requests)
        flags = {**paths, "task": "slf5k", "judge": f"{server.url}#judge", "output_path": tmp_path / "out.json"}
        run_script("nl_reward_model/measures/pairwise.py", "--retry_failed", "True", **flags)
        assert len(server.requests) == asked + 2
    assert json.loads((tmp_path / "out.json").read_text())["compared"] == 5


def test_records_of_one_prompt_count_together():
    points = {f"r{number}": [1.0 if number < 10 else 0.0] for number in range(20)}
    alone = win_rates(points, {}, {key: key for key in points})["win"]
    together = win_rates(points, {}, {key: str(int(key[1:]) // 10) for key in points})["win"]
    assert (together.low, together.high) == (0, 1) and alone.low > 0.2


def test_files_that_do_not_belong_together_are_refused(tmp_path):
    paths = save_reviews(tmp_path, ["a"], ["b"])
    rows = json.loads((tmp_path / "second.json").read_text())
    save_json(tmp_path / "second.json", {"r0": rows["r0"] | {"generated_summary": "another"}})
    with FaultServer(likes_best) as server:
        with pytest.raises(InputError, match="another response"):
            judged(tmp_path, server, paths)
        save_json(tmp_path / "second.json", {"x": rows["r0"]})
        with pytest.raises(InputError, match="no response in common"):
            judged(tmp_path, server, paths)
        del rows["r0"]["predicted"]
        save_json(tmp_path / "second.json", rows)
        with pytest.raises(InputError, match="no feedback of a model"):
            judged(tmp_path, server, paths)
    with pytest.raises(InputError, match="both, one"):
        CompareFeedbackConfig("slf5k", "a", "b", "c", orders="neither")
