"""Train a small critic, or a scalar reward model, on fresh annotated responses. A killed run goes on where it was.

python benchmarks/learnt_critics/make_responses.py --output_dir runs/learnt_critics
python benchmarks/learnt_critics/train_small.py --study runs/learnt_critics --name worked --keep 500 1000 2000 3000
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from transformers import PreTrainedTokenizerFast

from benchmarks.learnt_critics.annotated import Critique, annotated, load_responses
from benchmarks.learnt_critics.learning import reward_prompt
from benchmarks.learnt_critics.quality import examine
from benchmarks.learnt_critics.small_learning import Examples, SmallInTraining, SmallSettings, critic_words
from benchmarks.micro.task import PROFILES
from nl_gradient_policy_optimization.baselines.scalar_model import ScalarDescription, ScalarModel
from nl_gradient_policy_optimization.rollouts import StepLog
from text2grad.configs import parse, setting
from text2grad.critics.reward_model.critic import RewardModelCritic, RewardModelDescription
from text2grad.errors import InputError, command
from text2grad.models import load_tokenizer
from text2grad.records import load_json, save_json
from text2grad.tasks import Record

STATE, SETTINGS, WORDS = "state.pt", "settings.json", "words"


@dataclass
class TrainSmallConfig:
    """A small model's training."""

    study: str = setting("runs/learnt_critics", "the folder that make_responses.py filled")
    name: str = setting("", "the model's folder in it")
    learns: Literal["z", "number"] = setting("z", "z: a critic; number: a scalar reward model")
    critique: Critique = setting("worked", "what stands before the quotes")
    layers: int = setting(4, "layers of the model")
    hidden: int = setting(128, "its width")
    heads: int = setting(4, "its attention heads")
    updates: int = setting(4000, "of the schedule: the rate falls in the last fifth")
    stop_after: int = setting(0, "end after so many updates; 0: after all")
    short: int = setting(560, "updates on short texts before those of every length")
    batch: int = setting(32, "annotated responses of an update")
    sampled: float = setting(0.4, "of the responses, the share that policies wrote")
    verdict_weight: float = setting(3.0, "of a verdict in the loss, beside any other word")
    learning_rate: float = setting(2e-3, "after the warm-up")
    warmup: int = setting(100, "updates over which the rate rises")
    seed: int = setting(0, "of the weights and the responses")
    keep: list[int] = field(default_factory=list, metadata={"help": "updates after which the model is kept"})
    save_every: int = setting(100, "updates between saved states")

    def settings(self) -> SmallSettings:
        return SmallSettings(**{item.name: getattr(self, item.name) for item in fields(SmallSettings)})


def train(config: TrainSmallConfig) -> None:
    if not config.name:
        raise InputError("--name is missing; see --help")
    study, settings = Path(config.study), config.settings()
    folder = study / config.name
    responses, held_out = load_responses(study / "responses.json"), load_responses(study / "held_out.json")
    sampled = [record for record in responses if not record["id"].startswith("corrupted")]
    policy_tokenizer = load_tokenizer(str(study / "starting_policy"))
    tokenizer = words_of(study, sampled)
    learner = resumed(SmallInTraining(settings, tokenizer), folder, config)
    examples = Examples(settings, tokenizer, policy_tokenizer, sampled)
    curve, losses = StepLog(folder / "curve.jsonl"), StepLog(folder / "loss.jsonl")
    curve.rewind(learner.done)
    losses.rewind(learner.done)
    end = config.stop_after or settings.updates
    recent, begun = [], time.process_time()
    while learner.done < end:
        recent.append(learner.update(examples.batch(learner.done)))
        done = learner.done
        if done % 20 == 0:
            seconds = round(time.process_time() - begun, 1)
            losses.append([{"step": done, "loss": round(sum(recent) / len(recent), 5), "processor": seconds}])
            recent = []
        if done in config.keep or done == end:
            row = {"step": done, "seen": done * settings.batch}
            row |= keep(learner, folder / f"critic-{done}", held_out, examples)
            curve.append([row])
        if done % config.save_every == 0 or done == end:
            learner.save_state(folder / STATE)


def words_of(study: Path, sampled: Sequence[Record]) -> PreTrainedTokenizerFast:
    """The critics' tokenizer, which all critics of a study share; made where it is missing."""
    if not (study / WORDS / "tokenizer.json").is_file():
        critic_words(sampled).save_pretrained(study / WORDS)
    return PreTrainedTokenizerFast.from_pretrained(study / WORDS)


def resumed(learner: SmallInTraining, folder: Path, config: TrainSmallConfig) -> SmallInTraining:
    """The learner as it was when it was last saved.

    Raises:
        InputError: the folder holds a model with other settings.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wanted = asdict(learner.settings)
    if (folder / SETTINGS).is_file() and load_json(folder / SETTINGS) != wanted:
        raise InputError(f"{folder}: holds a model with other settings; choose another --name, or delete it")
    save_json(folder / SETTINGS, wanted)
    if (folder / STATE).is_file():
        learner.load_state(folder / STATE)
    return learner


def keep(learner: SmallInTraining, folder: Path, held_out: Sequence[Record], examples: Examples) -> dict[str, Any]:
    """Saves the model, in the form that policies are trained with, and examines it."""
    model, settings = learner.model.eval(), learner.settings
    model.save_pretrained(folder)
    learner.tokenizer.save_pretrained(folder)
    if settings.learns == "number":
        return keep_scalar(learner, folder, held_out, examples)
    typical = [
        PROFILES.render_feedback(feedback)
        for record in held_out[:8]
        if (feedback := PROFILES.feedback(annotated(record, settings.critique)))
    ]
    prompt = reward_prompt(learner.tokenizer)
    critic = RewardModelCritic(
        model,
        prompt,
        name="learnt",
        max_length=640,
        max_new_tokens=300,
        batch_size=32,
        constrained="quotes",
        examples=typical,
    )
    found = examine(critic, [annotated(record, settings.critique) for record in held_out], examples.policy_tokenizer)
    RewardModelDescription(
        task=PROFILES.name,
        base_model=str(folder.name),
        prompt_max_length=400,
        max_length=640,
        max_new_tokens=300,
        shorten="none",
        examples=typical,
        settings=asdict(settings),
        metrics=found,
    ).save(folder, prompt.prompt)
    return found


def keep_scalar(
    learner: SmallInTraining, folder: Path, held_out: Sequence[Record], examples: Examples
) -> dict[str, Any]:
    """Saves a scalar model, whose scores are standardised over a pool of responses like those it learnt from."""
    learner.model.config.pad_token_id = learner.tokenizer.pad_token_id
    scorer = ScalarModel(learner.model, learner.tokenizer, PROFILES, 64)
    rows = examples.encode(held_out)
    scores = scorer.score_ids([x for x, _, _ in rows])
    usual = scorer.score_ids([x for batch in examples.draw(-1) for x, _, _ in batch])
    found = {"correlation": round(float(np.corrcoef(scores, [value for _, _, value in rows])[0, 1]), 4)}
    ScalarDescription(PROFILES.name, "float32", float(np.mean(usual)), float(np.std(usual)), found).save(folder)
    return found


@command
def main() -> None:
    torch.set_num_threads(1)
    train(parse(TrainSmallConfig))


if __name__ == "__main__":
    main()
