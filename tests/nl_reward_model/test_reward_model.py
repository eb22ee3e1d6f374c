"""Training a reward model: the right loss, a folder that explains itself, exact resume after whatever happens."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from peft import AutoPeftModelForCausalLM
from safetensors.torch import load_file
from transformers import TrainerCallback, TrainerState, TrainingArguments
from trl import SFTTrainer

from nl_reward_model import train_rm
from nl_reward_model.card import SERVE, reward_model_card
from nl_reward_model.config import RewardModelConfig
from nl_reward_model.merge_lora import MergeConfig, merge
from nl_reward_model.monitor import Monitor, feedback_metrics
from nl_reward_model.train_rm import train
from tests.conftest import ROOT
from tests.processes import die, die_after, flip_byte, full, killed_at_random, run_alone
from tests.reward_records import PROMPT, RECORDS, losses, same_result, settings, slf5k_records, write
from tests.tiny import tiny_model
from text2grad.configs import parse
from text2grad.critics.reward_model.critic import RewardModelCritic, RewardModelDescription
from text2grad.errors import InputError, command
from text2grad.feedback import Feedback, FeedbackError
from text2grad.journal.run_folder import claimed
from text2grad.models import load_model
from text2grad.records import load_json

LORA = {"lora_r": 16, "lora_target_modules": ["all-linear"], "lora_dropout": 0.1, "learning_rate": 1e-2}
BEST = {"load_best_model_at_end": True, "eval_strategy": "steps", "save_strategy": "steps"}


def test_the_folder_explains_itself(tmp_path):
    """LoRA with evaluation: adapter, tokenizer, prompt, description with data, split, versions and metrics."""
    data = write(tmp_path, slf5k_records())
    train("slf5k", settings(tmp_path, data, **LORA, **BEST, eval_steps=2, save_steps=2))
    folder = tmp_path / "reward_model"
    description, prompt = RewardModelDescription.load(folder, "slf5k")
    assert prompt.text == PROMPT
    assert description.settings["learning_rate"] == 1e-2 and description.settings["lora_r"] == 16
    assert description.data["training"] == 9 and description.data["validation"] == 3
    posts = {slf5k_records()[record_id]["post"] for record_id in description.data["validation_ids"]}
    assert len(posts) == 1 and len(description.data["validation_ids"]) == 3
    assert description.versions["torch"] == torch.__version__
    assert {"eval_loss", "eval_feedback_parse_rate", "train_loss", "best_step"} <= set(description.metrics)
    assert len(description.data["hash"]) == 16
    for checkpoint in (folder / "checkpoint-2", folder / "checkpoint-4", folder):
        critic = RewardModelCritic.load(checkpoint, "slf5k", max_new_tokens=3)
        assert isinstance(critic(["a post"], ["A summary."])[0], FeedbackError)
    written = [json.loads(line) for line in (folder / "feedback" / "step-000004.jsonl").read_text().splitlines()]
    assert len(written) == 2 and set(written[0]) == {"id", "prediction", "parse_error"}
    assert load_json(folder / "adapter_config.json")["base_model_name_or_path"] == str(tmp_path / "model")

    for saved in (folder, folder / "checkpoint-4"):
        card = (saved / "README.md").read_text()
        assert description.data["hash"] in card and prompt.fingerprint in card and "None" not in card
        assert AutoPeftModelForCausalLM.from_pretrained(str(saved))
    description.metrics = {"step": 12345, "eval_loss": 1.23456}
    card = reward_model_card(description, prompt, adapter=True)
    assert "| 12345 " in card and "| 1.235 " in card

    merging = MergeConfig(model=str(folder), output_dir=str(tmp_path / "merged"), base_model=str(tmp_path / "model"))
    (tmp_path / "merged").mkdir()
    (tmp_path / "merged" / "README.md").write_text("mine")
    with pytest.raises(InputError, match="merged: holds files already"):
        merge(merging)
    (tmp_path / "merged" / "README.md").unlink()
    merge(merging)
    ids, folders = torch.arange(4, 60)[None], (tmp_path / "merged", folder, tmp_path / "model")
    with torch.no_grad():
        merged, adapted, base = (load_model(str(each), torch.float32)(ids).logits for each in folders)
    torch.testing.assert_close(merged, adapted, atol=2e-2, rtol=0)
    assert not torch.allclose(merged, base, atol=2e-2)
    assert RewardModelCritic.load(tmp_path / "merged", "slf5k").max_new_tokens == description.max_new_tokens
    card = (tmp_path / "merged" / "README.md").read_text()
    assert "library_name: transformers" in card and "peft" not in card.partition("Trained with")[0]
    assert f"\n{SERVE} THIS_FOLDER --served-model-name" in card and "merge_lora" not in card
    assert (ROOT / SERVE.removeprefix("bash ")).is_file()
    about = folder / "adapter_config.json"
    causal = about.read_text()
    about.write_text(causal.replace("CAUSAL_LM", "SEQ_CLS"))
    with pytest.raises(InputError, match="is a scalar reward model"):
        merge(merging)
    about.write_text(causal)
    os.truncate(folder / "adapter_model.safetensors", 500)
    for into in (True, False):
        with pytest.raises(InputError, match="reward_model: is damaged"):
            merge(replace(merging, output_dir=str(tmp_path / "again"), merge_and_save=into))


def test_a_prompt_may_show_more_of_a_record_while_training_too(tmp_path):
    (tmp_path / "ask.txt").write_text(f"{PROMPT}\n${{test}}${{log}}")
    data = write(tmp_path, RECORDS["kodcode"]())
    train("kodcode", settings(tmp_path, data, prompt=str(tmp_path / "ask.txt"), max_steps=1))
    assert list((tmp_path / "reward_model" / "feedback").iterdir())


def test_one_process_trains_on_one_of_several_gpus(tmp_path, monkeypatch, capsys):
    own = TrainingArguments.__post_init__
    monkeypatch.setattr(TrainingArguments, "__post_init__", lambda self: (own(self), setattr(self, "_n_gpu", 4)))
    config = settings(tmp_path, write(tmp_path, slf5k_records(2)), max_steps=1, feedback_records=0)
    assert (config.n_gpu, config.train_batch_size) == (1, 2)
    train("slf5k", config)
    assert "training on one of 4 GPUs; deepspeed_train_TASK.sh and" in capsys.readouterr().out


@pytest.mark.parametrize("given_by", ["all", "all but one", "all, not wanted"])
def test_z_ends_with_the_verdict_where_every_record_has_one(tmp_path, given_by, capsys):
    records = {key: {**record, "missing": ["why"], "verdict": 0.5} for key, record in slf5k_records().items()}
    if given_by == "all but one":
        other = next(iter(records.values()))
        del other["verdict"]
        other["poor_spans"] = ["nowhere in it"]
    wanted = given_by != "all, not wanted"
    train("slf5k", settings(tmp_path, write(tmp_path, records), max_steps=1, verdict=wanted))
    out = capsys.readouterr().out
    for warning in ("have a verdict, so the model learns none", "1 records quote what their response does not say"):
        assert (warning in out) == (given_by == "all but one")
    description, _ = RewardModelDescription.load(tmp_path / "reward_model", "slf5k")
    critic = RewardModelCritic.load(tmp_path / "reward_model", constrained="quotes")
    told = Feedback("c", missing=["why"], score=0.5)
    for text in (description.examples[0], critic.task.render_feedback(told)):
        assert ("verdict" in json.loads(text)) == (given_by == "all") == description.verdict
    assert isinstance(critic(["a post"], ["A summary."])[0], Feedback)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {**LORA, "lora_dropout": 0.0},
        {"gradient_accumulation_steps": 2},
        {"label_smoothing_factor": 0.5},
        {"loss_type": "dft"},
    ],
)
def test_the_loss_is_trls(tmp_path, monkeypatch, changes):
    """Scoring only the labelled columns changes no loss, no gradient, no weight; and other losses stay TRL's."""
    data = write(tmp_path, slf5k_records(2))
    results = []
    for name, base in (("ours", train_rm.RewardTrainer), ("trl", SFTTrainer)):
        monkeypatch.setattr(train_rm, "RewardTrainer", base)
        output = tmp_path / name
        config = settings(
            tmp_path, data, output_dir=str(output), max_steps=2, validation_share=0.0, per_device_train_batch_size=3,
            **{**changes, "optim": "sgd", "learning_rate": 0.1},
        )  # fmt: skip
        train("slf5k", config)
        results.append((losses(output), load_file(next(output.glob("*model.safetensors")))))
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-5)
    torch.testing.assert_close(results[0][1], results[1][1], atol=2e-6, rtol=1e-4)


STEPS = {"max_steps": 5, "save_strategy": "steps", "save_steps": 2, "feedback_records": 0}


def run(
    folder: Path, name: str, changes: dict, life: float | None = None, at_step: int = 0, event: Callable = die
) -> None:
    """A training in a process that the clock kills, or to which something happens at the start of a step."""

    class Fate(TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            die_after(life)

        def on_step_begin(self, args, state, control, **kwargs):
            if at_step and state.global_step == at_step:
                event()

    made = train_rm._trainer

    def doomed(*args):
        trainer = made(*args)
        trainer.add_callback(Fate())
        return trainer

    train_rm._trainer = doomed
    config = settings(folder, str(folder / "annotated.json"), **STEPS, **changes, output_dir=str(folder / name))
    # A file: what this process inherits as its output depends on which test began the server it comes from.
    with (folder / "printed.txt").open("w") as file, redirect_stdout(file), redirect_stderr(file):
        command(lambda: train("slf5k", config))()


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """What a LoRA training that nobody disturbs leaves."""
    folder = tmp_path_factory.mktemp("undisturbed")
    settings(folder, write(folder, slf5k_records()))  # writes the model, too
    assert run_alone(run, folder, "whole", LORA) == 0
    return folder / "whole"


@pytest.mark.parametrize("changes", [LORA, pytest.param({}, marks=pytest.mark.slow)], ids=["lora", "full"])
def test_a_killed_run_goes_on_exactly(tmp_path, whole, changes):
    """Dropout, shuffling, optimiser and schedule included; a checkpoint cut off in the middle is not used."""
    settings(tmp_path, write(tmp_path, slf5k_records()))
    killed = tmp_path / "killed"
    if not changes:
        whole = tmp_path / "whole"
        assert run_alone(run, tmp_path, "whole", changes) == 0
    assert run_alone(run, tmp_path, "killed", changes, None, 3) == -signal.SIGKILL
    assert (killed / "checkpoint-2").is_dir() and not (killed / "reward_model.json").exists()
    shutil.copytree(killed / "checkpoint-2", killed / "checkpoint-3")
    (killed / "checkpoint-3" / "reward_model.json").unlink()
    (killed / "checkpoint-mine").mkdir()
    (killed / "checkpoint-7").symlink_to("checkpoint-mine")
    (killed / "checkpoint-8").symlink_to("nowhere")
    (killed / "checkpoint-9").touch()
    assert run_alone(run, tmp_path, "killed", changes, None, 4) == -signal.SIGKILL
    assert (killed / "checkpoint-mine").is_dir() and (killed / "checkpoint-7.damaged").is_symlink()
    killed_at_random(lambda life: [run_alone(run, tmp_path, "killed", changes, life)], killed, 2, 0.6)
    assert losses(killed) == losses(whole)
    assert same_result(killed, whole, "adapter_model.safetensors" if changes else "model.safetensors")


def test_a_full_disk_ends_a_training_that_goes_on_when_there_is_room(tmp_path, whole, small_disk):
    settings(tmp_path, write(tmp_path, slf5k_records()))
    disk = small_disk(30)
    assert run_alone(run, tmp_path, str(disk / "run"), LORA, None, 3, partial(full, disk)) == 2
    assert "the disk is full" in (tmp_path / "printed.txt").read_text()
    (disk / "filler").unlink()
    assert run_alone(run, tmp_path, str(disk / "run"), LORA) == 0
    assert losses(disk / "run") == losses(whole)
    assert same_result(disk / "run", whole)


def test_signals_and_damage_change_nothing_of_the_result(tmp_path, whole):
    settings(tmp_path, write(tmp_path, slf5k_records()))
    hurt = tmp_path / "hurt"
    told = partial(signal.raise_signal, signal.SIGTERM)
    assert run_alone(run, tmp_path, "hurt", LORA, None, 2, told) == 143
    assert sorted(path.name for path in hurt.glob("checkpoint-*")) == ["checkpoint-2", "checkpoint-3"]
    assert not (hurt / "reward_model.json").exists()
    flip_byte(hurt / "checkpoint-3" / "optimizer.pt")
    assert run_alone(run, tmp_path, "hurt", LORA) == 0
    out = (tmp_path / "printed.txt").read_text()
    assert f"skipping {hurt / 'checkpoint-3'}: its file optimizer.pt is damaged" in out
    assert f"going on from {hurt / 'checkpoint-2'}" in out
    assert (hurt / "checkpoint-3.damaged").is_dir()
    assert same_result(hurt, whole)

    flip_byte(hurt / "adapter_model.safetensors")
    with pytest.raises(InputError, match=r"adapter_model.safetensors is damaged .*whole weights .*checkpoint-5"):
        RewardModelCritic.load(hurt, "slf5k")
    assert run_alone(run, tmp_path, "hurt", LORA) == 0
    assert "writing the result again from the newest checkpoint" in (tmp_path / "printed.txt").read_text()
    assert same_result(hurt, whole)


def test_changes_are_refused_or_recorded(tmp_path, capsys):
    data = write(tmp_path, slf5k_records())
    common = STEPS | LORA
    changed = common | {"max_steps": 3}
    folder = tmp_path / "reward_model"
    train("slf5k", settings(tmp_path, data, **common | {"max_steps": 2}))
    with claimed(folder, "reward_model"), pytest.raises(InputError, match="another run is working there"):
        train("slf5k", settings(tmp_path, data, **changed))
    (folder / "reward_model.json").unlink()  # stopped before its end
    with pytest.raises(InputError, match=r"max_steps: 2 then, 3 now.*--allow_changed true"):
        train("slf5k", settings(tmp_path, data, **changed))
    with pytest.raises(InputError, match=r"learning_rate.*checkpoints"):
        train("slf5k", settings(tmp_path, data, **changed | {"learning_rate": 1e-3}, allow_changed=True))
    train("slf5k", settings(tmp_path, data, **changed, allow_changed=True))
    told = [{"from_step": 3, "settings": {"max_steps": 3}}]
    assert load_json(folder / "run.json")["changes"] == told and load_json(folder / "run.json")["max_steps"] == 2
    assert json.loads((folder / "reward_model.json").read_text())["changes"] == told
    assert "- changed from step 3 on: max_steps 3" in (folder / "README.md").read_text()

    before = (folder / "adapter_model.safetensors").stat().st_mtime_ns
    capsys.readouterr()
    train("slf5k", settings(tmp_path, data, **changed))  # what it was last continued with: nothing is left to do
    assert "has finished" in capsys.readouterr().out
    assert (folder / "adapter_model.safetensors").stat().st_mtime_ns == before
    with pytest.raises(InputError, match=r"begun with other settings \(learning_rate: 0.01 then, 0.5 now\)"):
        train("slf5k", settings(tmp_path, data, **changed | {"learning_rate": 0.5}))
    records = slf5k_records()
    records["t3_0_0"]["textual_feedback"] = "Changed."
    with pytest.raises(InputError, match=r"begun with other settings \(data:"):
        train("slf5k", settings(tmp_path, write(tmp_path, records), **changed))
    data = write(tmp_path, slf5k_records())
    tiny_model(tmp_path / "model", seed=1)
    with pytest.raises(InputError, match="weights: "):
        train("slf5k", settings(tmp_path, data, **changed))


@pytest.mark.parametrize(
    "task_name", ["slf5k", *(pytest.param(name, marks=pytest.mark.slow) for name in ("kodcode", "ultrafeedback"))]
)
def test_entry_scripts_train_every_task(tmp_path, run_script, task_name):
    """The published flags, the small config, from records of each task's format."""
    model = tiny_model(tmp_path / "model")
    data = write(tmp_path, RECORDS[task_name]())
    place, out = f"nl_reward_model/{task_name}", tmp_path / "my out"
    given = {"model": model, "data_path": data, "output_dir": out, "feedback_records": 1, "report_to": "none"}
    result = run_script(f"{place}/train_rm.py", config=f"{place}/config_small.yaml", max_steps=2, **given)
    following = f"--model '{out}' --data_path {data} --split validation --output_path '{out / 'feedback.json'}'"
    assert f"reward model: {out}\nnext: " in result.stdout and following in result.stdout
    for noise in ("FutureWarning", "Setting accelerator", "Loading weights", "Truncating"):
        assert noise not in result.stdout + result.stderr
    assert RewardModelDescription.load(out, task_name)[0].metrics["step"] == 2


@pytest.mark.parametrize(
    ("task_name", "prompt_length", "length"),
    [("slf5k", 900, 1400), ("ultrafeedback", 900, 1400), ("kodcode", 1000, 1600)],
)
def test_the_default_settings_are_the_papers(task_name, prompt_length, length, tmp_path):
    path = f"nl_reward_model/{task_name}/config.yaml"
    given = ["--data_path", "d", "--output_dir", str(tmp_path)]
    config = parse(RewardModelConfig, args=given, default_config=path)
    assert config.model == "meta-llama/Llama-3.1-8B-Instruct"
    assert (config.lora, config.lora_r, config.lora_alpha, config.lora_dropout) == (True, 16, 32, 0.05)
    assert config.lora_target_modules == ["q_proj", "v_proj"]
    assert (config.learning_rate, config.adam_beta1, config.adam_beta2, config.weight_decay) == (1e-5, 0.9, 0.999, 3e-7)
    assert (config.num_train_epochs, config.per_device_train_batch_size, config.max_grad_norm) == (3, 1, 1.0)
    assert (config.max_prompt_tokens, config.max_length) == (prompt_length, length)
    small = parse(RewardModelConfig, args=[*given, "--config", path.replace("config", "config_small"), "--model", "m"])
    assert small.max_prompt_tokens < prompt_length and small.max_length < length
    launch = Path(path).read_text().splitlines()[0]
    assert launch.startswith(f"# python nl_reward_model/{task_name}/train_rm.py --data_path")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"max_prompt_tokens": 900, "max_length": 900}, "must lie between"),
        ({"packing": True, "responses_per_row": 3}, "packed already"),
        ({"packing": True, "first_word_weight": 2.0}, "only with the plain loss"),
        ({**BEST, "eval_steps": 0.05, "save_steps": 0.1}, "give both the same"),
        ({"fp16": True}, "--fp16 True: --dtype names"),
        ({"resume_from_checkpoint": "checkpoint-1"}, "from the newest checkpoint in --output_dir by itself"),
        ({"learning_rate": -1.0}, "--learning_rate must be at least 0"),
        ({"lora_r": -2}, "--lora_r must be at least 0"),
        ({"seed": 2**64}, "--seed must be below"),
        ({"per_device_train_batch_size": 0}, "--per_device_train_batch_size must be above 0"),
        ({"feedback_batch_size": 0}, "--feedback_batch_size must be above 0"),
        ({"prompt": "nowhere.txt"}, "nowhere.txt"),
        ({"max_prompt_tokens": 20, "max_length": 30}, "no record fits"),
        ({"lora_r": 16, "lora_target_modules": ["nothing"]}, "--lora_target_modules"),
        ({"model": "no/such/model"}, "no such model folder"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, changes, complaint):
    data = write(tmp_path, slf5k_records())
    with pytest.raises(InputError, match=complaint):
        train("slf5k", settings(tmp_path, changes.pop("data_path", data), **changes))
    assert not list(tmp_path.glob("reward_model/*.safetensors"))


def test_records_that_are_longer_than_what_the_model_reads_are_refused(tmp_path):
    config = settings(tmp_path, write(tmp_path, slf5k_records()))
    about = tmp_path / "model" / "config.json"
    about.write_text(json.dumps(json.loads(about.read_text()) | {"max_position_embeddings": 20}))
    with pytest.raises(InputError, match=r"reads 20 tokens at most, and the longest .*; lower --max_length"):
        train("slf5k", config)


def test_the_training_loss_is_the_mean_over_all_steps_also_of_a_run_that_was_resumed():
    rows = [{"step": 10, "loss": 4.0}, {"step": 12, "loss": 1.0}, {"step": 12, "train_loss": 0.0}]
    metrics = Monitor.metrics(Mock(best_step=None), TrainerState(global_step=12, log_history=rows))
    assert metrics == {"step": 12, "train_loss": 3.5}
    short = TrainerState(global_step=2, log_history=[{"step": 2, "train_loss": 1.5}])
    assert Monitor.metrics(Mock(best_step=None), short) == {"step": 2, "train_loss": 1.5}


def test_earlier_figures_do_not_stand_in_for_feedback_that_cannot_be_read():
    read = {"eval_feedback_parse_rate": 1.0, "eval_feedback_quotes": 2.0, "eval_feedback_unmatched_rate": 0.5}
    rows = [{"step": 2, **read}, {"step": 4, "eval_loss": 1.0}, {"step": 4, "eval_feedback_parse_rate": 0.0}]
    metrics = Monitor.metrics(Mock(best_step=None), TrainerState(global_step=4, log_history=rows))
    assert metrics == {"step": 4, "eval_loss": 1.0, "eval_feedback_parse_rate": 0.0}


def test_feedback_metrics_count_what_cannot_be_read_or_found():
    fine, poor = Feedback("Fine.", ["good part", "not there"], []), Feedback("Poor.", [], ["bad"])
    metrics = feedback_metrics([fine, FeedbackError("broken"), poor], ["a good part", "x", "bad"])
    assert metrics == {"parse_rate": 2 / 3, "quotes": 1.5, "unmatched_rate": 1 / 3}
    assert feedback_metrics([FeedbackError("broken")], ["x"]) == {"parse_rate": 0.0}
