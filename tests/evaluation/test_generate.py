"""Generation: what a policy answers, whatever the batch, the kill or the adapter."""

import json
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from evaluation.generate import GenerateConfig, answer_chats, generate, main
from evaluation.results import load_responses
from tests.processes import die_after, killed_at_random, run_alone
from tests.tiny import CORPUS, adapted, tiny_model
from text2grad.errors import InputError
from text2grad.models import load_model, load_tokenizer, model_identity
from text2grad.models.answering import LocalPolicy, OwnRandomness, SamplingConfig
from text2grad.records import load_records, save_json
from text2grad.tasks import get_task

POSTS = [CORPUS[0], "The dog barks.", CORPUS[1] * 4, CORPUS[3], CORPUS[2] * 2]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def posts(tmp_path) -> Path:
    records = {f"t3_{index}": {"post": post, "ideal_human_summary": "A."} for index, post in enumerate(POSTS)}
    save_json(tmp_path / "posts.json", records)
    return tmp_path / "posts.json"


def run(model: str, posts: Path, output: Path, batch_size: int = 4, sampling: dict | None = None, **options) -> dict:
    config = GenerateConfig(**{"task": "slf5k", "data_path": str(posts), "output_path": str(output), **options})
    settings = SamplingConfig(**{"max_new_tokens": 12, **(sampling or {})})
    source = load_records(posts, get_task(config.task), responses=False)
    return dict(generate(LocalPolicy(model, "float32", "cpu", batch_size), source, config, settings))


def summaries(records: dict) -> dict[str, str]:
    return {key: record["generated_summary"] for key, record in records.items()}


def test_greedy_answers_in_batches_are_those_of_each_prompt_alone(model, posts, tmp_path):
    batched = run(model, posts, tmp_path / "a.json", batch_size=4)
    policy = LocalPolicy(model, "float32", "cpu")
    for key, record in batched.items():
        ids = torch.tensor([policy.token_ids(get_task("slf5k").messages(record["post"]))])
        alone = policy.model.generate(input_ids=ids, max_new_tokens=12, do_sample=False)[0, ids.shape[1] :]
        assert record["generated_summary"] == policy.tokenizer.decode(alone, skip_special_tokens=True), key
    assert list(batched) == list(json.loads(posts.read_text()))


def test_a_task_that_writes_a_response_where_it_does_not_read_it_is_refused(model, posts, tmp_path, monkeypatch):
    monkeypatch.setattr(type(get_task("slf5k")), "with_response", lambda self, record, text: {**record, "reply": text})
    with pytest.raises(InputError, match=r"slf5k: its response\(\) does not read"):
        run(model, posts, tmp_path / "a.json")


def test_sampled_answers_depend_on_seed_and_id_only(model, posts, tmp_path):
    sampled = {"temperature": 1.0, "top_p": 0.9}
    first = run(model, posts, tmp_path / "a.json", batch_size=1, sampling=sampled)
    again = run(model, posts, tmp_path / "b.json", batch_size=5, sampling=sampled)
    other = run(model, posts, tmp_path / "c.json", batch_size=5, sampling={**sampled, "seed": 7})
    assert summaries(first) == summaries(again)
    assert summaries(first) != summaries(other)
    assert len(set(summaries(first).values())) == len(POSTS)


@pytest.mark.parametrize("top_p", [1.0, 0.7])
def test_noise_on_the_logits_samples_the_softmax(top_p):
    logits, temperature, draws = torch.tensor([2.0, 1.0, 0.5, -1.0, -3.0]), 0.8, 20_000
    processor = OwnRandomness(range(200), temperature, top_p, "cpu")
    found = [processor(None, logits.expand(200, -1)).argmax(-1) for _ in range(draws // 200)]
    probabilities = torch.softmax(logits / temperature, -1).double().numpy()
    kept = probabilities.cumsum() - probabilities < top_p
    expected = np.where(kept, probabilities, 0) / probabilities[kept].sum()
    observed = torch.cat(found).bincount(minlength=5).numpy()
    assert observed[~kept].sum() == 0
    assert chisquare(observed[kept], draws * expected[kept]).pvalue > 0.001


def test_a_model_files_own_sampling_settings_do_not_leak_in(tmp_path):
    folder = tiny_model(tmp_path / "model")
    before = LocalPolicy(folder, "float32", "cpu")
    chats, ids, sampling = [[{"role": "user", "content": POSTS[0]}]], ["a"], SamplingConfig(max_new_tokens=20)
    plain = before(chats, ids, sampling)
    settings = json.loads((tmp_path / "model" / "generation_config.json").read_text())
    settings |= {"repetition_penalty": 5.0, "do_sample": True, "temperature": 3.0, "min_new_tokens": 3}
    (tmp_path / "model" / "generation_config.json").write_text(json.dumps(settings))
    assert LocalPolicy(folder, "float32", "cpu")(chats, ids, sampling) == plain


def test_a_device_that_is_not_there_is_refused_before_the_model_loads():
    with pytest.raises(InputError, match="--device gpu: Expected one of cpu, cuda"):
        LocalPolicy("smollm2", device="gpu")


def test_finished_means_the_policy_ended_the_answer(model, posts, tmp_path):
    answers = run(
        model, posts, tmp_path / "a.json", batch_size=20, num_samples=4,
        sampling={"temperature": 1.5, "max_new_tokens": 150},
    )  # fmt: skip
    about = [record["generation"] for record in answers.values()]
    assert len(about) == 4 * len(POSTS)
    assert {True, False} == {item["finished"] for item in about}
    assert all((item["tokens"] < 150) == item["finished"] for item in about)
    assert not any("</s>" in record["generated_summary"] for record in answers.values())
    assert set(load_responses(tmp_path / "a.json", get_task("slf5k"))) == {
        f"t3_{i}@{k}" for i in range(5) for k in range(4)
    }


def test_several_answers_fit_a_file_of_rows(model, posts, tmp_path):
    """The ending decides the shape of the file, and every answer keeps its id."""
    sampling = {"temperature": 1.0, "max_new_tokens": 2}
    answers = run(model, posts, tmp_path / "a.jsonl", num_samples=2, sampling=sampling)
    assert len((tmp_path / "a.jsonl").read_text().splitlines()) == len(answers) == 2 * len(POSTS)
    assert list(load_responses(tmp_path / "a.jsonl", get_task("slf5k"))) == list(answers)
    again = run(model, tmp_path / "a.jsonl", tmp_path / "b.json", num_samples=2, sampling=sampling)
    assert list(again) == list(answers)  # another policy's, which pair with these


def test_answers_of_two_files_with_the_same_ids_lose_no_prompt(model, tmp_path):
    made = {"generation": {"id": "q0@0", "prompt_id": "q0"}}
    save_json(tmp_path / "in.json", [{"post": post, "generated_summary": "A.", **made} for post in POSTS[:2] * 2])
    answers = run(model, tmp_path / "in.json", tmp_path / "a.json", sampling={"max_new_tokens": 2})
    assert [record["post"] for record in answers.values()] == POSTS[:2]


@pytest.mark.parametrize("made", [{"id": []}, {"id": 5}, {"prompt_id": []}, {"finished": 1}, {"model": {}}, "text"])
def test_a_response_that_says_odd_things_of_itself_is_refused(tmp_path, made):
    save_json(tmp_path / "a.json", [{"post": "My dog.", "generated_summary": "A dog.", "generation": made}])
    with pytest.raises(InputError, match="record 0: its 'generation'"):
        load_responses(tmp_path / "a.json", get_task("slf5k"))


def test_answers_are_read_from_a_table_and_by_their_own_ids(tmp_path):
    task, same = get_task("slf5k"), {"post": "My dog.", "generated_summary": "A dog."}
    (tmp_path / "a.csv").write_text("post,generated_summary\nMy dog.,A dog.\n")
    assert [task.response(each) for each in load_responses(tmp_path / "a.csv", task).values()] == ["A dog."]
    save_json(tmp_path / "a.json", [{**same, "generation": {"id": f"q@{n}"}} for n in range(2)])
    assert list(load_responses(tmp_path / "a.json", task)) == ["q@0", "q@1"]
    save_json(tmp_path / "a.json", {"q@0": same, "q@1": {**same, "post": "My cat."}})
    with pytest.raises(InputError, match=r"record 'q@1': 'q@1' counts as one more answer .* rename it"):
        load_responses(tmp_path / "a.json", task)
    (tmp_path / "a.json").write_text('[{"post": "My dog.", "generated_summary": "\\ud800"}]')
    with pytest.raises(InputError, match=r"record 0: .*surrogate"):
        load_responses(tmp_path / "a.json", task)


def test_an_adapter_answers_unmerged_as_its_merged_model(model, posts, tmp_path):
    made = adapted(load_model(model, torch.float32))
    made.save_pretrained(tmp_path / "adapter")
    load_tokenizer(model).save_pretrained(tmp_path / "adapter")
    merged = made.merge_and_unload()  # in float32: merge_adapter rounds to bfloat16, and random models are brittle
    merged.save_pretrained(tmp_path / "merged")
    load_tokenizer(model).save_pretrained(tmp_path / "merged")
    unmerged = run(str(tmp_path / "adapter"), posts, tmp_path / "a.json")
    assert summaries(unmerged) == summaries(run(str(tmp_path / "merged"), posts, tmp_path / "b.json"))
    assert summaries(unmerged) != summaries(run(model, posts, tmp_path / "c.json"))
    assert unmerged["t3_0"]["generation"]["model"].count("@") == 2  # the adapter's weights and its base's


def _answer(model: str, posts: Path, folder: Path, life: float | None = None) -> None:
    die_after(life)
    folder.mkdir(exist_ok=True)
    run(model, posts, folder / "answers.json", batch_size=1, num_samples=4, sampling={"temperature": 1.0})


def test_kills_change_no_answer_and_nothing_is_answered_twice(model, posts, tmp_path):
    begin = time.monotonic()
    assert run_alone(_answer, model, posts, tmp_path / "whole") == 0
    taken, killed = time.monotonic() - begin, tmp_path / "killed"
    killed_at_random(lambda life: [run_alone(_answer, model, posts, killed, life)], killed, 3, taken)
    ids = [json.loads(line)["id"] for line in (killed / "answers.json.journal.jsonl").read_text().splitlines()[1:]]
    assert len(ids) == len(set(ids)) == 20
    answers = [summaries(json.loads((folder / "answers.json").read_text())) for folder in (tmp_path / "whole", killed)]
    assert answers[0] == answers[1]


def test_retrained_weights_are_not_mistaken_for_the_old_ones(posts, tmp_path):
    folder = tiny_model(tmp_path / "model", seed=1)
    run(folder, posts, tmp_path / "a.json")
    old = model_identity(folder)
    tiny_model(tmp_path / "model", seed=2)
    assert model_identity(folder) != old
    with pytest.raises(InputError, match="begun with other settings"):
        run(folder, posts, tmp_path / "a.json")


def test_allowed_changes_are_told_record_by_record(model, posts, tmp_path, capsys):
    first = run(model, posts, tmp_path / "a.json", limit=2)
    warm = {"sampling": {"temperature": 1.0, "max_new_tokens": 30}, "allow_changed": True}
    both = run(model, posts, tmp_path / "a.json", **warm)
    assert "from response 3 on with other settings: " in capsys.readouterr().out
    heat = [record["generation"]["temperature"] for record in both.values()]
    assert heat == [0.0, 0.0] + [1.0] * (len(both) - 2)
    assert {key: both[key] for key in first} == first


def test_a_prompt_too_long_loses_its_end_and_says_so(model, posts, tmp_path):
    policy = LocalPolicy(model, "float32", "cpu")
    task = get_task("slf5k")
    limit = policy.length(task.messages("")) + 30
    answers = run(model, posts, tmp_path / "a.json", max_prompt_tokens=limit)
    for record in answers.values():
        whole = policy.length(task.messages(record["post"]))
        assert record["generation"]["prompt_cut"] == (whole > limit)
        assert record["generation"]["prompt_tokens"] <= limit
    assert {record["generation"]["prompt_cut"] for record in answers.values()} == {True, False}
    with pytest.raises(InputError, match="less than the instruction"):
        run(model, posts, tmp_path / "b.json", max_prompt_tokens=5)


def test_answers_that_may_outgrow_the_context_are_told(model, tmp_path, capsys):
    policy = LocalPolicy(model, "float32", "cpu")
    chats = {post: [{"role": "user", "content": post}] for post in POSTS[:3]}
    lengths = sorted(map(policy.length, chats.values()))
    for context, told in ((lengths[2] + 4, ""), (lengths[2] + 3, "warning: 1 of 3 prompts leave less than 4 of the ")):
        policy.context = context
        journal = str(tmp_path / f"{context}.jsonl")
        answer_chats(policy, chats, SamplingConfig(max_new_tokens=4), journal=journal, description="answers")
        said = capsys.readouterr().err
        assert told in said and ("warning" in said) == bool(told)


def test_lists_keep_their_shape_and_get_ids_that_all_systems_share(model, tmp_path):
    task = get_task("kodcode")
    rows = [{"question_id": f"q{i}", "question": text, "solution": "old", "test": ""} for i, text in enumerate(POSTS)]
    save_json(tmp_path / "questions.json", [*rows, {**rows[0], "solution": "another attempt"}])
    run(model, tmp_path / "questions.json", tmp_path / "a.json", task="kodcode")
    answers = load_records(tmp_path / "a.json", task)
    assert not answers.keyed and len(answers) == len(POSTS)
    assert list(load_responses(tmp_path / "a.json", task)) == [f"q{i}" for i in range(len(POSTS))]
    assert all(record["solution"] != "old" for record in answers.values())


def test_own_ids_that_would_count_as_answers_to_one_prompt_are_refused_at_once(refused, model, tmp_path):
    save_json(tmp_path / "in.json", {f"mail@{year}": {"post": f"Of {year}."} for year in (2022, 2023)})
    given = {"task": "slf5k", "data_path": tmp_path / "in.json", "output_path": tmp_path / "a.json", "model": model}
    told = "in.json: the ids 'mail@2022' and 'mail@2023' would count as two answers to one prompt; rename"
    assert told in refused(main, **given) and not (tmp_path / "a.json.journal.jsonl").exists()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"temperature": -1}, "--temperature must be at least 0"),
        ({"num_samples": 2}, "--num_samples 2: without a --temperature all would be the same"),
        ({"model": "/no/such/model"}, "no such model folder"),
        ({"data_path": "nowhere.json"}, "nowhere.json: no such file"),
        ({"base_url": "http://localhost:1/v1", "max_prompt_tokens": 9}, "leave it out with --base_url"),
    ],
)
def test_bad_input_exits_with_2_and_writes_nothing(refused, posts, model, tmp_path, wrong, message):
    given = {"task": "slf5k", "data_path": posts, "output_path": tmp_path / "a.json", "model": model, **wrong}
    assert message in refused(main, **given)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["posts.json"]
