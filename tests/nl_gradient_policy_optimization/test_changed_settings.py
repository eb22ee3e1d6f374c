"""A run started again with other settings: refused where they decide the result, recorded where they may change."""

from itertools import pairwise
from pathlib import Path

import pytest
from datasets import Dataset

from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.optimize import optimize, prepare, read_prompts
from nl_gradient_policy_optimization.run_record import changed_at, continued, describe
from tests.fault_server import JsonHandler, LocalServer
from tests.tiny import tiny_model
from tests.tiny_runs import POSTS, ScriptedRewards, tiny_config
from text2grad.critics.chat import ChatCritic
from text2grad.errors import InputError
from text2grad.journal.run_folder import claimed
from text2grad.records import load_json, save_json
from text2grad.tasks import get_task


def begin(folder: Path, **settings):
    return optimize("slf5k", tiny_config(folder, **settings), ScriptedRewards())


def kept(run: Path) -> dict[str, bytes]:
    """What must not change when a start is refused, or has nothing to do."""
    names = ("run.json", "policy/README.md", "metrics.jsonl", "rollouts.jsonl", "policy/adapter_model.safetensors")
    return {name: (run / name).read_bytes() for name in names}


def test_a_finished_run_is_never_relabelled(tmp_path):
    trainer = begin(tmp_path)
    before = kept(trainer.run)
    save_json(tmp_path / "others.json", {"a": {"post": POSTS[0]}})
    other_model = tiny_model(tmp_path / "other-model")
    for settings, told in (
        ({"learning_rate": 1e-3}, r"learning_rate: 0\.01 then, 0\.001 now"),
        ({"data_path": str(tmp_path / "others.json")}, "data: '"),
        ({"model": other_model}, "model: .*tiny-llama' then, .*other-model' now"),
        ({"seed": 43, "kl_coef": 0.1}, r"kl_coef: 0\.2 then, 0\.1 now; seed: 42 then, 43 now"),
        ({"method": "mine"}, "method: 'text2grad' then, 'mine' now"),
        ({"max_steps": 1}, "steps: 2 then, 1 now"),
    ):
        with pytest.raises(InputError, match=f"run: begun with other settings .*{told}.*--allow_changed true"):
            begin(tmp_path, **settings)
    begin(tmp_path, learning_rate=1e-3, allow_changed=True)  # nothing is left to do with it
    tiny_model(tmp_path / "tiny-llama", seed=1)
    with pytest.raises(InputError, match="weights: '"):  # the same name
        begin(tmp_path)
    assert kept(trainer.run) == before


@pytest.mark.parametrize("name", ["critic", "policy_prompt", "teacher_prompt"])
def test_a_file_that_a_setting_names_is_the_same_file_as_before(tmp_path, name):
    files = {"critic": tmp_path / "own.py", "policy_prompt": tmp_path / "ask.txt", "teacher_prompt": tmp_path / "t.txt"}
    files["critic"].write_text(
        "from text2grad.feedback import Feedback\ndef judge(prompt, response):\n    return Feedback('Well.', [], [])\n"
    )
    files["policy_prompt"].write_text("Sum up: ${prompt}")
    files["teacher_prompt"].write_text("${prompt}\nBut: ${critique}")
    named = {each: str(file) for each, file in files.items()} | {"critic": f"{files['critic']}:judge"}
    for _ in range(2):
        optimize("slf5k", tiny_config(tmp_path, algorithm="teacher", max_steps=1, **named))
    files[name].write_text(files[name].read_text() + "# and briefly\n")
    with pytest.raises(InputError, match=rf"begun with other settings \({name} \(its \w+\): '\w+' then, '\w+' now\)"):
        prepare("slf5k", tiny_config(tmp_path, algorithm="teacher", max_steps=1, **named))


def test_a_prompt_edited_in_place_and_a_corrected_test_are_other_settings(tmp_path, monkeypatch):
    task = get_task("kodcode")
    config = tiny_config(tmp_path, critic="http://h/v1#m", algorithm="teacher", learning_rate=1e-3)
    record = {"question": "Add.", "test": "assert add(1, 1) == 2", "solution": ""}
    before = describe(task, config, {"q": record}, config.critic)
    assert before["data"] != describe(task, config, {"q": {**record, "test": "assert 1"}}, config.critic)["data"]
    assert before["data"] == describe(task, config, {"q": {**record, "solution": "pass"}}, config.critic)["data"]
    orders = [describe(task, config, dict.fromkeys(order, record), config.critic)["data"] for order in ("qr", "rq")]
    assert orders[0] != orders[1]  # a pass takes the prompts by their places
    own, place = {name: tmp_path / name for name in ("annotation", "teacher")}, task.place
    monkeypatch.setattr(task, "place", lambda kind, name="": own.get(kind) or place(kind, name), raising=False)
    own["annotation"].write_text("${prompt} ${response}")
    own["teacher"].write_text("${prompt} ${critique}")
    texts = []
    for path in (*own.values(), own["teacher"]):
        texts.append(describe(task, config, {"q": record}, "", ChatCritic(config.critic, task))["texts"])
        path.write_text(path.read_text() + " Well?")
    assert [len(then.items() - now.items()) for then, now in pairwise(texts)] == [1, 1]


def test_a_served_critic_that_was_exchanged_at_its_address_is_another_one(tmp_path):
    about = {"task": "slf5k", "critic": "rm@1", "prompt": "p"}

    class Handler(JsonHandler):
        def do_GET(self):  # noqa: N802 (the name is http.server's)
            self.send_json(200, about)

    with LocalServer(Handler) as server:
        config = tiny_config(tmp_path, critic=f"served:{server.url}")
        for _ in range(2):
            prepare("slf5k", config)
            (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 1}\n')
        for name, told in (("critic", r"name\): 'served:.*#rm@1' then, 'served:.*#other' now"), ("prompt", "prompt")):
            about[name] = "other"
            with pytest.raises(InputError, match=rf"begun with other settings .*critic \(its {told}"):
                prepare("slf5k", config)


def test_a_run_of_another_version_says_so(tmp_path):
    now = {"task": "slf5k", "config": PolicyConfig().flat(), "data": {}, "weights": "w"}
    then = {**now, "config": {**now["config"], "value_coef": 0.1}, "versions": {"text2grad": "0.2.0"}}
    save_json(tmp_path / "run.json", then)
    with pytest.raises(InputError, match=r"run\.json: was begun by text2grad 0\.2\.0 .*--value_coef.*--output_dir"):
        continued(tmp_path / "run.json", now, 1, 1)


def test_a_reward_model_trained_anew_in_its_folder_is_another_critic(tmp_path):
    given = {"reward_model": tiny_model(tmp_path / "rm"), "algorithm": "scalar"}
    begin(tmp_path, **given)
    tiny_model(tmp_path / "rm", seed=1)
    with pytest.raises(InputError, match=r"critic \(its weights\): '\w+' then, '\w+' now"):
        begin(tmp_path, **given)


@pytest.mark.parametrize(
    ("setting", "place"),
    [
        ("model", "tiny-llama"),
        ("reward_model", "tiny-llama"),
        ("teacher_prompt", "own.txt"),
        ("critic", "own.txt:judge"),
    ],
)
def test_one_file_may_have_another_name_in_another_folder(tmp_path, monkeypatch, setting, place):
    algorithm = {"reward_model": "scalar", "teacher_prompt": "teacher"}.get(setting, "text2grad")
    config = tiny_config(tmp_path, algorithm=algorithm)
    (tmp_path / "sub").mkdir()
    (tmp_path / "own.txt").write_text("${prompt} ${critique}")
    for name, folder in ((place, tmp_path), (f"../{place}", tmp_path / "sub"), (str(tmp_path / place), Path("/"))):
        monkeypatch.chdir(folder)
        now = describe(get_task("slf5k"), config.changed(**{setting: name}), {"q": {"post": "A dog barks."}}, "mine")
        if not (tmp_path / "run.json").exists():
            save_json(tmp_path / "run.json", now)
        assert "changes" not in continued(tmp_path / "run.json", now, 1, 1)


def test_settings_that_change_nothing_of_the_result_may_change(tmp_path, monkeypatch):
    trainer = begin(tmp_path)
    config = tiny_config(tmp_path, max_steps=3, save_every=1, log_rollouts_every=1)
    (tmp_path / "moved").mkdir()
    (tmp_path / "posts.json").rename(tmp_path / "moved" / "same.json")
    monkeypatch.chdir(tmp_path)
    config = config.changed(data_path="moved/same.json", model="tiny-llama")
    again = optimize("slf5k", config, ScriptedRewards())
    assert [row["step"] for row in again.metrics_log.rows()] == [1, 2, 3]
    run = load_json(trainer.run / "run.json")
    assert run["config"]["max_steps"] == 2 and run["data"]["path"].endswith("posts.json")
    assert run["changes"] == [{"from_step": 3, "settings": {"max_steps": 3}}] and not changed_at(run, 3)


def test_allowed_changes_are_recorded_from_their_step_on_and_reach_what_a_checkpoint_holds(tmp_path):
    begin(tmp_path, save_every=1)
    changed = {"kl": "k3", "kl_coef": 0, "kl_target": 0, "learning_rate": 1e-3, "max_steps": 4}
    changed |= {"value_learning_rate": 0.2, "weight_decay": 0.1}
    trainer = begin(tmp_path, **changed, allow_changed=True)
    optimizers = trainer.learner.optimizer, trainer.learner.value_function.optimizer
    assert trainer.kl.coef == 0 and optimizers[0].param_groups[0]["weight_decay"] == 0.1
    assert optimizers[1].param_groups[0]["lr"] == 0.2
    run = load_json(trainer.run / "run.json")
    assert run["config"]["learning_rate"] == 1e-2
    assert run["changes"] == [{"from_step": 3, "settings": changed}]
    assert [changed_at(run, step) for step in (2, 3, 4)] == [False, True, False]  # one step's rollouts ahead are left
    card = (trainer.run / "policy" / "README.md").read_text()
    assert "- learning_rate: 0.01\n" in card
    assert "- changed from step 3 on: kl k3, kl_coef 0" in card and "learning_rate 0.001, max_steps 4" in card
    before = kept(trainer.run)
    begin(tmp_path, **changed)  # what it was last continued with needs no permission
    assert kept(trainer.run) == before
    again = begin(tmp_path, **changed | {"max_steps": 5})  # a whole number for the KL coefficient is no damage
    assert again.finished_steps == 5 and not list(again.run.glob("*.damaged*"))


def test_what_a_limit_ended_goes_on_under_it_with_other_settings(tmp_path):
    limited = {"kl_limit": 1e-9, "max_steps": 5}
    changed = {**limited, "learning_rate": 1e-3, "allow_changed": True}
    assert [begin(tmp_path, **given).finished_steps for given in (limited, limited, changed, changed)] == [2, 2, 3, 3]


def test_a_run_on_a_data_set_goes_on_with_the_same_rows_only(tmp_path):
    def prompts(*rows: dict) -> list[dict]:
        Dataset.from_list(list(rows)).save_to_disk(tmp_path / "set")
        config = PolicyConfig.of(data_path=str(tmp_path / "set"), output_dir=str(tmp_path))
        return list(read_prompts(config, get_task("slf5k")).values())

    for _ in range(2):
        assert prompts({"post": None, "prompt": "A dog barks."}) == [{"prompt": "A dog barks."}]
    with pytest.raises(InputError, match="not the data set that this run was begun with"):
        prompts({"post": "A cat purrs."})


def test_a_slip_before_the_first_step_costs_nothing(tmp_path):
    log = prepare("slf5k", tiny_config(tmp_path), ScriptedRewards()).run / "metrics.jsonl"
    log.write_text('{"step": 1, "kl/f')  # the power failed
    prepare("slf5k", tiny_config(tmp_path), ScriptedRewards()).resume()
    trainer = begin(tmp_path, seed=7)
    assert load_json(trainer.run / "run.json")["config"]["seed"] == 7


def test_rows_and_settings_that_were_lost_are_noticed_before_anything_is_trained(tmp_path):
    trainer = begin(tmp_path)
    for name in ("metrics.jsonl", "rollouts.jsonl"):
        path = trainer.run / name
        whole = path.read_bytes()
        first, *others = whole.splitlines(keepends=True)
        for content in (b"", b"".join(others), first[:20] + b"\n" + b"".join(others), whole[:-9]):
            path.write_bytes(content)
            with pytest.raises(InputError, match=f"{name}: holds .* were written"):
                begin(tmp_path, max_steps=3)
            assert path.read_bytes() == content
        path.write_bytes(whole)
    about = (trainer.run / "run.json").read_bytes()
    (trainer.run / "run.json").unlink()
    with pytest.raises(InputError, match=r"checkpoints and no run\.json"):
        begin(tmp_path, seed=99)
    (trainer.run / "run.json").write_bytes(about)
    for name in ("metrics.jsonl", "rollouts.jsonl"):
        (trainer.run / name).unlink()
    begin(tmp_path, allow_changed=True)  # nothing is left to do, and no figure to show
    assert "after 2 steps" in (trainer.run / "policy" / "README.md").read_text()
    again = begin(tmp_path, max_steps=3, allow_changed=True)
    assert {row["step"] for row in again.rollout_log.rows()} == {3}


@pytest.mark.parametrize("changes", [
    {"task": None}, {"config": {"lora_r": []}}, {"config": {"algorithm": 5}}, {"config": {"critic": 5}}, {"data": 3},
    {"changes": 5}, {"changes": [{"from_step": "2", "settings": {}}]}, {"changes": [None]},
], ids=str)  # fmt: skip
def test_a_forged_record_of_a_run_is_refused_in_one_sentence(tmp_path, changes):
    now = {"task": "slf5k", "method": "x", "seed": 1, "weights": "w", "data": {"hash": "h", "prompts": 5}}
    now |= {"config": PolicyConfig().flat()}
    forged = {**now, **changes, "config": {**now["config"], **changes.get("config", {})}}
    save_json(tmp_path / "run.json", forged)
    with pytest.raises(InputError, match=r"run\.json|other settings|does not exist"), claimed(tmp_path, "policy"):
        continued(tmp_path / "run.json", now, 1, 1)
