"""Train a critic, and log how good it is after so many annotated responses. A killed run goes on where it was.

python benchmarks/learnt_critics/make_responses.py --output_dir runs/learnt_critics
python benchmarks/learnt_critics/train_critic.py --study runs/learnt_critics --name evidence --critique evidence
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

import torch

from benchmarks.learnt_critics.annotated import Critique, annotated, load_responses
from benchmarks.learnt_critics.learning import (
    CriticInTraining,
    CriticSettings,
    batches,
    critic_tokenizer,
    encode,
    reward_prompt,
)
from benchmarks.learnt_critics.quality import examine
from benchmarks.micro.task import PROFILES
from nl_gradient_policy_optimization.rollouts import StepLog
from text2grad.configs import parse, setting
from text2grad.critics.reward_model.critic import RewardModelCritic
from text2grad.errors import InputError, command
from text2grad.records import load_json, save_json

STATE, SETTINGS = "state.pt", "settings.json"


@dataclass
class TrainCriticConfig:
    """A critic's training."""

    study: str = setting("runs/learnt_critics", "the folder that make_responses.py filled")
    name: str = setting("", "the critic's folder in it")
    responses: str = setting("responses", "what it learns from: responses, or first")
    base: str = setting("", "what it starts from: smollm2, or the study's starting policy if not given")
    critique: Critique = setting("evidence", "what stands before the quotes")
    layers: int = setting(0, "of the model that are kept, from the first; 0 keeps all")
    updates: int = setting(2000, "of the schedule: the rate falls in the last fifth")
    stop_after: int = setting(0, "end after so many updates; 0: after all")
    start_from: str = setting("", "another critic's folder, whose weights and optimiser it goes on with")
    batch: int = setting(16, "annotated responses of an update")
    learning_rate: float = setting(2e-3, "2e-3 for the small model, 5e-4 for SmolLM2")
    warmup: int = setting(100, "updates over which the rate rises")
    seed: int = setting(0, "of the order")
    examine_every: int = setting(250, "updates between examinations on held-out responses")
    keep: list[int] = field(default_factory=list, metadata={"help": "updates after which the critic is kept"})
    save_every: int = setting(250, "updates between saved states")

    def settings(self) -> CriticSettings:
        own = {item.name: getattr(self, item.name) for item in fields(CriticSettings)}
        return CriticSettings(**{**own, "base": self.base or str(Path(self.study) / "starting_policy")})


def train(config: TrainCriticConfig) -> None:
    """The critic's folder: ``curve.jsonl`` (its quality), ``loss.jsonl``, and ``critic-N`` after N updates."""
    if not config.name:
        raise InputError("--name is missing; see --help")
    study, settings = Path(config.study), config.settings()
    folder = study / config.name
    records = [annotated(record, settings.critique) for record in load_responses(study / f"{config.responses}.json")]
    held_out = [annotated(record, settings.critique) for record in load_responses(study / "held_out.json")]
    examples = encode(records, reward_prompt(critic_tokenizer(settings.base)))
    learner = resumed(CriticInTraining(settings, examples), folder, config)
    typical = [PROFILES.render_feedback(feedback) for record in records[:8] if (feedback := PROFILES.feedback(record))]
    curve, losses = StepLog(folder / "curve.jsonl"), StepLog(folder / "loss.jsonl")
    curve.rewind(learner.done)
    losses.rewind(learner.done)

    stream = batches(examples, settings.batch, settings.seed)
    for _ in range(learner.done):
        next(stream)
    end = config.stop_after or settings.updates
    recent, begun = [], time.process_time()
    while learner.done < end:
        recent.append(learner.update(next(stream)))
        done = learner.done
        if done % 10 == 0:
            seconds = round(time.process_time() - begun, 1)
            losses.append([{"step": done, "loss": round(sum(recent) / len(recent), 5), "processor": seconds}])
            recent = []
        if done % config.examine_every == 0 or done in config.keep or done == end:
            row = {"step": done, "seen": done * settings.batch, **examine(critic_of(learner, typical), held_out)}
            curve.append([row])
            if done in config.keep or done == end:
                learner.save(folder / f"critic-{done}", typical, row)
        if done % config.save_every == 0 or done == end:
            learner.save_state(folder / STATE)


def resumed(learner: CriticInTraining, folder: Path, config: TrainCriticConfig) -> CriticInTraining:
    """The learner as it was when it was last saved, or as the critic left it that it starts from.

    Raises:
        InputError: the folder holds a critic with other settings.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {**asdict(learner.settings), "responses": config.responses, "start_from": config.start_from}
    if (folder / SETTINGS).is_file() and load_json(folder / SETTINGS) != wanted:
        raise InputError(f"{folder}: holds a critic with other settings; choose another --name, or delete it")
    save_json(folder / SETTINGS, wanted)
    if (folder / STATE).is_file():
        learner.load_state(folder / STATE)
    elif config.start_from:
        learner.load_state(Path(config.start_from) / STATE)
    return learner


def critic_of(learner: CriticInTraining, typical: Sequence[str]) -> RewardModelCritic:
    """The critic as it is now."""
    return RewardModelCritic(
        learner.model.eval(),
        reward_prompt(learner.tokenizer),
        name="learnt",
        max_length=640,
        max_new_tokens=240,
        batch_size=32,
        constrained="quotes",
        examples=typical,
    )


@command
def main() -> None:
    torch.set_num_threads(1)
    train(parse(TrainCriticConfig))


if __name__ == "__main__":
    main()
