"""The judge harness against scripted judges whose preferences, biases and faults are known."""

import json
import re
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from evaluation.judge import WinRateConfig, compare_pairwise, main, pair_figures
from evaluation.reporting.assemble import assemble
from evaluation.reporting.comparing import load_results
from evaluation.results import figures_of, load_result
from tests.fault_server import FaultServer
from text2grad.endpoints.judging import JudgeConfig, open_judge, read_verdict
from text2grad.errors import InputError
from text2grad.feedback import Feedback
from text2grad.records import save_json
from text2grad.tasks import get_task

PAIRS, FEW = 200, 40


@pytest.fixture(scope="module")
def systems(tmp_path_factory) -> tuple[Path, Path, np.ndarray, np.ndarray]:
    """Two systems' summaries with their quality written on them, and the qualities."""
    folder, draw = tmp_path_factory.mktemp("systems"), np.random.default_rng(5)
    qualities = [draw.normal(mean, 1, PAIRS) for mean in (0.4, 0)]
    for name, values in zip(("own", "other"), qualities, strict=True):
        texts = {f"t3_{number}": f"A summary of quality {value:.6f}" for number, value in enumerate(values)}
        rows = {key: {"post": f"Post {key}.", "generated_summary": text} for key, text in texts.items()}
        save_json(folder / f"{name}.json", rows)
    return folder / "own.json", folder / "other.json", *qualities


def scripted(bias: float = 0.0, tie: float = 0.0):
    """A judge that adds ``bias`` to what it reads first and calls differences below ``tie`` a tie."""

    def answer(body: dict) -> str:
        first, second = map(float, re.findall(r"quality (-?\d+\.\d+)", body["messages"][0]["content"]))
        lead = first + bias - second
        winner = "tie" if abs(lead) < tie else "first" if lead > 0 else "second"
        return json.dumps({"reasoning": f"It leads by {lead:.3f}.", "winner": winner})

    return answer


def judged(server: FaultServer, systems, output: Path, pair: dict | None = None, **options) -> dict:
    """The verdicts on a few pairs of two files; ``pair`` is settings of the comparison, ``options`` are the judge's."""
    given = {"task": "slf5k", "data_path": str(systems[0]), "system": "own", "baseline": str(systems[1]), "step": 40}
    given |= {"baseline_system": "other", "output_path": str(output), "limit": FEW} | (pair or {})
    with open_judge(JudgeConfig(judge=f"{server.url}#scripted", **options), output) as judge:
        return compare_pairwise(judge, WinRateConfig(**given))


def test_a_position_bias_is_found_and_undone(systems, tmp_path):
    own, other = systems[2:]
    truth = (own > other).mean()
    with FaultServer(scripted(bias=0.8)) as server:
        metrics = judged(server, systems, tmp_path / "r.json", {"limit": None})["metrics"]
    first, second = (own + 0.8 > other).mean(), (own > other + 0.8).mean()
    assert metrics["win_rate_shown_first"]["value"] == pytest.approx(first)
    assert metrics["win_rate_shown_second"]["value"] == pytest.approx(second)
    assert first - truth > 0.1 and truth - second > 0.1  # either order alone misleads
    assert metrics["position_bias"]["value"] == pytest.approx(first - second)
    assert metrics["position_bias"]["low"] > 0.2
    assert metrics["win_rate"]["value"] == pytest.approx((first + second) / 2)
    order_free = metrics["win_rate_order_free"]
    assert order_free["value"] == pytest.approx(truth, abs=0.04)
    assert order_free["low"] < truth < order_free["high"]
    assert abs(order_free["value"] - truth) < abs(metrics["win_rate"]["value"] - truth)
    assert metrics["orders_agree"]["value"] == pytest.approx((abs(own - other) > 0.8).mean())
    clear = abs(own - other) > 0.8
    assert metrics["win_rate_where_orders_agree"]["value"] == pytest.approx((own > other)[clear].mean())


def test_a_judge_that_only_looks_at_the_place_says_nothing():
    found = pair_figures({key: {"ab": "first", "ba": "first"} for key in "abc"}, both=False)
    values = {name: figure.value() for name, figure in found.items()}
    assert values == {"win_rate": 0.5, "wins": 0, "ties": 1, "losses": 0, "position_bias": 1}


def test_pairs_that_no_judge_needs_count_in_every_win_rate():
    """Half a point is added to either side of each order, so that three of four wins are logit log(3.5/1.5)."""
    wins, settled = {key: {"ab": "first", "ba": "second"} for key in "abc"}, {"d": 0.0}
    figures = pair_figures({**wins, "d": {}}, both=True, settled=settled)
    assert figures["win_rate"].value() == 0.75
    assert figures["win_rate_order_free"].value() == pytest.approx(0.7)


def test_one_order_is_drawn_at_random_and_halves_the_price(systems, tmp_path):
    with FaultServer(scripted(tie=0.3)) as server:
        result = judged(server, systems, tmp_path / "r.json", {"orders": "one", "limit": None})
    assert len(server.requests) == PAIRS
    orders = Counter(order for verdicts in result["verdicts"].values() for order in verdicts)
    assert 70 < orders["ab"] < 130
    assert result["metrics"]["ties"]["value"] > 0.1
    assert "orders_agree" not in result["metrics"]
    assert result["metrics"]["win_rate"]["value"] == pytest.approx((systems[2] > systems[3]).mean(), abs=0.1)


def test_wins_ties_and_losses_can_be_recomputed_from_the_file(systems, tmp_path):
    """And a password in the judge's address is written nowhere."""
    with FaultServer(scripted(bias=0.2, tie=0.2)) as server:
        server.url = server.url.replace("http://", "http://me:hunter2@")
        result = judged(server, systems, tmp_path / "r.json")
    assert all("hunter2" not in path.read_text() for path in tmp_path.iterdir())
    stored = load_result(tmp_path / "r.json")
    assert stored["step"] == 40 and stored["baseline"] == "other"
    scores = []
    for verdicts in stored["verdicts"].values():
        points = {"first": 1, "tie": 0.5, "second": 0}
        scores.append((points[verdicts["ab"]["winner"]] + 1 - points[verdicts["ba"]["winner"]]) / 2)
    assert result["metrics"]["win_rate"]["value"] == pytest.approx(np.mean(scores))
    shares = [result["metrics"][name]["value"] for name in ("wins", "ties", "losses")]
    assert shares == pytest.approx(
        [np.mean(np.array(scores) > 0.5), np.mean(np.array(scores) == 0.5), 1 - sum(shares[:2])]
    )
    for name, figure in figures_of(stored).items():
        assert figure.value() == pytest.approx(stored["metrics"][name]["value"]), name


def test_faults_are_counted_and_asked_again_only_on_demand(systems, tmp_path):
    faults = ("500", "cut_off", "prose", "wrong_schema", "empty")
    with FaultServer(scripted(), faults=faults, rate=0.2, seed=1) as server:
        first = judged(server, systems, tmp_path / "r.json")
        failed = len(first["failures"])
        assert 0 < failed < 2 * FEW * 0.3
        assert first["metrics"]["judge_failures"]["value"] > 0
        assert first["metrics"]["win_rate"]["n"] == FEW - round(FEW * first["metrics"]["judge_failures"]["value"])
        asked = len(server.requests)
        judged(server, systems, tmp_path / "r.json")
        assert len(server.requests) == asked
        server.rate = 0.0
        last = judged(server, systems, tmp_path / "r.json", retry_failed=True)
        assert len(server.requests) == asked + failed
    assert last["metrics"]["judge_failures"]["value"] == 0
    assert last["metrics"]["win_rate"]["value"] == pytest.approx((systems[2] > systems[3])[:FEW].mean())


def test_each_of_the_baselines_answers_to_a_prompt_is_judged(tmp_path):
    for name, qualities in (("own", (1.0, 1.0, 1.0)), ("other", (0.0, 2.0))):
        rows = {f"p@{n}": {"post": "A post.", "generated_summary": f"quality {q}"} for n, q in enumerate(qualities)}
        save_json(tmp_path / f"{name}.json", rows)
    with FaultServer(scripted()) as server:
        result = judged(server, (tmp_path / "own.json", tmp_path / "other.json"), tmp_path / "r.json")
    assert [record["wins"] for record in result["records"].values()] == [1, 0, 1]


def test_another_prompt_or_judge_is_not_mixed_into_a_begun_run(systems, tmp_path):
    with FaultServer(scripted()) as server:
        judged(server, systems, tmp_path / "r.json")
        with pytest.raises(InputError, match="begun with other settings"):
            judged(server, systems, tmp_path / "r.json", judge_max_new_tokens=99)
        asked = len(server.requests)
        result = judged(server, systems, tmp_path / "r.json", judge_max_new_tokens=99, allow_changed=True)
        assert len(server.requests) == asked  # it had been asked all
        change = {"from_record": 2 * FEW + 1, "settings": {"judge_tokens": 99}}
        assert load_result(tmp_path / "r.json")["changes"] == result["changes"] == [change]
    report, *_ = assemble([], load_results([tmp_path / "r.json"]))
    told = report["cautions"]
    assert any(f"from record {2 * FEW + 1} on" in item and "judge_tokens 99" in item for item in told)


@pytest.mark.parametrize("task", ["slf5k", "kodcode", "ultrafeedback"])
def test_each_task_has_a_prompt_that_shows_both_answers(task, tmp_path):
    x = {"slf5k": "post", "kodcode": "question", "ultrafeedback": "prompt"}[task]
    files = (tmp_path / "a.json", tmp_path / "b.json")
    for file, text in zip(files, ("Answer ${one} $5.", "Answer two."), strict=True):
        save_json(file, [get_task(task).with_response({x: "What is {this}?"}, text)])
    asked = []
    with FaultServer(lambda body: asked.append(body["messages"][0]["content"]) or '{"winner": "tie"}') as server:
        judged(server, files, tmp_path / "r.json", {"task": task})
    assert len(asked) == 2
    assert all("What is {this}?" in text and "Answer ${one} $5." in text for text in asked)
    assert {text.index("Answer two.") > text.index("$5.") for text in asked} == {True, False}


@pytest.mark.parametrize(
    ("reply", "winner"),
    [
        ('{"reasoning": "…", "winner": "second"}', "second"),
        ('First I thought {"winner": "first"}, but: ```json\n{"reasoning": "x", "winner": "Tie"}\n```', "tie"),
        ("", None), ("The first one.", None), ('{"winner": "A"}', None), ('{"winner": "fir', None),
        ('{"score": 1}', None),
    ],
)  # fmt: skip
def test_verdicts_are_read_from_what_models_write(reply, winner):
    with pytest.raises(ValueError) if winner is None else nullcontext():
        assert read_verdict(reply)["winner"] == winner


def test_systems_that_answered_other_prompts_are_refused(systems, tmp_path):
    save_json(tmp_path / "b.json", {"x": {"post": "Another post.", "generated_summary": "Another."}})
    with FaultServer(scripted()) as server, pytest.raises(InputError, match="no prompt in common"):
        judged(server, (systems[0], tmp_path / "b.json"), tmp_path / "r.json")


def test_a_refused_key_stops_at_once_and_writes_no_result(systems, tmp_path, refused, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-the-wrong-key-of-all-keys")
    with FaultServer(scripted(), key="right") as server:
        flags = ["--task", "slf5k", "--responses", systems[0], "--system", "own", "--baseline", systems[1]]
        flags += ["--judge", f"{server.url}#scripted", "--output_path", tmp_path / "r.json"]
        assert "refuses the API key" in refused(main, *flags, "--baseline_system", "other")
    assert len(server.requests) <= 16
    assert not (tmp_path / "r.json").exists()


# Two reward models' feedback


def likes_best(body: dict) -> str:
    text = body["messages"][-1]["content"].split("Reply with one JSON object")[0]
    first, second = ("BEST" in review for review in text.split("FIRST REVIEW\n")[1].split("SECOND REVIEW\n"))
    return json.dumps({"winner": "tie" if first == second else "first" if first else "second"})


def compared(folder: Path, server: FaultServer, mine: list[str | None], theirs: list[str | None], **changed) -> dict:
    """The judge on critiques by number, None for one that could not be read; ``changed`` is a change of all records."""
    for name, critiques in (("mine", mine), ("theirs", theirs)):
        rows = {}
        for number, critique in enumerate(critiques):
            said = critique and get_task("slf5k").fields.to_dict(Feedback(critique, ["sum"], []))
            rows[f"r{number}"] = {"post": f"post {number}", "generated_summary": f"sum {number}", "predicted": said}
            rows[f"r{number}"] |= changed if name == "theirs" or "post" in changed else {}
        save_json(folder / f"{name}.json", rows)
    return judged(server, (folder / "mine.json", folder / "theirs.json"), folder / "out.json", {"feedback": True})


def test_feedback_is_compared_as_responses_are(tmp_path):
    own = ["BEST a"] * 6 + ["plain b"] * 3 + ["plain c"]
    with FaultServer(likes_best) as server:
        result = compared(tmp_path, server, own, ["plain d"] * 6 + ["BEST e"] * 3 + ["plain f"])
    assert len(server.requests) == 20
    got = {name: result["metrics"][name]["value"] for name in ("wins", "ties", "losses", "win_rate", "position_bias")}
    assert got == pytest.approx({"wins": 0.6, "ties": 0.1, "losses": 0.3, "win_rate": 0.65, "position_bias": 0})
    prompt = server.requests[0]["messages"][-1]["content"]
    assert "good_spans:\n- sum" in prompt and "poor_spans:\n(none)" in prompt and "post " in prompt


def test_what_cannot_be_read_loses_and_equal_feedback_ties_without_a_question(tmp_path):
    with FaultServer(likes_best) as server:
        result = compared(tmp_path, server, ["a", None, "same", None], [None, "b", "same", None])
    assert server.requests == [] and result["n"] == 3
    got = {name: metric["value"] for name, metric in result["metrics"].items()}
    assert got["wins"] == got["losses"] == got["ties"] == pytest.approx(1 / 3) and "position_bias" not in got


def test_feedback_on_responses_to_one_prompt_counts_together(tmp_path):
    with FaultServer(likes_best) as server:
        result = compared(tmp_path, server, ["BEST a"] * 20, ["plain b"] * 20, post="one post")
    assert result["n"] == 20 and result["metrics"]["win_rate"]["n"] == 1  # an interval needs several prompts


def test_feedback_that_does_not_belong_together_is_refused(tmp_path):
    with FaultServer(likes_best) as server:
        with pytest.raises(InputError, match="another response"):
            compared(tmp_path, server, ["a"], ["b"], generated_summary="another")
        with pytest.raises(InputError, match=r"theirs\.json: record 'r0' has no feedback of a model"):
            compared(tmp_path, server, ["a"], ["b"], predicted=5)
        with pytest.raises(InputError, match="no response in common"):
            compared(tmp_path, server, [None], [None])
