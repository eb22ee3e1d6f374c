"""The baselines: pairs, SFT, scalar reward and PPO on it, DPO, PRM-PPO, reflection; each changes what it should."""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file

from nl_gradient_policy_optimization.baselines import dpo, ppo, prm_ppo, reflect, scalar_reward, sft
from nl_gradient_policy_optimization.baselines.pairs import PairsConfig, make_pairs
from nl_gradient_policy_optimization.baselines.preferences import load_pairs
from nl_gradient_policy_optimization.baselines.prm_ppo import StepRewards
from nl_gradient_policy_optimization.baselines.scalar_model import ScalarRewards, load_scalar_model
from nl_gradient_policy_optimization.baselines.step_labels import by_step
from nl_gradient_policy_optimization.baselines.steps import at_step_ends, label_steps, split_steps
from nl_gradient_policy_optimization.optimize import optimize, prepare
from nl_gradient_policy_optimization.rewards import CriticRewards
from nl_gradient_policy_optimization.rollouts import Rollout
from tests.conftest import ROOT
from tests.tiny import tiny_model, tokenizer
from tests.tiny_runs import POSTS, tiny_config
from text2grad.errors import InputError
from text2grad.feedback import Feedback, FeedbackError
from text2grad.models import load_model, load_tokenizer
from text2grad.prompts import load_prompt
from text2grad.records import load_json, load_records, save_json
from text2grad.tasks import get_task
from text2grad.token_text import token_spans

BASELINES = ROOT / "nl_gradient_policy_optimization" / "baselines"
SLF5K, KODCODE, ULTRA = get_task("slf5k"), get_task("kodcode"), get_task("ultrafeedback")
GOOD = "The writer's sister got a parking ticket with the borrowed car, and they ask who pays."
BAD = "Bananas are yellow."
PROGRAM = '''import math

def area(radius):
    """The area; of a circle."""
    if radius < 0:
        raise ValueError("no")
    else:
        value = math.pi * radius ** 2; value += 1
    return value
'''


class QuotingCritic:
    """Blames or praises given quotes wherever they occur; fails on a response that says so; counts its work."""

    name = "quoting"

    def __init__(self, poor=(), good=()):
        self.poor, self.good, self.judged = poor, good, []

    def __call__(self, prompts, responses, records=None):
        self.judged += responses
        return [
            FeedbackError("no reply")
            if "fail" in text
            else Feedback("See.", [q for q in self.good if q in text], [q for q in self.poor if q in text])
            for text in responses
        ]


def settings(kind, folder: Path, data: Path, **changes):
    """A few training steps on a tiny model."""
    model = folder / "tiny"
    defaults = {
        "task": "slf5k",
        "data_path": str(data),
        "output_dir": str(folder / "run"),
        "model": str(model) if model.exists() else tiny_model(model),
        "dtype": "float32",
        "lora_dropout": 0.0,
        "learning_rate": 1e-2,
        "max_steps": 12,
        "per_device_train_batch_size": 2,
        "validation_share": 0.0,
        "logging_steps": 1,
        "save_steps": 6,
        "report_to": "none",
        "gradient_checkpointing": False,
        "disable_tqdm": True,
    }
    return kind(**{**defaults, **changes})


def pairs_file(folder: Path) -> Path:
    path = folder / "pairs.json"
    rows = [{"id": f"p{i}", "prompt": post, "chosen": GOOD, "rejected": BAD} for i, post in enumerate(POSTS)]
    save_json(path, rows)
    return path


def rollout(text: str, task=SLF5K, **changes) -> Rollout:
    tok = tokenizer()
    ids = [*tok(text, add_special_tokens=False)["input_ids"], tok.eos_token_id]
    response, spans = token_spans(ids, tok)
    values = {
        "id": "a",
        "prompt": POSTS[0],
        "record": {"post": POSTS[0], "question": POSTS[0]},
        "prompt_ids": [5, 6],
        "response_ids": ids,
        "response": response,
        "spans": spans,
        "tokens": [],
        "finished": True,
    }
    return Rollout(**{**values, **changes})


def logprob(model, tok, prompt: str, answer: str) -> float:
    """log π(answer | x), summed."""
    chat = tok.apply_chat_template(SLF5K.messages(prompt), add_generation_prompt=True, return_dict=True)["input_ids"]
    ids = tok(answer, add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        scores = model(torch.tensor([chat + ids])).logits[0, len(chat) - 1 : -1].log_softmax(-1)
    return float(scores.gather(-1, torch.tensor(ids)[:, None]).sum())


# Steps


def pieces(text: str, task=SLF5K) -> list[str]:
    return [text[start:end] for start, end in split_steps(text, task)]


def test_steps_of_a_summary_are_sentences_and_clauses():
    text = "Dr. Ash lost 3.5 kg, but she feels worse than ever. Should she stop, or go on? No; e.g. yes…\nBye"
    assert pieces(text) == [
        "Dr. Ash lost 3.5 kg,",
        "but she feels worse than ever.",
        "Should she stop,",
        "or go on?",
        "No; e.g. yes…",
        "Bye",
    ]
    assert pieces("她累了。为什么？") == ["她累了。", "为什么？"]


def test_steps_of_a_program_are_its_statements():
    fenced = f"Here it is:\n```python\n{PROGRAM}```\nDone."
    assert pieces(fenced, KODCODE) == pieces(PROGRAM, KODCODE)
    assert pieces(PROGRAM, KODCODE) == [
        "import math",
        'def area(radius):\n    """The area; of a circle."""',
        "if radius < 0:",
        'raise ValueError("no")\n    else:',
        "value = math.pi * radius ** 2;",
        "value += 1",
        "return value",
    ]
    assert pieces("@cache\ndef f(ä, b): return ä\nx = 'é'; y = 2", KODCODE) == [
        "@cache\ndef f(ä, b):",
        "return ä",
        "x = 'é';",
        "y = 2",
    ]
    assert pieces("def f(:\n\n  x\n", KODCODE) == ["def f(:", "x"]


@pytest.mark.parametrize("text", [GOOD, BAD, "one", " \n a. b. c; d e f g: h i j — k l m\n", "“Yes.” … no!", PROGRAM])
@pytest.mark.parametrize("task", [SLF5K, KODCODE])
def test_steps_cover_every_character_once(text, task):
    steps = split_steps(text, task)
    covered = [position for start, end in steps for position in range(start, end)]
    assert len(covered) == len(set(covered)) and covered == sorted(covered)
    assert {i for i, char in enumerate(text) if not char.isspace()} <= set(covered)


def test_real_responses_have_steps_that_cover_them(shared_data):
    for task, file in ((SLF5K, "slf5k/posts_with_summaries.json"), (KODCODE, "kodcode/solutions_with_tests.json")):
        for record in load_records(shared_data / file, task).values():
            text = task.response(record)
            judged = {i for low, high in task.judged(text) for i in range(low, high) if not text[i].isspace()}
            steps = split_steps(text, task)
            assert judged <= {i for start, end in steps for i in range(start, end)}
            assert all(end <= following for (_, end), (following, _) in pairwise(steps))


def test_a_step_that_a_poor_span_touches_is_wrong():
    text = "She lost her job, and she wants a new car. Is she right?"
    steps = split_steps(text, SLF5K)
    assert label_steps(steps, text, Feedback("c", good=["lost her job"], poor=["new car"]), SLF5K) == [1, -1, 1]


@pytest.mark.parametrize("text", [GOOD, "Zwei Sätze 🐶. Und noch einer 🎉!", "我的室友。为什么？"])
def test_step_rewards_sit_on_step_ends(text):
    row = rollout(text)
    steps = split_steps(row.response, SLF5K)
    rewards = at_step_ends(steps, [float(n + 1) for n in range(len(steps))], row.spans)
    for number, (_, end) in enumerate(steps, 1):
        holders = [token for token, (low, high) in enumerate(row.spans) if low < end <= high]
        assert rewards[holders[-1]] == number
    assert sum(value != 0 for value in rewards) == len(steps)
    assert rewards[-1] == 0  # the end token belongs to no step


def test_prm_rewards_come_from_the_critic_and_keep_failures(tmp_path):
    config = tiny_config(tmp_path, unfinished_reward=-0.5)
    spans = CriticRewards(QuotingCritic(poor=["ticket"]), SLF5K, tokenizer(), config)
    source = StepRewards(spans, SLF5K, config)
    rows = [rollout("She got a ticket. He pays."), rollout("will fail"), rollout(" "), rollout(BAD, finished=False)]
    wrong, failed, empty, unfinished = source(rows)
    assert [value for value in wrong.rewards if value] == [-1.0, 1.0]
    assert wrong.deltas == spans(rows[:1])[0].deltas and -1.0 in wrong.deltas
    assert failed.error == "no reply" and not any(failed.rewards)
    assert empty.rewards == [0.0] * (len(empty.rewards) - 1) + [-1.0]
    assert unfinished.rewards[-1] == -0.5 and [value for value in unfinished.rewards[:-1] if value] == [1.0]


def test_ultrafeedback_has_no_steps(tmp_path):
    config = tiny_config(tmp_path)
    with pytest.raises(InputError, match=r"without reasoning steps.*appendix N"):
        prm_ppo.train(prm_ppo.PRMConfig("ultrafeedback"), config)
    with pytest.raises(InputError, match="leave --reward_placement"):
        prm_ppo.train(prm_ppo.PRMConfig("slf5k"), tiny_config(tmp_path, reward_placement="last_sum"))


def test_prm_ppo_by_its_launcher(tmp_path):
    config = tiny_config(tmp_path)
    path = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PROCESSES": "1"}
    flags = {
        name: getattr(config, name) for name in ("model", "data_path", "output_dir", "dtype", "max_response_tokens")
    }
    flags |= {"max_steps": 1, "rollouts_per_device": 4, "ppo_epochs": 1, "report_to": "none"}
    command = ["bash", "prm_ppo.sh", *(str(part) for name, value in flags.items() for part in (f"--{name}", value))]
    done = subprocess.run(
        command, cwd=BASELINES / "slf5k", env=path, text=True, capture_output=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    run = load_json(tmp_path / "run" / "run.json")
    assert (run["method"], run["critic"]) == ("prm_ppo", "programmatic")
    assert run["config"]["kl_target"] == 6.0  # the task's own settings
    for row in load_json(tmp_path / "run" / "rollouts.jsonl"):
        if row["response"].strip():
            steps = split_steps(row["response"], SLF5K)
            labels = label_steps(steps, row["response"], Feedback("c", row["good"], row["poor"]), SLF5K)
            assert row["rewards"] == at_step_ends(steps, labels, [tuple(span) for span in row["spans"]])


def test_step_labels_are_annotations_of_whole_steps():
    base = {"post": POSTS[0], "generated_summary": "She lost her job, and she wants a new car. Is she right?"}
    made = by_step(SLF5K.with_feedback(base, Feedback("c", ["lost"], ["new car"]), {"model": "m"}), SLF5K)
    assert made["poor_spans"] == ["and she wants a new car."]
    assert made["good_spans"] == ["She lost her job,", "Is she right?"]
    assert made["annotation"] == {"model": "m", "unit": "step"}
    assert by_step(base, SLF5K) is None
    program = KODCODE.with_feedback(
        {"question": "q", "solution": PROGRAM}, Feedback("c", ["import math"], ["radius ** 2"]), {}
    )
    assert by_step(program, KODCODE)["wrong_code"] == ["value = math.pi * radius ** 2;"]
    assert by_step(program, KODCODE)["improvement_code"] == []


# Pairs


def test_ultrafeedback_pairs_are_the_datasets(tmp_path):
    def row(prompt, text, **more):
        return ULTRA.with_response({"prompt": prompt, **more}, text)

    rows = [
        row("q1", "worse", is_chosen=False, score=4.0),
        row("q1", "better", is_chosen=True, score=4.0),
        row("q2", "low", score=2.0),
        row("q2", "mid", score=3.0),
        row("q2", "high", score=5.0),
        row("q3", "tie", score=1.0),
        row("q3", "tie too", score=1.0),
        row("q4", "alone", score=1.0),
        row("q5", "unscored"),
    ]
    save_json(tmp_path / "in.json", rows)
    config = PairsConfig("ultrafeedback", str(tmp_path / "in.json"), str(tmp_path / "pairs.json"))
    made = make_pairs(config)
    assert [(pair.prompt, pair.chosen, pair.rejected) for pair in made] == [
        ("q1", "better", "worse"),
        ("q2", "high", "low"),
    ]
    assert list(load_pairs(tmp_path / "pairs.json").values()) == made
    config.margin = 3.0
    with pytest.raises(InputError, match="no prompt has a better and a worse"):
        make_pairs(config)


def test_kodcode_pairs_are_passing_and_failing_runs(tmp_path):
    def row(text, **more):
        test = "from solution import f\n\ndef test_f():\n    assert f(1) == 2\n"
        return {"question_id": "k", "question": "add one", "solution": text, "test": test, "log": "", **more}

    right, wrong = "def f(x):\n    return x + 1\n", "def f(x):\n    return x - 1\n"
    logged = row("def f(x): return 1 + x", log={"passed": True}), row("def f(x): return", log='{"passed": false}')
    save_json(tmp_path / "in.json", [row(wrong), row(right), *logged, row("def f(x): pass", test="", log="broken")])
    config = PairsConfig("kodcode", str(tmp_path / "in.json"), str(tmp_path / "pairs.json"), pairs_per_prompt=5)
    made = make_pairs(config)
    assert {pair.chosen for pair in made} == {right, logged[0]["solution"]}
    assert {pair.rejected for pair in made} == {wrong, logged[1]["solution"]}
    assert len(made) == 2 and all((pair.chosen_value, pair.rejected_value) == (1.0, 0.0) for pair in made)


def test_slf5k_pairs_are_ranked_by_the_critics_mean_delta(tmp_path, monkeypatch):
    critic = QuotingCritic(poor=["Bananas"], good=["parking ticket"])
    monkeypatch.setattr("nl_gradient_policy_optimization.baselines.pairs.load_critic", lambda *_: critic)
    model = tiny_model(tmp_path / "tiny")
    compared = {"generated_summary_for_comparison_A": "one", "generated_summary_for_comparison_B": "two"}
    rows = {
        "a": {"post": POSTS[0], "generated_summary": BAD},
        "b": {"post": POSTS[0], "generated_summary": GOOD},
        "c": {"post": POSTS[0], "generated_summary": "So it goes."},
        "d": {"post": POSTS[1], "generated_summary": "will fail"},
        "e": {"post": POSTS[2], "generated_summary": "x", **compared, "comparison_preference": "Summary B"},
    }
    save_json(tmp_path / "in.json", rows)
    config = PairsConfig("slf5k", str(tmp_path / "in.json"), str(tmp_path / "pairs.json"), tokenizer=model)
    made = make_pairs(config)
    assert [(pair.chosen, pair.rejected, pair.source) for pair in made] == [
        ("two", "one", "person"),
        (GOOD, BAD, "mean δ of programmatic"),
    ]
    assert made[1].chosen_value > 0 > made[1].rejected_value
    asked = len(critic.judged)
    assert make_pairs(config) == made and len(critic.judged) == asked == 4  # the journal remembers


def test_pairs_from_the_command_line(run_script, shared_data, tmp_path):
    done = run_script(
        "nl_gradient_policy_optimization/baselines/pairs.py", "--task", "ultrafeedback",
        "--data_path", shared_data / "ultrafeedback/responses.json", "--output_path", tmp_path / "pairs.json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    better = {
        row["prompt"]: ULTRA.response(row)
        for row in load_json(shared_data / "ultrafeedback/responses.json")
        if row["is_chosen"]
    }
    made = load_pairs(tmp_path / "pairs.json")
    assert len(made) > 100
    assert all(pair.chosen == better[pair.prompt] for pair in made.values())


# Fine-tuning


def test_sft_learns_references_and_its_adapter_starts_the_others(tmp_path):
    rows = {f"r{i}": {"post": p, "generated_summary": BAD, "ideal_human_summary": GOOD} for i, p in enumerate(POSTS)}
    save_json(tmp_path / "posts.json", rows)
    config = settings(sft.SFTSettings, tmp_path, tmp_path / "posts.json", target="reference")
    sft.train(config)
    tok, before = load_tokenizer(config.model), load_model(config.model, "float32")
    after = load_model(config.output_dir, "float32")
    assert logprob(after, tok, POSTS[0], GOOD) > logprob(before, tok, POSTS[0], GOOD) + 5
    assert list(Path(config.output_dir).glob("checkpoint-*"))
    metrics = load_json(Path(config.output_dir) / "result.json")["metrics"]
    assert metrics["last_loss"] < metrics["first_loss"]

    trainer = prepare("slf5k", tiny_config(tmp_path, model=config.output_dir, output_dir=str(tmp_path / "policy")))
    assert trainer.step(1)["kl/full"] < 1e-6  # the reference is the fine-tuned model, not its base


def test_sft_leaves_out_responses_known_to_be_worse(tmp_path):
    rows = [
        ULTRA.with_response({"prompt": "q", "is_chosen": chosen}, text) for chosen, text in ((True, "a"), (False, "b"))
    ]
    save_json(tmp_path / "in.json", rows)
    records = load_records(tmp_path / "in.json", ULTRA)
    assert [answers for _, answers in sft.demonstrations(records, ULTRA, "auto").values()] == [["a"]]
    with pytest.raises(InputError, match="no record has a reference"):
        sft.demonstrations(records, ULTRA, "reference")


def test_a_killed_fine_tuning_goes_on_and_ends_alike(tmp_path):
    data = pairs_file(tmp_path)
    whole = settings(dpo.DPOSettings, tmp_path, data, output_dir=str(tmp_path / "whole"))
    dpo.train(whole)
    shutil.copytree(
        tmp_path / "whole", tmp_path / "cut", ignore=shutil.ignore_patterns("result.json", "*-12", "*.safetensors")
    )
    shutil.copytree(tmp_path / "whole" / "checkpoint-6", tmp_path / "cut" / "checkpoint-6", dirs_exist_ok=True)
    dpo.train(settings(dpo.DPOSettings, tmp_path, data, output_dir=str(tmp_path / "cut")))
    weights = [load_file(tmp_path / name / "adapter_model.safetensors") for name in ("whole", "cut")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    with pytest.raises(InputError, match=r"begun with other settings .*learning_rate"):
        dpo.train(settings(dpo.DPOSettings, tmp_path, data, output_dir=str(tmp_path / "cut"), learning_rate=1.0))

    tok, before = load_tokenizer(whole.model), load_model(whole.model, "float32")
    after = load_model(whole.output_dir, "float32")

    def margin(model):
        return logprob(model, tok, POSTS[0], GOOD) - logprob(model, tok, POSTS[0], BAD)

    assert margin(after) > margin(before) + 1


def test_dpo_encodes_prompts_as_they_are_sampled(tmp_path):
    config = settings(dpo.DPOSettings, tmp_path, pairs_file(tmp_path), validation_share=0.5, max_steps=1)
    seen = {}

    class Spy(dpo.PairTrainer):
        def __init__(self, **options):
            super().__init__(**options)
            seen["train"], seen["eval"] = self.train_dataset, self.eval_dataset

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dpo, "PairTrainer", Spy)
        dpo.train(config)
    tok = load_tokenizer(config.model)
    chats = [tok.apply_chat_template(SLF5K.messages(p), add_generation_prompt=True, return_dict=True) for p in POSTS]
    rows = [*seen["train"], *seen["eval"]]
    assert sorted(row["prompt_ids"] for row in rows) == sorted(chat["input_ids"] for chat in chats)
    assert all(row["chosen_ids"] == [*tok(GOOD)["input_ids"], tok.eos_token_id] for row in rows)
    assert len(seen["eval"]) >= 1


@pytest.mark.parametrize("start", ["adapter", "all weights"])
def test_dpos_reference_is_what_it_starts_from(start, tmp_path):
    config = settings(dpo.DPOSettings, tmp_path, pairs_file(tmp_path), max_steps=2, lora=start == "adapter")
    if start == "adapter":
        adapter = get_peft_model(load_model(config.model, "float32"), LoraConfig(target_modules="all-linear", r=4))
        for name, weight in adapter.named_parameters():
            if "lora_B" in name:
                weight.data.normal_()
        adapter.save_pretrained(tmp_path / "adapter")
        config.model = str(tmp_path / "adapter")
    dpo.train(config)
    metrics = load_json(tmp_path / "run" / "result.json")["metrics"]
    assert metrics["first_loss"] == pytest.approx(math.log(2), abs=1e-4)  # no difference yet
    assert metrics["last_loss"] < metrics["first_loss"] - 1e-3
    load_model(config.output_dir, "float32")


# Scalars


@pytest.fixture(scope="module")
def scalar_folder(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("scalar")
    config = settings(scalar_reward.ScalarRewardSettings, folder, pairs_file(folder), max_steps=20)
    scalar_reward.train(config)
    return config.output_dir


def test_the_scalar_model_ranks_and_standardises(scalar_folder):
    model, description = load_scalar_model(scalar_folder, "slf5k")
    good, bad, again = model([POSTS[0], POSTS[0], POSTS[1]], [GOOD, BAD, GOOD])
    assert good > bad
    assert description.deviation > 0
    model.batch_size = 1
    assert model([POSTS[1]], [GOOD])[0] == pytest.approx(again, abs=1e-4)  # padding changes nothing
    scores = [value for post in POSTS for value in model([post] * 2, [GOOD, BAD])]
    assert sum(scores) / len(scores) == pytest.approx(description.mean, abs=1e-4)
    with pytest.raises(InputError, match="judges slf5k, not kodcode"):
        load_scalar_model(scalar_folder, "kodcode")


def test_scalar_rewards_sit_on_the_last_token_only(scalar_folder, tmp_path):
    source = ScalarRewards(scalar_folder, SLF5K, tiny_config(tmp_path))
    good, bad, empty = source([rollout(GOOD), rollout(BAD), rollout(" ")])
    assert good.rewards[-1] > 0 > bad.rewards[-1]
    assert not any(good.rewards[:-1] + bad.rewards[:-1] + empty.rewards[:-1])
    assert empty.rewards[-1] == -1.0


def test_ppo_on_a_scalar_model_trains_in_the_same_trainer(scalar_folder, tmp_path):
    ppo.train(ppo.PPOConfig("slf5k", scalar_folder), tiny_config(tmp_path))
    rows = [row for row in load_json(tmp_path / "run" / "rollouts.jsonl") if row["response"].strip()]
    assert rows and all(row["rewards"][-1] and not any(row["rewards"][:-1]) for row in rows)
    run = load_json(tmp_path / "run" / "run.json")
    assert run["method"] == "ppo_scalar" and run["critic"] == f"scalar:{scalar_folder}"
    assert (tmp_path / "run" / "policy" / "adapter_model.safetensors").is_file()
    with pytest.raises(InputError, match="one scalar"):
        ppo.train(ppo.PPOConfig("slf5k"), tiny_config(tmp_path))
    with pytest.raises(InputError, match="one scalar"):
        ppo.train(ppo.PPOConfig("slf5k", scalar_folder), tiny_config(tmp_path, reward_placement="last_sum"))


@pytest.mark.parametrize("placement", ["last_sum", "last_mean"])
def test_ppo_on_the_critics_delta_forgets_only_its_places(placement, tmp_path):
    critic = QuotingCritic(poor=list("aeiou"), good=list("rst"))
    config = tiny_config(tmp_path, reward_placement=placement)
    optimize("slf5k", config, CriticRewards(critic, SLF5K, tokenizer(), config))
    spread = CriticRewards(critic, SLF5K, tokenizer(), tiny_config(tmp_path))
    rows = [row for row in load_json(tmp_path / "run" / "rollouts.jsonl") if row["good"] or row["poor"]]
    assert rows
    for row in rows:
        assert not any(row["rewards"][:-1])
    for text in (GOOD, BAD):
        deltas = spread([rollout(text)])[0].rewards
        gathered = CriticRewards(critic, SLF5K, tokenizer(), config)([rollout(text)])[0].rewards
        total = sum(deltas) / (1 if placement == "last_sum" else len(deltas))
        assert gathered[-1] == pytest.approx(total)


# Reflection


class EchoWriter:
    """Answers with the round's number and what the chat asks for; counts its work."""

    identity, workers = "echo", 1

    def __init__(self):
        self.chats = []

    def __call__(self, chats):
        self.chats += chats
        return [
            f"try {len(self.chats)}: worse" if "See." in chat[-1]["content"] else RuntimeError("?") for chat in chats
        ]


def test_reflection_runs_its_rounds_and_asks_nothing_twice(tmp_path):
    rows = {
        "a": {
            "post": POSTS[0],
            "generated_summary": "worse",
            "textual_feedback": "old",
            "good_spans": [],
            "poor_spans": [],
        },
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
    save_json(tmp_path / "in.json", {"a": {"post": POSTS[0], "generated_summary": "The post is about the the the"}})
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


# Launchers and configs


def test_configs_and_launchers_are_settings_that_exist():
    kinds = {"sft": sft.SFTSettings, "dpo": dpo.DPOSettings, "scalar_reward": scalar_reward.ScalarRewardSettings}
    kinds |= {"reflect": reflect.ReflectConfig, "pairs": PairsConfig}
    for task in ("slf5k", "kodcode", "ultrafeedback"):
        for path in sorted((BASELINES / task).glob("*.yaml")):
            first = path.read_text().splitlines()[0]
            launcher = re.search(r"bash (\S+\.sh)", first)[1]
            assert (ROOT / launcher).is_file(), first
            fields = kinds[path.stem].__dataclass_fields__
            unknown = set(re.findall(r"^(\w+):", path.read_text(), re.M)) - set(fields)
            assert not unknown, (path, unknown)
        for path in (BASELINES / task).glob("*.sh"):
            engine, named = re.search(r"launch\.sh\" (\w+) (\w+)", path.read_text()).groups()
            assert named == task and (BASELINES / f"{engine}.py").is_file()
    assert not (BASELINES / "ultrafeedback" / "prm_ppo.sh").exists()
