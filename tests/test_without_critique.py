"""Spans without a critique (the paper's section 4.5): annotated, learnt and used by one flag."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from evaluation.reporting.runs import load_run
from nl_gradient_policy_optimization.optimize import make_critic, optimize
from nl_reward_model.infer import InferConfig, infer
from nl_reward_model.measures.metrics import MetricsConfig, measure_feedback
from nl_reward_model.train_rm import train
from rm_data_anno.annotate import AnnotateConfig, annotate
from tests import reward_records
from tests.annotation_runs import posts, read, setting
from tests.fault_server import FaultServer
from tests.tiny_runs import rows, tiny_config
from text2grad.critics import load_critic
from text2grad.critics.reward_model.critic import RewardModelDescription
from text2grad.errors import InputError
from text2grad.feedback import VARIANTS, Feedback
from text2grad.prompts import load_prompt, variant_asked
from text2grad.tasks import get_task

SPANS = '{"good_spans": ["ran off"], "poor_spans": ["what now?"]}'
WITHOUT = Feedback("", ["ran off"], ["what now?"])


@pytest.mark.parametrize(
    ("variant", "critique", "chosen"),
    [(None, True, None), ("cot", True, "cot"), (None, False, "spans"), ("", False, "spans"), ("spans", False, "spans")],
)
def test_one_flag_decides(variant, critique, chosen):
    assert variant_asked(variant, critique) == chosen


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_prompt_that_contradicts_the_flag_is_refused(variant):
    with pytest.raises(InputError, match="--critique false"):
        variant_asked(variant, critique=variant == "spans")


def test_a_model_is_asked_for_spans_alone(tmp_path, capsys):
    with FaultServer(lambda body: SPANS) as server:
        annotate("slf5k", setting(tmp_path, server, posts(2), critique=False))
        schema = server.requests[0]["response_format"]["json_schema"]["schema"]
        assert list(schema["properties"]) == schema["required"] == ["good_spans", "poor_spans"]
        assert "textual_feedback" not in server.requests[0]["messages"][0]["content"]
    assert "--critique false" in capsys.readouterr().out.partition("next: ")[2]
    annotated = read(tmp_path)
    assert all(get_task("slf5k").feedback(record) == WITHOUT for record in annotated.values())
    assert annotated["t3_0"]["annotation"]["prompt"] == "spans"
    assert annotated["t3_0"]["annotation"]["validation"] == {"offered": 2, "corrected": 0}  # nothing is unsupported
    assert read(tmp_path, ".report.json")["critique_words"] == {}


def test_a_program_leaves_its_critique_out_and_an_older_one_does_not_stay(tmp_path):
    records = {key: {**record, "textual_feedback": "Of other spans."} for key, record in posts(2).items()}
    (tmp_path / "in.json").write_text(json.dumps(records))
    config = AnnotateConfig(data_path=str(tmp_path / "in.json"), output_path=str(tmp_path / "out.json"))
    annotate("slf5k", replace(config, critic="programmatic", critique=False))
    alone = [get_task("slf5k").feedback(record) for record in read(tmp_path).values()]
    annotate("slf5k", replace(config, critic="programmatic", output_path=str(tmp_path / "with.json")))
    written = json.loads((tmp_path / "with.json").read_text()).values()
    assert alone == [replace(get_task("slf5k").feedback(record), critique="") for record in written]
    with pytest.raises(InputError, match="critique"):
        annotate("slf5k", replace(config, critic="programmatic"))


def test_a_reward_model_learns_and_judges_without_a_critique(tmp_path, capsys):
    """Its folder says what it writes: neither measuring nor a policy's run needs the flag."""
    task, (folder, records) = get_task("slf5k"), reward_records.memorised(critique=False)
    data = reward_records.write(tmp_path, records)
    with pytest.raises(InputError, match=r"'t3_0_0' has spans and no 'textual_feedback'.*--critique false"):
        train(task, reward_records.settings(tmp_path, data))
    assert not RewardModelDescription.load(folder)[0].critique
    assert "without a critique" in (folder / "README.md").read_text()

    asked = [task.prompt(r) for r in records.values()], [task.response(r) for r in records.values()]
    known = [Feedback("", record["good_spans"], record["poor_spans"]) for record in records.values()]
    for constrained in ("none", "quotes"):
        assert load_critic(str(folder), task, constrained=constrained)(*asked) == known

    infer(task, InferConfig(model=str(folder), data_path=data, output_path=str(tmp_path / "rows.json")))
    assert "compare it with the annotations" in capsys.readouterr().out
    figures = measure_feedback(
        task, MetricsConfig(data_path=str(tmp_path / "rows.json"), output_path=str(tmp_path / "figures.json"))
    )
    assert figures["parse_rate"]["value"] == 1 and figures["critique"] == {}
    assert {row["f1"]["value"] for row in figures["tokens"]["labels"].values()} == {1.0}

    config = tiny_config(tmp_path, critic=str(folder), critic_constrained="quotes", max_steps=1)
    optimize("slf5k", config)
    judged = rows(tmp_path / "run" / "rollouts.jsonl")
    assert all(row["error"] is None and row["critique"] == "" for row in judged if row["response"].strip())
    assert any(row["good"] or row["poor"] for row in judged)
    shown = load_run(tmp_path / "run").rollouts
    assert [bool(each.good_at or each.poor_at) for each in shown] == [bool(row["matched"]) for row in judged]


@pytest.mark.parametrize("critique", [False, True])
def test_a_served_reward_model_is_asked_for_the_fields_that_it_learnt(tmp_path, critique):
    prompt = load_prompt(reward_records.prompt_file(tmp_path))
    RewardModelDescription("slf5k", "tiny", 120, 300, "tail", 99, critique=critique).save(tmp_path / "adapter", prompt)
    written = {**({"textual_feedback": "It left."} if critique else {}), **json.loads(SPANS)}
    with FaultServer(lambda body: json.dumps(written)) as server:
        critic = load_critic(f"{server.url}#rm", "slf5k", prompt=tmp_path / "adapter" / "reward_prompt.txt")
        (feedback,) = critic(["A dog left."], ["Dog 1 ran off; what now?"])
        schema = server.requests[0]["response_format"]["json_schema"]["schema"]
    assert server.requests[0]["max_tokens"] == 99  # as long as what it was trained to write
    assert feedback == replace(WITHOUT, critique="It left." * critique)
    assert list(schema["properties"]) == list(written)


def test_a_policy_is_trained_by_spans_alone(tmp_path):
    """The program's labels are the same with and without its critique; an endpoint is asked for spans."""
    logs = []
    for critique in (True, False):
        config = tiny_config(tmp_path, output_dir=str(tmp_path / str(critique)), max_steps=1, critique=critique)
        optimize("slf5k", config)
        logs.append(rows(tmp_path / str(critique) / "rollouts.jsonl"))
    judged = [pair for pair in zip(*logs, strict=True) if pair[0]["response"].strip()]
    assert judged and all(with_critique["critique"] for with_critique, _ in judged)
    assert all(without == {**with_critique, "critique": ""} for with_critique, without in judged)
    with FaultServer(lambda body: SPANS) as server:
        config = tiny_config(tmp_path, critic=f"{server.url}#judge", critique=False)
        critic = make_critic(config, get_task("slf5k"), SimpleNamespace(process_index=0))
        assert critic(["A dog left."], ["Dog 1 ran off; what now?"]) == [WITHOUT]
    with pytest.raises(InputError, match="--critique false leaves --teacher"):
        optimize("slf5k", tiny_config(tmp_path, critique=False, algorithm="teacher"))
