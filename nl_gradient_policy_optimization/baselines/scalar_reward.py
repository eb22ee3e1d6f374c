"""Train a scalar reward model by pairwise ranking on chosen and rejected pairs (``pairs.py``).

    python nl_gradient_policy_optimization/baselines/scalar_reward.py --task slf5k --data_path pairs.json \\
        --output_dir runs/scalar_reward

``run.sh ppo slf5k --reward_model runs/scalar_reward`` then trains a policy on its score.
"""

from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from datasets import Dataset
from transformers import set_seed
from trl import RewardConfig, RewardTrainer

from nl_gradient_policy_optimization.baselines import LAUNCHER
from nl_gradient_policy_optimization.baselines.finetuning import FineTuning, Row, fine_tune
from nl_gradient_policy_optimization.baselines.pairs import load_pairs
from nl_gradient_policy_optimization.baselines.scalar_model import ScalarDescription, ScalarModel, load_classifier
from text2grad.configs import parse, setting
from text2grad.errors import command
from text2grad.tasks import get_task
from text2grad.tasks.commands import quoted


@dataclass
class ScalarRewardSettings(FineTuning, RewardConfig):
    """Settings of the scalar reward model."""

    disable_dropout: bool = setting(False, "turn the adapter's dropout off, too, whatever --lora_dropout says")


def example(prompt: list[int], chosen: list[int], rejected: list[int]) -> Row:
    return {"chosen_ids": prompt + chosen, "rejected_ids": prompt + rejected}


def train(config: ScalarRewardSettings) -> None:
    """Train, and leave a folder that says how its scores are standardised."""
    task = get_task(config.task)

    def make(**options: Any) -> RewardTrainer:
        set_seed(config.seed)  # the reward head starts at random
        adapter = config.adapter(task_type="SEQ_CLS", modules_to_save=["score"])
        model = load_classifier(config.model, config.weights_dtype)
        return RewardTrainer(model=model, peft_config=adapter, **options)

    def describe(trainer: Any, training: Dataset, measures: dict[str, float]) -> None:
        scorer = ScalarModel(trainer.model, trainer.processing_class, task, config.per_device_eval_batch_size)
        scores = scorer.score_ids([ids for pair in training for ids in pair.values()])
        dtype = str(config.weights_dtype).removeprefix("torch.")
        description = ScalarDescription(task.name, dtype, fmean(scores), pstdev(scores) or 1.0, measures)
        if config.process_index == 0:
            description.save(Path(config.output_dir))

    items = load_pairs(config.data_path)
    following = f"{LAUNCHER} ppo {quoted(config.task)} --reward_model {quoted(config.output_dir)}"
    following += " --data_path RECORDS.json --model SFT_RUN --output_dir RUN"
    fine_tune(config, "scalar_reward", items, example, make, following, describe)


@command
def main() -> None:
    train(parse(ScalarRewardSettings))


if __name__ == "__main__":
    main()
