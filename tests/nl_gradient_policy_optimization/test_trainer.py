"""The trainer as a whole: what a run writes, what it refuses, what it stops for, and that ranks agree."""

import json
import math
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from evaluation.generate import GenerateConfig, generate
from nl_gradient_policy_optimization import schedule
from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.export import export
from nl_gradient_policy_optimization.optimize import make_policy, optimize, prepare, short_enough
from nl_gradient_policy_optimization.schedule import learning_rate_share
from nl_gradient_policy_optimization.weights import trainable_bytes
from nl_reward_model.merge_lora import MergeConfig, merge
from tests.processes import run_ranks
from tests.tiny import model, tiny_model, tokenizer
from tests.tiny_runs import STAGE, ScriptedRewards, SpokenRewards, encoded_prompts, rows, tiny_config, untimed
from text2grad.errors import InputError, StopRunError
from text2grad.models.answering import LocalPolicy, SamplingConfig
from text2grad.prompts import carried_words
from text2grad.records import load_records

METRICS = {
    "step", "delta/mean", "delta/positive", "delta/negative", "spans/matched", "spans/unmatched", "spans/conflicts",
    "critic/failures", "kl/full", "kl/coef", "entropy", "policy/loss", "policy/clip_fraction", "value/loss",
    "value/explained_variance", "length/mean", "length/finished", "grad_norm", "lr", "seconds/rollout",
    "seconds/critique", "seconds/reference", "seconds/update", "rollouts", "verdict/mean", "missing/mean",
}  # fmt: skip


def test_the_command_writes_a_whole_run(tmp_path, run_script):
    config = tiny_config(tmp_path)
    run = tmp_path / "my run"
    given = {"model": config.model, "data_path": config.data_path, "critic": "programmatic", "output_dir": run}
    given |= {"max_steps": 3, "rollouts_per_device": 4, "micro_batch_size": 2, "max_new_tokens": 12}
    given |= {"log_rollouts_every": 2, "learning_rate": "1e-3", "unfinished_reward": -6}
    done = run_script("nl_gradient_policy_optimization/slf5k/train.py", **given)
    assert "δ=" in done.stderr and "KL=" in done.stderr and "spans=" in done.stderr
    for noise in ("Warning", "Loading weights", "Setting accelerator"):
        assert noise not in done.stdout + done.stderr
    assert f"settings: {Path('nl_gradient_policy_optimization/slf5k/config.yaml')}" in done.stdout
    assert f"{run}: finished after step 3. The policy is in {run / 'policy'}" in done.stdout
    assert f"next: python evaluation/generate.py --task slf5k --model '{run / 'policy'}'" in done.stdout
    assert f"python evaluation/report.py '{run}' --output_path '{run / 'report.html'}'" in done.stdout

    description = json.loads((run / "run.json").read_text())
    told = [description[name] for name in ("task", "method", "seed", "critic")]
    assert told == ["slf5k", "text2grad", 42, "programmatic"]
    assert description["config"]["learning_rate"] == 1e-3 and description["versions"]["torch"]

    metrics = rows(run / "metrics.jsonl")
    assert [row["step"] for row in metrics] == [1, 2, 3]
    assert set(metrics[0]) >= METRICS
    assert [row["rollouts"] for row in metrics] == [4, 8, 12]
    rollouts = rows(run / "rollouts.jsonl")
    assert len(rollouts) == 12
    for row in rollouts:
        assert set(row) >= {"id", "prompt", "critique", "good", "poor", "error", "matched", "unmatched", "conflicts"}
        per_token = ("tokens", "spans", "deltas", "rewards", "advantages", "old_logprobs", "ref_logprobs", "kl")
        assert len({len(row[name]) for name in per_token}) == 1
        assert (row["new_logprobs"] is not None) == (row["step"] in (1, 2))
        penalty = 0.0 if row["finished"] else -6.0  # on what is optimised, never on δ
        assert row["rewards"] == [*row["deltas"][:-1], row["deltas"][-1] + penalty]
        for token, (start, end) in zip(row["tokens"], row["spans"], strict=True):
            assert row["response"][start:end] == token or start == end
    first = [row for row in rollouts if row["step"] == 1]
    tokens = [delta for row in first for delta in row["deltas"]]
    assert metrics[0]["delta/mean"] == pytest.approx(sum(tokens) / len(tokens), rel=1e-5)
    assert metrics[0]["kl/full"] == pytest.approx(sum(sum(row["kl"]) for row in first) / 4, abs=1e-6)
    assert metrics[0]["verdict/mean"] == pytest.approx(sum(row["verdict"] for row in first) / 4, abs=1e-4)
    assert metrics[0]["missing/mean"] == pytest.approx(sum(len(row["missing"]) for row in first) / 4)
    assert list((run / "tracking").rglob("events.out.tfevents.*"))

    assert set(load_file(run / "policy" / "value_head.safetensors")) == {"weight", "bias"}
    adapter = load_file(run / "policy" / "adapter_model.safetensors")
    assert adapter and all("lora_" in name for name in adapter)
    ids = torch.tensor([[5, 6, 7, 8]])
    base = AutoModelForCausalLM.from_pretrained(config.model, dtype=torch.float32)
    plain = base(ids).logits
    policy = PeftModel.from_pretrained(base, run / "policy").eval()
    assert not torch.allclose(policy(ids).logits, plain)
    card = (run / "policy" / "README.md").read_text()
    assert "slf5k" in card and "programmatic" in card and f"{metrics[-1]['delta/mean']:+.3f}" in card
    assert "value_head.safetensors" in card


def test_the_words_that_ask_the_policy_are_a_file_that_goes_with_it(tmp_path, capsys):
    """They are in its input, in its folder, and in what it is asked later; a small model at 8B's rate is told so."""
    (tmp_path / "ask.txt").write_text("For $$5, and in one line:\n${prompt}\n")
    config = tiny_config(tmp_path, policy_prompt=str(tmp_path / "ask.txt"), learning_rate=1e-6, max_steps=1)
    run = optimize("slf5k", config, ScriptedRewards())
    assert "small.yaml" in capsys.readouterr().out
    asked = run.tokenizer.decode(encoded_prompts(run)[0])
    assert "For $5, and in one line:\nMy" in asked and "ummar" not in asked
    kept, chats = run.run / "policies" / "1", []  # of its checkpoint
    policy = LocalPolicy(str(kept), "float32", "cpu")
    token_ids = policy.token_ids
    policy.token_ids = lambda chat: chats.append(chat[-1]["content"]) or token_ids(chat)
    wanted = GenerateConfig(task="slf5k", data_path=config.data_path, output_path=str(tmp_path / "answers.json"))
    generate(policy, load_records(config.data_path, run.task, responses=False), wanted, SamplingConfig(4))
    assert chats and all(chat.startswith("For $5, and in one line:\n") for chat in chats)
    for name in ("policy_prompt.txt", "tokenizer.json", "chat_template.jinja"):  # an adapter's base may lack the two
        assert (kept / name).read_bytes() == (run.run / "policy" / name).read_bytes()
    merge(MergeConfig(model=str(kept), output_dir=str(tmp_path / "merged")))
    assert carried_words(str(tmp_path / "merged"))
    (tmp_path / "ask.txt").write_text("In one line, please.")
    with pytest.raises(InputError, match=r"ask.txt: lacks \$\{prompt\}"):
        optimize("slf5k", replace(config, output_dir=str(tmp_path / "other")), ScriptedRewards())


@pytest.mark.parametrize("family", ["mistral", "qwen3", "gemma2", "gpt2"])
def test_any_causal_lm_trains(tmp_path, family):
    trainer = optimize("slf5k", tiny_config(tmp_path, family=family, max_steps=1), ScriptedRewards())
    row = trainer.metrics_log.rows()[0]
    assert row["grad_norm"] > 0 and abs(row["kl/full"]) < 1e-3
    weights = [p for name, p in trainer.learner.scorer.named_parameters() if "lora_B" in name]
    assert all(weight.abs().max() > 0 for weight in weights)


def test_a_reference_of_its_own_goes_where_the_policy_computes(tmp_path):
    """The meta device stands for a GPU: whoever forgets to move the reference there leaves it on the CPU."""
    policy = make_policy(tiny_config(tmp_path, lora_r=0), torch.device("meta"))
    with policy._as_reference() as reference:
        assert {weight.device.type for weight in reference.parameters()} == {"meta"}


def test_learning_raises_the_reward(tmp_path):
    """Thirty of the 596 tokens are rewarded: in 25 steps their share of the samples must rise from 5 % to most."""
    likes = ScriptedRewards(worth=lambda token: float(30 <= token < 60))
    config = tiny_config(tmp_path, max_steps=25, rollouts_per_device=8, micro_batch_size=8, lora_r=0)
    config.kl_coef, config.kl_target, config.lr_schedule = 0.0, None, "constant"
    metrics = optimize("slf5k", config, likes).metrics_log.rows()
    early, late = (sum(row["delta/mean"] for row in part) / 5 for part in (metrics[:5], metrics[-5:]))
    assert early < 0.15 and late > 0.5
    assert metrics[-1]["kl/full"] > 1


def test_samples_are_the_ids_with_their_end_and_nothing_after(tmp_path):
    trainer = prepare("slf5k", tiny_config(tmp_path, max_new_tokens=30), ScriptedRewards())
    end = trainer.tokenizer.eos_token_id
    head = trainer.learner.scorer.base.get_output_embeddings()
    with torch.no_grad():  # make the end likely enough that some samples reach it
        head.register_forward_hook(lambda *args: args[2] + 4.0 * torch.nn.functional.one_hot(torch.tensor(end), 596))
    torch.manual_seed(0)
    (rollouts,) = trainer.collector.sample(["post-0", "post-1", "post-2", "post-3"] * 8)
    assert {rollout.finished for rollout in rollouts} == {True, False}
    for rollout in rollouts:
        ids = rollout.response_ids
        assert end not in ids[:-1]
        assert rollout.finished == (ids[-1] == end)
        assert rollout.finished or len(ids) == 30
        assert rollout.response == trainer.tokenizer.decode(ids, skip_special_tokens=True)
        assert len(rollout.tokens) == len(ids)


def test_sampling_is_from_the_distribution_that_is_scored(tmp_path):
    """Over 1 500 first tokens at temperature 1.3, frequencies follow exp(log π), although the model itself asks for
    top-k 2, top-p and a repetition penalty."""
    config = tiny_config(tmp_path, max_new_tokens=1, temperature=1.3, generation="transformers")
    model = AutoModelForCausalLM.from_pretrained(config.model)
    model.lm_head.weight.data *= 60  # a peaked distribution: the likely tokens are then seen often enough to count
    model.generation_config.update(do_sample=True, top_k=2, top_p=0.5, repetition_penalty=1.5)
    model.save_pretrained(config.model)
    trainer = prepare("slf5k", config, ScriptedRewards())
    torch.manual_seed(0)
    (rollouts,) = trainer.collector.sample(["post-0"] * 1500)
    counts = Counter(rollout.response_ids[0] for rollout in rollouts)
    distinct = list({rollout.response_ids[0]: rollout for rollout in rollouts}.values())
    scored = trainer.collector.score(distinct).old_logprobs[:, 0].exp().tolist()
    probabilities = {rollout.response_ids[0]: each for rollout, each in zip(distinct, scored, strict=True)}
    likely = {token: p for token, p in probabilities.items() if p > 0.005}
    assert len(distinct) > 30 and len(likely) > 10
    for token, p in likely.items():
        assert abs(counts[token] / 1500 - p) < 4.5 * math.sqrt(p * (1 - p) / 1500)
    assert sum(probabilities.values()) == pytest.approx(1, abs=0.1)  # what was never drawn is unlikely


def test_every_prompt_has_its_turn_before_any_comes_again(tmp_path, monkeypatch):
    shuffle, shuffled = schedule.permutation, []
    monkeypatch.setattr(schedule, "permutation", lambda *args: shuffled.append(args) or shuffle(*args))
    config = tiny_config(tmp_path, rollouts_per_device=4, rollouts_per_prompt=2)
    trainer = prepare("slf5k", config, ScriptedRewards())
    steps = [trainer.collector.prompts_of(step) for step in range(1, 6)]
    assert all(ids[0] == ids[1] and ids[2] == ids[3] for ids in steps)
    order = [ids[index] for ids in steps for index in (0, 2)]
    assert sorted(order[:5]) == sorted(order[5:]) == sorted(trainer.collector.records)
    assert len(shuffled) == 1 + 1 + 2 + 1 + 1  # passes that each step has a part of
    assert trainer.total_steps == 2
    config.max_steps, config.epochs = -1, 4
    assert trainer.total_steps == 10


def test_a_broken_loss_stops_the_run_and_keeps_the_batch(tmp_path):
    trainer = prepare("slf5k", tiny_config(tmp_path), ScriptedRewards())
    whole = trainer.algorithm.advantages

    def poisoned(batch):
        advantages = whole(batch)
        advantages[1, 0] = float("nan")
        return advantages

    trainer.algorithm.advantages = poisoned
    with pytest.raises(StopRunError, match=r"step 1: .*nan.*broken-batch-1-rank0.pt"):
        trainer.train()
    (path,) = trainer.run.glob("broken-batch-*.pt")
    batch = torch.load(path)
    assert any(row["advantages"].isnan().any() for row in batch)
    assert not list(trainer.run.glob("checkpoint-*"))
    trainer.algorithm.advantages, trainer.learner.grad_norm_limit = whole, 1e-9
    with pytest.raises(StopRunError, match="broken-batch-1"):
        trainer.train()


def test_of_a_model_that_sees_only_what_reads_is_trained(tmp_path):
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
    text = {**sizes, "num_hidden_layers": 2, "head_dim": 8, "vocab_size": len(tokenizer("byte"))}
    sight = {**sizes, "num_hidden_layers": 1, "image_size": 28, "patch_size": 14}
    about = AutoConfig.for_model("gemma3", text_config=text, vision_config=sight, mm_tokens_per_image=4)
    AutoModelForCausalLM.from_config(about).save_pretrained(tmp_path / "seeing")
    tokenizer("byte").save_pretrained(tmp_path / "seeing")
    config = tiny_config(tmp_path, model=str(tmp_path / "seeing"), lora_target_modules=["all-linear"])
    own = [name for name, weight in make_policy(config, torch.device("cpu")).named_parameters() if weight.requires_grad]
    assert own and not any("vision" in name for name in own)


def test_a_reward_that_is_no_number_is_laid_at_its_sources_door(tmp_path):
    class Broken(ScriptedRewards):
        name = "mine"

        def __call__(self, rollouts):
            return [replace(each, rewards=[math.nan] * len(each.rewards)) for each in super().__call__(rollouts)]

    with pytest.raises(RuntimeError, match=r"post-.*: mine gave .* one that is not finite"):
        optimize("slf5k", tiny_config(tmp_path), Broken())


@pytest.mark.parametrize(
    ("optimizer", "room", "fits"), [("adafactor", 3, True), ("adamw", 3, False), ("adamw", 6, True)]
)
def test_a_checkpoint_wants_the_room_that_its_optimiser_takes(tmp_path, monkeypatch, optimizer, room, fits):
    """In sizes of the trained weights."""
    trainer = prepare("slf5k", tiny_config(tmp_path, optimizer=optimizer, max_steps=1), ScriptedRewards())
    free = SimpleNamespace(free=room * trainable_bytes(trainer.learner.scorer))
    monkeypatch.setattr("shutil.disk_usage", lambda _: free)
    with nullcontext() if fits else pytest.raises(InputError, match="no space for checkpoint-1: "):
        trainer.train()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"patience": 3}, "--patience is no setting"),
        ({"max_steps": 0}, "--max_steps 0: give 1 or more"),
        ({"teacher": "all", "algorithm": "steps"}, "--teacher is no setting of --algorithm steps"),
        ({"algorithm": "sdpo", "deepspeed": "zero.json"}, "--teacher_weights average"),
        ({"teacher": "all", "algorithm": "verdict_teacher"}, "--teacher all learns from no verdict"),
        ({"algorithm": "sdpo", "teacher_alpha": 1.5}, "--teacher_alpha must be at most 1"),
        ({"audit_share": 0.0}, "--audit_share must be above 0"),
        ({"audit_share": 1.5}, "at most 1"),
        ({"audit_flip_limit": 0.1}, "--audit_flip_limit does nothing without --audit_critic"),
        ({"audit_gap_limit": 0.1}, "--audit_gap_limit does nothing without --audit_critic"),
        ({"audit_critic": "programmatic", "audit_prompt": "p.txt"}, "without an endpoint as --audit_critic"),
        ({"critic_expected_verdict": True}, "--critic_expected_verdict does nothing without a reward model's folder"),
        ({"critic_prompt": "p.txt"}, "--critic_prompt does nothing without an endpoint as --critic"),
        ({"critic_variant": "cot"}, "leave --critic_variant out"),
        ({"vllm_url": ["http://h:1"]}, "--vllm_url does nothing without --generation vllm_server"),
        ({"critic": "http://h:1/v1#m", "critic_votes": 2}, "--critic_temperature"),
        ({"critic_votes": 2}, "--critic_votes needs a folder or an endpoint"),
        ({"critic_temperature": 0.7}, "without an endpoint as --critic, or --critic_votes"),
        ({"critic_max_new_tokens": 9}, "leave --critic_max_new_tokens out"),
        ({"critic": "http://h:1/v1#m", "critic_variant": "human_feedback"}, "record's response, not about new ones"),
        ({"critic": "http://h:1/v1#m", "critic_variant": "dense"}, "ignores the scores of --critic_variant dense"),
        ({"algorithm": "second", "rollouts_per_prompt": 4}, "half"),
        ({"algorithm": "second", "critique": False}, "--critique false leaves --algorithm second nothing to read"),
        ({"algorithm": "second", "generation": "vllm_server", "vllm_url": ["http://h:1"]}, "--generation auto"),
        ({"algorithm": "prime"}, "--rollouts_per_prompt"),
        ({"algorithm": "verdict", "rollouts_per_device": 1, "micro_batch_size": 1}, "set --rollouts_per_device to 2"),
        ({"kl_target": -1.0}, "--kl_target must be at least 0"),
        ({"learning_rate": float("nan")}, "--learning_rate nan: must be a finite number"),
        ({"gamma": float("inf")}, "--gamma inf: must be a finite number"),
        ({"algorithm": "steps", "critic_votes": 3, "critic_temperature": 0.7}, "leave --critic_votes out"),
        ({"optimizer": "adafactor", "deepspeed": "zero2.json"}, "leave out --optimizer, or --deepspeed"),
        ({"kl": "k2"}, "--kl 'k2' does not exist; choose one of k1, abs, mse, k3, full"),
        ({"rollouts_per_device": 5}, "cannot be divided by --minibatches times --micro_batch_size"),
        ({"lora_r": 0, "dtype": "bf16"}, "--dtype bfloat16: full weights train in float32, or with --deepspeed"),
        ({"rollouts_per_prompt": 3}, "cannot be divided by --rollouts_per_prompt"),
        ({"model": ""}, "--model is missing"),
        ({"seed": -1}, "--seed must be at least 0"),
        ({"seed": 2**64}, "--seed must be below"),
        ({"rollouts_per_device": 10**12}, "--rollouts_per_device must be at most"),
        ({"max_prompt_tokens": 3}, "every prompt is longer than --max_prompt_tokens 3"),
        ({"max_new_tokens": 2048}, "reads 2048 tokens at most, and the longest sequence has"),
        ({"lora_target_modules": ["nothing"]}, "--lora_target_modules: Target modules"),
        ({"data_path": "nowhere.json"}, "no such file"),
        ({"model": "./nowhere"}, "no such model folder"),
        ({"critic": "./nowhere"}, "nowhere"),
        ({"family": "gpt2", "generation": "decoder"}, "--generation transformers"),
    ],
)
def test_settings_that_cannot_work_are_refused(tmp_path, settings, message):
    with pytest.raises(InputError, match=message.replace("(", r"\(")):
        optimize("slf5k", tiny_config(tmp_path, **settings))
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_long_prompts_are_left_out_and_named(tmp_path, monkeypatch, capsys):
    trainer = prepare("slf5k", tiny_config(tmp_path, max_prompt_tokens=130), ScriptedRewards())
    assert 0 < len(trainer.collector.records) < 5
    said = capsys.readouterr().out
    assert f"{5 - len(trainer.collector.records)} of 5 prompts are longer" in said and "(post-3)" in said
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "host"}.items():
        monkeypatch.setenv(name, value)
    config = replace(trainer.config, max_prompt_tokens=110)
    kept = short_enough(trainer.collector.records, trainer.task, trainer.tokenizer, config)
    assert len(kept) == 2 and not capsys.readouterr().out  # the first rank says it


def test_learning_rate_schedules():
    def shares(schedule: str, total: int) -> list[float]:
        return [learning_rate_share(PolicyConfig(lr_schedule=schedule), update, total) for update in range(total)]

    assert shares("linear", 8) == pytest.approx([1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125])
    assert shares("cosine", 4) == pytest.approx([1.0, 0.5 + math.sqrt(0.125), 0.5, 0.5 - math.sqrt(0.125)])
    assert shares("constant", 2) == [1, 1]


def test_gradient_checkpointing_changes_memory_not_the_update(tmp_path):
    results = []
    for name, checkpointing in (("plain", False), ("checkpointed", True)):
        config = tiny_config(tmp_path, gradient_checkpointing=checkpointing, output_dir=str(tmp_path / name))
        trainer = optimize("slf5k", config, ScriptedRewards())
        assert trainer.learner.scorer.base.is_activation_checkpointing == checkpointing
        results.append(load_file(trainer.run / "policy" / "adapter_model.safetensors"))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)  # updates reach 0.025; the optimiser enlarges rounding


TEACHER = {"algorithm": "teacher", "teacher": "gate+distill", "teacher_weights": "average", "teacher_coef": 20.0}


def _one_update(folder: Path, name: str, ranks: int, stage: int | None, settings: dict) -> None:
    """One step on fixed responses of ragged lengths, one of them without a judgement; saves what came out of it.

    They are scored in one to three chunks: ranks that share a head have to use it equally often.
    """
    config = tiny_config(
        folder, output_dir=str(folder / name), max_steps=1, rollouts_per_device=4 // ranks, micro_batch_size=1,
        entropy_coef=0.01, max_grad_norm=0.5, **settings,
        deepspeed=str(STAGE / "deepspeed" / f"zero{stage}.json") if stage else "",
    )  # fmt: skip
    trainer = prepare("slf5k", config, SpokenRewards(silent=["post-0"], fail=["post-1"]))
    trainer.learner.scorer.chunk = 4
    # One prompt for each response, which takes the place of what would be sampled.
    trainer.collector.ids = trainer.collector.ids[:4]
    responses = ([7 * i + 3 * j + 5 for j in range(length)] for i, length in enumerate([3, 12, 1, 7]))
    answers = dict(zip(map(tuple, encoded_prompts(trainer)), responses, strict=True))
    trainer.collector.sampler.batches = lambda prompts: iter([([answers[tuple(ids)] for ids in prompts], None)])
    trainer.train()
    export(trainer)
    trainer.accelerator.end_training()


def updates(folder: Path, stage: int | None, settings: dict) -> list[dict[str, torch.Tensor]]:
    """The adapters that one process and two ranks end with."""
    tiny_config(folder)  # writes model and posts once
    assert run_ranks(_one_update, 1, folder, "one", 1, None, settings) == [0]
    assert run_ranks(_one_update, 2, folder, "two", 2, stage, settings) == [0, 0]
    names = ("policy", "checkpoint-1/policy", "policies/1")
    files = {(folder / "two" / name / "adapter_model.safetensors").read_bytes() for name in names}
    assert len(files) == 1  # a checkpoint can be evaluated, and its policy is kept
    return [load_file(folder / name / "policy" / "adapter_model.safetensors") for name in ("one", "two")]


def check_same_update(one: Path, two: Path) -> dict[str, float]:
    """The weights and figures of two runs of one step agree up to rounding; returns the figures."""
    first, second = (untimed(run / "metrics.jsonl")[0] for run in (one, two))
    assert second == {name: pytest.approx(value, rel=2e-4, abs=1e-6) for name, value in first.items()}
    for name in ("policy/adapter_model.safetensors", "value_head.safetensors"):
        expected, found = (load_file(run / "checkpoint-1" / name) for run in (one, two))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    return first


@pytest.mark.parametrize("settings", [{"optimizer": "adafactor"}, TEACHER], ids=["adafactor", "teacher"])
def test_two_ranks_make_the_update_of_one(tmp_path, settings):
    """Without DeepSpeed; with it, see the next two."""
    _, two = updates(tmp_path, None, settings)
    assert any(tensor.abs().max() > 1e-3 for name, tensor in two.items() if "lora_B" in name)
    first = check_same_update(tmp_path / "one", tmp_path / "two")
    assert first["critic/failures"] == 1
    if settings == TEACHER:
        assert first["teacher/unread"] == 2 and first["teacher/loss"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["text2grad", "verdict", "scalar", "steps"])
@pytest.mark.parametrize(
    ("stage", "optimizer"), [(None, "adafactor"), (None, "adamw"), (1, "adamw"), (2, "adamw"), (3, "adamw")]
)
def test_every_method_makes_the_update_of_one_in_every_way(tmp_path, algorithm, stage, optimizer):
    """After one update, which is lora_B, as that starts at zero; lora_A does not move.

    AdamW's first step is lr · g / (|g| + ε) with lr = 0.01 and ε = 1e-8. Where g is of the size of ε, and so of a
    gradient's rounding errors, the step is neither 0 nor lr: there the g behind it is compared. The whole g has norm
    0.5, or less.
    """
    one, two = updates(tmp_path, stage, {"algorithm": algorithm, "optimizer": optimizer, "ppo_epochs": 1})
    step, other = (torch.cat([each[name].flatten() for name in one if "lora_B" in name]) for each in (one, two))
    unclear = (step.abs() > 1e-4) & (step.abs() < 0.99e-2) & (optimizer == "adamw")
    assert step.abs().max() > 1e-4 and unclear.sum() < 0.005 * len(step)
    difference = other - step
    assert difference[~unclear].abs().max() < 1e-5 and difference[~unclear].norm() < 1e-4 * step.norm()
    gradient, found = (1e-8 * each[unclear].double() / (1e-2 - each[unclear].double().abs()) for each in (step, other))
    torch.testing.assert_close(found, gradient, rtol=0, atol=5e-9)
    others = [{name: weight for name, weight in each.items() if "lora_B" not in name} for each in (one, two)]
    torch.testing.assert_close(*others, rtol=0, atol=1e-5)


@pytest.mark.parametrize("stage", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_an_adapter_goes_on_training_on_two_ranks(tmp_path, stage):
    """Its frozen copy, the reference, is sharded beside it: the update has to be one process' all the same."""
    begun = optimize("slf5k", tiny_config(tmp_path, output_dir=str(tmp_path / "start")), ScriptedRewards()).run
    start = load_file(begun / "policy" / "adapter_model.safetensors")
    settings = {"model": str(begun / "policy"), "algorithm": "scalar", "learning_rate": 1e-3}
    one, _ = updates(tmp_path, stage, settings)
    assert one.keys() == start.keys() and max(float((one[name] - start[name]).abs().max()) for name in one) > 5e-4
    assert check_same_update(tmp_path / "one", tmp_path / "two")["critic/failures"] == 1


@pytest.mark.parametrize(
    "options",
    [{"target_modules": ["q_proj", "embed_tokens"]}, {"trainable_token_indices": [5, 6, 7]}, {"bias": "lora_only"}],
)
def test_an_adapter_begins_at_its_own_frozen_copy(tmp_path, options):
    """PEFT names what adapts an embedding unlike all else; biases are the base's own, so no copy of them is frozen."""
    made = get_peft_model(model(), LoraConfig(**{"target_modules": ["q_proj"], "task_type": "CAUSAL_LM", **options}))
    for parameter in filter(lambda each: each.requires_grad, made.parameters()):
        torch.nn.init.normal_(parameter, std=0.5)
    tiny_model(tmp_path / "model")
    made.peft_config["default"].base_model_name_or_path = str(tmp_path / "model")
    made.save_pretrained(tmp_path / "adapter")
    config = tiny_config(tmp_path, model=str(tmp_path / "adapter"))
    if "bias" in options:
        with pytest.raises(InputError, match="trains the base's biases"):
            make_policy(config, torch.device("cpu"))
        return
    policy, ids = make_policy(config, torch.device("cpu")), torch.arange(4, 28).view(2, 12)
    assert not any(weight.requires_grad for name, weight in policy.named_parameters() if "reference" in name)
    found = policy.eval()(ids, torch.ones_like(ids), torch.ones(2, 6), kl="full")
    assert not found.kl.any() and found.ref_logprobs.any()


def test_rescored_rollouts_tell_whether_the_update_obeyed_the_critique(tmp_path):
    config = tiny_config(
        tmp_path, max_steps=3, log_rollouts_every=1, lora_r=0, kl_coef=0.0, gamma=0.0, lr_schedule="constant"
    )
    trainer = optimize("slf5k", config, ScriptedRewards())
    for step, row in enumerate(trainer.metrics_log.rows(), 1):
        rollouts = [rollout for rollout in trainer.rollout_log.rows() if rollout["step"] == step]
        tokens = [zip(each["rewards"], each["new_logprobs"], each["old_logprobs"], strict=True) for each in rollouts]
        praised = [new - old for row in tokens for delta, new, old in row if delta > 0]
        assert row["effect/praised_rose"] == pytest.approx(sum(moved > 0 for moved in praised) / len(praised), abs=1e-6)
        assert row["effect/praised_moved"] == pytest.approx(sum(praised) / len(praised), rel=1e-3, abs=1e-6)
        assert row["effect/praised_moved"] > 0 > row["effect/criticised_moved"]


def test_a_sampler_that_leaves_prompts_out_is_noticed(tmp_path):
    trainer = prepare("slf5k", tiny_config(tmp_path), ScriptedRewards())
    trainer.collector.sampler.batches = lambda prompts: iter([([[5, 6]] * (len(prompts) - 1), None)])
    with pytest.raises(RuntimeError, match="no response to 1 of 4 prompts"):
        trainer.step(1)
