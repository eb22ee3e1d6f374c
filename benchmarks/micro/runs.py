"""One run: a method, a learning rate and a seed, from the starting policy to the curve of its quality."""

import random
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.micro.critic import ProfileCritic
from benchmarks.micro.methods import method_of
from benchmarks.micro.noise import NoisyCritic
from benchmarks.micro.protocol import HeldOutEvaluation, Protocol
from benchmarks.micro.task import PROFILES, make_record
from benchmarks.micro.trl_trainers import train_grpo
from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.learner import BrokenUpdateError
from nl_gradient_policy_optimization.optimize import prepare
from nl_gradient_policy_optimization.rewards import CriticRewards
from text2grad.critics import Critic
from text2grad.models import load_tokenizer
from text2grad.records import check_same_settings, fingerprint, load_json, save_json

RESULT = "result.json"


@dataclass(frozen=True)
class Materials:
    """What all runs start from: the policy's folder, and the training prompts' file."""

    base: str
    prompts: str


def training_prompts(path: Path, count: int, notes: int = 0) -> str:
    rng = random.Random("training prompts")
    save_json(path, [make_record(rng, number, notes) for number in range(count)])
    return str(path)


def run_method(
    name: str, learning_rate: float, seed: int, folder: Path, materials: Materials, protocol: Protocol
) -> dict[str, Any]:
    """The run's result, from its folder where it has finished; a run that was cut short starts again.

    Raises:
        InputError: the folder holds a run with other settings.
    """
    settings = {"method": name, "learning_rate": learning_rate, "seed": seed, "protocol": protocol.described()}
    settings["base"] = fingerprint(load_json(Path(materials.base) / "base.json"))
    if (folder / RESULT).is_file():
        result = load_json(folder / RESULT)
        check_same_settings(folder, result["settings"], settings, "choose another --output_dir, or delete it")
        return result
    shutil.rmtree(folder, ignore_errors=True)
    method = method_of(name)
    config = config_of(name, learning_rate, seed, folder, materials, protocol)
    begun, processor = time.perf_counter(), time.process_time()
    critic: Critic = ProfileCritic(protocol.praises)
    if method.noise:
        critic = NoisyCritic(critic, *method.noise, seed=seed)
    curve = (train_grpo if method.trl else train_text2grad)(config, critic, protocol)
    result = {
        "settings": settings,
        "curve": curve,
        "seconds": round(time.perf_counter() - begun, 2),
        "processor_seconds": round(time.process_time() - processor, 2),
    }
    (folder / "rollouts.jsonl").unlink(missing_ok=True)  # megabytes; no figure needs them
    save_json(folder / RESULT, result)
    return result


def config_of(
    name: str, learning_rate: float, seed: int, folder: Path, materials: Materials, protocol: Protocol
) -> PolicyConfig:
    """Text2Grad's settings with the method's changes.

    There is no KL penalty unless the study asks for one: one coefficient weighs differently against each placement's
    reward. The value head's clip is off, since it holds back the returns of a reward that is summed on one token.
    """
    settings = {
        "model": materials.base,
        "data_path": materials.prompts,
        "output_dir": str(folder),
        "method": name,
        "seed": seed,
        "dtype": "float32",
        "lora_r": 0,
        "max_steps": protocol.steps,
        "rollouts_per_device": protocol.rollouts,
        "micro_batch_size": protocol.rollouts,
        "ppo_epochs": protocol.epochs,
        "max_new_tokens": protocol.max_response_tokens,
        "optimizer": "adamw",
        "learning_rate": learning_rate,
        "lr_schedule": "constant",
        "value_learning_rate": protocol.value_learning_rate,
        "value_clip_range": None,
        "kl": "k3",
        "kl_coef": protocol.kl_coef,
        "kl_target": None,
        "generation": protocol.generation,
        "log_rollouts_every": 0,
        "report_to": ["none"],
    }
    return PolicyConfig.of(**{**settings, **method_of(name).settings})


def train_text2grad(config: PolicyConfig, critic: Critic, protocol: Protocol) -> list[dict[str, float]]:
    """The project's trainer, step by step, without its checkpoints. A run whose update breaks has 0 from there on."""
    tokenizer = load_tokenizer(config.model)
    trainer = prepare(PROFILES, config, CriticRewards(critic, PROFILES, config))
    evaluate = HeldOutEvaluation(tokenizer, config, protocol)
    curve = [evaluate(trainer.learner.scorer.model, 0)]
    broken = False
    for step in range(1, protocol.steps + 1):
        if not broken:
            try:
                trainer.step(step)
            except BrokenUpdateError as error:
                print(f"{config.method}, learning rate {config.learning_rate:g}, seed {config.seed}: {error}")
                broken = True
        if step % protocol.evaluate_every == 0:
            nothing = dict.fromkeys(curve[0], 0.0) | {"step": step}
            curve.append(nothing if broken else evaluate(trainer.learner.scorer.model, step))
    return curve
