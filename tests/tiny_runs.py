"""Stage 3 on a tiny random model: settings, posts and reward sources that make a run take seconds."""

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

import pytest
import torch

from nl_gradient_policy_optimization.batch import Batch
from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.optimize import optimize, prepare
from nl_gradient_policy_optimization.rollouts import Rollout, RolloutFeedback, encode_prompt
from nl_gradient_policy_optimization.trainer import NLGradientTrainer
from tests.processes import ROOT, flags
from tests.tiny import tiny_model
from text2grad.journal.checksums import checksums
from text2grad.records import fingerprint, save_json

STAGE = ROOT / "nl_gradient_policy_optimization"
POSTS = [
    "My sister borrowed my car and got a parking ticket. Should I make her pay?",
    "My boss told me that I would not get the raise. I have worked there for three years. Do I leave?",
    "Our dog barks all night and we can't sleep.",
    "I forgot my best friend's birthday, and now she does not answer. What should I write to her?",
    "My roommate never washes the dishes.",
]


def tiny_settings(folder: Path, family: str = "llama", **settings) -> dict:
    """Of a run of four short rollouts a step on a random model of ``family``, all under ``folder``."""
    model, posts = folder / f"tiny-{family}", folder / "posts.json"
    save_json(posts, {f"post-{index}": {"post": post} for index, post in enumerate(POSTS)})
    defaults = {
        "model": str(model) if model.exists() else tiny_model(model, family), "data_path": str(posts),
        "output_dir": str(folder / "run"), "max_steps": 2, "lora_dropout": 0.0, "dtype": "float32",
        "rollouts_per_device": 4, "micro_batch_size": 2, "ppo_epochs": 2, "max_new_tokens": 8, "optimizer": "adamw",
        "learning_rate": 1e-2, "log_rollouts_every": 0, "report_to": ["none"],
    }  # fmt: skip
    return {**defaults, **settings}


def tiny_config(folder: Path, family: str = "llama", **settings) -> PolicyConfig:
    return PolicyConfig.of(**tiny_settings(folder, family, **settings))


def tiny_flags(folder: Path, **settings) -> list[str]:
    """The same as they are typed; the programmatic critic judges."""
    return flags(**tiny_settings(folder, **{"critic": "programmatic", "report_to": "none", **settings}))


def encoded_prompts(trainer: NLGradientTrainer) -> list[list[int]]:
    """The policy's inputs for the trainer's prompts."""
    prompts = [trainer.task.prompt(trainer.collector.records[key]) for key in trainer.collector.ids]
    return [encode_prompt(prompt, trainer.task, trainer.tokenizer) for prompt in prompts]


def ready_batch(trainer: NLGradientTrainer, rollouts: Sequence[Rollout]) -> Batch:
    """Sampled rollouts as a step has them before its updates: scored, judged, with advantages."""
    batch = trainer.collector.score(rollouts)
    trainer.receive(batch, trainer.rewards(batch.rollouts))
    return trainer.credit(trainer.algorithm.on_batch(batch))


def _sign(token: int) -> float:
    return hashlib.sha256(str(token).encode()).digest()[0] % 3 - 1.0


class ScriptedRewards:
    """Token rewards that only the sampled ids decide; keeps what it was ``asked``.

    Args:
        fail: posts without a judgement.
        worth: the reward of a token: −1, 0 or 1.
    """

    name = "scripted"

    def __init__(self, fail: Sequence[str] = (), worth: Callable[[int], float] = _sign, remote: bool = False):
        self.fail, self.worth, self.remote, self.asked = set(fail), worth, remote, []

    def __call__(self, rollouts: Sequence[Rollout]) -> list[RolloutFeedback]:
        self.asked.append(rollouts)
        return [
            RolloutFeedback(rewards=[0.0] * len(rollout.response_ids), error="no reply")
            if rollout.id in self.fail
            else RolloutFeedback(rewards=[self.worth(token) for token in rollout.response_ids])
            for rollout in rollouts
        ]


class SpokenRewards(ScriptedRewards):
    """Scripted labels, their mean as verdict, a poor quote, and a critique of posts that are not ``silent``."""

    def __init__(self, silent: Sequence[str] = (), **settings):
        super().__init__(**settings)
        self.silent = silent

    def __call__(self, rollouts: Sequence[Rollout]) -> list[RolloutFeedback]:
        given = super().__call__(rollouts)
        for each, rollout in zip(given, rollouts, strict=True):
            each.critique = "" if rollout.id in self.silent else f"It forgets {rollout.prompt[:9]}"
            each.poor, each.deltas = [rollout.response[-2:]], each.rewards
            each.score, each.score_source = fmean(each.rewards), "given"
        return given


def rows(path: Path) -> list[dict]:
    """The lines of a JSONL log, every one of them strict JSON."""
    return [json.loads(line, parse_constant=pytest.fail) for line in path.read_text(encoding="utf-8").splitlines()]


def cut_after_one_step(config: PolicyConfig, rewards) -> NLGradientTrainer:
    """A run that ends after its first step and is then continued to its last."""
    half = prepare("slf5k", config, rewards)
    half.resume()
    half.step(1)
    half.save()
    return optimize("slf5k", config, rewards)


def check_same_weights(one: NLGradientTrainer, two: NLGradientTrainer) -> None:
    """The policies of two runs are one, to the last bit."""
    weights = [dict(trainer.learner.scorer.named_parameters()) for trainer in (one, two)]
    torch.testing.assert_close(*weights, rtol=0, atol=0)


def untimed(path: Path) -> list[dict]:
    """The figures of each step, without its times."""
    return [{name: value for name, value in row.items() if "seconds" not in name} for row in rows(path)]


def digest(run: Path, steps: int) -> dict[str, str]:
    """Hashes of what a run has computed; only the clock may differ."""
    checkpoint = run / f"checkpoint-{steps}"
    files = [checkpoint / "policy" / "adapter_model.safetensors", checkpoint / "value_head.safetensors"]
    files += [run / "policy" / "adapter_model.safetensors", run / "rollouts.jsonl"]
    optimizers = [torch.load(checkpoint / name, weights_only=True) for name in ("optimizer.pt", "value_optimizer.pt")]
    states = [state for optimizer in optimizers for state in optimizer["state"].values()]
    return {
        **checksums(run, files),
        "optimizers": fingerprint([{key: torch.as_tensor(each).tolist() for key, each in s.items()} for s in states]),
        "metrics": fingerprint(untimed(run / "metrics.jsonl")),
    }
