"""The baselines: pairs, SFT, DPO, scalar reward and PPO on it; each changes what it should."""

import math
import shutil
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from nl_gradient_policy_optimization.algorithms.scalar import on_last_token
from nl_gradient_policy_optimization.baselines import dpo, reflect, scalar_reward, sft
from nl_gradient_policy_optimization.baselines.pairs import PairsConfig, load_pairs, make_pairs
from nl_gradient_policy_optimization.baselines.scalar_model import ScalarRewards, load_scalar_model
from nl_gradient_policy_optimization.export import model_card
from nl_gradient_policy_optimization.optimize import make_policy, optimize, prepare
from nl_gradient_policy_optimization.rewards import CriticRewards
from tests.baseline_runs import BAD, BASELINES, GOOD, SLF5K, ULTRA, QuotingCritic, rollout, settings
from tests.tiny import adapted, reference_logprobs, tiny_model
from tests.tiny_runs import POSTS, tiny_config
from text2grad.critics import as_critic
from text2grad.errors import InputError
from text2grad.feedback import Feedback
from text2grad.journal.checksums import save_checksums
from text2grad.models import load_model, load_tokenizer
from text2grad.models.answering import PolicyAnswer
from text2grad.prompts import load_prompt
from text2grad.records import load_json, load_records, save_json


def pairs_file(folder: Path) -> Path:
    path = folder / "pairs.json"
    rows = [{"id": f"p{i}", "prompt": post, "chosen": GOOD, "rejected": BAD} for i, post in enumerate(POSTS)]
    save_json(path, rows)
    return path


def pairs_of(folder: Path, task: str, rows: object, **options) -> list:
    """What is made of these records, as they are now."""
    save_json(folder / "in.json", rows)
    return make_pairs(PairsConfig(task, str(folder / "in.json"), str(folder / "pairs.json"), **options))


def logprob(model, tok, prompt: str, answer: str) -> float:
    """log π(answer | x), summed."""
    chat = tok.apply_chat_template(SLF5K.messages(prompt), add_generation_prompt=True, return_dict=True)["input_ids"]
    ids = tok(answer, add_special_tokens=False)["input_ids"]
    return float(reference_logprobs(model, chat, ids).sum())


def test_ultrafeedback_pairs_are_the_datasets(tmp_path):
    def row(prompt, text, **more):
        return {**ULTRA.with_response({"prompt": prompt}, text), **more}

    rows = [
        row("q1", "worse", is_chosen=False, score=4.0), row("q1", "better", is_chosen="True", score=4.0),
        row("q2", "low", score="2"), row("q2", "mid", score=3.0), row("q2", "high", score="5.0"),  # in CSV, texts
        row("q3", "tie", score=1.0), row("q3", "tie too", score=1.0), row("q4", "alone", score=1.0),
        row("q5", "unscored"), row("q5", "no score", score="nan"), row("q5", "bad", score="bad"),
        row("q6", " ", score=1.0), row("q6", "said", score=2.0),  # nothing is learnt from silence
    ]  # fmt: skip
    made = pairs_of(tmp_path, "ultrafeedback", rows)
    told = [(pair.prompt, pair.chosen, pair.rejected) for pair in made]
    assert told == [("q1", "better", "worse"), ("q2", "high", "low")]
    assert [*load_pairs(tmp_path / "pairs.json").values()] == [("q1", ["better", "worse"]), ("q2", ["high", "low"])]
    own = {"id": "q1", "prompt": "q1", "rejected": "no", "chosen_value": None}  # another dataset's
    save_json(tmp_path / "own.json", [{**own, "chosen": text} for text in "ab"])
    assert [chosen for _, (chosen, _) in load_pairs(tmp_path / "own.json").values()] == ["a", "b"]
    with pytest.raises(InputError, match="no prompt has a better and a worse"):
        pairs_of(tmp_path, "ultrafeedback", rows[5:])


def test_kodcode_pairs_are_programs_whose_logs_say_that_they_passed_and_failed(tmp_path, capsys):
    logs = {
        "right": {"passed": True}, "wrong": '{"passed": false}', "none": "", "broken": "broken",
        "undecided": {"passed": False, "error_type": "Undecided"},
    }  # fmt: skip
    rows = [{"question_id": "k", "question": "q", "solution": text, "log": log} for text, log in logs.items()]
    made = pairs_of(tmp_path, "kodcode", rows, pairs_per_prompt=5)
    assert [(each.chosen, each.rejected, each.source) for each in made] == [("right", "wrong", "unit tests")]
    assert (made[0].chosen_value, made[0].rejected_value) == (1.0, 0.0)
    assert "rm_data_anno/kodcode/test_case.py runs them\n3 of 5 responses have no verdict" in capsys.readouterr().out


def test_slf5k_pairs_are_ranked_by_the_critics_mean_delta(tmp_path, monkeypatch):
    critic = QuotingCritic(poor=["Bananas"], good=["parking ticket"])
    monkeypatch.setattr("text2grad.critics.settings.load_critic", lambda *_: critic)
    compared = {"generated_summary_for_comparison_A": "one", "generated_summary_for_comparison_B": "two"}
    rows = {
        "a": {"post": POSTS[0], "generated_summary": BAD},
        "b": {"post": POSTS[0], "generated_summary": GOOD},
        "c": {"post": POSTS[0], "generated_summary": "So it goes."},
        "d": {"post": POSTS[1], "generated_summary": "will fail"},
        "f": {"post": POSTS[0], "generated_summary": ""},
        "e": {"post": POSTS[2], "generated_summary": "x", **compared, "comparison_preference": "Summary B"},
    }
    rows["e@1"] = {**rows["e"], "generated_summary": "another sample"}
    pairs = partial(pairs_of, tmp_path, "slf5k", rows, tokenizer=tiny_model(tmp_path / "tiny"))
    made = pairs()
    told = [(pair.chosen, pair.rejected, pair.source) for pair in made]
    assert told == [("two", "one", "person"), (GOOD, BAD, "mean δ of programmatic")]
    assert made[1].chosen_value > 0 > made[1].rejected_value
    asked = len(critic.judged)
    assert pairs() == made and len(critic.judged) == asked == 4  # no blank one; the journal remembers

    notes = {"a": Feedback("c", [], ["Bananas"]), "b": Feedback("c", ["parking ticket"]), "c": Feedback("c")}
    for key, feedback in notes.items():
        about = {"annotator": "quoting", "prompt": "cot" if key != "c" else "dense"}
        rows[key] = SLF5K.with_feedback(rows[key], feedback, about)
    rows["d"] |= {"textual_feedback": 3, "annotation": {"annotator": "quoting", "prompt": "cot"}}  # broken
    (tmp_path / "pairs.json.journal.jsonl").unlink()
    critic.variant = "cot"  # as an endpoint's critic has it
    assert pairs() == made and critic.judged[asked:] == ["So it goes.", "will fail"]  # not what it has said
    (tmp_path / "pairs.json.journal.jsonl").unlink()
    del critic.variant  # what costs nothing may have changed
    assert pairs() == made and len(critic.judged) == asked + 2 + asked
    rows["e"]["comparison_preference"] = "neither"
    with pytest.raises(InputError, match=r"in\.json: record 'e': .* 'neither', not A or B; correct or remove it"):
        pairs()


def test_responses_are_ranked_by_dense_scores_too(tmp_path, monkeypatch):
    def judge(prompts, responses):
        return [Feedback("c", scores=[(text.split()[0], 1.0 if text == GOOD else -1.0)]) for text in responses]

    monkeypatch.setattr("text2grad.critics.settings.load_critic", lambda *_: as_critic(judge))
    rows = [{"post": POSTS[0], "generated_summary": text} for text in (BAD, GOOD)]
    pairs = pairs_of(tmp_path, "slf5k", rows, tokenizer=tiny_model(tmp_path / "tiny"))
    assert [(pair.chosen, pair.rejected) for pair in pairs] == [(GOOD, BAD)]


def test_sft_learns_references_and_its_adapter_starts_the_others(tmp_path, capsys):
    rows = {f"r{i}": {"post": p, "generated_summary": BAD, "ideal_human_summary": GOOD} for i, p in enumerate(POSTS)}
    save_json(tmp_path / "posts.json", rows)
    (tmp_path / "ask.txt").write_text("Sum up: ${prompt}")
    words = {"policy_prompt": str(tmp_path / "ask.txt")}
    config = settings(sft.SFTSettings, tmp_path, tmp_path / "posts.json", target="reference", **words)
    sft.train(config)
    tok, before = load_tokenizer(config.model), load_model(config.model, "float32")
    after = load_model(config.output_dir, "float32")
    asked = f"Sum up: {POSTS[0]}"
    assert logprob(after, tok, asked, GOOD) > logprob(before, tok, asked, GOOD) + 5
    assert list(Path(config.output_dir).glob("checkpoint-*"))
    metrics = load_json(Path(config.output_dir) / "result.json")["metrics"]
    assert metrics["last_loss"] < metrics["first_loss"]
    said = capsys.readouterr().out
    assert f"{config.output_dir}: sft has finished" in said and f"--task slf5k --model {config.output_dir}" in said
    card = (Path(config.output_dir) / "README.md").read_text()
    assert f"base_model: {config.model}" in card and "- learning_rate: 0.01" in card and "None" not in card
    assert load_json(Path(config.output_dir) / "adapter_config.json")["base_model_name_or_path"] == config.model

    trainer = prepare("slf5k", tiny_config(tmp_path, model=config.output_dir, output_dir=str(tmp_path / "policy")))
    assert trainer.task.messages(POSTS[0])[-1]["content"] == asked  # in the words that its model learnt
    # The reference is the fine-tuned model, not its base, and stays where it was.
    assert trainer.step(1)["kl/full"] < 1e-6 < 1e-4 < trainer.step(2)["kl/full"]
    names = [name for name, weight in trainer.learner.scorer.named_parameters() if weight.requires_grad]
    assert names and all(".default." in name for name in names)
    own = model_card(trainer)
    assert f"base_model: {config.model}\n" in own and f"names the folder of the base model, `{config.model}`" in own


def test_the_loss_of_sft_is_on_the_answer_alone(tmp_path):
    save_json(tmp_path / "posts.json", {"r": {"post": POSTS[0], "ideal_human_summary": GOOD}})
    config = settings(sft.SFTSettings, tmp_path, tmp_path / "posts.json", max_steps=1, save_steps=1)
    sft.train(config)
    tok, answer = load_tokenizer(config.model), GOOD + load_tokenizer(config.model).eos_token
    expected = -logprob(load_model(config.model, "float32"), tok, POSTS[0], answer) / len(tok(answer)["input_ids"])
    metrics = load_json(Path(config.output_dir) / "result.json")["metrics"]
    assert metrics["first_loss"] == pytest.approx(expected, abs=1e-4)


def test_sft_leaves_out_responses_known_to_be_worse(tmp_path):
    told = {"a": {"is_chosen": True}, "b": {"is_chosen": False}, "c": {"score": 2.0}, "d": {"score": "8"}, "e": {}}
    rows = [{"prompt": "q" if text in "ab" else "r", "response": text, **value} for text, value in told.items()]
    save_json(tmp_path / "in.json", rows)
    records = load_records(tmp_path / "in.json", ULTRA)
    assert [answers for _, answers in sft.demonstrations(records, ULTRA, "auto").values()] == [["a"], ["d"], ["e"]]
    assert ULTRA.known_value(ULTRA.with_response(rows[3], "another")) is None
    rows[3]["generation"] = {"finished": False}  # by the length limit
    save_json(tmp_path / "in.json", rows[2:])
    records = load_records(tmp_path / "in.json", ULTRA)
    assert [answers for _, answers in sft.demonstrations(records, ULTRA, "auto").values()] == [["c"], ["e"]]
    pairs = pairs_of(tmp_path, ULTRA.name, [*rows[2:], {**rows[3], "response": "f", "score": 5.0, "generation": {}}])
    assert [(pair.chosen, pair.rejected) for pair in pairs] == [("f", "c")]
    with pytest.raises(InputError, match="no record has a reference"):
        sft.demonstrations(records, ULTRA, "reference")
    save_json(tmp_path / "in.json", [rows[1], rows[3], {"prompt": "s"}])
    records = load_records(tmp_path / "in.json", ULTRA, responses=None)
    with pytest.raises(InputError, match=r"1 cut off \(.*--max_new_tokens\), 1 failed \(is_chosen .*\), 1 without one"):
        sft.demonstrations(records, ULTRA, "auto")


def test_posts_with_references_alone_are_demonstrations(tmp_path):
    rows = [{"post": f"Post {i}.", "ideal_human_summary": f"Summary {i}."} for i in range(3)]
    save_json(tmp_path / "posts.json", [*rows, {"post": "Another.", "generated_summary": "Own."}])
    records = load_records(tmp_path / "posts.json", SLF5K, responses=None)
    references = [(f"Post {i}.", [f"Summary {i}."]) for i in range(3)]
    chosen = {name: sorted(sft.demonstrations(records, SLF5K, name).values()) for name in ("auto", "reference")}
    assert chosen == {"auto": [("Another.", ["Own."]), *references], "reference": references}
    with pytest.raises(InputError, match="record 'b' has neither a response nor a person's comparison"):
        pairs_of(tmp_path, "slf5k", {"b": {"post": "Q."}})


def test_a_killed_fine_tuning_goes_on_and_ends_alike(tmp_path):
    data = pairs_file(tmp_path)
    steps = {"max_steps": 8, "save_steps": 4}
    whole = settings(dpo.DPOSettings, tmp_path, data, output_dir=str(tmp_path / "whole"), **steps)
    dpo.train(whole)
    later = shutil.ignore_patterns("result.json", "*-8", "*.safetensors")
    shutil.copytree(tmp_path / "whole", tmp_path / "cut", ignore=later)
    shutil.copytree(tmp_path / "whole" / "checkpoint-4", tmp_path / "cut" / "checkpoint-4", dirs_exist_ok=True)
    cut = {"output_dir": str(tmp_path / "cut"), **steps}
    dpo.train(settings(dpo.DPOSettings, tmp_path, data, **cut))
    weights = [load_file(tmp_path / name / "adapter_model.safetensors") for name in ("whole", "cut")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    with pytest.raises(InputError, match=r"begun with other settings .*beta"):
        dpo.train(settings(dpo.DPOSettings, tmp_path, data, **cut, beta=0.7))
    save_json(data, load_json(data)[::-1])  # their order decides which of them the rest of a pass takes
    with pytest.raises(InputError, match=r"begun with other settings .*data"):
        dpo.train(settings(dpo.DPOSettings, tmp_path, data, **cut))

    tok, before = load_tokenizer(whole.model), load_model(whole.model, "float32")
    after = load_model(whole.output_dir, "float32")

    def margin(model):
        return logprob(model, tok, POSTS[0], GOOD) - logprob(model, tok, POSTS[0], BAD)

    assert margin(after) > margin(before) + 1


def test_an_old_checkpoint_stays_until_the_new_one_is_whole(tmp_path, monkeypatch):
    """A kill while the new one is hashed, which takes minutes for a large optimiser, would lose the run."""

    def killed(folder: Path, pattern: str) -> None:
        if folder.name == "checkpoint-2":
            raise RuntimeError("killed")
        save_checksums(folder, pattern)

    limits = {"max_steps": 2, "save_steps": 1, "save_total_limit": 1}
    with monkeypatch.context() as patched, pytest.raises(RuntimeError, match="killed"):
        patched.setattr("text2grad.journal.finetuning.save_checksums", killed)
        dpo.train(settings(dpo.DPOSettings, tmp_path, pairs_file(tmp_path), **limits))
    assert sorted(path.name for path in tmp_path.glob("run/checkpoint-*")) == ["checkpoint-1", "checkpoint-2"]
    dpo.train(settings(dpo.DPOSettings, tmp_path, tmp_path / "pairs.json", **limits))
    assert [path.name for path in tmp_path.glob("run/checkpoint-*")] == ["checkpoint-2"]


def test_other_ranks_or_another_zero_stage_are_refused(tmp_path):
    """The optimiser's files are theirs: it would begin anew."""
    config = settings(dpo.DPOSettings, tmp_path, pairs_file(tmp_path), max_steps=1)
    dpo.train(config)
    path = tmp_path / "run" / "run.json"
    begun = load_json(path)
    for name, config.allow_changed in product(("ranks", "zero_stage"), (False, True)):
        save_json(path, {**begun, name: 2})
        with pytest.raises(InputError, match=f"{name}: 2 then, {begun[name]} now"):
            dpo.train(config)


def test_dpo_encodes_prompts_as_they_are_sampled(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"--max_length 64: nothing is cut.*leave this one out"):
        settings(dpo.DPOSettings, tmp_path, pairs_file(tmp_path), max_length=64)
    config = settings(dpo.DPOSettings, tmp_path, pairs_file(tmp_path), validation_share=0.5, max_steps=1)
    seen = {}

    class Spy(dpo.PairTrainer):
        def __init__(self, **options):
            super().__init__(**options)
            seen["train"], seen["eval"] = self.train_dataset, self.eval_dataset

    monkeypatch.setattr(dpo, "PairTrainer", Spy)
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
    base = config.model
    if start == "adapter":
        adapted(load_model(config.model, "float32")).save_pretrained(tmp_path / "adapter")
        config.model = str(tmp_path / "adapter")
    dpo.train(config)
    metrics = load_json(tmp_path / "run" / "result.json")["metrics"]
    assert metrics["first_loss"] == pytest.approx(math.log(2), abs=1e-4)  # no difference yet
    assert metrics["last_loss"] < metrics["first_loss"] - 1e-3
    load_model(config.output_dir, "float32")
    assert f"base_model: {base}\n" in (tmp_path / "run" / "README.md").read_text()


def test_an_adapter_that_goes_on_keeps_its_rank_but_not_its_dropout(tmp_path):
    data, folder = pairs_file(tmp_path), str(tmp_path / "adapter")
    adapted(load_model(tiny_model(tmp_path / "tiny"), "float32"), dropout=0.1).save_pretrained(folder)
    for made, load in (
        (partial(settings, dpo.DPOSettings, tmp_path, data), lambda config: config.policy()["model"]),
        (partial(tiny_config, tmp_path), lambda config: make_policy(config, torch.device("cpu")).model),
    ):
        config = made(model=folder, lora_r=64, lora_dropout=0.2)
        assert (config.lora_r, config.lora_alpha) == (4, 8) and config.lora_target_modules != ["all-linear"]
        model = load(config)
        assert model.peft_config["default"].lora_dropout == 0.2  # is saved with it
        assert {module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)} == {0.2}
        with pytest.raises(InputError, match=r"--lora_r 0: .*adapter is an adapter; merge it first"):
            made(model=folder, lora_r=0)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_the_base_models_own_dropout_is_no_noise_in_a_policys_updates(tmp_path, family):
    own = {"attn_pdrop": 0.5, "resid_pdrop": 0.5} if family == "gpt2" else {"attention_dropout": 0.5}
    config = tiny_config(tmp_path, model=tiny_model(tmp_path / "own", family, **own), lora_dropout=0.0)
    policy = make_policy(config, torch.device("cpu")).model
    ids = torch.arange(5, 25)[None]
    torch.testing.assert_close(policy.train()(ids).logits, policy.eval()(ids).logits)


@pytest.fixture(scope="module")
def scalar_folder(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("scalar")
    config = settings(scalar_reward.ScalarRewardSettings, folder, pairs_file(folder), max_steps=20)
    scalar_reward.train(config)
    return config.output_dir


def test_the_scalar_model_ranks_and_standardises(scalar_folder, tmp_path):
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
    (tmp_path / "scalar_reward.json").write_text('{"task": "slf5k", "mean": 0.5}')
    with pytest.raises(InputError, match=r"scalar_reward\.json: 'dtype': .*train the model again"):
        load_scalar_model(str(tmp_path), "slf5k")


def test_scalar_rewards_sit_on_the_last_token_only(scalar_folder, tmp_path):
    source = ScalarRewards(scalar_folder, SLF5K, tiny_config(tmp_path))
    good, bad, empty = source([rollout(GOOD), rollout(BAD), rollout(" ")])
    assert good.rewards[-1] > 0 > bad.rewards[-1]
    assert not any(good.rewards[:-1] + bad.rewards[:-1] + empty.rewards[:-1])
    assert empty.rewards[-1] == -1.0


def test_a_scalar_model_that_goes_on_is_one_on_the_older(scalar_folder, tmp_path):
    kind = scalar_reward.ScalarRewardSettings
    config = settings(kind, tmp_path, pairs_file(tmp_path), max_steps=1, model=scalar_folder, learning_rate=0.0)
    scalar_reward.train(config)
    assert load_json(Path(config.output_dir) / "adapter_config.json")["base_model_name_or_path"] == scalar_folder
    assert f"base_model: {scalar_folder}\n" in (Path(config.output_dir) / "README.md").read_text()


def test_a_scalar_model_reads_its_own_words_whatever_the_policy_is_asked(scalar_folder, tmp_path):
    (tmp_path / "ask.txt").write_text("Sum up: ${prompt}")
    config = tiny_config(
        tmp_path, algorithm="scalar", reward_model=scalar_folder, policy_prompt=str(tmp_path / "ask.txt")
    )
    plain, asked = ScalarRewards(scalar_folder, SLF5K, config), prepare("slf5k", config).rewards
    assert asked([rollout(GOOD)])[0].rewards == plain([rollout(GOOD)])[0].rewards


def test_ppo_on_a_scalar_model_trains_in_the_same_trainer(scalar_folder, tmp_path):
    audited = {"audit_critic": "programmatic", "audit_share": 1.0}
    optimize("slf5k", tiny_config(tmp_path, algorithm="scalar", reward_model=str(scalar_folder), **audited))
    assert "audit/delta" in load_json(tmp_path / "run" / "metrics.jsonl")[0]
    rows = [row for row in load_json(tmp_path / "run" / "rollouts.jsonl") if row["response"].strip()]
    assert rows and all(row["rewards"][-1] and not any(row["rewards"][:-1]) for row in rows)
    run = load_json(tmp_path / "run" / "run.json")
    assert run["method"] == "ppo_scalar" and run["critic"] == f"scalar:{scalar_folder}"
    assert (tmp_path / "run" / "policy" / "adapter_model.safetensors").is_file()


@pytest.mark.parametrize("placement", ["last_sum", "last_mean", "last_verdict"])
def test_ppo_on_the_critics_delta_forgets_only_its_places(placement, tmp_path):
    config = tiny_config(tmp_path, algorithm="scalar", reward_placement=placement)
    spread = CriticRewards(QuotingCritic(poor=["Bananas"], good=["parking ticket"]), SLF5K, config)
    gathered = config.algorithm.wrap(spread, SLF5K, config)
    for row in (rollout(GOOD), rollout(BAD)):
        (expected,), (found,) = spread([row]), gathered([row])
        total, size = sum(expected.rewards), len(expected.rewards)
        value = {"last_sum": total, "last_mean": total / size, "last_verdict": expected.score}[placement]
        assert value and found.rewards == [0.0] * (size - 1) + [pytest.approx(value)]
    if placement == "last_verdict":
        with pytest.raises(InputError, match="no critic"):
            on_last_token(replace(expected, score=None), placement)


# Reflection


class EchoWriter:
    """Answers with the round's number and what the chat asks for; counts its work."""

    identity, workers = "echo", 1

    def __init__(self):
        self.chats = []

    def __call__(self, chats, ids, sampling):
        self.chats += chats
        answer = PolicyAnswer(f"try {len(self.chats)}: worse", 6, None, False)
        return [answer if "See." in chat[-1]["content"] else RuntimeError("?") for chat in chats]


def test_reflection_runs_its_rounds_and_asks_nothing_twice(tmp_path):
    rows = {
        "a": SLF5K.with_feedback({"post": POSTS[0], "generated_summary": "worse"}, Feedback("old"), {}),
        "b": {"post": POSTS[1], "generated_summary": "fine already"},
        "c": {"post": POSTS[2], "generated_summary": "will fail"},
    }
    rows["a"]["generation"] = {"model": "m", "finished": True, "tokens": 1}
    save_json(tmp_path / "in.json", rows)
    records = load_records(tmp_path / "in.json", SLF5K)
    critic, writer = QuotingCritic(poor=["worse"]), EchoWriter()
    prompt = load_prompt(BASELINES / "slf5k" / "reflect.txt", required=("critique",))

    def go(rounds):
        config = reflect.ReflectConfig("slf5k", "in.json", str(tmp_path / "out.json"), model="echo", rounds=rounds)
        return reflect.reflect(records, SLF5K, critic, writer, prompt, config)

    one = go(1)
    ended = {"model": "m", "finished": False, "tokens": 6, "prompt_tokens": None}  # this answer, not the first one
    assert one["a"]["generated_summary"] == "try 1: worse" and one["a"]["generation"] == ended
    assert (len(critic.judged), len(writer.chats)) == (3, 1)
    roles = [turn["role"] for turn in writer.chats[0]]
    assert roles == ["user", "assistant", "user"] and writer.chats[0][1]["content"] == "worse"
    assert "See." in writer.chats[0][2]["content"] and "- worse" in writer.chats[0][2]["content"]

    three = go(3)
    assert len(writer.chats) == 3  # one more in each new round; the first round is remembered
    assert critic.judged.count("worse") == 1
    assert three["a"]["generated_summary"] == "try 3: worse"
    answers = [turn["response"] for turn in three["a"]["reflection"]["rounds"]]
    assert answers == ["worse", "try 1: worse", "try 2: worse"]
    assert three["b"]["generated_summary"] == "fine already"
    assert not any(turn["rewritten"] for turn in three["b"]["reflection"]["rounds"])
    assert three["c"]["generated_summary"] == "will fail"
    assert three["c"]["reflection"]["rounds"][0]["error"] == "no reply"
    assert "textual_feedback" not in three["a"]
    assert go(3) == three and len(writer.chats) == 3

    critic = as_critic(lambda prompt, response, record: Feedback("See.", missing=["the other half"]))
    (tmp_path / "out.json.round1.critique.journal.jsonl").unlink()
    assert go(1)["b"]["generated_summary"].endswith(": worse")  # an answer that only lacks something is rewritten


def test_reflection_of_a_real_model_from_the_command_line(run_script, refused, tmp_path):
    model = tiny_model(tmp_path / "tiny")
    answers = {"a": "The post is about the the the", "b": " "}
    posts = zip(answers, POSTS, strict=False)
    rows = {key: {"post": post, "generated_summary": answers[key]} for key, post in posts}
    save_json(tmp_path / "in.json", rows)
    flags = (
        "--config", BASELINES / "slf5k" / "reflect.yaml",
        "--task", "slf5k", "--data_path", tmp_path / "in.json", "--output_path", tmp_path / "out.json",
        "--model", model, "--max_new_tokens", "8",
    )  # fmt: skip
    run_script("nl_gradient_policy_optimization/baselines/reflect.py", *flags)
    out = load_records(tmp_path / "out.json", SLF5K, responses=False)
    story = out["a"]["reflection"]["rounds"]
    assert len(story) == 1 and story[0]["poor_spans"]
    assert story[0]["rewritten"] == (out["a"]["generated_summary"] != story[0]["response"])
    blank = out["b"]["reflection"]["rounds"][0]
    assert not blank["rewritten"] and blank["error"] == "the response is empty"
    words = Path(model) / "policy_prompt.txt"  # which the policy was trained with
    words.write_text("Sum up.")
    assert f"{words}: lacks ${{prompt}}" in refused(reflect.main, *flags)
    words.unlink()
    save_json(tmp_path / "in.json", {"a": {"post": POSTS[0]}})
    assert "record a has no answer to rewrite" in refused(reflect.main, *flags)
