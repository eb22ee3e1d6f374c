"""Annotation by a chat model, against a server that answers, errs, lies and dies: nothing lost, nothing paid twice."""

import json
import random
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
from openai.types import Batch

from rm_data_anno.annotate import annotate
from rm_data_anno.batch_api import BatchClient
from tests.annotation_runs import ROOT, judge, posts, prices, read, record_of, setting, unfinished
from tests.fault_server import FaultServer
from text2grad.critics import load_critic
from text2grad.errors import InputError
from text2grad.feedback import Feedback, FeedbackError, reply_schema
from text2grad.records import save_json
from text2grad.sandbox import Sandbox
from text2grad.tasks import Task, get_task


def test_records_come_back_with_critique_spans_usage_and_reasoning(tmp_path):
    with FaultServer(judge) as server:
        annotate("slf5k", setting(tmp_path, server, posts(5)))
        assert len(server.requests) == 5
    record = read(tmp_path)["t3_3"]
    made = record["annotation"]
    assert (record["good_spans"], record["poor_spans"]) == (["Dog 3 ran off"], ["what now?"])
    assert (made["model"], made["prompt"], made["reasoning"]) == ("judge-1", "cot", "The post is short.")
    assert made["usage"]["requests"] == 1 and made["validation"] == {"offered": 2, "corrected": 0}
    report = read(tmp_path, ".report.json")
    assert report["usage"]["requests"] == report["paid"]["requests"] == 5
    assert report["usage"]["completion_tokens_per_record"] > 5


def test_a_record_whose_spans_fail_is_asked_again_once_with_the_reason(tmp_path):
    def answer(body: dict) -> str:
        if record_of(body) == "t3_2":
            return judge(body).replace("what now?", "what will they do now?")
        if record_of(body) == "t3_1" and len(body["messages"]) == 1:
            return judge(body).replace("Dog 1 ran off", "The dog 1 ran away")
        return judge(body)

    with FaultServer(answer) as server:
        annotate("slf5k", setting(tmp_path, server, posts(3)))
        again = [body for body in server.requests if len(body["messages"]) == 3]
    assert sorted(map(record_of, again)) == ["t3_1", "t3_2"]
    assert "<<what will they do now?>>" in again[-1]["messages"][2]["content"] + again[0]["messages"][2]["content"]
    records = read(tmp_path)
    assert records["t3_1"]["good_spans"] == ["Dog 1 ran off"]
    assert records["t3_1"]["annotation"]["validation"]["first"]["unmatched"] == ["The dog 1 ran away"]
    assert records["t3_1"]["annotation"]["usage"]["requests"] == 2
    assert records["t3_2"]["poor_spans"] == []
    assert records["t3_2"]["annotation"]["validation"]["unmatched"] == ["what will they do now?"]
    report = read(tmp_path, ".report.json")
    assert report["spans"]["unmatched_rate"] == pytest.approx(2 / 6, abs=1e-6)
    assert report["spans"]["dropped_rate"] == pytest.approx(1 / 6, abs=1e-6)
    assert report["records"]["asked_again"] == 2


@pytest.mark.parametrize("name", ["verdict", "missing", "Scores", "good_spans", "annotation"])
def test_a_field_that_annotation_would_replace_is_named_before_anyone_is_asked(tmp_path, name):
    records = posts(2)
    records["t3_1"][name] = "the user's own"
    with FaultServer(judge) as server:
        with pytest.raises(InputError, match=f"in.json: record 't3_1': .* a field '{name}'; rename that field"):
            annotate("slf5k", setting(tmp_path, server, records))
        assert not server.requests


def test_failures_are_listed_with_their_reasons_and_only_they_are_tried_again(tmp_path, capsys):
    broken = {"t3_1": "I would rather not.", "t3_3": '{"textual_feedback": "Good", "good_spans": ["Dog'}
    with FaultServer(lambda body: broken.get(record_of(body)) or judge(body)) as server:
        config = setting(tmp_path, server, posts(5), max_cost_usd=100.0, prices=str(prices(tmp_path)))
        unfinished(config)
        assert "2 failed" in capsys.readouterr().err
        assert len(server.requests) == 7
        failed = read(tmp_path, ".failed.json")
        assert list(failed) == ["t3_1", "t3_3"]
        assert "no JSON object" in failed["t3_1"]
        assert "cut off" in failed["t3_3"]
        assert list(read(tmp_path)) == ["t3_0", "t3_2", "t3_4"]
        report = read(tmp_path, ".report.json")
        assert sum(report["failures"].values()) == 2
        assert report["paid"]["requests"] == 7 > report["usage"]["requests"]

        unfinished(config)
        annotate("slf5k", replace(config, max_failures=0.4))  # as many as there are
        assert len(server.requests) == 7

        del broken["t3_1"]
        config.retry_failed = True
        unfinished(config)
        assert sorted(map(record_of, server.requests[7:])) == ["t3_1", "t3_3", "t3_3"]
        del broken["t3_3"]
        annotate("slf5k", config)
        assert list(map(record_of, server.requests[10:])) == ["t3_3"]
        assert list(read(tmp_path)) == list(posts(5))
        assert not (tmp_path / "out.json.failed.json").exists()

        broken["t3_5"] = "I would rather not."  # other records, all of which fail: nothing of the former stays
        unfinished(setting(tmp_path, server, {"t3_5": posts(6)["t3_5"]}))
    assert read(tmp_path) == {} and list(read(tmp_path, ".failed.json")) == ["t3_5"]


def test_a_persons_feedback_becomes_the_critique_and_only_spans_are_asked_for(tmp_path):
    records = {key: {**record, "feedback": f"I like the start of {key}."} for key, record in posts(2).items()}

    def answer(body: dict) -> str:
        assert f"I like the start of {record_of(body)}." in body["messages"][0]["content"]
        properties = body["response_format"]["json_schema"]["schema"]["properties"]
        assert {"good_spans", "poor_spans"} <= properties.keys() and "textual_feedback" not in properties
        return json.dumps({"good_spans": [f"Dog {record_of(body)[3:]}"], "poor_spans": []})

    with FaultServer(answer) as server:
        told = r"in\.json: record 't3_0': it has no person's feedback, as a text, in its field 'feedback'"
        for wrong in (None, ["A list."]):
            with pytest.raises(InputError, match=told):
                bad = {key: {**record, "feedback": wrong} for key, record in records.items()}
                annotate("slf5k", setting(tmp_path, server, bad, prompt="human_feedback"))
        assert not server.requests and [path.name for path in tmp_path.iterdir()] == ["in.json"]
        annotate("slf5k", setting(tmp_path, server, records, prompt="human_feedback"))
    assert read(tmp_path)["t3_1"]["textual_feedback"] == "I like the start of t3_1."
    assert read(tmp_path)["t3_1"]["good_spans"] == ["Dog 1"]


def test_dense_labels_cover_every_word_in_order(tmp_path):
    def answer(body: dict) -> str:
        scores = [["dog", 1], ["7", 1], ["cleverly", 1], ["ran", 0], ["what", -1], ["now", -1]]
        return json.dumps({"textual_feedback": "Mostly right.", "scores": scores})

    records = {"t3_7": posts(8)["t3_7"]}
    with FaultServer(answer) as server:
        annotate("slf5k", setting(tmp_path, server, records, prompt="dense"))
    record = read(tmp_path)["t3_7"]
    expected = [["Dog", 1.0], ["7", 1.0], ["ran", 0.0], ["off;", 0.0], ["what", -1.0], ["now?", -1.0]]
    assert record["scores"] == expected
    assert record["annotation"]["validation"]["unmatched"] == ["cleverly"]
    assert record["annotation"]["validation"]["unscored"] == 1
    assert get_task("slf5k").feedback(record).scores[0] == ("Dog", 1.0)
    labels = read(tmp_path, ".report.json")["labels"]
    assert labels["characters_good_spans"] == pytest.approx(4 / 24, abs=1e-6)
    assert labels["characters_poor_spans"] == pytest.approx(8 / 24, abs=1e-6)


@pytest.mark.parametrize("task", ["slf5k", "kodcode", "ultrafeedback"])
@pytest.mark.parametrize("variant", ["cot", "no_cot", "human_feedback", "dense"])
def test_every_prompt_file_asks_for_the_fields_of_its_schema(task, variant):
    critic = load_critic("http://127.0.0.1:1/v1#m", task, variant=variant)
    text = critic.prompt.text
    example = json.loads(text[text.rindex('\n{"') :].replace(": …", ": null"))
    assert sorted(example) == sorted(critic.schema["properties"])
    texts = [name for name, value in example.items() if isinstance(value, str)]
    assert texts == list(example)[: len(texts)] == list(critic.schema["properties"])[: len(texts)]
    assert {"prompt", "response"} <= critic.prompt.names
    dense = variant == "dense"
    assert example.get("verdict") is None  # a number in the example is what a small model copies
    assert ("verdict" in example, "missing" in example) == (not dense and variant != "human_feedback", not dense)
    fields = get_task(task).without_verdict().fields
    assert dense or "verdict" not in reply_schema(fields, variant)["properties"]


def test_a_prompt_file_with_a_mistake_is_named(tmp_path):
    path = tmp_path / "mine.txt"
    for text, message in [
        ("Judge ${prompt} and ${responce}", r"lacks \$\{response\}"),
        ("Judge ${prompt} and ${response} by ${tests}", r"names \$\{tests\}"),
        ("It costs $5: ${prompt} ${response}", "lone \\$ in line 1"),
        ("", "is empty"),
    ]:
        path.write_text(text)
        with pytest.raises(InputError, match=message):
            load_critic("http://127.0.0.1:1/v1#m", "slf5k", prompt=path)


def test_allowed_changes_are_recorded(tmp_path):
    with FaultServer(judge) as server:
        annotate("slf5k", setting(tmp_path, server, posts(2)))
        changed = {"prompt": "no_cot", "temperature": 0.5}
        for count in (3, 4):  # the second time nothing has changed since, so that no permission is needed
            annotate("slf5k", setting(tmp_path, server, posts(count), **changed, allow_changed=count == 3))
        with pytest.raises(InputError, match="variant: 'no_cot' then, 'cot' now"):
            annotate("slf5k", setting(tmp_path, server, posts(4)))
        assert len(server.requests) == 4
    (change,) = read(tmp_path, ".report.json")["changes"]
    assert change["from_record"] == 3
    assert {"variant": "no_cot", "temperature": 0.5}.items() <= change["settings"].items()
    prompts = [record["annotation"]["prompt"] for record in read(tmp_path).values()]
    assert prompts == ["cot", "cot", "no_cot", "no_cot"]
    assert "from_record" in (tmp_path / "out.json.report.md").read_text()


def test_a_prompt_is_a_variant_or_a_file(tmp_path):
    """A file asks for the form of reply that it is named after."""
    mine = {"prompt": str(tmp_path / "cot.txt"), "output_path": str(tmp_path / "mine.json")}
    Path(mine["prompt"]).write_text("${prompt}\n<summary>\n${response}\n</summary>\n")
    with FaultServer(judge) as server:
        annotate("slf5k", setting(tmp_path, server, posts(2), prompt="no_cot"))
        annotate("slf5k", setting(tmp_path, server, posts(2), **mine))
        with pytest.raises(InputError, match=r"no_cto: the prompt file cannot be read"):
            annotate("slf5k", setting(tmp_path, server, posts(2), prompt="no_cto"))
    prompts = [row["annotation"]["prompt"] for row in read(tmp_path).values()]
    record = next(iter(json.loads((tmp_path / "mine.json").read_text()).values()))
    assert prompts == ["no_cot", "no_cot"] and len(server.requests) == 4
    assert record["annotation"]["prompt"] == "cot" and record["annotation"]["reasoning"]


def test_the_budget_ends_a_run_that_a_larger_one_goes_on_with(tmp_path, capsys):
    with FaultServer(judge) as server:
        summary = posts(1)["t3_0"]["generated_summary"]
        words = len(judge({"messages": [{"content": f"<summary>\n{summary}\n</summary>"}]}).split(" "))
        cost = words * 0.001
        options = {"prices": str(prices(tmp_path)), "max_new_tokens": words + 5, "concurrency": 4}
        unfinished(setting(tmp_path, server, posts(20), max_cost_usd=7.5 * cost, **options))
        assert "--max_cost_usd" in capsys.readouterr().err
        done = len(read(tmp_path))
        assert 5 <= done <= 7
        assert len(server.requests) == done
        report = read(tmp_path, ".report.json")
        assert report["paid"]["cost_usd"] == pytest.approx(done * cost)
        assert report["records"]["left"] == 20 - done
        assert not (tmp_path / "out.json.failed.json").exists()

        annotate("slf5k", setting(tmp_path, server, posts(20), max_cost_usd=22 * cost, **options))
        assert len(server.requests) == 20
    assert list(read(tmp_path)) == list(posts(20))


def test_a_chat_critic_answers_in_order_and_its_failures_are_feedback_errors(tmp_path):
    def answer(body: dict) -> str:
        if "Dog 4" in body["messages"][0]["content"]:
            return "no JSON today"
        time.sleep(random.random() / 20)
        return judge(body)

    prompt = tmp_path / "reward_prompt.txt"
    prompt.write_text("Judge.\n\n${prompt}\n\n<summary>\n${response}\n</summary>\n")
    records = list(posts(12).values())
    task = get_task("slf5k")
    with FaultServer(answer) as server:
        critic = load_critic(f"{server.url}#judge-1", "slf5k", prompt=prompt, concurrency=6)
        results = critic([task.prompt(r) for r in records], [task.response(r) for r in records])
    assert [r.good for r in results if isinstance(r, Feedback)] == [[f"Dog {i} ran off"] for i in range(12) if i != 4]
    assert isinstance(results[4], FeedbackError)
    assert server.most_flying > 1
    assert "reasoning" not in server.requests[0]["response_format"]["json_schema"]["schema"]["properties"]


def test_the_prompt_that_the_readme_shows_is_enough(tmp_path):
    shown = re.search(r"```text\n(.*?)```", (ROOT / "rm_data_anno" / "README.md").read_text(), re.DOTALL).group(1)
    (tmp_path / "my_prompt.txt").write_text(shown)

    def answer(body: dict) -> str:
        summary = body["messages"][0]["content"].partition("SUMMARY: ")[2].partition("\n")[0]
        return json.dumps({"textual_feedback": "Fine.", "good_spans": [summary.split("; ")[0]], "poor_spans": []})

    with FaultServer(answer) as server:
        annotate("slf5k", setting(tmp_path, server, posts(2), prompt=str(tmp_path / "my_prompt.txt")))
    assert all(record["good_spans"] for record in read(tmp_path).values())


# Through a Batch API


def batched(tmp_path, server: FaultServer, count: int, **options):
    return setting(tmp_path, server, posts(count), **{"batch_api": True, "batch_poll_seconds": 0.02, **options})


def test_batches_cost_half_and_second_questions_become_a_second_batch(tmp_path):
    def answer(body: dict) -> str:
        if record_of(body) == "t3_1" and len(body["messages"]) == 1:
            return judge(body).replace("what now?", "what then?")
        return judge(body)

    with FaultServer(answer) as server:
        config = batched(tmp_path, server, 4, prices=str(prices(tmp_path)), max_cost_usd=50.0)
        annotate("slf5k", config)
        assert len(server.batches) == 2
        assert sorted(map(record_of, server.requests)) == ["t3_0", "t3_1", "t3_1", "t3_2", "t3_3"]
        usage = read(tmp_path)["t3_0"]["annotation"]["usage"]
        assert usage["cost_usd"] == pytest.approx(usage["completion_tokens"] * 0.0005)
        assert list(read(tmp_path)) == list(posts(4))
        annotate("slf5k", config)
        assert len(server.batches) == 2


class Refusing(FaultServer):
    """Will not judge t3_0."""

    def completion(self, body: dict) -> dict:
        value = super().completion(body)
        if record_of(body) == "t3_0":
            value["choices"][0]["finish_reason"] = "content_filter"
        return value


def test_a_refused_reply_is_paid_for_once_though_the_next_batch_is_killed(tmp_path, monkeypatch):
    def answer(body: dict) -> str:
        return judge(body) if len(body["messages"]) > 1 else "no JSON today"

    def killed(client: BatchClient, name: str) -> Batch:
        if name == "batch_1":
            raise KeyboardInterrupt
        return finished(client, name)

    finished = BatchClient._finished
    with Refusing(answer) as server:
        config = batched(tmp_path, server, 2)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(BatchClient, "_finished", killed)
            annotate("slf5k", config)
        unfinished(config)
        assert list(map(record_of, server.requests)) == ["t3_0", "t3_1", "t3_1"]
        assert list(read(tmp_path, ".failed.json")) == ["t3_0"]
        unfinished(replace(config, retry_failed=True))
        assert list(map(record_of, server.requests[3:])) == ["t3_0"]


def test_a_batch_is_collected_by_a_later_run_and_never_sent_twice(tmp_path, capsys):
    with FaultServer(judge, batch_delay=3) as server:
        config = batched(tmp_path, server, 3, batch_poll_seconds=0)
        for _ in range(3):
            unfinished(config)
            assert "run the same command later" in capsys.readouterr().err
        for slip, told in (
            ({"batch_api": False}, "add --batch_api true, or leave"),
            ({"batch_api": False, "batch_poll_seconds": 60.0}, "batch_0 is paid for and not collected"),
            ({"temperature": 0.7}, "a batch with the former is paid for"),
        ):
            with pytest.raises(InputError, match=told):
                annotate("slf5k", replace(config, **slip))
        annotate("slf5k", config)
        assert len(server.batches) == 1
        assert len(server.requests) == 3
    assert list(read(tmp_path)) == list(posts(3))


def test_a_batch_is_sent_again_without_a_parameter_that_the_model_refuses(tmp_path):
    with FaultServer(judge, refuses=("temperature",)) as server:
        annotate("slf5k", batched(tmp_path, server, 2))
        assert ["temperature" in body for body in server.requests] == [True, True, False, False]
    assert len(read(tmp_path)) == 2
    (tmp_path / "other").mkdir()
    with FaultServer(judge, refuses=("max_tokens",)) as server:
        annotate("slf5k", batched(tmp_path / "other", server, 2))
        assert ["max_completion_tokens" in body for body in server.requests] == [False, False, True, True]


def test_a_test_whose_output_varies_is_run_once_and_its_batch_found(tmp_path, monkeypatch):
    def with_log(record: dict, sandbox: Sandbox, task: Task) -> dict:
        runs.append(sandbox.seconds)
        return {**record, "log": {"passed": True, "stdout": f"run {len(runs)}"}}

    def answer(body: dict) -> str:
        return json.dumps({"code_feedback": "Right.", "improvement_code": ["pass"], "wrong_code": []})

    runs: list[float] = []
    monkeypatch.setattr("rm_data_anno.annotate.with_log", with_log)
    records = {"k": {"question": "Do nothing.", "solution": "pass", "test": "def test(): print(id(test))"}}
    with FaultServer(answer) as server:
        config = setting(tmp_path, server, records, batch_api=True, batch_poll_seconds=0)
        for seconds in (9.0, 10.0):  # other settings, before any record is finished: other logs
            with pytest.raises(SystemExit, match="1"):
                annotate("kodcode", replace(config, test_seconds=seconds))
        annotate("kodcode", config)
        assert runs == [9.0, 10.0] and len(server.requests) == 2
    assert read(tmp_path)["k"]["log"]["stdout"] == "run 2"


def test_replies_that_were_kept_before_a_kill_are_counted_once(tmp_path):
    with FaultServer(judge) as server:
        annotate("slf5k", batched(tmp_path, server, 3))
        save_json(tmp_path / "out.json.batches.json", read(tmp_path, ".batches.json") | {"collected": []})
        annotate("slf5k", batched(tmp_path, server, 4))
    assert read(tmp_path, ".report.json")["paid"]["requests"] == 4


def test_what_a_batchs_server_fails_at_is_listed_and_asked_again_by_the_next_run(tmp_path):
    with FaultServer(judge, faults=["500"], rate=0.5, seed=3) as server:
        config = batched(tmp_path, server, 12)
        unfinished(config)
        failed = read(tmp_path, ".failed.json")
        assert 0 < len(failed) < 12
        assert all("the model stumbled" in reason for reason in failed.values())
        server.rate = 0.0
        annotate("slf5k", config)
        assert sorted(map(record_of, server.requests[12:])) == sorted(failed)
    assert list(read(tmp_path)) == list(posts(12))


def test_a_batch_stays_within_the_budget(tmp_path):
    with FaultServer(judge) as server:
        limits = {"prices": str(prices(tmp_path)), "max_cost_usd": 0.4, "max_new_tokens": 100}
        unfinished(batched(tmp_path, server, 30, **limits))
        paid = read(tmp_path, ".report.json")["paid"]["cost_usd"]
    assert 0.3 < paid <= 0.4
    assert len(read(tmp_path)) == len(server.requests) < 30
