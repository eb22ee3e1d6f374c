"""The natural-language reward model of the synthetic task: stage 2 trains it on the program's feedback.

It starts from the policy's weights and learns to write z = [critique; good spans; poor spans] of the same pairs that
the scalar reward model ranks, or, for the ablation, z with a dash in place of the critique.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from benchmarks.micro.critic import ProfileCritic
from benchmarks.micro.task import PROFILES
from nl_gradient_policy_optimization.baselines.preferences import Pair
from nl_reward_model.config import RewardModelConfig
from nl_reward_model.train_rm import train
from text2grad.critics.reward_model.critic import DESCRIPTION_FILE, RewardModelCritic
from text2grad.records import save_json
from text2grad.tasks import Record

PROMPT_FILE = Path(__file__).with_name("reward_model_prompt.txt")
NO_CRITIQUE = "-"


def train_nl_reward_model(folder: Path, base: str, pairs: Iterable[Pair], critique: bool, steps: int) -> str:
    """The trained model's folder; a finished model is not trained again.

    Args:
        base: the starting policy's folder; notes, response and z share its 512 tokens.
        critique: whether it writes a critique before the spans.
        steps: updates, of eight annotated responses each.
    """
    if (folder / DESCRIPTION_FILE).is_file():
        return str(folder)
    path = folder.with_name(f"{folder.name}-annotations.json")
    save_json(path, annotated_records(pairs, critique))
    config = RewardModelConfig(
        data_path=str(path),
        model=base,
        output_dir=str(folder),
        prompt=str(PROMPT_FILE),
        max_prompt_tokens=200,
        max_length=512,
        lora=False,
        dtype="float32",
        learning_rate=2e-3,
        warmup_steps=100,
        max_steps=steps,
        per_device_train_batch_size=8,
        per_device_eval_batch_size=64,
        train_sampling_strategy="group_by_length",
        feedback_records=0,
        gradient_checkpointing=False,
        report_to="none",
        save_strategy="no",
        logging_steps=200,
        disable_tqdm=True,
    )
    train(PROFILES.name, config)
    return str(folder)


def annotated_records(pairs: Iterable[Pair], critique: bool = True) -> list[Record]:
    """Both responses of each pair with the program's feedback, as records of stage 2."""
    critic, records = ProfileCritic(), []
    for pair in pairs:
        for side, response in (("chosen", pair.chosen), ("rejected", pair.rejected)):
            record = PROFILES.with_response(record_of(pair.prompt, f"{pair.id}-{side}"), response)
            feedback = replace(critic.feedback_on(record, response), scores=[])
            if not critique:
                feedback = replace(feedback, critique=NO_CRITIQUE)
            records.append(PROFILES.with_feedback(record, feedback, {"source": critic.name}))
    return records


def record_of(prompt: str, record_id: str) -> Record:
    """The record whose prompt this is."""
    notes = dict(line.split(": ") for line in prompt.splitlines())
    return {"id": record_id, "name": notes.pop("Name"), "notes": notes}


def load_reward_model(folder: str) -> RewardModelCritic:
    """The trained model as a critic: greedy, and every span a quote of the response."""
    return RewardModelCritic.load(folder, PROFILES, device="cpu", dtype="float32", batch_size=64, constrained="quotes")
