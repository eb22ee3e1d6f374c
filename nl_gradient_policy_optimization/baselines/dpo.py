"""Direct preference optimisation on chosen and rejected pairs (``pairs.py``), as in its original formulation.

    python nl_gradient_policy_optimization/baselines/dpo.py --task slf5k --data_path pairs.json --model runs/sft \\
        --output_dir runs/dpo

The reference is the model it starts from. With an adapter that is its frozen copy, or the model without it.
"""

from dataclasses import dataclass
from typing import Any

from trl import DPOConfig, DPOTrainer

from nl_gradient_policy_optimization.baselines.finetuning import PolicyTuning, Row, fine_tune
from nl_gradient_policy_optimization.baselines.pairs import load_pairs
from nl_gradient_policy_optimization.export import evaluation_command
from text2grad.configs import parse
from text2grad.errors import command
from text2grad.models import load_model
from text2grad.tasks import get_task


@dataclass
class DPOSettings(PolicyTuning, DPOConfig):
    """Settings of DPO; ``beta`` and ``loss_type`` are TRL's."""


class PairTrainer(DPOTrainer):
    """``DPOTrainer`` on token ids that are ready: the prompt's are those that the policy is sampled with."""

    def _prepare_dataset(self, dataset, *_):
        return dataset


def example(prompt: list[int], chosen: list[int], rejected: list[int]) -> Row:
    return {"prompt_ids": prompt, "chosen_ids": chosen, "rejected_ids": rejected}


def train(config: DPOSettings) -> None:
    """Train, and leave the adapter (or model) in ``config.output_dir``."""

    def make(**options: Any) -> PairTrainer:
        reference = load_model(config.model, config.weights_dtype) if not config.lora else None
        return PairTrainer(ref_model=reference, **config.policy(), **options)

    following = evaluation_command(get_task(config.task), config.output_dir)
    fine_tune(config, "dpo", load_pairs(config.data_path), example, make, following)


@command
def main() -> None:
    train(parse(DPOSettings))


if __name__ == "__main__":
    main()
